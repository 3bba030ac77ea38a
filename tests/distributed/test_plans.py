"""`sharding` in whole runs: plans of single tables, and the refusals with their names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import TINY, Finished, Zygote

TWO = ("trainer.num_processes=2", "trainer.rank_timeout_s=30", "trainer.max_steps=3")
ADAGRAD_ON_C1 = 'optimizer.parts=[{pattern: "^tables.C1$", sparse: {kind: adagrad, lr: 0.1}}]'
LAMB_ON_C1 = 'optimizer.parts=[{pattern: "^tables.C1$", sparse: {kind: lamb, lr: 0.1}}]'
TINY_DEVICE = "sharding.device_memory_gb=0.000001"


def run(runner: Zygote, folder: Path, *words: str) -> Finished:
    return runner.run(*TINY, *words, f"hydra.run.dir={folder}")


def plans(folder: Path) -> dict[str, str]:
    shards = json.loads((folder / "sharding.json").read_text())["pieces"]
    return {shard["table"]: shard["plan"] for shard in shards}


@pytest.mark.long
@pytest.mark.parametrize(
    "words",
    [
        ("sharding.tables={C1: table_wise, C2: data_parallel}",),
        ("+sharding.tables={C1: table_wise}", "sharding.tables.C2=data_parallel"),
    ],
)
@pytest.mark.parity("E7")
def test_a_table_has_a_plan_of_its_own(runner, tmp_path, words):
    run(runner, tmp_path / "run", *TWO, "sharding=row_wise", *words).check()
    found = plans(tmp_path / "run")
    assert found.pop("C1") == "table_wise"
    assert found.pop("C2") == "data_parallel"
    assert set(found.values()) == {"row_wise"}


@pytest.mark.parametrize("ranks", [(), TWO], ids=["one", "two"])
@pytest.mark.parametrize(
    "word", ["sharding.tables.C99=row_wise", "sharding.tables={C99: row_wise}"]
)
def test_a_table_that_the_model_does_not_have_is_refused(runner, tmp_path, ranks, word):
    done = run(runner, tmp_path / "run", *ranks, word).check(2)
    assert "sharding.tables.C99: the model has no such table; nearest: 'C9'" in done.text


@pytest.mark.long
def test_a_plan_is_checked_against_the_part_that_has_the_table(runner, tmp_path):
    run(runner, tmp_path / "run", *TWO, "sharding.tables.C1=column_wise", ADAGRAD_ON_C1).check()
    assert plans(tmp_path / "run")["C1"] == "column_wise"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ("sharding.tables.C1=column_wise", "optimizer=adagrad", LAMB_ON_C1),
            "what optimizer.parts[0].sparse.kind=lamb does",
        ),
        (("sharding.tables={C1: table_wse}",), "nearest: 'table_wise'"),
        (("optimizer=adam", "sharding.inter_host_gb_per_s=1"), "our own exchange has all tables"),
        (
            ("optimizer=adam", LAMB_ON_C1, "trainer.pipeline=sparse_dist"),
            "optimizer.sparse.kind=adam, optimizer.parts[0].sparse.kind=lamb",
        ),
    ],
)
def test_what_patterns_alone_show_to_be_wrong_is_refused_before_torch(
    runner, tmp_path, words, says
):
    assert says in run(runner, tmp_path / "run", *TWO, *words).check(2).text
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_what_the_tables_show_to_be_wrong_is_refused_with_the_part_that_has_them(runner, tmp_path):
    """Whether a part has a table with the group's plan is known once the tables are there."""
    words = ("sharding=column_wise", "sharding.tables.C1=row_wise", "optimizer=adagrad")
    run(runner, tmp_path / "one", *TWO, *words, LAMB_ON_C1).check()
    lamb_on_all = LAMB_ON_C1.replace("C1$", "C")
    all_of_them = run(runner, tmp_path / "all", *TWO, *words, lamb_on_all).check(2)
    assert "what optimizer.parts[0].sparse.kind=lamb does" in all_of_them.text


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("optimizer=adam",), "rank 0 would hold"),
        (("sharding=data_parallel",), "rank 0 would hold"),
        (("optimizer=adam", "sharding=table_wise"), "would hold"),
        ((), "TorchRec's planner finds no way"),
    ],
)
def test_tables_must_fit_whoever_holds_them(runner, tmp_path, words, says):
    assert says in run(runner, tmp_path / "run", *TWO, *words, TINY_DEVICE).check(2).text
