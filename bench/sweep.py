"""Measures what a sweep costs beyond the processes of its jobs.

    python -m bench.sweep [--pairs 7] [--jobs 4] [--empty 40] [--only empty,trainings,forked]

`trainings`: a sweep of small trainings, one at a time, beside the same commands run alone, one
after another, in turns. Each sweep is a whole command: start, composing and checking every job,
the database, leaderboard, page. `empty`: jobs that only write a result, in sweeps of two lengths
and as processes alone; so one more job is told from what a sweep costs once, where it starts and
ends. `forked`: one small training as a fork of a process that has imported everything, as a sweep
starts it, and as a new process, in turns. Wall time is what the target is about; processor time
counts all processes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.paired import SHOWN, Estimate, estimate, machine, ratio, shown, table
from runner.config.locations import PROJECT
from runner.sweep.forked_jobs import ForkedJobs, no_fork
from runner.sweep.local_process import LocalProcess

KINDS = ("empty", "trainings", "forked")
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
    words = [f"seed={seeds}", "launcher.fork_server=false", *TRAINING]
    sweep = run(["-m", "runner", "-m", *words, place("sweep", folder / "s")])
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


class Trainings:
    """Trainings of 10 updates, each as a fork or as a new process that imports for itself."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.number = folder, 0
        self.env = dict(os.environ, RUNNER_SWEEP="bench")
        self.forks = ForkedJobs(is_on=True)

    def run(self, *, is_forked: bool) -> Spent:
        """Run one to its end.

        Raises:
            RuntimeError: if it fails, or is no fork where it should be.
        """
        self.number += 1
        log = self.folder / f"{self.number}.log"
        words = [f"seed={self.number}", *TRAINING, "trainer.max_steps=10"]
        command = [sys.executable, "-m", "runner", *words, place("run", log.with_suffix(""))]
        began = Spent(time.perf_counter(), children_cpu_s())
        fork = self.forks.starter(self.env, 1, 1) if is_forked else no_fork
        job = LocalProcess(command, log, self.env, fork)
        select.select([job], [], [])
        code = job.poll()
        spent = Spent(time.perf_counter(), children_cpu_s()) - began
        server = self.forks.server
        if code or (is_forked and (server is None or server.problem is not None)):
            raise RuntimeError(f"exit code {code}\n{log.read_text()}")
        return spent

    def end_server(self) -> float:
        """End the process that was forked, and return the processor time that it has taken."""
        before = children_cpu_s()
        self.forks = ForkedJobs(is_on=True)
        return children_cpu_s() - before


def children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def forked(folder: Path, pairs: int) -> str:
    """Return a table: a training as a fork, as a new process, and the ratio of the two."""
    folder.mkdir()
    trainings = Trainings(folder)
    for is_forked in (False, True):  # the first prepares the data, the second imports
        trainings.run(is_forked=is_forked)
    forks, fresh = [], []
    for turn in range(pairs):
        for is_forked in (turn % 2 == 0, turn % 2 == 1):
            (forks if is_forked else fresh).append(trainings.run(is_forked=is_forked))
    rows = [
        row("a training of 10 updates, as a new process", fresh, None),
        row("the same as a fork", forks, None),
    ]
    for kind in ("cpu_s", "wall_s"):
        times = ([getattr(spent, kind) for spent in all_spent] for all_spent in (forks, fresh))
        share = ratio(*times)
        said = f"fork / new process, {'processor' if kind == 'cpu_s' else 'wall'} time"
        rows.append([said, *shown(share, digits=2), "", "0.50", share.verdict(at_most=0.5)])
    once = f"the imports of all forks, once: {trainings.end_server():.1f} s of processor time"
    return f"{table(('seconds', *SHOWN, 'cpu, median', 'at most', ''), rows)}\n{once}"


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
    parser.add_argument("--only", default=",".join(KINDS), help="kinds, with commas between")
    options = parser.parse_args(given)
    kinds = set(options.only.split(","))
    if wrong := kinds - set(KINDS):
        parser.error(f"--only: no such kind: {', '.join(sorted(wrong))}; {', '.join(KINDS)}")
    print(machine(1), flush=True)
    more: list[Spent] = []
    once: list[Spent] = []
    trained: list[Spent] = []
    with tempfile.TemporaryDirectory() as made:
        if "forked" in kinds:
            print(forked(Path(made) / "forked", options.pairs), flush=True)
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
    if rows:
        print(table(("seconds", *SHOWN, "cpu, median", "at most", ""), rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
