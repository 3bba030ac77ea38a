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

from runner.sweep.database import SweepDatabase, SweepDatabaseError, TryResult
from runner.sweep.local_process import (
    JOB_LOG_FILE,
    JobHandle,
    JobStarter,
    count_oom_kills,
    last_line,
    process_start_ticks,
)
from runner.sweep.plan import SweepJob
from runner.sweep.run_index import DONE_STATUSES, read_result
from runner.sweep.settings import LauncherSettings
from runner.sweep.stop_signal import StopRequest

_POLL_S = 0.5  # between two looks at the clock, the view and the time limits
_PRUNING_POLL_S = 0.02  # the same where jobs wait for the sweep after each evaluation
_GRACE_S = 30  # for saving, after a job was told that its time is over
# What a signal says by itself; with others the log's last line says more.
_PLAIN_SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# Exit codes of a job that was asked to stop, whether it saved first or had not come that far.
_STOPPED_EXIT_CODES = {
    code for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) for code in (-n, 128 + n)
}


class SweepObserver(Protocol):
    """What a person sees while jobs run."""

    def started(self, job: SweepJob, folder: Path) -> None: ...
    def retried(self, job: SweepJob, try_result: TryResult, tries_left: int) -> None: ...
    def refresh(self) -> None: ...
    def stopping(self, running: int, is_immediate: bool) -> None: ...


@dataclass
class RunningJob:
    """A job's process and what has to be known when it ends."""

    job: SweepJob
    folder: Path
    slot: int
    handle: JobHandle
    num_previous_tries: int  # tries before this one, by this sweep
    try_id: int  # of the try, in the database
    result_before: tuple[int, int] | None
    log_offset: int  # bytes
    oom_kills_before: int | None
    start_time: float = field(default_factory=time.monotonic)
    is_timed_out: bool = False

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.start_time


class JobScheduler:
    """Keeps the slots full until the jobs are done or the sweep is asked to stop."""

    def __init__(
        self,
        start_job: JobStarter,
        settings: LauncherSettings,
        database: SweepDatabase,
        stop_request: StopRequest,
        observer: SweepObserver,
        job_folder: Callable[[SweepJob], Path],
    ) -> None:
        self.start_job, self.settings, self.database = start_job, settings, database
        self.stop_request, self.observer, self.job_folder = stop_request, observer, job_folder
        self.running: list[RunningJob] = []
        self.failure: str | None = None  # why the sweep had to stop by itself
        self.seconds_by_job: dict[str, float] = {}  # seconds of each job that ended, over its tries
        # asked of each running job: those that wait for a word of the sweep get it here
        self.answer_pruning: Callable[[RunningJob], None] | None = None
        self._num_stops_sent = 0  # how many requests to stop the jobs have been told of

    def run(self, jobs: Iterable[SweepJob]) -> Iterator[tuple[SweepJob, TryResult]]:
        """Yields each job with the end of its last try, as they end.

        Args: jobs: taken one by one as slots become free, so that a search may choose the next
        job by what it knows by then.
        """
        waiting, again = iter(jobs), deque[tuple[SweepJob, int]]()
        while True:
            while not self.stop_request.requested and len(self.running) < self.settings.slots:
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
                    self.observer.retried(one.job, end, left)
                    again.append((one.job, one.num_previous_tries + 1))
                else:
                    yield one.job, end
            self._answer_pruning_requests()
            self._forward_stop()
            self._enforce_timeout()
            self.observer.refresh()
            if not ended and self.running:
                look_s = _POLL_S if self.answer_pruning is None else _PRUNING_POLL_S
                self.stop_request.wait([r.handle for r in self.running], look_s)

    def _next(self, waiting: Iterator[SweepJob]) -> tuple[SweepJob, int] | None:
        try:
            return next(((job, 0) for job in waiting), None)
        except SweepDatabaseError as error:
            self.abort(str(error))
            return None

    def _answer_pruning_requests(self) -> None:
        if self.answer_pruning is None or self.failure is not None:
            return
        try:
            for one in self.running:
                self.answer_pruning(one)
        except SweepDatabaseError as error:
            self.abort(str(error))

    def _begin(self, job: SweepJob, tried: int) -> None:
        folder = self.job_folder(job)
        log = folder / JOB_LOG_FILE
        try:
            folder.mkdir(exist_ok=True)
            number = self.database.begin_try(job.key)
            before = (
                _file_version(folder / "result.json"),
                log.stat().st_size if log.exists() else 0,
            )
            slot = min(set(range(self.settings.slots)) - {r.slot for r in self.running})
            oom = count_oom_kills()
            handle = self.start_job(job, folder, slot)
        except (OSError, SweepDatabaseError) as error:
            self.abort(f"{job.label} could not be started: {error}")
            return
        self.running.append(RunningJob(job, folder, slot, handle, tried, number, *before, oom))
        self.observer.started(job, folder)
        self._write_database(
            lambda: self.database.record_process(
                number, handle.pid, process_start_ticks(handle.pid)
            )
        )

    def _end(self, one: RunningJob, code: int) -> TryResult:
        status, error = self._classify_end(one, code)
        end = TryResult(status, one.elapsed_s, code, error)
        self.seconds_by_job[one.job.key] = self.seconds_by_job.get(one.job.key, 0.0) + end.seconds
        self._write_database(lambda: self.database.end_try(one.try_id, one.job.key, end))
        return end

    def _classify_end(self, one: RunningJob, code: int) -> tuple[str, str | None]:
        """Status and the error's last line, from the exit code, the result and the log."""
        result = read_result(one.folder) or {}
        is_fresh = _file_version(one.folder / "result.json") != one.result_before
        if code == 0:
            if result.get("status") in DONE_STATUSES:
                return str(result["status"]), None
            if not (one.folder / "meta.json").exists():
                return "completed", None  # it keeps nothing, such as loop=debug
            return "failed", "it ended with exit code 0, but without a result"
        if one.is_timed_out:
            return "failed", f"stopped after {self.settings.timeout_s:g} s (launcher.timeout_s)"
        if code in _STOPPED_EXIT_CODES:
            return "interrupted", None if self.stop_request.requested else _signal_text(one, code)
        if code < 0:
            if self.stop_request.is_immediate and code == -signal.SIGKILL:
                return "interrupted", None
            return "failed", _signal_text(one, code)
        told = str(result.get("error") or "").strip() if is_fresh else ""
        line = (
            told.splitlines()[-1] if told else last_line(one.folder / JOB_LOG_FILE, one.log_offset)
        )
        return "failed", line or f"exit code {code}, and not a word in {JOB_LOG_FILE}"

    def _tries_left(self, one: RunningJob, end: TryResult) -> int:
        """A wrong configuration (exit code 2) stays wrong, however often it is tried."""
        if end.status != "failed" or end.exit_code in (0, 2) or self.stop_request.requested:
            return 0
        return max(0, self.settings.retries - one.num_previous_tries)

    def _forward_stop(self) -> None:
        at_once = self.stop_request.is_immediate
        asked = self.stop_request.requested + at_once
        if asked == self._num_stops_sent:
            return
        self._num_stops_sent = asked
        for one in self.running:
            if at_once:
                one.handle.kill()
            else:
                one.handle.send_signal(self.stop_request.job_signal)
        self.observer.stopping(len(self.running), at_once)

    def _enforce_timeout(self) -> None:
        limit = self.settings.timeout_s
        for one in self.running if limit is not None else ():
            if not one.is_timed_out and one.elapsed_s > limit:  # type: ignore[operator]
                one.is_timed_out = True
                one.handle.send_signal(signal.SIGTERM)
            elif one.is_timed_out and one.elapsed_s > limit + _GRACE_S:  # type: ignore[operator]
                one.handle.kill()

    def _write_database(self, write: Callable[[], None]) -> None:
        """Into the database; if that fails the sweep stops, for what it did would be forgotten."""
        if self.failure is not None:
            return
        try:
            write()
        except SweepDatabaseError as error:
            self.abort(str(error))

    def abort(self, reason: str) -> None:
        """Lets running jobs save and starts no more."""
        self.failure = self.failure or reason
        self.stop_request.request_stop()


def _file_version(path: Path) -> tuple[int, int] | None:
    """Tells a file from one that has replaced it."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _signal_text(one: RunningJob, code: int) -> str:
    number = -code if code < 0 else code - 128
    text = f"{'killed' if code < 0 else 'stopped'} by signal {number}"
    before, now = one.oom_kills_before, count_oom_kills()
    if number == signal.SIGKILL and before is not None and now is not None and now > before:
        return f"{text}: out of memory (the system's choice)"
    if number in _PLAIN_SIGNALS:
        return text
    line = last_line(one.folder / JOB_LOG_FILE, one.log_offset)
    return f"{text}: {line}" if line else text
