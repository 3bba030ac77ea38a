"""Fault 20: any number of workers and ranks, and a resume at any step, see the same examples.

They see them in the same order, too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import torch
import yaml

from runner.batch import Batch, DataPosition
from runner.data.tabular.table import open_table
from runner.data.tabular.table_recipe import TableRecipe
from tests.conftest import Zygote
from tests.data.clicks import SCHEMA, clicks, recipe_settings
from tests.distributed.traced import examples
from tests.fault_table import Table
from tests.whole.compare_runs import differences

STEPS, BATCH = 40, 32
WORKERS = (0, 2, 4, 8)
SETTINGS = (
    "--allow", "tests", "task._target_=tests.distributed.traced.Traced",
    "dataset=parquet", "dataset.window_rows=64", f"trainer.max_steps={STEPS}",
    "trainer.num_threads=1", "trainer.log_every=7", "trainer.eval_every=11",
    "checkpoint.save_every=1", "model.net.bottom=[8]", "model.net.top=[8]",
    "model.net.embedding_dim=4", "report=false", "trainer.rank_timeout_s=30",
)  # fmt: skip


def every_position(table: Table, top: Path, *, short: bool) -> None:
    """From 40 positions of an epoch, read the rest with 0 to 8 workers, and on 1 and 2 ranks."""
    table.fault = "20: order, any workers and ranks"
    path = top / "x.parquet"
    pq.write_table(clicks(STEPS * BATCH - 5), path, row_group_size=100)
    recipe = TableRecipe(**recipe_settings(path=str(path)))
    recipe.check()
    read = [open_table(recipe, window_rows=1, prefetch=n % 3, workers=n) for n in WORKERS]
    whole = list(read[0].batches("train", batch_size=BATCH, seed=3))
    assert len(whole) == STEPS
    for step in range(0, STEPS, 8 if short else 1):

        def outcome(step=step) -> str:
            for data in read:
                at = DataPosition(0, step * BATCH)
                rest = list(data.batches("train", batch_size=BATCH, seed=3, start=at))
                assert len(rest) == STEPS - step
                for one, two in zip(rest, whole[step:]):
                    assert_same(one, two)
                of_ranks = [
                    data.batches(
                        "train", batch_size=BATCH // 2, seed=3, start=at, rank=r, world_size=2
                    )
                    for r in (0, 1)
                ]
                for one, parts in zip(whole[step:], zip(*of_ranks, strict=True), strict=True):
                    rows = torch.cat([part.rows_B for part in parts])
                    assert rows.equal(one.rows_B), "one after the other: the global batch"
                    assert all(part.cursor == one.cursor for part in parts)
                    assert torch.cat([p.dense_BD for p in parts]).equal(one.dense_BD)
            return "the same examples"

        table.judge(f"step {step}", outcome)


def assert_same(one: Batch, two: Batch) -> None:
    assert one.cursor == two.cursor and one.rows_B.equal(two.rows_B)
    assert one.sparse.values().equal(two.sparse.values())
    assert one.dense_BD.equal(two.dense_BD)


def every_resume(table: Table, top: Path, *, short: bool) -> None:
    """Kill a run of 40 steps, over more than an epoch, at each step; resume with other workers."""
    table.fault = "20: killed at each step, 1 rank"
    train = trainer(table.runner(), top)
    _kill_everywhere(table, train, top / "runs", num_ranks=1, short=short)


def every_resume_of_ranks(table: Table, top: Path, *, short: bool) -> None:
    """Kill either of two ranks at each step; the examples are those of one process."""
    table.fault = "20: killed at each step, 2 ranks"
    train = trainer(table.runner(), top)
    alone = top / "alone"
    assert train(alone, 1, 0) == 0
    untouched = _kill_everywhere(table, train, top / "runs", num_ranks=2, short=short)
    assert untouched == examples(Path(f"{alone}.trace"), 1), "1 and 2 ranks differ"


def trainer(runner: Zygote, top: Path) -> Callable[..., int]:
    """Return a function that trains in a folder and returns the exit code.

    It trains on so many ranks with so many workers, to the end or until it is killed.
    """
    path = top / "x.parquet"
    pq.write_table(clicks(1000), path, row_group_size=100)
    schema = {
        **SCHEMA,
        "labels": {"click": {}},
        "split": {"random": {"train": 0.9, "validation": 0.1}},
    }
    (top / "schema.yaml").write_text(yaml.safe_dump(schema, sort_keys=False))

    def train(run: Path, num_ranks: int, workers: int, kill: str = "") -> int:
        words = [f"dataset.schema={top / 'schema.yaml'}", f"dataset.path={path}"]
        words += [f"dataset.workers={workers}", f"hydra.run.dir={run}"]
        words += [f"trainer.batch_size={BATCH // num_ranks}", f"trainer.num_processes={num_ranks}"]
        env = {"TRACE_FILE": f"{run}.trace", "TRACE_KILL": kill}
        return runner.run(*SETTINGS, *words, env=env).code

    return train


def _kill_everywhere(table: Table, train, top: Path, *, num_ranks: int, short: bool) -> dict:
    """Kill before each step with 0, 2 and 4 workers; in the short tier before one step only.

    To save time, two ranks have one of these numbers of workers in turn.

    Returns:
        The examples of every update of a run that is not killed.
    """
    top.mkdir()
    untouched = top / "untouched"
    assert train(untouched, num_ranks, 0) == 0
    seen = examples(Path(f"{untouched}.trace"), num_ranks)
    for step in (17,) if short else range(1, STEPS + 1):
        pairs = list(itertools.pairwise(WORKERS))  # before and after the kill
        if short or num_ranks > 1:
            pairs = [pairs[step % len(pairs)]]
        for workers, others in pairs:

            def outcome(step=step, workers=workers, others=others) -> str:
                run = top / f"killed-{step}-{workers}"
                died = train(run, num_ranks, workers, f"{step % num_ranks}:{step}")
                assert died == (-9 if num_ranks == 1 else 1)  # of two: the other tells it
                assert train(run, num_ranks, others) == 0
                assert not differences(run, untouched)
                assert examples(Path(f"{run}.trace"), num_ranks) == seen
                return f"the same run, {workers} then {others} workers"

            table.judge(f"step {step}, {workers} workers", outcome)
    return seen
