"""Faults 18 and 25: sweeps of thousands of jobs, killed, out of disk and out of memory.

`python -m tests.sweep.faults` runs both in full, `... --short` a small one of each. The exit code
is 0 if they passed.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from tests.fault_table import Table, count_faults
from tests.reliability.cases import fault_seed
from tests.sweep.stand_in import MIXED
from tests.sweep.test_killed import begin, gone, many, num_ended, pids, until
from tests.sweep.test_sweep import board
from tests.whole.fault_resources import small_disk

PATIENCE_S = 1200
TROUBLES = 20  # of the week, in full
GOOD = ("ok", "sigkill_once")


def empty_jobs(table: Table, top: Path, *, short: bool) -> None:
    """Kill a sweep of 10,000 empty jobs 20 times."""
    table.fault = "18: 10,000 empty jobs"
    count = 200 if short else table.size(10_000)

    def outcome() -> str:
        _, cpu = many(top / "s", count, 4 if short else 20)
        assert cpu < 20, f"{cpu:.1f} ms of the processor a job"
        return f"{count:,} jobs ended once, {cpu:.1f} ms of the processor each"

    table.judge(f"{count} jobs", outcome, weight=count)


class Week:
    """A sweep on a small disk, one command after the other, and what comes upon them."""

    def __init__(self, place: Path, count: int) -> None:
        self.place, self.sweep, self.count = place, place / "s", count
        self.dice = random.Random(fault_seed())
        self.happened: Counter[str] = Counter()

    def begin(self, directory: Path) -> subprocess.Popen:
        grid = {"do": ["mixed"], "steps": 2, "step_s": 0.01, "number": list(range(self.count))}
        request = {"grid": grid, "slots": 4, "retries": 1}
        return begin(directory, output=subprocess.DEVNULL, **request)

    def go_on(self, command: subprocess.Popen, number: int) -> None:
        """Wait until the sweep has done a few more jobs, or has ended."""
        goal = num_ended(self.sweep) + number
        until(lambda: command.poll() is not None or num_ended(self.sweep) >= goal, PATIENCE_S)
        time.sleep(self.dice.uniform(0, 0.1))

    def kill_parent(self, command: subprocess.Popen) -> None:
        command.kill()
        command.wait()

    def terminate_parent(self, command: subprocess.Popen) -> None:
        command.send_signal(self.dice.choice((signal.SIGINT, signal.SIGTERM)))
        assert command.wait(PATIENCE_S) in (0, 1, 130, 143), command.returncode

    def kill_jobs(self, command: subprocess.Popen) -> None:
        """Kill some of the jobs that are at work, thirty times, and the sweep after that."""
        children = Path(f"/proc/{command.pid}/task/{command.pid}/children")
        for _ in range(30):
            for pid in children.read_text().split() if command.poll() is None else ():
                if self.dice.random() < 0.2:
                    with suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
                        self.happened["jobs killed"] += 1
            time.sleep(self.dice.uniform(0, 0.05))
        self.kill_parent(command)

    def fill_disk(self, command: subprocess.Popen) -> None:
        """Take all space but a few pages: the sweep stops by itself, with an error."""
        filler = self.place / "filler"
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 16))
        os.truncate(filler, max(0, filler.stat().st_size - 4096 * self.dice.randrange(8)))
        try:
            code = command.wait(60)
            assert code in (0, 1), f"exit code {code} on a full disk"
        finally:
            self.kill_parent(command)
            filler.unlink()

    def trouble(self) -> None:
        """Let the sweep work for a while, and one of the four come upon it."""
        kinds: tuple[Callable, ...] = (
            self.kill_parent, self.terminate_parent, self.kill_jobs, self.fill_disk,
        )  # fmt: skip
        kind = kinds[sum(self.happened[k.__name__] for k in kinds) % len(kinds)]
        command = self.begin(self.sweep)
        try:
            self.go_on(command, self.dice.randrange(1, 1 + self.count // TROUBLES))
            if command.poll() is None:
                self.happened[kind.__name__] += 1
                kind(command)
        finally:
            self.kill_parent(command)
        until(lambda: gone(pids(self.sweep)))

    def check(self) -> None:
        """Check that an undisturbed command after all that leads to what no trouble leads to."""
        for directory in (self.sweep, self.place / "quiet"):
            code = self.begin(directory).wait(PATIENCE_S)
            assert code == 1, f"exit code {code}; some of the jobs fail by nature"
        rows, quiet = outcomes(self.sweep), outcomes(self.place / "quiet")
        assert len(rows) == self.count, len(rows)
        wrong = [(name, rows[name], quiet[name]) for name in quiet if rows.get(name) != quiet[name]]
        assert not wrong, f"{len(wrong)} jobs ended otherwise: {wrong[:3]}"
        for name, (do, status, *_) in rows.items():
            assert status == ("completed" if do in GOOD else "failed"), (name, do, status)
        # one that was killed after it wrote its result, and before it ended, is tried again
        again = len(list(self.sweep.glob("*/started-though-completed")))
        assert again <= self.happened["jobs killed"], f"{again} started though completed"
        with closing(sqlite3.connect(self.sweep / "study.db")) as study:
            completed = "FROM runner_tries WHERE status = 'completed'"
            total, once = study.execute(
                f"SELECT count(*), count(DISTINCT job) {completed}"
            ).fetchone()
            open_tries = "SELECT count(*) FROM runner_tries WHERE ended IS NULL"
            assert study.execute(open_tries).fetchone() == (0,), "tries without an end"
        good = sum(row[1] == "completed" for row in rows.values())
        # a sweep that died before it noted a job's end finds the result, without a try that has it
        assert total == once <= good == num_ended(self.sweep), (total, once, good)


def outcomes(directory: Path) -> dict[str, tuple[str, ...]]:
    """Return for each job what it does, its status, its numbers and its error."""
    return {
        row["number"]: (
            MIXED[int(row["signature"], 16) % len(MIXED)],
            *(row[key] for key in ("status", "validation/auc", "test/auc", "error")),
        )
        for row in board(directory)
    }


def week(table: Table, top: Path, *, short: bool) -> None:
    """Run 2,000 jobs in spite of 20 troubles; every job ends once, as without any."""
    table.fault = "25: a week of sweeps"
    count = 60 if short else table.size(2000)
    with small_disk(top / "disk", 1 << 30) as is_mounted:
        if not is_mounted:
            table.skipped = "a tmpfs cannot be mounted here"
            return
        scene = Week(top / "disk", count)

        def outcome() -> str:
            for _ in range(4 if short else TROUBLES):
                scene.trouble()
            scene.check()
            told = ", ".join(f"{k.replace('_', ' ')} {n}" for k, n in scene.happened.items())
            return f"{count:,} jobs ended once, as undisturbed ({told})"

        table.judge(f"{count} jobs", outcome, weight=count)


FAULTS = {f.__name__: f for f in (empty_jobs, week)}

if __name__ == "__main__":
    sys.exit(count_faults(FAULTS, __doc__))
