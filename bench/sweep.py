"""Measures what a sweep costs beyond the processes of its jobs.

    python -m bench.sweep [--pairs 7] [--jobs 4] [--empty 40] [--only empty,trainings]

`trainings`: a sweep of small trainings, one at a time, beside the same commands run alone, one
after another, in turns. Each sweep is a whole command: start, composing and checking every job,
the database, leaderboard, page. `empty`: jobs that only write a result, in sweeps of two lengths
and as processes alone; so one more job is told from what a sweep costs once, where it starts and
ends. Wall time is what the target is about; processor time counts all processes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.paired import SHOWN, Estimate, estimate, machine, shown, table
from runner.config.locations import PROJECT

TARGET_S = 0.3  # a job
FEW = 2  # jobs of the shorter sweep of empty ones
TRAINING = (
    "dataset.rows={train: 600, validation: 200, test: 200}",
    "dataset.max_cardinality=100",
    *("trainer.num_threads=1", "trainer.batch_size=100", "trainer.max_steps=4"),
    *("model.net.bottom=[8]", "model.net.top=[8]", "model.net.embedding_dim=4"),
)
# What stands for a job: a process that leaves a record and a result, and has imported nothing.
_EMPTY_JOB = """
import json, os, sys
folder, meta = sys.argv[1], sys.argv[2]
done = {"status": "completed", "step": 1, "metrics": {"validation/auc": 0.5}}
for name, text in (("meta.json", meta), ("result.json", json.dumps(done))):
    with open(os.path.join(folder, name), "w") as file:
        file.write(text)
"""
_INSIDE = "--inside"  # of this module: run a sweep of empty jobs


@dataclass(frozen=True)
class Spent:
    wall_s: float
    cpu_s: float

    def __sub__(self, other: Spent) -> Spent:
        return Spent(self.wall_s - other.wall_s, self.cpu_s - other.cpu_s)

    def shared(self, count: int) -> Spent:
        return Spent(self.wall_s / count, self.cpu_s / count)


def run(command: Sequence[str], **environment: str) -> Spent:
    """Run one command with all its processes to its end.

    Raises:
        RuntimeError: if it fails.
    """
    began_s = time.perf_counter()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=PROJECT,
            env=dict(os.environ, **environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        _, status, used = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - began_s
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            output.seek(0)
            raise RuntimeError(f"exit code {process.returncode}\n{output.read()}")
    return Spent(wall_s, used.ru_utime + used.ru_stime)


def total(all_spent: Sequence[Spent]) -> Spent:
    return Spent(sum(s.wall_s for s in all_spent), sum(s.cpu_s for s in all_spent))


def trainings(folder: Path, count: int) -> Spent:
    """Measure the time for each job that a sweep takes beyond the same commands run alone."""
    seeds = ",".join(str(seed) for seed in range(count))
    sweep = run(["-m", "runner", "-m", f"seed={seeds}", *TRAINING, place("sweep", folder / "s")])
    alone = [
        run(
            ["-m", "runner", f"seed={seed}", *TRAINING, place("run", folder / f"alone-{seed}")],
            RUNNER_SWEEP="alone",  # so that it makes no page of its own, as no job of a sweep does
        )
        for seed in range(count)
    ]
    return (sweep - total(alone)).shared(count)


def place(kind: str, folder: Path) -> str:
    return f"hydra.{kind}.dir={json.dumps(str(folder))}"


def empty(folder: Path, count: int) -> tuple[Spent, Spent]:
    """Measure what each further job costs beyond its process, and what a sweep costs once."""
    few, many = (
        run(["-m", "bench.sweep", _INSIDE, str(n), str(folder / f"of-{n}")])
        for n in (FEW, FEW + count)
    )
    alone = folder / "alone"
    alone.mkdir()
    words = ["-I", "-S", "-c", _EMPTY_JOB, str(alone), "{}"]
    one = total([run(words) for _ in range(count)]).shared(count)
    more = (many - few).shared(count)
    return more - one, few - Spent(FEW * more.wall_s, FEW * more.cpu_s)


def sweep_of_empty_jobs(count: int, folder: str) -> int:
    """The command `python -m runner -m`, whose jobs do nothing."""
    from runner.cli.flags import parse_flags
    from runner.cli.multirun import multirun
    from runner.config.targets import allowed_packages
    from runner.sweep.local_process import JOB_LOG_FILE, LocalProcess, job_environment

    def start(plan: Any, flags: Sequence[str], name: str) -> Any:
        env = dict(os.environ, **job_environment(plan, name))

        def begin(job: Any, folder: Path, slot: int) -> LocalProcess:
            meta = json.dumps({"signature": job.signature, "overrides": job.overrides})
            words = [sys.executable, "-I", "-S", "-c", _EMPTY_JOB, str(folder), meta]
            return LocalProcess(words, folder / JOB_LOG_FILE, env)

        return begin

    seeds = ",".join(str(seed) for seed in range(count))
    flags = parse_flags(["-m", f"seed={seeds}", *TRAINING, place("sweep", Path(folder))])
    return multirun(flags, allowed_packages(()), (), start)


def row(said: str, measured: Sequence[Spent], at_most_s: float | None) -> list[str]:
    wall: Estimate = estimate([one.wall_s for one in measured])
    cpu = estimate([one.cpu_s for one in measured])
    target = ["", ""]
    if at_most_s is not None:
        target = [f"{at_most_s:.1f}", wall.verdict(at_most=at_most_s)]
    return [said, *shown(wall, digits=2), f"{cpu.median:.2f}", *target]


def main(argv: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if argv is None else list(argv)
    if given[:1] == [_INSIDE]:
        return sweep_of_empty_jobs(int(given[1]), given[2])
    parser = argparse.ArgumentParser(
        prog="python -m bench.sweep",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--jobs", type=int, default=4, help="trainings of a sweep")
    parser.add_argument("--empty", type=int, default=40, help="empty jobs more in the longer sweep")
    parser.add_argument("--only", default="empty,trainings", help="kinds, with a comma between")
    options = parser.parse_args(given)
    kinds = set(options.only.split(","))
    if wrong := kinds - {"empty", "trainings"}:
        parser.error(f"--only: no such kind: {', '.join(sorted(wrong))}; empty and trainings")
    print(machine(1), flush=True)
    more: list[Spent] = []
    once: list[Spent] = []
    trained: list[Spent] = []
    with tempfile.TemporaryDirectory() as made:
        for turn in range(options.pairs + 1):  # the first prepares the data and does not count
            folder = Path(made) / str(turn)
            folder.mkdir()
            if "empty" in kinds:
                of_one, of_all = empty(folder, options.empty)
                more.append(of_one)
                once.append(of_all)
            if "trainings" in kinds:
                trained.append(trainings(folder, options.jobs))
    rows = []
    if more:
        rows.append(row("one empty job more, beyond its process", more[1:], TARGET_S))
        rows.append(row("a sweep, once: start, page, leaderboard", once[1:], None))
    if trained:
        said = f"a training of {options.jobs}, all costs shared out"
        rows.append(row(said, trained[1:], None))
    print(table(("seconds", *SHOWN, "cpu, median", "at most", ""), rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
