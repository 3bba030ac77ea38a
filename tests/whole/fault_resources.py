"""Faults 4, 13 and 16 of whole runs: the disk is full, memory ends, the folder is another run's."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conftest import TINY, Process, Zygote
from tests.fault_table import Table
from tests.whole.compare_runs import differences

SETTINGS = ("--allow", "tests", "task._target_=tests.whole.traced.Traced", *TINY)
PAGE = 4096
EXHAUSTED = (
    "step:3", "step:23", "batch:17", "batch:38", "eval:2", "eval:20",
    "step:6", "fsync:4", "eval:40",
)  # fmt: skip


class Trainer:
    """Starts runs of one configuration; one of them has been left in peace."""

    def __init__(self, runner: Zygote, top: Path) -> None:
        self.runner, self.trace, self.untouched = runner, top / "trace", top / "untouched"
        done = self.start(self.untouched)
        assert done.wait() == 0, done.text

    def start(self, run: Path, **env: str) -> Process:
        env = {"TRACE_FILE": str(self.trace), **env}
        return self.runner.start(*SETTINGS, f"hydra.run.dir={run}", env=env)

    def check_goes_on(self, run: Path) -> None:
        done = self.start(run)
        assert done.wait() == 0, done.text[-600:]
        assert not (found := differences(run, self.untouched)), found


@contextmanager
def small_disk(place: Path, size: int) -> Iterator[bool]:
    """Mount a file system of so many bytes at a new folder; False where that is not allowed."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    is_mounted = os.geteuid() == 0 and not subprocess.run(command, capture_output=True).returncode
    try:
        yield is_mounted
    finally:
        if is_mounted:
            subprocess.run(["umount", "--lazy", str(place)], check=True)


def full_disk_of_a_run(table: Table, top: Path, *, short: bool) -> None:
    """Leave so little space that a run fails in its start, its log or a checkpoint."""
    table.fault = "4: the disk of a run is full"
    with small_disk(top / "disk", 64 << 20) as is_mounted:
        if not is_mounted:
            table.skipped = "a tmpfs cannot be mounted here"
            return
        train = Trainer(table.runner(), top)
        for pages in (int(1.5**n) for n in range(0, 20, 9 if short else 1)):

            def outcome(pages: int = pages) -> str:
                run, filler = top / "disk" / "run", top / "disk" / "filler"
                shutil.rmtree(run, ignore_errors=True)
                free = shutil.disk_usage(top / "disk").free
                filler.write_bytes(bytes(free - PAGE * pages))
                done = train.start(run)
                code = done.wait()
                filler.unlink()
                assert code in (0, 1, 2), f"exit code {code}: {done.text[-300:]}"
                assert "Traceback" not in done.text, done.text[-600:]
                step = max((p.name for p in run.glob("checkpoints/step-*")), default="")
                assert not list(run.glob("checkpoints/.tmp*")), "temporary files left"
                if code:
                    assert re.search("No space left|ENOSPC", done.text), done.text[-600:]
                train.check_goes_on(run)
                return (
                    "enough" if code == 0 else "refused, with a checkpoint" if step else "refused"
                )

            table.judge(f"{pages} pages free", outcome)


def out_of_memory(table: Table, top: Path, *, short: bool) -> None:
    """Take a run's memory away in a step, a batch, an evaluation and while it saves."""
    table.fault = "13: out of memory"
    train = Trainer(table.runner(), top)
    for number, point in enumerate(EXHAUSTED[::5] if short else EXHAUSTED):

        def outcome(number: int = number, point: str = point) -> str:
            run = top / f"memory-{number}"
            done = train.start(run, TRACE_KILL=point, TRACE_SIGNAL="memory")
            assert done.wait() == 1, done.text[-600:]
            assert "out of memory" in done.text, done.text[-600:]
            train.check_goes_on(run)
            return f"reported, resumed: {point.partition(':')[0]}"

        table.judge(point, outcome)


def two_in_one_folder(table: Table, top: Path, *, short: bool) -> None:
    """Start a second run in a folder; kill the first one at any moment; start a third one."""
    table.fault = "16: two runs in one folder"
    train = Trainer(table.runner(), top)
    for number in range(2 if short else 20):

        def outcome(number: int = number) -> str:
            run = top / f"run-{number}"
            first = train.start(run, TRACE_KILL=f"step:{2 * number + 2}", TRACE_SIGNAL="19")
            until_stopped(first)  # SIGSTOP: it holds the folder and does not end
            second = train.start(run)
            assert second.wait() == 2, second.text[-300:]
            assert f"another run is writing here: process {first.pid} on" in second.text
            first.kill()
            first.wait()
            train.check_goes_on(run)
            return "refused, then taken over"

        table.judge(f"at step {2 * number + 2}", outcome)


def until_stopped(process: Process, limit_s: float = 60) -> None:
    stat, deadline = Path(f"/proc/{process.pid}/stat"), time.monotonic() + limit_s
    while stat.read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < deadline, process.text
        time.sleep(0.01)
