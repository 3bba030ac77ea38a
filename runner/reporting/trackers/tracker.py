"""Tracker, the protocol of all trackers, and Trackers, which calls several and never raises.

Rank 0 only. Imports no torch.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NotRequired, Protocol, TypedDict

from runner.errors import ConfigError
from runner.rundir.json_files import write_json
from runner.rundir.readers import read_optional_json
from runner.rundir.secrets import mask_values

FINISH_LIMIT_S = 25  # for all trackers together, since exit may be delayed by 30 s
TRACKERS_FILE = "trackers.json"


@dataclass(frozen=True)
class Histogram:
    """A histogram of finite values.

    counts[i] values are in [edges[i], edges[i + 1]); the last bin includes its upper edge too.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    total: float  # the sum of all values
    sum_squares: float  # the sum of their squares


class RunInfo(TypedDict):
    """A run as trackers see it. Secrets in `config` are masked."""

    name: str
    dir: Path
    config: Mapping[str, Any]
    group: NotRequired[str | None]  # the sweep
    job_type: NotRequired[str | None]
    shared: NotRequired[bool]  # whether another process logs to the same run at the same time
    step: NotRequired[int]  # the step that a resumed run continues after; 0 or absent if new


class Tracker(Protocol):
    """A service or file that gets the metrics of a run.

    Any method may raise; the run then goes on without the tracker. A tracker that shows histograms
    also has `log_histograms(split, step, histograms)`.
    """

    def start(self, run: RunInfo, state: Mapping[str, Any] | None) -> None:
        """Start tracking, with the `state()` of the run that is resumed, or None for a new run."""

    def log(self, split: str, step: int, metrics: Mapping[str, float]) -> None: ...

    def state(self) -> dict[str, Any]:
        """Return the tracked run's identity for checkpoints; metrics so far must survive a kill."""
        ...

    def finish(self, status: str) -> None:
        """Stop tracking; `status` is completed, interrupted or failed."""

    def messages(self) -> list[str]:
        """Return messages for the user since the last call, such as where the metrics are."""
        ...


def check_tracker(key: str, tracker: Any) -> None:
    """Check that the methods of a tracker accept the arguments of their calls.

    Args:
        key: of its node, for messages.
        tracker: an object that has all the methods.

    Raises:
        ConfigError: for a method with other arguments; a run would go on without the tracker.
    """
    for name, method in vars(Tracker).items():
        if name.startswith("_") or not inspect.isfunction(method):
            continue
        expected = list(inspect.signature(method).parameters)[1:]
        signature = inspect.signature(getattr(tracker, name))
        try:
            signature.bind(*expected)
        except TypeError as error:
            raise ConfigError(
                f"{key} ({type(tracker).__name__}): {name}{signature} must take "
                f"({', '.join(expected)}), as runner.Tracker.{name} does: {error}"
            ) from error


class Trackers:
    """Calls every tracker; one that raises is named in a warning and no longer called."""

    def __init__(self, trackers: Mapping[str, Tracker], warn: Callable[[str], None]) -> None:
        self._live = dict(trackers)
        # stays true even if that tracker fails later
        self.show_histograms = any(hasattr(t, "log_histograms") for t in trackers.values())
        self._warn = warn
        self._states: dict[str, Any] = {}

    def start(self, run: RunInfo, state: Mapping[str, Any] | None = None) -> None:
        """Start all trackers.

        Args:
            run: the run.
            state: what `state()` returned in the run that is resumed. None reads the copy in the
                run directory, so that a run killed before its first checkpoint keeps its identity.
        """
        path = Path(run["dir"]) / TRACKERS_FILE
        self._states = dict(state or read_optional_json(path))

        masked: RunInfo = {**run, "config": mask_values(run["config"])}

        def start(name: str, tracker: Tracker) -> None:
            tracker.start(masked, self._states.get(name))
            self._states[name] = tracker.state()

        self._each(start)
        if self._states:
            self._guard("identities", partial(write_json, path, self._states))

    def log(self, split: str, step: int, metrics: Mapping[str, float]) -> None:
        split, metrics = mask_values([split, metrics])  # names are texts of the user, too
        self._each(lambda _, tracker: tracker.log(split, step, metrics))

    def log_histograms(self, split: str, step: int, histograms: Mapping[str, Histogram]) -> None:
        split, histograms = mask_values([split, histograms])

        def log(name: str, tracker: Any) -> None:
            if hasattr(tracker, "log_histograms"):
                tracker.log_histograms(split, step, histograms)

        self._each(log)

    def state(self) -> dict[str, Any]:
        """Return the state of each tracker; that of a failed one is its last."""

        def update(name: str, tracker: Tracker) -> None:
            self._states[name] = tracker.state()

        self._each(update)
        return dict(self._states)

    def finish(self, status: str) -> None:
        """Finish all trackers at once, within FINISH_LIMIT_S. A second call does nothing."""
        deadline = time.monotonic() + FINISH_LIMIT_S
        live, self._live = self._live, {}
        threads = {}
        for name, tracker in live.items():
            end = partial(self._guard, name, partial(tracker.finish, status))
            # a daemon, since a tracker that hangs must not delay the interpreter's exit
            threads[name] = threading.Thread(target=end, daemon=True, name=f"finish {name}")
            threads[name].start()
        for name, thread in threads.items():
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                self._warn(f"tracker {name}: did not finish within {FINISH_LIMIT_S} s")
            else:
                self._show_messages(name, live[name])

    def _each(self, call: Callable[[str, Tracker], None]) -> None:
        for name, tracker in list(self._live.items()):
            if not self._guard(name, partial(call, name, tracker)):
                del self._live[name]
            self._show_messages(name, tracker)

    def _show_messages(self, name: str, tracker: Tracker) -> None:
        def show() -> None:
            for message in tracker.messages():
                self._warn(f"tracker {name}: {message}")

        self._guard(name, show)

    def _guard(self, name: str, call: Callable[[], None]) -> bool:
        """Call, and return whether it succeeded. A run never fails because of its trackers."""
        try:
            call()
        except Exception as error:
            text = str(error).strip() or type(error).__name__
            self._warn(f"tracker {name}: {text}; the run goes on without it")
            return False
        return True
