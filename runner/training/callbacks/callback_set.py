"""The callbacks of a job: what a callback may be, and the state that it keeps over a resume.

A callback is any class with some of the methods in `EVENTS`. Its constructor takes the keys of its
node in the configuration. It runs on rank 0, or with `on_every_rank = True` on all ranks. Random
numbers that it draws come from a copy of the generators, so that training draws the same numbers
with and without it.

A resumed run must go on as one that was never interrupted, so each callback declares what it keeps
between its calls: it has `state()` and `load_state()`, or it sets `stateless = True`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from runner.distributed.ranks import Ranks
from runner.errors import ConfigError, nearest_hint

# Method -> its arguments. `training` is a runner.training.loops.events.TrainingHandle.
EVENTS: Mapping[str, str] = {
    "on_run_start": "training",  # the state is there, also after a resume; no update was made yet
    "on_epoch_start": "training",  # before the first update of an epoch that this process makes
    "on_batch_start": "training",  # before every update, whose batches are not read yet
    "on_update": "training, output",  # after every update; output: a StepOutput
    "on_epoch": "training",  # after the last update of an epoch
    "on_evaluation_start": "training, split",  # before the first batch; `split` as in on_evaluation
    "on_evaluation": "training, split, metrics",  # of validation on the way, of test at the end
    "on_best": "training, metrics",  # after on_evaluation, if checkpoint.monitor is at a new best
    "on_checkpoint": "training",  # before the state, the callback's own included, is copied
    "on_run_end": "training, result",  # completed or interrupted; result: a Result
}
STATE_METHODS = ("state", "load_state")


@runtime_checkable
class StatefulCallback(Protocol):
    """A callback whose state is saved in every checkpoint, for each rank on which it runs."""

    def state(self) -> dict[str, Any]:
        """Return what a resumed run must know, as a dict of JSON values."""
        ...

    def load_state(self, saved: dict[str, Any]) -> None:
        """Take back what `state()` returned when the checkpoint was written."""
        ...


class Callbacks:
    """The callbacks of this rank, by the names that the configuration gives them."""

    def __init__(
        self,
        callbacks: Mapping[str, Any] | None = None,
        *,
        ranks: Ranks,
        exist_on_any_rank: bool = False,
    ) -> None:
        """Check every callback.

        Args:
            exist_on_any_rank: whether the configuration lists a callback, for whatever rank.

        Raises:
            ConfigError: if an object is not a callback; see `check_callback`.
        """
        self.by_name = dict(callbacks or {})
        self.exist_on_any_rank = exist_on_any_rank
        self.ranks = ranks
        for name, callback in self.by_name.items():
            check_callback(name, callback)

    def state(self) -> dict[str, list[Any]]:
        """Return the states of all callbacks, a list by rank for each name.

        Collective, if any callback is listed. States that are empty on all ranks are left out.
        """
        if not self.exist_on_any_rank:
            return {}
        of_this_rank = {
            name: get_json_state(name, callback)
            for name, callback in self.by_name.items()
            if isinstance(callback, StatefulCallback)
        }
        by_rank = self.ranks.all_gather_object(of_this_rank)
        names = dict.fromkeys(
            name for of_rank in by_rank for name, state in of_rank.items() if state
        )
        return {name: [r[name] for r in by_rank if name in r] for name in names}

    def load_state(self, saved: Mapping[str, list[Any]]) -> None:
        """Give each callback the state of its rank.

        A callback that was not listed when the checkpoint was written starts afresh. A rank that
        did not exist then takes the state of rank 0.
        """
        for name, callback in self.by_name.items():
            if name in saved and isinstance(callback, StatefulCallback):
                of_ranks = saved[name]
                rank = self.ranks.rank if self.ranks.rank < len(of_ranks) else 0
                callback.load_state(of_ranks[rank])


def get_json_state(name: str, callback: StatefulCallback) -> dict[str, Any]:
    """Return the state of a callback.

    Raises:
        ConfigError: if the state is not a dict of JSON values.
    """
    return check_json_state(_describe(name, callback), callback.state())


def check_json_state(where: str, state: Any) -> dict[str, Any]:
    """Return what an object of one's own gives as its state, if JSON can hold it.

    Raises:
        ConfigError: if it is not a dict of JSON values.
    """
    rule = f"{where}: state() must return a dict of JSON values"
    if not isinstance(state, dict):
        raise ConfigError(f"{rule}: not a dict but {type(state).__name__}")
    try:
        json.dumps(state, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{rule}: {error}") from error
    return state


def has_state(where: str, part: object) -> bool:
    """Return whether an object of one's own keeps a state.

    Raises:
        ConfigError: if it has one method of a state without the other.
    """
    present = [m for m in STATE_METHODS if callable(getattr(part, m, None))]
    if len(present) == 1:
        missing = next(m for m in STATE_METHODS if m not in present)
        raise ConfigError(f"{where}: has {present[0]}() but no {missing}(); a state needs both")
    return bool(present)


def check_callback(name: str, callback: Any) -> None:
    """Check that an object has events and declares its state.

    Raises:
        ConfigError: if it has no event or a misspelt one, does not declare whether it has a state,
            or returns a state that JSON cannot hold.
    """
    where = _describe(name, callback)
    methods = [a for a in dir(callback) if a.startswith("on_") and callable(getattr(callback, a))]
    for method in methods:
        if method not in EVENTS:
            raise ConfigError(
                f"{where}: {method} is not an event{nearest_hint(method, EVENTS)}; "
                f"there are {', '.join(EVENTS)}"
            )
    if not methods:
        raise ConfigError(f"{where}: has no event; there are {', '.join(EVENTS)}")
    stateless = getattr(callback, "stateless", False)
    if has_state(where, callback):
        if stateless:
            raise ConfigError(
                f"{where}: says stateless = True, but has state(); remove one of the two"
            )
        get_json_state(name, callback)
    elif not stateless:
        raise ConfigError(
            f"{where}: does not say what a resumed run must know of it; add state(), which returns "
            "a dict of JSON values, and load_state(saved), or, if it keeps nothing that a resumed "
            "run needs, the class attribute stateless = True"
        )


def _describe(name: str, callback: Any) -> str:
    return f"callbacks.{name} ({type(callback).__name__})"
