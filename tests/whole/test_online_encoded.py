"""loop=online with vocabularies, crosses, sequences and texts, and on several ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.conftest import Zygote
from tests.data.clicks import SCHEMA, clicks
from tests.data.streaming.files import arrive
from tests.whole.compare_runs import (
    TRACED,
    differences,
    fingerprint,
    newest_checkpoint,
    read_result,
    read_rows,
)
from tests.whole.test_online import MODEL, STREAM, weights, words

NUM_ROWS = 1000


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A schema with columns of all kinds, and four files of 250 rows."""
    folder = tmp_path_factory.mktemp("data")
    schema = {**SCHEMA, "labels": ["click"], "carried": ["id"]}
    (folder / "schema.yaml").write_text(yaml.safe_dump(schema))
    (folder / "files").mkdir()
    whole = clicks(NUM_ROWS)
    for n in range(4):
        arrive(folder / "files", f"{n}.parquet", whole.slice(250 * n, 250), group_rows=70)
    return folder


@pytest.fixture(scope="module")
def trained(runner: Zygote, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """31 updates of `train` in file order, whose transforms are fitted to all rows."""
    run = tmp_path_factory.mktemp("trained") / "run"
    own = ("--allow", "tests", "dataset=parquet", "dataset._target_=tests.whole.in_order.in_order")
    more = ("dataset.mix=false", "trainer.max_epochs=null", "trainer.max_steps=31")
    runner.run(*own, *words(data, run), *more).check()
    return run


@pytest.mark.long
@pytest.mark.parity("L14")
def test_a_stream_with_the_transforms_of_a_run_equals_train_on_the_same_rows(
    runner, data, trained, tmp_path
):
    run = tmp_path / "run"
    runner.run(*STREAM, *words(data, run), f"dataset.learnt={trained / 'data'}").check()
    assert (read_result(run)["step"], read_result(run)["stream_place"]["row"]) == (31, 242)
    assert weights(run) == weights(trained)
    assert [r["loss"] for r in read_rows(run, "progressive")][:4] == [
        r["loss"] for r in read_rows(trained, "train")[:4]
    ]
    for name in ("learnt.json", "vocabulary-0.parquet"):
        assert (run / "data" / name).read_bytes() == (trained / "data" / name).read_bytes()


@pytest.mark.long
@pytest.mark.parity("L14")
def test_transforms_are_fitted_to_the_first_rows_and_kept_while_more_values_come(
    runner, data, tmp_path
):
    """A run over all files at once equals one whose later files come after its first end."""
    files, run, whole = tmp_path / "files", tmp_path / "run", tmp_path / "whole"
    files.mkdir()
    fit = "dataset.fit_rows=200"
    empty = runner.run(*STREAM, *words(data, run, files), fit).check(2)
    assert "has no file yet" in empty.text
    for n in range(4):
        content = (data / "files" / f"{n}.parquet").read_bytes()
        (files / f"{n}.parquet").write_bytes(content)
        if n in (0, 3):
            runner.run(*STREAM, *words(data, run, files), fit).check()
    runner.run(*STREAM, *words(data, whole), fit).check()
    assert weights(run) == weights(whole)
    fitted = [json.loads((r / "data" / "learnt.json").read_text()) for r in (run, whole)]
    assert fitted[0] == fitted[1]
    other = tmp_path / "other"  # fitted to more rows: other vocabularies
    runner.run(*STREAM, *words(data, other)).check()
    assert json.loads((other / "data" / "learnt.json").read_text()) != fitted[0]


def stream(runner: Zygote, data: Path, run: Path, *more: str, kill: str = ""):
    env = {"TRACE_FILE": f"{run}.trace", "TRACE_KILL": kill}
    return runner.run(*TRACED, *STREAM, *words(data, run), *more, env=env)


@pytest.mark.long
@pytest.mark.parity("L14")
def test_two_ranks_learn_from_the_stream_as_one_does(runner, data, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    runner.run(*STREAM, *words(data, one)).check()
    ranks = ("trainer.num_processes=2", "trainer.batch_size=16")
    runner.run(*STREAM, *words(data, two), *ranks).check()
    keys = ("status", "step", "examples", "stream_place", "stream_goes_on")
    assert [read_result(two)[k] for k in keys] == [read_result(one)[k] for k in keys]
    ours, theirs = (
        [(r["step"], r["examples"], r["loss"], r["auc"]) for r in read_rows(run, "progressive")]
        for run in (two, one)
    )
    assert len(ours) == len(theirs) >= 4
    for mine, other in zip(ours, theirs):
        assert mine == pytest.approx(other, abs=1e-5)


@pytest.mark.long
@pytest.mark.parity("L14")
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_killed_stream_with_vocabularies_resumes_bit_for_bit(runner, data, tmp_path, ranks):
    more = (f"trainer.num_processes={ranks}", f"trainer.batch_size={32 // ranks}")
    more += ("model.net.dropout=0.2",)
    run, quiet = tmp_path / "run", tmp_path / "quiet"
    stream(runner, data, quiet, *more).check()
    for kill in ("step:8", "step:15"):
        assert stream(runner, data, run, *more, kill=kill).code != 0
    stream(runner, data, run, *more).check()
    assert differences(run, quiet) == []
    assert fingerprint(newest_checkpoint(run))


def test_ids_without_a_number_of_rows_are_refused_before_anything_is_read(runner, data, tmp_path):
    schema = tmp_path / "schema.yaml"
    columns = {"user": {}, "city": {"encode": "vocabulary"}}
    schema.write_text(yaml.safe_dump({"labels": ["click"], "categorical": columns}))
    place = (f"dataset.path={data / 'files'}", f"dataset.schema={schema}", *MODEL)
    assert "user: num_rows is not set" in runner.run(*STREAM, *place, cwd=tmp_path).check(2).text
    assert not list(tmp_path.glob("outputs/*"))
