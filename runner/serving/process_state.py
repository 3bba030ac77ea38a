"""Restores the settings of a process that a training or a model changes."""

from __future__ import annotations

import logging
import os
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from runner.machine.cores import set_thread_environment
from runner.machine.imports import FX_LOGGER, quiet_fx

_ONE_THREAD = threading.RLock()
_LOGGERS = ("runner", "runner.reporting.console", FX_LOGGER)


@contextmanager
def process_restored() -> Iterator[None]:
    """Restore the settings of the whole process when the block ends.

    These are the environment, torch's threads, precision and determinism, the random generators of
    torch, NumPy and Python, logging, warnings, Arrow's memory, and what SIGHUP does. Other signal
    handlers and the working directory are restored by the code that sets them. Only one thread
    enters at a time, since all threads share these settings.
    """
    with _ONE_THREAD:
        yield from _restore_process()


def _restore_process() -> Iterator[None]:
    root = logging.getLogger()
    handlers = list(root.handlers)
    # With a handler here FBGEMM adds none, which would print again what a view has printed.
    root.addHandler(logging.NullHandler())
    environment = dict(os.environ)
    set_thread_environment(None)  # torch's OpenMP reads it now, if this is the first use of torch
    import torch

    from runner.training.rng_state import preserve_rng_state
    from runner.training.update.determinism import set_deterministic

    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    deterministic = torch.are_deterministic_algorithms_enabled()
    levels = {name: logging.getLogger(name).level for name in _LOGGERS}
    raises, show = logging.raiseExceptions, warnings.showwarning
    pool, on_hangup = pa.default_memory_pool(), signal.getsignal(signal.SIGHUP)
    quiet_fx()
    try:
        with preserve_rng_state(torch.device("cpu")):
            yield
    finally:
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
        set_deterministic(deterministic)
        root.handlers[:] = handlers
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        logging.raiseExceptions = raises
        if warnings.showwarning is not show:
            logging.captureWarnings(False)
        pa.set_memory_pool(pool)
        if signal.getsignal(signal.SIGHUP) != on_hangup:
            signal.signal(signal.SIGHUP, on_hangup)
