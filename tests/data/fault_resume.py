"""Fault 20: any number of workers, and a resume at every step, see the same examples in the same
order.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import yaml

from runner.batch import Cursor
from runner.data.table import Table as Files
from runner.data.table import open_table
from tests.conftest import Zygote
from tests.data.clicks import SCHEMA, clicks, options
from tests.fault_table import Table
from tests.whole.identity import differences, examples_by_cursor

STEPS, BATCH = 40, 32
WORKERS = (0, 2, 8)
SETTINGS = (
    "--allow", "tests", "task._target_=tests.whole.traced.Traced",
    "dataset=parquet", "dataset.window_rows=64", f"trainer.max_steps={STEPS}",
    f"trainer.batch_size={BATCH}", "trainer.num_threads=1", "trainer.log_every=7",
    "trainer.eval_every=11", "checkpoint.save_every=1", "model.net.bottom=[8]",
    "model.net.top=[8]", "model.net.embedding_dim=4",
)  # fmt: skip


def every_position(table: Table, top: Path, *, short: bool) -> None:
    """40 positions of an epoch: the rest of it is the same with 0, 2 and 8 workers."""
    table.fault = "20: order, any workers"
    path = top / "x.parquet"
    pq.write_table(clicks(STEPS * BATCH - 5), path, row_group_size=100)
    made_of = Files(**options(path=str(path)))
    made_of.check()
    read = [open_table(made_of, window_rows=1, prefetch=n % 3, workers=n) for n in WORKERS]
    whole = list(read[0].batches("train", batch_size=BATCH, seed=3))
    assert len(whole) == STEPS
    for step in range(0, STEPS, 8 if short else 1):

        def outcome(step=step) -> str:
            for data in read:
                at = Cursor(0, step * BATCH)
                rest = list(data.batches("train", batch_size=BATCH, seed=3, start=at))
                assert len(rest) == STEPS - step
                for one, two in zip(rest, whole[step:]):
                    assert one.cursor == two.cursor and one.rows_B.equal(two.rows_B)
                    assert one.sparse.values().equal(two.sparse.values())
                    assert one.dense_BD.equal(two.dense_BD)
            return "the same examples"

        table.judge(f"step {step}", outcome)


def every_resume(table: Table, top: Path, *, short: bool) -> None:
    """A run of 40 steps over more than an epoch, killed at each and resumed with other workers."""
    table.fault = "20: killed at each of 40 steps"
    (top / "server").mkdir()
    runner = Zygote(top / "server")
    path = top / "x.parquet"
    pq.write_table(clicks(1000), path, row_group_size=100)
    schema = {
        **SCHEMA,
        "labels": {"click": {}},
        "split": {"random": {"train": 0.9, "validation": 0.1}},
    }
    (top / "schema.yaml").write_text(yaml.safe_dump(schema, sort_keys=False))

    def train(run: Path, workers: int, kill: str = "") -> int:
        words = (f"dataset.schema={top / 'schema.yaml'}", f"dataset.path={path}")
        env = {"TRACE_FILE": f"{run}.trace", "TRACE_KILL": kill}
        more = (*words, f"dataset.workers={workers}", f"hydra.run.dir={run}")
        return runner.run(*SETTINGS, *more, env=env).code

    try:
        untouched = top / "untouched"
        assert train(untouched, 0) == 0
        examples = examples_by_cursor(Path(f"{untouched}.trace"))
        for step in range(3, STEPS + 1, 18) if short else range(1, STEPS + 1):

            def outcome(step=step) -> str:
                run = top / f"killed-{step}"
                assert train(run, WORKERS[step % 3], f"step:{step}") == -9
                assert train(run, WORKERS[(step + 1) % 3]) == 0
                assert not differences(run, untouched)
                assert examples_by_cursor(Path(f"{run}.trace")) == examples
                return "the same run"

            table.judge(f"step {step}", outcome)
    finally:
        runner.server.stdin.close()  # type: ignore[union-attr]
        runner.server.wait()
