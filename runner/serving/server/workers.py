"""Several processes that serve at one address: started, replaced when they die, ended together."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from multiprocessing import connection, get_context
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any

from runner.distributed.parent_death import die_with_parent
from runner.errors import UserError
from runner.machine.imports import postpone_full_collections
from runner.serving.server.counters import Counters
from runner.serving.server.settings import ServeSettings

RESTART_AFTER_S = 1.0  # so that workers that keep dying do not use a whole core


@dataclass
class _Workers:
    """The worker processes by number, and the signal that ends them."""

    settings: ServeSettings
    listener: socket.socket
    counters: Counters
    threads: int
    processes: dict[int, BaseProcess] = field(default_factory=dict)
    signal: int | None = None
    is_starting: bool = False  # whether a process is being started, which gets the listener

    def start(self, number: int) -> None:
        """Start a process, unless a signal has come."""
        self.is_starting = True
        if self.signal is None:
            self._start(number)
        self.is_starting = False
        if self.signal is not None:
            self.listener.close()

    def _start(self, number: int) -> None:
        arguments = (self.settings, self.listener, self.counters, number, self.threads)
        process = get_context("spawn").Process(
            target=_run_worker, args=(os.getpid(), *arguments), daemon=True
        )
        process.start()
        self.processes[number] = process
        if self.signal is not None:  # it came while the process was started
            process.terminate()

    def stop(self, number: int, frame: FrameType | None = None) -> None:
        """Forward a signal to all workers, and stop listening, so that no client waits."""
        self.signal = self.signal or number
        for process in self.processes.values():
            process.terminate()
        if not self.is_starting:
            self.listener.close()


def serve_with_workers(settings: ServeSettings, listener: socket.socket, threads: int) -> int:
    """Serve with several processes until a signal, which is forwarded to all.

    Args:
        settings: checked by `check_settings`.
        listener: bound, and not yet listening.
        threads: of each worker.

    Returns:
        The exit code: 128 and the number of the signal, or that of a worker that could not start.
    """
    workers = _Workers(settings, listener, Counters(settings.workers), threads)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, workers.stop)
    for worker in range(settings.workers):
        workers.start(worker)
    failed, have_served = 0, set[int]()
    while workers.processes:
        connection.wait([process.sentinel for process in workers.processes.values()])
        for worker in [n for n, process in workers.processes.items() if not process.is_alive()]:
            process = workers.processes.pop(worker)
            was_up = workers.counters.is_up(worker)
            workers.counters.set_down(worker)
            if was_up:
                have_served.add(worker)
            if workers.signal is not None:
                continue
            others_serve = any(map(workers.counters.is_up, workers.processes))
            # a replacement may fail to load while the model is moved, and succeed later
            if not was_up and not (worker in have_served and others_serve):
                failed = failed or process.exitcode or 1
                workers.stop(signal.SIGTERM)
                continue
            print(
                f"worker {worker + 1} ended with exit code {process.exitcode}; another is started",
                file=sys.stderr,
                flush=True,
            )
            time.sleep(RESTART_AFTER_S)
            workers.start(worker)
    if failed:
        return failed if failed > 0 else 1
    return 128 + (workers.signal or signal.SIGTERM)


def _run_worker(parent: int, *arguments: Any) -> None:
    """Serve as `serve` does, in a process that ends with its parent."""
    postpone_full_collections()
    os.setpgid(0, 0)  # the parent forwards the terminal's Ctrl-C, so that it arrives once
    die_with_parent(parent, signal.SIGTERM)
    from runner.serving.server.worker import serve

    try:
        sys.exit(serve(*arguments))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        sys.exit(2)
