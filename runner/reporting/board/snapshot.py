"""Reads the runs below a folder as they are at one moment. Finished runs are read once."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runner.errors import UserError
from runner.reporting.report.find import RunSelection, find_runs, read_any_run
from runner.reporting.report.records import RunRecord
from runner.rundir.regular_files import file_state

_FRESH_S = 1.0  # several open pages share the result
_FILES = ("result.json", "meta.json")


@dataclass
class Snapshots:
    """Reads the runs below a folder again and again."""

    root: Path  # the folder
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _kept: dict[Path, tuple[object, RunRecord]] = field(default_factory=dict)
    _last: tuple[float, RunSelection] | None = None

    def read(self) -> RunSelection:
        """Return the runs as they are now, or were a second ago; empty for an empty folder."""
        with self._lock:
            if self._last is None or time.monotonic() - self._last[0] > _FRESH_S:
                self._last = (time.monotonic(), self._read_all())
            return self._last[1]

    def _read_all(self) -> RunSelection:
        try:
            return find_runs([self.root], self._read_run)
        except UserError as error:
            return RunSelection((), (str(error),), ())

    def _read_run(self, folder: Path, label: str, row: Mapping[str, str]) -> RunRecord:
        """Read a run, unless it had ended when last read and has not changed since.

        Raises:
            UserError: if it cannot be read for any reason: one run must not hide the others.
        """
        state = (dict(row), [file_state(folder / name) for name in _FILES])
        if folder in self._kept and self._kept[folder][0] == state:
            return self._kept[folder][1]
        try:
            run = read_any_run(folder, label, row)
        except UserError:
            raise
        except (ValueError, TypeError, AttributeError, KeyError, OSError, RecursionError) as error:
            raise UserError(f"{folder}: damaged: {type(error).__name__}: {error}") from error
        if run.result:
            self._kept[folder] = (state, run)
        return run


def jobs_of(sweep: Path, runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the jobs of a sweep among the runs."""
    return [run for run in runs if run.folder.parent == sweep]
