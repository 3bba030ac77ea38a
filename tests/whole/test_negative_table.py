"""Runs with a table of hard negatives: kills, ranks and a changed file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
import yaml

from tests.conftest import Zygote
from tests.whole.compare_runs import TRACED, differences, read_result, read_rows

pytestmark = pytest.mark.slow
NUM_USERS, NUM_ITEMS = 60, 50
SCHEMA = {
    "labels": ["click"],
    "categorical": {"user": {"encode": "vocabulary"}, "item": {"encode": "vocabulary"}},
}


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Write pairs, and three other items for each user; return the words of a run on them."""
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for split, size in (("train", 900), ("validation", 200), ("test", 200)):
        user = np.concatenate([np.arange(NUM_USERS), rng.integers(NUM_USERS, size=size)])
        item = np.where(
            rng.random(len(user)) < 0.8, user % 10, rng.integers(NUM_ITEMS, size=len(user))
        )
        item[:NUM_ITEMS] = np.arange(NUM_ITEMS)
        columns = {
            "click": np.ones(len(user), np.int8),
            "user": user,
            "item": [f"i{n}" for n in item],
        }
        pq.write_table(pa.table(columns), folder / f"{split}.parquet", row_group_size=100)
    write_negatives(folder / "hard.csv")
    places = {f"{split}_path": f"{split}.parquet" for split in ("validation", "test")}
    (folder / "schema.yaml").write_text(
        yaml.safe_dump({**SCHEMA, "path": "train.parquet", **places})
    )
    return (
        *("dataset=parquet", f"dataset.schema={folder / 'schema.yaml'}", "model=two_tower"),
        *("model/loss=sampled_softmax", "model.net.item=[item]", "model.net.in_batch=false"),
        *("model.net.uniform=8", f"model.net.hard_table={folder / 'hard.csv'}"),
        *("model.net.embedding_dim=4", "model.net.user_tower=[6]", "model.net.out=4"),
        *("trainer.num_threads=1", "trainer.batch_size=32", "trainer.log_every=7"),
        *("trainer.max_epochs=1", "checkpoint.save_every=5", "report=false"),
        "trainer.yardstick=false",
    )


def write_negatives(path: Path, shift: int = 1) -> None:
    user = np.repeat(np.arange(NUM_USERS), 3)
    item = (user % 10 + shift + np.arange(len(user)) % 3) % NUM_ITEMS
    pacsv.write_csv(pa.table({"user": user, "negatives": [f"i{n}" for n in item]}), path)


def train(runner: Zygote, run: Path, *words: str, code: int = 0, **environment: str) -> str:
    done = runner.run(*words, f"hydra.run.dir={run}", env=environment)
    assert (done.code == 0) == (code == 0), done.text
    return done.text


@pytest.fixture(scope="module")
def quiet(runner, words, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("quiet")
    train(runner, folder / "run", *TRACED, *words, TRACE_FILE=f"{folder}/trace")
    return folder / "run"


@pytest.mark.parity("E15")
def test_a_killed_run_resumes_bit_for_bit_and_not_with_another_table(
    runner, words, quiet, tmp_path
):
    run = tmp_path / "run"
    words = (*TRACED, *words)
    train(runner, run, *words, code=1, TRACE_FILE=f"{run}.trace", TRACE_KILL="step:13")
    path = next(Path(w.partition("=")[2]) for w in words if "hard_table" in w)
    write_negatives(path, shift=2)
    text = train(runner, run, *words, code=1, TRACE_FILE=f"{run}.trace")
    assert "holds other negatives than when this run began" in text and str(path) in text
    write_negatives(path)
    train(runner, run, *words, TRACE_FILE=f"{run}.trace")
    assert differences(run, quiet) == []


@pytest.mark.parametrize(
    "how",
    [
        ("trainer.batch_size=8", "trainer.accumulate=4"),
        ("trainer.num_processes=2", "trainer.batch_size=16", "sharding=row_wise"),
        ("trainer.num_processes=2", "trainer.batch_size=16", "sharding=data_parallel"),
    ],
)
def test_ranks_and_micro_batches_learn_the_same(runner, words, quiet, tmp_path, how):
    train(runner, tmp_path / "run", *words, *how)
    mine, other = (read_rows(run, "train") for run in (tmp_path / "run", quiet))
    assert [row["loss"] for row in mine] == pytest.approx([row["loss"] for row in other], rel=1e-5)
    ours, theirs = read_result(tmp_path / "run")["metrics"], read_result(quiet)["metrics"]
    names = [n for n in theirs if "@" in n]  # a loss has negatives drawn for each batch
    assert names
    for name in names:
        assert ours[name] == pytest.approx(theirs[name], abs=1e-3, nan_ok=True), name


def test_an_evaluation_needs_no_table_and_training_minds_it(runner, words, quiet, tmp_path):
    path = next(Path(w.partition("=")[2]) for w in words if "hard_table" in w)
    kept = path.read_text()
    path.unlink()
    try:
        done = ("--allow", "tests", "loop=eval", f"run={quiet}")
        train(runner, tmp_path / "eval", *done, TRACE_FILE=str(tmp_path / "trace"))
        text = train(runner, tmp_path / "none", *words, code=1)
    finally:
        path.write_text(kept)
    found, trained = read_result(tmp_path / "eval")["metrics"], read_result(quiet)["metrics"]
    assert found == {name: value for name, value in trained.items() if name.startswith("test/")}
    assert f"model.net.hard_table={path}: no such path" in text
    without = [w for w in words if "hard_table" not in w]
    train(runner, tmp_path / "without", *without)
    assert (
        read_rows(tmp_path / "without", "train")[0]["loss"] != read_rows(quiet, "train")[0]["loss"]
    )
