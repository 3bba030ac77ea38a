"""Fault 24: clocks jump, and run directories are moved between kill and resume."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.conftest import TINY, Zygote
from tests.fault_table import Table
from tests.whole.compare_runs import differences, examples_by_cursor

SETTINGS = ("--allow", "tests", "task._target_=tests.whole.traced.Traced", *TINY)
PAIR = ("trainer.num_processes=2", "trainer.batch_size=16")
KILLS = ("step:23", "eval:20", "fsync:9", "step:6", "replace:5", "batch:38", "rename:3")
CLOCK = "tests.whole.jumping_clock:main"


class Trainer:
    """Trains, kills and resumes runs on one or two ranks, each with one trace of its examples."""

    def __init__(self, runner: Zygote, top: Path) -> None:
        self.runner, self.top = runner, top
        self.untouched: dict[int, Path] = {}
        for ranks in (1, 2):
            run = self.untouched[ranks] = top / f"untouched-{ranks}"
            assert self.train(run, ranks, trace=self.trace(run)) == 0

    def trace(self, run: Path) -> Path:
        return run.with_name(f"{run.name}.trace")

    def train(self, run: Path, ranks: int, *, trace: Path, kill: str = "", clock: int = -1) -> int:
        words = [*SETTINGS, *(PAIR if ranks == 2 else ()), f"hydra.run.dir={run}"]
        env = {"TRACE_FILE": str(trace), "TRACE_KILL": kill, "CLOCK_SEED": str(clock)}
        more = {"entry": CLOCK} if clock >= 0 else {}
        return self.runner.run(*words, env=env, **more).code

    def resume(self, run: Path, *, trace: Path, clock: int = -1) -> None:
        env = {"TRACE_FILE": str(trace), "TRACE_KILL": "", "CLOCK_SEED": str(clock)}
        more = {"entry": CLOCK} if clock >= 0 else {}
        self.runner.run("--allow", "tests", "resume", str(run), env=env, **more).check()

    def killed(self, run: Path, ranks: int, kill: str, clock: int = -1) -> None:
        code = self.train(run, ranks, trace=self.trace(run), kill=kill, clock=clock)
        assert code in ((-9, 0) if ranks == 1 else (1, 0)), code

    def check_same(self, run: Path, trace: Path, ranks: int) -> None:
        whole = self.untouched[ranks]
        assert differences(run, whole) == []
        ours, theirs = (examples_by_cursor(t) for t in (trace, self.trace(whole)))
        assert ours == theirs


def clock_jumps(table: Table, top: Path, *, short: bool) -> None:
    """Let the clock jump while a run trains, is killed and resumes, and change its files' times."""
    table.fault = "24: the clock jumps"
    train = Trainer(table.runner(), top)
    for seed in range(2 if short else 20):
        ranks = 1 + seed % 2

        def outcome(seed: int = seed, ranks: int = ranks) -> str:
            dice = random.Random(seed)
            run = top / f"clock-{seed}"
            train.killed(run, ranks, KILLS[seed % len(KILLS)], clock=seed)
            for path in run.rglob("*"):
                time_s = dice.choice((1, 1e9, 4e9))  # 1970, 2001, 2096
                os.utime(path, (time_s, time_s), follow_symlinks=False)
            train.resume(run, trace=train.trace(run), clock=seed + 1000)
            train.check_same(run, train.trace(run), ranks)
            return f"the same run, {ranks} rank{'s' * (ranks > 1)}"

        table.judge(f"seed {seed}", outcome)


# Ways from a run's directory to the one that is resumed
def moved(run: Path) -> Path:
    return run.rename(run.with_name(f"{run.name} in another place"))


def copied(run: Path) -> Path:
    return _cp(run, "-a")


def copied_without_times(run: Path) -> Path:
    return _cp(run, "-r")


def hard_linked(run: Path) -> Path:
    return _cp(run, "-al")


def soft_linked(run: Path) -> Path:
    link = run.with_name(f"{run.name}-link")
    link.symlink_to(run)
    return link


def moved_to_another_disk(run: Path) -> Path:
    place = Path(tempfile.mkdtemp(dir="/dev/shm" if "/dev/shm" not in str(run) else "/tmp"))
    return Path(shutil.move(run, place / run.name))


def _cp(run: Path, how: str) -> Path:
    target = run.with_name(f"{run.name}{how}")
    subprocess.run(["cp", how, str(run), str(target)], check=True)
    return target


WAYS: tuple[Callable[[Path], Path], ...] = (
    hard_linked, moved, copied, soft_linked, copied_without_times, moved_to_another_disk,
)  # fmt: skip


def moved_directories(table: Table, top: Path, *, short: bool) -> None:
    """Move, copy or link a killed run, resume it there, and, if it is left, where it was."""
    table.fault = "24: moved, copied, linked"
    cases = [(way, 1 + n % 2, KILLS[n % len(KILLS)]) for n, way in enumerate(WAYS * 4)]
    train = Trainer(table.runner(), top)
    for number, (way, ranks, kill) in enumerate(cases[:3] if short else cases):

        def outcome(number: int = number, way=way, ranks: int = ranks, kill: str = kill) -> str:
            run = top / f"moved-{number}"
            train.killed(run, ranks, kill)
            other = way(run)
            traces = [train.trace(run), top / f"{number}-other.trace"]
            shutil.copyfile(*traces)
            left = {} if way in (moved, soft_linked) else contents(run)
            train.resume(other, trace=traces[1])
            train.check_same(other, traces[1], ranks)
            assert contents(run) == left or way is soft_linked, "the original was written to"
            if left:
                there = contents(other)
                train.resume(run, trace=traces[0])
                train.check_same(run, traces[0], ranks)
                assert contents(other) == there, "the copy was written to"
            if way is moved_to_another_disk:
                shutil.rmtree(other.parent)
            return f"the same run: {way.__name__}"

        table.judge(f"{way.__name__}, {kill}, {ranks} ranks", outcome)


def contents(run: Path) -> dict[str, bytes]:
    """Every file of a directory but its lock; nothing if it is gone."""
    files = [p for p in run.rglob("*") if p.is_file() and p.name != ".lock"]
    return {str(p.relative_to(run)): p.read_bytes() for p in files}
