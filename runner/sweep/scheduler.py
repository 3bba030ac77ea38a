"""Runs jobs in slots: starts, watches, tries again, stops. Knows nothing of grids or searches."""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from runner.sweep.database import End, Study, StudyError
from runner.sweep.local_process import (
    LOG,
    Handle,
    Start,
    last_line,
    out_of_memory_kills,
    started_at,
)
from runner.sweep.plan import Job
from runner.sweep.run_index import DONE, read_result
from runner.sweep.settings import LauncherSettings
from runner.sweep.stop_signal import Stopping

_LOOK_S = 0.5  # between two looks at the clock, the view and the time limits
_JUDGE_S = 0.02  # the same where jobs wait for the sweep after each evaluation
_GRACE_S = 30  # for saving, after a job was told that its time is over
# What a signal says by itself; with others the log's last line says more.
_PLAIN_SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# Exit codes of a job that was asked to stop, whether it saved first or had not come that far.
_STOPPED = {code for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) for code in (-n, 128 + n)}


class Show(Protocol):
    """What a person sees while jobs run."""

    def started(self, job: Job, folder: Path) -> None: ...
    def again(self, job: Job, end: End, tries_left: int) -> None: ...
    def look(self) -> None: ...
    def stopping(self, running: int, at_once: bool) -> None: ...


@dataclass
class Running:
    """A job's process and what has to be known when it ends."""

    job: Job
    folder: Path
    slot: int
    handle: Handle
    tried: int  # tries before this one, by this sweep
    number: int  # of the try, in the database
    result_before: tuple[int, int] | None
    log_before: int  # bytes
    out_of_memory_before: int | None
    began: float = field(default_factory=time.monotonic)
    over_time: bool = False

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began


class Engine:
    """Keeps the slots full until the jobs are done or the sweep is asked to stop."""

    def __init__(
        self,
        start: Start,
        settings: LauncherSettings,
        study: Study,
        stopping: Stopping,
        show: Show,
        place: Callable[[Job], Path],
    ) -> None:
        self.start, self.settings, self.study = start, settings, study
        self.stopping, self.show, self.place = stopping, show, place
        self.running: list[Running] = []
        self.trouble: str | None = None  # why the sweep had to stop by itself
        self.spent: dict[str, float] = {}  # seconds of each job that ended, over its tries
        # asked of each running job: those that wait for a word of the sweep get it here
        self.judge: Callable[[Running], None] | None = None
        self._told = 0  # how many requests to stop the jobs have been told of

    def run(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, End]]:
        """Yields each job with the end of its last try, as they end.

        Args: jobs: taken one by one as slots become free, so that a search may choose the next
        job by what it knows by then.
        """
        waiting, again = iter(jobs), deque[tuple[Job, int]]()
        while True:
            while not self.stopping.requested and len(self.running) < self.settings.slots:
                following = again.popleft() if again else self._next(waiting)
                if following is None:
                    break
                self._begin(*following)
            if not self.running:
                return
            ended = [(r, code) for r in self.running if (code := r.handle.poll()) is not None]
            for one, code in ended:
                self.running.remove(one)
                end = self._end(one, code)
                left = self._tries_left(one, end)
                if left:
                    self.show.again(one.job, end, left)
                    again.append((one.job, one.tried + 1))
                else:
                    yield one.job, end
            self._judge()
            self._stop_if_asked()
            self._mind_the_time()
            self.show.look()
            if not ended and self.running:
                look_s = _LOOK_S if self.judge is None else _JUDGE_S
                self.stopping.wait([r.handle for r in self.running], look_s)

    def _next(self, waiting: Iterator[Job]) -> tuple[Job, int] | None:
        try:
            return next(((job, 0) for job in waiting), None)
        except StudyError as error:
            self.give_up(str(error))
            return None

    def _judge(self) -> None:
        if self.judge is None or self.trouble is not None:
            return
        try:
            for one in self.running:
                self.judge(one)
        except StudyError as error:
            self.give_up(str(error))

    def _begin(self, job: Job, tried: int) -> None:
        folder = self.place(job)
        log = folder / LOG
        try:
            folder.mkdir(exist_ok=True)
            number = self.study.begin(job.key)
            before = _stamp(folder / "result.json"), log.stat().st_size if log.exists() else 0
            slot = min(set(range(self.settings.slots)) - {r.slot for r in self.running})
            oom = out_of_memory_kills()
            handle = self.start(job, folder, slot)
        except (OSError, StudyError) as error:
            self.give_up(f"{job.label} could not be started: {error}")
            return
        self.running.append(Running(job, folder, slot, handle, tried, number, *before, oom))
        self.show.started(job, folder)
        self._note(lambda: self.study.started(number, handle.pid, started_at(handle.pid)))

    def _end(self, one: Running, code: int) -> End:
        status, error = self._what_happened(one, code)
        end = End(status, one.seconds, code, error)
        self.spent[one.job.key] = self.spent.get(one.job.key, 0.0) + end.seconds
        self._note(lambda: self.study.end(one.number, one.job.key, end))
        return end

    def _what_happened(self, one: Running, code: int) -> tuple[str, str | None]:
        """Status and the error's last line, from the exit code, the result and the log."""
        result = read_result(one.folder) or {}
        is_fresh = _stamp(one.folder / "result.json") != one.result_before
        if code == 0:
            if result.get("status") in DONE:
                return str(result["status"]), None
            if not (one.folder / "meta.json").exists():
                return "completed", None  # it keeps nothing, such as loop=debug
            return "failed", "it ended with exit code 0, but without a result"
        if one.over_time:
            return "failed", f"stopped after {self.settings.timeout_s:g} s (launcher.timeout_s)"
        if code in _STOPPED:
            return "interrupted", None if self.stopping.requested else _signal_text(one, code)
        if code < 0:
            if self.stopping.at_once and code == -signal.SIGKILL:
                return "interrupted", None
            return "failed", _signal_text(one, code)
        told = str(result.get("error") or "").strip() if is_fresh else ""
        line = told.splitlines()[-1] if told else last_line(one.folder / LOG, one.log_before)
        return "failed", line or f"exit code {code}, and not a word in {LOG}"

    def _tries_left(self, one: Running, end: End) -> int:
        """A wrong configuration (exit code 2) stays wrong, however often it is tried."""
        if end.status != "failed" or end.exit_code in (0, 2) or self.stopping.requested:
            return 0
        return max(0, self.settings.retries - one.tried)

    def _stop_if_asked(self) -> None:
        at_once = self.stopping.at_once
        asked = self.stopping.requested + at_once
        if asked == self._told:
            return
        self._told = asked
        for one in self.running:
            if at_once:
                one.handle.kill()
            else:
                one.handle.send(self.stopping.passed_on)
        self.show.stopping(len(self.running), at_once)

    def _mind_the_time(self) -> None:
        limit = self.settings.timeout_s
        for one in self.running if limit is not None else ():
            if not one.over_time and one.seconds > limit:  # type: ignore[operator]
                one.over_time = True
                one.handle.send(signal.SIGTERM)
            elif one.over_time and one.seconds > limit + _GRACE_S:  # type: ignore[operator]
                one.handle.kill()

    def _note(self, write: Callable[[], None]) -> None:
        """Into the database; if that fails the sweep stops, for what it did would be forgotten."""
        if self.trouble is not None:
            return
        try:
            write()
        except StudyError as error:
            self.give_up(str(error))

    def give_up(self, reason: str) -> None:
        """Lets running jobs save and starts no more."""
        self.trouble = self.trouble or reason
        self.stopping.ask()


def _stamp(path: Path) -> tuple[int, int] | None:
    """Tells a file from one that has replaced it."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _signal_text(one: Running, code: int) -> str:
    number = -code if code < 0 else code - 128
    text = f"{'killed' if code < 0 else 'stopped'} by signal {number}"
    before, now = one.out_of_memory_before, out_of_memory_kills()
    if number == signal.SIGKILL and before is not None and now is not None and now > before:
        return f"{text}: out of memory (the system's choice)"
    if number in _PLAIN_SIGNALS:
        return text
    line = last_line(one.folder / LOG, one.log_before)
    return f"{text}: {line}" if line else text
