"""Tracker: what every place that numbers go to offers. Trackers: all of them as one, never raising.

Rank 0 only. No torch here.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NotRequired, Protocol, TypedDict

from runner.reporting.trackers.histogram import Histogram
from runner.rundir.json_files import write_json

FINISH_LIMIT_S = 25  # all trackers together: exit may be delayed by 30 s
TRACKERS_FILE = "trackers.json"


class RunInfo(TypedDict):
    """What a tracker is told of the run. `config` has its secrets masked."""

    name: str
    dir: Path
    config: Mapping[str, Any]
    group: NotRequired[str | None]  # of a sweep
    job_type: NotRequired[str | None]
    beside: NotRequired[bool]  # another process logs to the same run at the same time
    step: NotRequired[int]  # the run continues after this one; 0 and absent: a new run


class Tracker(Protocol):
    """A place that numbers go to. Any method may raise: the run goes on without it.

    One that shows histograms has `log_histograms(split, step, histograms)` as well.
    """

    def start(self, run: RunInfo, state: Mapping[str, Any] | None) -> None:
        """state: of the run that is continued; None: a new one."""

    def log(self, split: str, step: int, metrics: Mapping[str, float]) -> None: ...

    def state(self) -> dict[str, Any]:
        """Identity, for checkpoints. What was logged so far survives a kill from here on."""
        ...

    def finish(self, status: str) -> None:
        """status: completed, interrupted or failed."""

    def messages(self) -> list[str]:
        """What the user should know since the last call, such as where the data is."""
        ...


class Trackers:
    """Passes everything on to each tracker; one that raises is named once and left out after."""

    def __init__(self, trackers: Mapping[str, Tracker], warn: Callable[[str], None]) -> None:
        self._live = dict(trackers)
        # whether any of them does, also if it is left out later
        self.show_histograms = any(hasattr(t, "log_histograms") for t in trackers.values())
        self._warn = warn
        self._states: dict[str, Any] = {}

    def start(self, run: RunInfo, state: Mapping[str, Any] | None = None) -> None:
        """state: what `state()` returned in the run that is continued. None: the copy in the run
        directory, so that a run killed before its first checkpoint keeps its identity as well.
        """
        path = Path(run["dir"]) / TRACKERS_FILE
        self._states = dict(state or _read(path))

        def start(name: str, tracker: Tracker) -> None:
            tracker.start(run, self._states.get(name))
            self._states[name] = tracker.state()

        self._each(start)
        if self._states:
            self._guard("identities", partial(write_json, path, self._states))

    def log(self, split: str, step: int, metrics: Mapping[str, float]) -> None:
        self._each(lambda _, tracker: tracker.log(split, step, metrics))

    def log_histograms(self, split: str, step: int, histograms: Mapping[str, Histogram]) -> None:
        def log(name: str, tracker: Any) -> None:
            if hasattr(tracker, "log_histograms"):
                tracker.log_histograms(split, step, histograms)

        self._each(log)

    def state(self) -> dict[str, Any]:
        """By tracker; one that was left out keeps its last, so that a resumed run may try again."""

        def keep(name: str, tracker: Tracker) -> None:
            self._states[name] = tracker.state()

        self._each(keep)
        return dict(self._states)

    def finish(self, status: str) -> None:
        """Ends all at once, and waits no longer than FINISH_LIMIT_S. A second call does nothing."""
        deadline = time.monotonic() + FINISH_LIMIT_S
        live, self._live = self._live, {}
        threads = {}
        for name, tracker in live.items():
            end = partial(self._guard, name, partial(tracker.finish, status))
            # daemons: one that hangs must not hold up the interpreter's exit
            threads[name] = threading.Thread(target=end, daemon=True, name=f"finish {name}")
            threads[name].start()
        for name, thread in threads.items():
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                self._warn(f"tracker {name}: did not finish within {FINISH_LIMIT_S} s, left behind")
            else:
                self._pass_on_messages(name, live[name])

    def _each(self, call: Callable[[str, Tracker], None]) -> None:
        for name, tracker in list(self._live.items()):
            if not self._guard(name, partial(call, name, tracker)):
                del self._live[name]
            self._pass_on_messages(name, tracker)

    def _pass_on_messages(self, name: str, tracker: Tracker) -> None:
        def pass_on() -> None:
            for message in tracker.messages():
                self._warn(f"tracker {name}: {message}")

        self._guard(name, pass_on)

    def _guard(self, name: str, call: Callable[[], None]) -> bool:
        """Whether it went well. Catches everything: tracking is never worth a run."""
        try:
            call()
        except Exception as error:
            text = str(error).strip() or type(error).__name__
            self._warn(f"tracker {name}: {text}; the run goes on without it")
            return False
        return True


def _read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):  # a new run, or a torn file of a dead one: a new identity
        return {}
