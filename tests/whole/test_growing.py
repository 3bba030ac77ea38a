"""Growing tables in whole runs: the order, the ranks and the workers make no difference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from runner.data.growing.settings import NO_ID, Eviction, Growth
from runner.rundir.checkpoint import open_checkpoint, read_tensors, tensor_shapes
from tests.conftest import Zygote
from tests.data.growing import drifting
from tests.data.growing.reference import DictMap
from tests.whole.compare_runs import TRACED, differences, newest_checkpoint, read_result, read_rows

SCHEMAS = {"direct": drifting.DIRECT, "rewritten": drifting.REWRITTEN}
EPOCH = ("trainer.max_epochs=1",)
WIDE = "model=deepfm"  # has first-order tables beside the others, and reads no sequence


def slow(value: str) -> Any:
    return pytest.param(value, marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, ...]]:
    folder = tmp_path_factory.mktemp("data")
    words = {name: drifting.write(folder / name, schema) for name, schema in SCHEMAS.items()}
    words["direct"] = tuple(WIDE if w.startswith("model=") else w for w in words["direct"])
    return words


def train(runner: Zygote, run: Path, *words: str, code: int = 0, **environment: str) -> Path:
    done = runner.run(*words, f"hydra.run.dir={run}", env=environment)
    assert (done.code == 0) == (code == 0), done.text
    return run


def maps(run: Path) -> dict[str, torch.Tensor]:
    saved = open_checkpoint(newest_checkpoint(run))
    return read_tensors(saved, [n for n in tensor_shapes(saved) if n.startswith("growing/")])


@pytest.fixture(scope="module")
def quiet(runner, data, tmp_path_factory) -> dict[str, Path]:
    """Runs that nothing interrupts."""
    folder = tmp_path_factory.mktemp("quiet")
    return {
        name: train(runner, folder / name, *TRACED, *words, *EPOCH, TRACE_FILE=f"{folder}/trace")
        for name, words in data.items()
    }


@pytest.mark.long
@pytest.mark.parity("E16")
def test_the_map_is_what_a_dictionary_makes_of_the_rows_in_their_order(runner, data, tmp_path):
    online = ("loop=online", "dataset.mix=false", "trainer.max_epochs=1")
    run = train(runner, tmp_path / "run", *data["direct"], *online)
    path = next(Path(w.partition("=")[2]).parent for w in data["direct"] if "schema" in w)
    rows = pq.read_table(path / "train.parquet")
    users = DictMap(120, Growth(evict=Eviction("lru", every=3, share=0.3)))
    tags = DictMap(90, Growth(min_count=2, evict=Eviction("lfu", every=4)))
    for start in range(0, 1500, 32):
        part = rows.slice(start, 32)
        users.observe(part["user"].fill_null(NO_ID).to_pylist())
        tags.observe([tag for row in part["tags"].to_pylist() for tag in row])
    found = maps(run)
    for name, expected in (("user", users), ("tags", tags)):
        ids = found[f"growing/{name}/ids"].tolist()
        assert {i: row for row, i in enumerate(ids) if i != NO_ID} == expected.rows
        assert found[f"growing/{name}/updates"].tolist() == [47]
    assert len(users.rows) > 60
    last = read_rows(run, "progressive")[-1]
    assert 60 < last["growing/user/rows"] <= 118
    assert 0 < last["growing/tags/shared"] < 1  # ids that were seen once


@pytest.mark.long
@pytest.mark.parity("E16")
@pytest.mark.parametrize("name", [slow("direct"), "rewritten"])
@pytest.mark.parity("N14")
def test_a_killed_run_resumes_bit_for_bit(runner, data, quiet, tmp_path, name):
    run = tmp_path / "run"
    words = (*TRACED, *data[name], *EPOCH)
    for kill in ("step:13", "step:9"):
        train(runner, run, *words, code=1, TRACE_FILE=f"{run}.trace", TRACE_KILL=kill)
    train(runner, run, *words, TRACE_FILE=f"{run}.trace")
    assert differences(run, quiet[name]) == []


@pytest.mark.slow
def test_a_killed_run_with_rows_of_16_bits_on_disk_resumes_bit_for_bit(runner, data, tmp_path):
    run, whole = tmp_path / "run", tmp_path / "whole"
    words = (*TRACED, *data["rewritten"], *EPOCH, "optimizer.sparse.dtype=bf16", "sharding=disk")
    train(runner, whole, *words, TRACE_FILE=f"{whole}.trace")
    train(runner, run, *words, code=1, TRACE_FILE=f"{run}.trace", TRACE_KILL="step:13")
    train(runner, run, *words, TRACE_FILE=f"{run}.trace")
    assert differences(run, whole) == []


@pytest.mark.long
@pytest.mark.parametrize("how", ["dataset.workers=2", slow("dataset.prefetch=3")])
def test_readers_make_no_difference(runner, data, quiet, tmp_path, how):
    words = (*TRACED, *data["rewritten"], *EPOCH, how)
    run = train(runner, tmp_path / "run", *words, TRACE_FILE=str(tmp_path / "trace"))
    assert differences(run, quiet["rewritten"]) == []


@pytest.mark.long
@pytest.mark.parity("E16")
@pytest.mark.parametrize("plan", ["row_wise", slow("data_parallel")])
def test_two_ranks_have_the_maps_of_one(runner, data, quiet, tmp_path, plan):
    ranks = ("trainer.num_processes=2", "trainer.batch_size=16", f"sharding={plan}")
    run = train(runner, tmp_path / "run", *data["direct"], *EPOCH, *ranks)
    ours, theirs = maps(run), maps(quiet["direct"])
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    for mine, other in zip(read_rows(run, "validation"), read_rows(quiet["direct"], "validation")):
        assert mine["auc"] == pytest.approx(other["auc"], abs=1e-4)
        assert mine["loss"] == pytest.approx(other["loss"], abs=1e-4)


@pytest.mark.parity("E16")
@pytest.mark.parametrize("name", ["direct", slow("rewritten")])
def test_an_evaluation_has_the_rows_of_its_checkpoint(runner, data, quiet, tmp_path, name):
    run = quiet[name]
    words = ("--allow", "tests", "loop=eval", f"run={run}")
    train(runner, tmp_path / "eval", *words, TRACE_FILE=str(tmp_path / "trace"))
    ours = read_result(tmp_path / "eval")["metrics"]
    theirs = {k: v for k, v in read_result(run)["metrics"].items() if k.startswith("test/")}
    assert ours == theirs
