"""Runs jobs in slots: starts, watches, retries and stops them, for grids and searches."""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from runner.config.settings import LauncherSettings
from runner.machine.free_memory import count_oom_kills
from runner.rundir.readers import last_line
from runner.rundir.regular_files import file_state
from runner.sweep.database import SweepDatabase, SweepDatabaseError, TryResult
from runner.sweep.live_view import LiveView
from runner.sweep.local_process import JOB_LOG_FILE, JobStarter, LocalProcess, process_start_ticks
from runner.sweep.plan import SweepJob
from runner.sweep.run_index import DONE_STATUSES, read_result_if_whole
from runner.sweep.stop_signal import StopRequest

_POLL_S = 0.5  # between checks of the clock, the view and the time limits
_PRUNING_POLL_S = 0.02  # the same if jobs wait for the sweep's answer after each evaluation
_GRACE_S = 30  # left to a job beyond its time limit to save
# These signals need no explanation; with others the last line of the log says more.
_PLAIN_SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# Exit codes of a job that was asked to stop, whether or not it could save before.
_STOPPED_EXIT_CODES = {
    code for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) for code in (-n, 128 + n)
}


@dataclass
class RunningJob:
    """A job's process, and the facts that are needed when it ends."""

    job: SweepJob
    folder: Path
    slot: int
    handle: LocalProcess
    num_previous_tries: int  # earlier tries by this start of the sweep
    try_id: int  # of this try, in the database
    result_version: tuple[int, int, int] | None  # version of the `result.json` before this try
    log_offset: int  # offset in the log at which this try begins
    # among the processes of the sweep's memory group, or of the machine
    oom_kills_before: int | None
    start_time: float = field(default_factory=time.monotonic)
    is_timed_out: bool = False

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.start_time


class JobScheduler:
    """Keeps the slots full until the jobs are done or the sweep is asked to stop.

    Attributes:
        failure: why the sweep had to stop by itself, or None.
        answer_pruning: called for each running job, to answer requests whether to continue.
    """

    def __init__(
        self,
        start_job: JobStarter,
        settings: LauncherSettings,
        database: SweepDatabase,
        stop_request: StopRequest,
        view: LiveView,
        job_folder: Callable[[SweepJob], Path],
    ) -> None:
        self.start_job, self.settings, self.database = start_job, settings, database
        self.stop_request, self.view, self.job_folder = stop_request, view, job_folder
        self.running: list[RunningJob] = []
        self.failure: str | None = None
        self.answer_pruning: Callable[[RunningJob], None] | None = None
        self._num_stops_sent = 0  # requests to stop that were passed on to the jobs

    def run(self, jobs: Iterable[SweepJob]) -> Iterator[tuple[SweepJob, TryResult]]:
        """Yield each job with the end of its last try, in the order in which they end.

        Args:
            jobs: taken one by one as slots become free, so that a search can choose the next job
                from all results so far.
        """
        waiting, retries = iter(jobs), deque[tuple[SweepJob, int]]()
        while True:
            while not self.stop_request.requested and len(self.running) < self.settings.slots:
                following = retries.popleft() if retries else self._next(waiting)
                if following is None:
                    break
                self._begin(*following)
            if not self.running:
                return
            ended = [(r, code) for r in self.running if (code := r.handle.poll()) is not None]
            for running, code in ended:
                self.running.remove(running)
                try_result = self._end(running, code)
                tries_left = self._tries_left(running, try_result)
                if tries_left:
                    self.view.retried(running.job, try_result, tries_left)
                    retries.append((running.job, running.num_previous_tries + 1))
                else:
                    yield running.job, try_result
            self._answer_pruning_requests()
            self._forward_stop()
            self._enforce_timeout()
            self.view.refresh()
            if not ended and self.running:
                poll_s = _POLL_S if self.answer_pruning is None else _PRUNING_POLL_S
                self.stop_request.wait([r.handle for r in self.running], poll_s)

    def _next(self, waiting: Iterator[SweepJob]) -> tuple[SweepJob, int] | None:
        with self._abort_on_error():
            return next(((job, 0) for job in waiting), None)
        return None

    def _answer_pruning_requests(self) -> None:
        if self.answer_pruning is None or self.failure is not None:
            return
        with self._abort_on_error():
            for running in self.running:
                self.answer_pruning(running)

    def _begin(self, job: SweepJob, num_previous_tries: int) -> None:
        folder = self.job_folder(job)
        log = folder / JOB_LOG_FILE
        try:
            folder.mkdir(exist_ok=True)
            try_id = self.database.begin_try(job.key)
            result_version = file_state(folder / "result.json")
            log_offset = log.stat().st_size if log.exists() else 0
            slot = min(set(range(self.settings.slots)) - {r.slot for r in self.running})
            oom_kills = count_oom_kills()
            handle = self.start_job(job, folder, slot)
        except (OSError, SweepDatabaseError) as error:
            self.abort(f"{job.label} could not be started: {error}")
            return
        self.running.append(
            RunningJob(
                *(job, folder, slot, handle, num_previous_tries),
                *(try_id, result_version, log_offset, oom_kills),
            )
        )
        self.view.started(job, folder)
        pid_start = process_start_ticks(handle.pid)
        self._write_database(lambda: self.database.record_process(try_id, handle.pid, pid_start))

    def _end(self, running: RunningJob, code: int) -> TryResult:
        status, error = self._classify_end(running, code)
        end = TryResult(status, running.elapsed_s, code, error)
        self._write_database(lambda: self.database.end_try(running.try_id, running.job.key, end))
        return end

    def _classify_end(self, running: RunningJob, code: int) -> tuple[str, str | None]:
        """Return status and error's last line, from the exit code, the result and the log."""
        result = read_result_if_whole(running.folder) or {}
        is_fresh = file_state(running.folder / "result.json") != running.result_version
        if code == 0:
            if result.get("status") in DONE_STATUSES:
                return str(result["status"]), None
            if not (running.folder / "meta.json").exists():
                return "completed", None  # it writes no result, such as loop=debug
            return "failed", "it ended with exit code 0, but without a result"
        if running.is_timed_out:
            return "failed", f"stopped after {self.settings.timeout_s:g} s (launcher.timeout_s)"
        if code in _STOPPED_EXIT_CODES:
            was_asked = self.stop_request.requested
            return "interrupted", None if was_asked else _signal_text(running, code)
        if code < 0:
            if self.stop_request.is_immediate and code == -signal.SIGKILL:
                return "interrupted", None
            return "failed", _signal_text(running, code)
        error = str(result.get("error") or "").strip() if is_fresh else ""
        if error:
            return "failed", error.splitlines()[-1]
        line = last_line(running.folder / JOB_LOG_FILE, running.log_offset)
        return "failed", line or f"exit code {code}, and nothing in {JOB_LOG_FILE}"

    def _tries_left(self, running: RunningJob, end: TryResult) -> int:
        """Return how often a job may be tried again: never if its configuration is wrong (2)."""
        if end.status != "failed" or end.exit_code in (0, 2) or self.stop_request.requested:
            return 0
        return max(0, self.settings.retries - running.num_previous_tries)

    def _forward_stop(self) -> None:
        is_immediate = self.stop_request.is_immediate
        num_requests = self.stop_request.requested + is_immediate
        if num_requests == self._num_stops_sent:
            return
        self._num_stops_sent = num_requests
        for running in self.running:
            if is_immediate:
                running.handle.kill()
            else:
                running.handle.send_signal(self.stop_request.job_signal)
        self.view.stopping(len(self.running), is_immediate)

    def _enforce_timeout(self) -> None:
        timeout_s = self.settings.timeout_s
        if timeout_s is None:
            return
        for running in self.running:
            if not running.is_timed_out and running.elapsed_s > timeout_s:
                running.is_timed_out = True
                running.handle.send_signal(signal.SIGTERM)
            elif running.is_timed_out and running.elapsed_s > timeout_s + _GRACE_S:
                running.handle.kill()

    def _write_database(self, write: Callable[[], None]) -> None:
        if self.failure is None:
            with self._abort_on_error():
                write()

    @contextmanager
    def _abort_on_error(self) -> Iterator[None]:
        """Stop the sweep if its database fails, since results would be lost."""
        try:
            yield
        except SweepDatabaseError as error:
            self.abort(str(error))

    def abort(self, reason: str) -> None:
        """Let running jobs save, and start no more."""
        self.failure = self.failure or reason
        self.stop_request.request_stop()


def _signal_text(running: RunningJob, code: int) -> str:
    number = -code if code < 0 else code - 128
    text = f"{'killed' if code < 0 else 'stopped'} by signal {number}"
    before, now = running.oom_kills_before, count_oom_kills()
    if number == signal.SIGKILL and before is not None and now is not None and now > before:
        # the count is for a group or the machine, so that it may be of another process
        killed = "the system killed a process for want of it meanwhile"
        return f"{text}, probably out of memory: {killed}"
    if number in _PLAIN_SIGNALS:
        return text
    line = last_line(running.folder / JOB_LOG_FILE, running.log_offset)
    return f"{text}: {line}" if line else text
