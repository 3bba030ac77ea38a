"""Fitted transforms that a run directory lost: fitted anew if they come out the same."""

from __future__ import annotations

import json
import shutil

import pyarrow.parquet as pq
import pytest
import yaml

from runner.data.core.fitted import FittedTransforms, check_fitted_transforms
from runner.errors import DataError
from tests.conftest import TINY
from tests.data.clicks import SCHEMA, clicks
from tests.whole.compare_runs import differences
from tests.whole.test_edited_run import PAIR, SHORT, again


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> tuple[str, ...]:
    top = tmp_path_factory.mktemp("table")
    pq.write_table(clicks(1200), top / "x.parquet", row_group_size=100)
    split = {"random": {"train": 0.8, "validation": 0.1, "test": 0.1}}
    schema = {**SCHEMA, "labels": {"click": {}}, "split": split}
    (top / "schema.yaml").write_text(yaml.safe_dump(schema, sort_keys=False))
    mine = [word for word in SHORT if not word.startswith("dataset.")]
    return (
        *mine, "dataset=parquet", f"dataset.schema={top / 'schema.yaml'}",
        f"dataset.path={top / 'x.parquet'}",
    )  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("ranks", [(), PAIR], ids=["1 rank", "2 ranks"])
def test_lost_transforms_are_fitted_anew_only_if_they_come_out_the_same(
    runner, table, tmp_path, ranks
):
    run, meanwhile = tmp_path / "run", tmp_path / "whole"
    env = {"TRACE_FILE": f"{tmp_path}/trace"}
    runner.run(*table, *ranks, f"hydra.run.dir={meanwhile}", env=env).check()
    kill = {**env, "TRACE_KILL": "step:18"}
    assert runner.run(*table, *ranks, f"hydra.run.dir={run}", env=kill).code != 0
    learnt = run / "data" / "learnt.json"
    before = learnt.read_bytes()
    learnt.unlink()
    code, told = again(runner, "resume", run)
    assert code == 0, told
    assert "learnt.json was missing; it is made again, with the same content" in told
    assert json.loads(learnt.read_bytes())["sha256"] == json.loads(before)["sha256"]
    assert differences(run, meanwhile) == []

    learnt.unlink()
    code, told = again(runner, "loop=eval", run)
    assert code == 0 and "was missing" in told, told
    assert not learnt.exists()  # an evaluation writes nothing into its source
    other = tmp_path / "other.parquet"
    pq.write_table(clicks(700, seed=5), other, row_group_size=100)
    code, told = again(runner, "loop=eval", run, f"dataset.path={other}")
    assert code == 2, told
    assert f"{learnt} is missing" in told and "put the file" in told


def test_transforms_without_types_of_ids_are_those_of_an_earlier_version(tmp_path):
    with_types = FittedTransforms(num_rows={"a": 3}, id_types={"a": "integer"})
    before = FittedTransforms(num_rows={"a": 3})

    class Data:
        def save_fitted_transforms(self, folder):
            with_types.save(folder)

    for recorded in (with_types, before):
        check_fitted_transforms(Data(), tmp_path, recorded.digest())
    with pytest.raises(DataError, match="is missing, and transforms fitted"):
        check_fitted_transforms(Data(), tmp_path, FittedTransforms(num_rows={"a": 4}).digest())
    other = FittedTransforms(num_rows={"a": 3}, id_types={"a": "string"})
    with pytest.raises(DataError, match="is missing, and transforms fitted"):
        check_fitted_transforms(Data(), tmp_path, other.digest())


@pytest.mark.long
def test_transforms_of_another_run_are_refused(runner, table, tmp_path):
    run, env = tmp_path / "run", {"TRACE_FILE": f"{tmp_path}/trace"}
    runner.run(*table, f"hydra.run.dir={run}", env={**env, "TRACE_KILL": "step:18"}).check(-9)
    learnt = run / "data" / "learnt.json"
    values = json.loads(learnt.read_text())
    learnt.write_text(json.dumps({**values, "sha256": "0" * 64}))
    for verb in ("resume", "loop=eval"):
        code, told = again(runner, verb, run)
        assert code == 2, told
        assert "learnt.json is damaged, or of another run" in told


@pytest.mark.long
def test_a_schema_that_was_changed_or_deleted_is_the_copy_of_the_run_for_all_that_uses_it(
    runner, tmp_path
):
    home, run = tmp_path / "home", tmp_path / "run"
    home.mkdir()
    pq.write_table(clicks(600), home / "x.parquet")
    split = {"random": {"train": 0.8, "validation": 0.1, "test": 0.1}}
    columns = {**SCHEMA, "labels": {"click": {}}, "split": split, "path": "x.parquet"}
    schema = home / "schema.yaml"
    schema.write_text(json.dumps(columns))
    mine = [word for word in TINY if not word.startswith("dataset.")]
    runner.run(*mine, "dataset=parquet", f"dataset.schema={schema}", f"hydra.run.dir={run}").check()
    metrics = json.loads((run / "result.json").read_text())["metrics"]
    expected = {name: value for name, value in metrics.items() if name.startswith("test/")}

    (home / "x.parquet").rename(tmp_path / "x.parquet")  # where files are may be changed
    changed = json.loads(json.dumps({**columns, "path": "../x.parquet"}))
    changed["numeric"]["price"]["log1p"] = False
    changed["split"]["random"] = {"train": 0.5, "validation": 0.2, "test": 0.3}
    schema.write_text(json.dumps(changed))
    for number in range(2):
        if number:
            schema.unlink()
            (tmp_path / "x.parquet").rename(home / "x.parquet")
        out = tmp_path / f"eval{number}"
        done = runner.run("loop=eval", f"run={run}", f"hydra.run.dir={out}")
        code, told = done.code, done.text
        assert code == 0 and "its copy in the run's data/ is used" in told, told
        assert "have changed" not in told
        assert json.loads((out / "result.json").read_text())["metrics"] == expected
        runner.run("export", f"{run}", "--out", f"{tmp_path / f'model{number}'}").check()
        runner.run("importance", f"{run}", "--method", "shark").check()
        scores = tmp_path / f"scores{number}"
        runner.run("predict", f"{run}", "--split", "test", "--out", f"{scores}").check()
        runner.run("refit", f"{run}", f"hydra.run.dir={tmp_path / f'refit{number}'}").check()
    runner.run("resume", f"{run}", "trainer.max_steps=50").check()


@pytest.mark.long
def test_a_run_with_the_transforms_of_another_needs_that_one_no_longer(runner, table, tmp_path):
    source, run = tmp_path / "source", tmp_path / "run"

    def call(*words):
        return runner.run(*words, env={"TRACE_FILE": f"{tmp_path}/trace", "RUNNER_ALLOW": "tests"})

    call(*table, f"hydra.run.dir={source}").check()
    learnt = f"dataset.learnt={source / 'data'}"
    call(*table, learnt, f"hydra.run.dir={run}").check()
    shutil.rmtree(source)
    done = call("reproduce", str(run), f"hydra.run.dir={tmp_path / 'again'}").check()
    assert "identical, bit for bit" in done.text
    call("loop=eval", f"run={run}", f"hydra.run.dir={tmp_path / 'eval'}").check()
    call("resume", str(run), "trainer.max_steps=50").check()
    assert "learnt.json" in call(*table, learnt, f"hydra.run.dir={source}").check(2).text
