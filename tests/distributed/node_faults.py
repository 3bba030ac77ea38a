"""Fault 26: one node of two is lost, again and again; the other goes on, and it comes back.

`python -m tests.distributed.node_faults` counts 20 losses: torchrun's agent of a node is killed, or
its link is cut, at a random update. A job ends well if what is left of it goes on by itself each
time, trains in the same order of examples, and ends with the result of one process that nothing
has disturbed, up to rounding. FAULT_SEED in the environment is the seed of the moments.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

from tests.conftest import ROOT, TINY
from tests.data.faults import own_cache
from tests.distributed.nodes import Nodes, make_nodes, wait_for_update, why_no_nodes
from tests.distributed.test_runs import TRACED, assert_close
from tests.distributed.traced import examples
from tests.fault_table import Table, count_faults
from tests.reliability.cases import fault_seed

LOSSES, PER_JOB = 20, 5
UPDATES_PER_LOSS = 120
SETTINGS = (
    *TRACED,
    *TINY,
    "dataset.rows={train: 3011, validation: 501, test: 500}",
    "trainer.log_every=1",
    "trainer.eval_every=50",
    "trainer.rank_timeout_s=10",
)
ROWS_OF_UPDATE = 120


class Job:
    """A job on two nodes, of which one may be lost at a time."""

    plan = ("sharding=row_wise", "trainer.batch_size=30", "trainer.accumulate=2")

    def __init__(
        self, nodes: Nodes, folder: Path, *words: str, elastic: bool = True, ranks: int = 1
    ) -> None:
        """Start it; `words` win over the plan, and each node has so many `ranks`."""
        self.nodes, self.folder, self.trace = nodes, folder, Path(f"{folder}.trace")
        self.words = (*SETTINGS, *self.plan, *words, f"hydra.run.dir={folder}")
        self.ranks = ranks
        self.size = {"nodes": "1:2", "restarts": 3} if elastic else {"nodes": "2"}
        self.name = f"{folder.name}-{time.monotonic_ns()}"
        self.agents = [self.start_agent(number) for number in (0, 1)]

    def start_agent(self, number: int) -> subprocess.Popen:
        env = {"TRACE_FILE": str(self.trace), "TRACE_PAUSE_S": "0.05", "TRACE_ALONE_S": "1"}
        with open(f"{self.folder}.node-{number}.txt", "a") as output:
            return self.nodes.start_agent(
                number,
                self.words,
                job=self.name,
                output=output,
                env=env,
                ranks=self.ranks,
                **self.size,
            )

    def updates_of_rank(self, rank: int, more: int) -> None:
        wait_for_update(Path(f"{self.trace}.{rank}"), more, self.agents)

    def lose(self, number: int, fault: str) -> None:
        if fault == "killed":
            self.agents[number].kill()
            self.agents[number].wait()
        else:
            self.nodes.set_link(number, "down")

    def bring_back(self, number: int) -> None:
        self.agents[number].kill()  # one whose link was cut gives up by itself, but slowly
        self.agents[number].wait()
        self.nodes.set_link(number, "up")
        self.agents[number] = self.start_agent(number)

    def end(self) -> None:
        codes = [agent.wait(timeout=300) for agent in self.agents]
        assert codes == [0, 0], (codes, self.said()[-4000:])

    def said(self) -> str:
        return "".join(Path(f"{self.folder}.node-{n}.txt").read_text() for n in (0, 1))


def lose_nodes(nodes: Nodes, folder: Path, losses: int, rng: random.Random) -> str:
    """Lose one node after the other; return how often which was lost in which way."""
    job = Job(nodes, folder, f"trainer.max_steps={losses * UPDATES_PER_LOSS}")
    lost = []
    for _ in range(losses):
        job.updates_of_rank(1, rng.randint(2, 15))  # both train, as there is a rank 1
        fault, number = rng.choice(("killed", "cut")), len(lost) % 2
        job.lose(number, fault)
        lost.append(f"node {number} {fault}")
        other = [job.agents[1 - number]]
        assert other[0].poll() is None, f"it had ended before {lost}"
        # the other one is rank 0 now, and what it trains alone comes after its rank's last update
        wait_for_update(job.trace.with_name(f"{job.trace.name}.0"), rng.randint(3, 12), other)
        assert other[0].poll() is None, (lost, job.said()[-4000:])
        job.bring_back(number)
        print(lost[-1], file=sys.stderr, flush=True)
    job.end()
    return ", ".join(lost)


def train_undisturbed(folder: Path, *words: str) -> None:
    """Train on one machine, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "runner", *SETTINGS, *words, f"hydra.run.dir={folder}"],
        cwd=ROOT,
        env={**os.environ, "TRACE_FILE": f"{folder}.trace"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def assert_same(run: Path, undisturbed: Path) -> None:
    """Check the result, and that every update had its examples in their order, on 1 or 2 ranks."""
    assert_close(run, undisturbed, atol=1e-5)
    whole = examples(Path(f"{undisturbed}.trace"), 1)
    for rank in (0, 1):
        for line in Path(f"{run}.trace.{rank}").read_text().splitlines():
            row = json.loads(line)
            expected, rows = whole[tuple(row["cursor"])], row["rows"]
            part = expected[: len(rows)] if rank == 0 else expected[-len(rows) :]
            assert rows == part, (rank, row["cursor"])
            assert len(rows) in {len(expected), len(expected) // 2, -(-len(expected) // 2)}


def lost_nodes(table: Table, top: Path, *, short: bool) -> None:
    """Lose nodes in jobs of a few losses each."""
    table.fault = "26: a node of two is lost"
    table.skipped = why_no_nodes()
    if table.skipped:
        return
    losses, undisturbed, rng = (
        1 if short else PER_JOB,
        top / "undisturbed",
        random.Random(fault_seed()),
    )
    length = f"trainer.max_steps={losses * UPDATES_PER_LOSS}"
    train_undisturbed(undisturbed, length, f"trainer.batch_size={ROWS_OF_UPDATE}")
    with make_nodes(2) as nodes:
        for number in range(1 if short else LOSSES // PER_JOB):

            def judged(number: int = number) -> str:
                run = top / f"job-{number}"
                lost = lose_nodes(nodes, run, losses, rng)
                assert_same(run, undisturbed)
                print(f"well: {lost}", file=sys.stderr, flush=True)
                return "went on and ended as undisturbed"

            table.judge(f"job {number}", judged)


if __name__ == "__main__":
    sys.exit(count_faults({"lost_nodes": lost_nodes}, __doc__, around=own_cache))
