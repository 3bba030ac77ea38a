"""Sends a run's log to its `log.txt`, or to standard error."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.rundir.regular_files import open_for_append, unshare
from runner.rundir.secrets import SecretMaskingFormatter

LOG_LAYOUT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

_log = logging.getLogger("runner")  # a launch stops its propagation to the root logger


def open_log_file(path: Path) -> logging.Handler:
    """Write all that is logged, including warnings of libraries, to a file as well.

    Returns:
        The handler that writes, for `close_log_file`.
    """
    unshare(path)
    handler = _LogHandler(path)
    handler.setFormatter(SecretMaskingFormatter(LOG_LAYOUT))
    handler.setLevel(logging.INFO)
    logging.getLogger().addHandler(handler)
    if not _log.propagate:
        _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    logging.captureWarnings(True)
    logging.raiseExceptions = False  # a full disk must not fill the terminal with tracebacks
    return handler


def close_log_file(handler: logging.Handler) -> None:
    """Close what `open_log_file` has opened."""
    for logger in (logging.getLogger(), _log):
        logger.removeHandler(handler)
    handler.close()


class _LogHandler(logging.StreamHandler[io.TextIOWrapper]):
    """Appends to a file, and closes it."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.TextIOWrapper(open_for_append(path), encoding="utf-8"))
        self.path = path

    def close(self) -> None:
        try:
            self.stream.close()
        except OSError as error:  # a full disk, which must not hide how the run has ended
            reason = error.strerror or error
            print(f"warning: {self.path}: its end is lost: {reason}", file=sys.stderr)
        super().close()


@contextmanager
def log_to_stderr() -> Iterator[None]:
    """Send all that is logged to standard error, instead of the `log.txt` of rank 0.

    Messages of a view are left out, since it prints them itself.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(SecretMaskingFormatter(LOG_LAYOUT))
    view, root = logging.getLogger("runner.reporting.console"), logging.getLogger()
    before, level = root.handlers[:], view.level
    root.handlers[:] = [handler]
    view.setLevel(logging.CRITICAL)
    logging.captureWarnings(True)
    try:
        yield
    finally:
        root.handlers[:] = before
        view.setLevel(level)
