"""The callbacks of a job: what they may be, and the state that they keep over a resume.

A callback is any class with some of the methods in `EVENTS`. Its constructor takes the keys of its
node in the configuration. It runs on rank 0, or with `on_every_rank = True` on all. What it draws
at random is drawn from a copy of the generators, so that training draws what it would without it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from runner.distributed.ranks import Ranks
from runner.errors import ConfigError, nearest_hint
from runner.training.callbacks.statefulness import find_assigned_attributes

# Method -> its arguments. `training` is a runner.training.loops.events.Training.
EVENTS: Mapping[str, str] = {
    "on_run_start": "training",  # the state is there, also that of a resume; no update made yet
    "on_update": "training, output",  # after every update; output: a StepOutput
    "on_epoch": "training",  # after the last update of an epoch
    "on_evaluation": "training, split, metrics",  # of validation on the way, of test at the end
    "on_checkpoint": "training",  # the state, its own too, is about to be copied
    "on_run_end": "training, result",  # completed or interrupted; result: a Result
}
STATE_METHODS = ("state", "load_state")  # -> a dict of JSON values; a dict of them ->


class Callbacks:
    """Those of this rank, by the names that the configuration gives them."""

    def __init__(
        self,
        callbacks: Mapping[str, Any] | None = None,
        *,
        ranks: Ranks,
        exist_on_any_rank: bool = False,
    ) -> None:
        """Args: exist_on_any_rank: whether any rank has one. Raises: ConfigError for what is no callback."""
        self.by_name = dict(callbacks or {})
        self.exist_on_any_rank = exist_on_any_rank
        self.ranks = ranks
        for name, callback in self.by_name.items():
            check_callback(name, callback)

    def state(self) -> dict[str, list[Any]]:
        """Collective, if any is listed. What each keeps on each rank, for a checkpoint."""
        if not self.exist_on_any_rank:
            return {}
        mine = {
            name: state
            for name, callback in self.by_name.items()
            if has_state(callback) and (state := get_json_state(name, callback))
        }
        everyone = self.ranks.all_gather_object(mine)
        names = dict.fromkeys(name for of_rank in everyone for name in of_rank)
        return {name: [r[name] for r in everyone if name in r] for name in names}

    def load_state(self, saved: Mapping[str, list[Any]]) -> None:
        """A callback that was not listed then starts afresh, and so does a rank that there was not
        from what rank 0 had."""
        for name, callback in self.by_name.items():
            if name in saved and has_state(callback):
                of_ranks = saved[name]
                rank = self.ranks.rank if self.ranks.rank < len(of_ranks) else 0
                callback.load_state(of_ranks[rank])


def has_state(callback: Any) -> bool:
    return hasattr(callback, STATE_METHODS[0])


def get_json_state(name: str, callback: Any) -> dict[str, Any]:
    """Raises: ConfigError if it is not what JSON can hold."""
    state = callback.state()
    try:
        if not isinstance(state, dict):
            raise TypeError(f"not a dict but {type(state).__name__}")
        json.dumps(state, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"callbacks.{name} ({type(callback).__name__}): state() must return a dict of JSON "
            f"values: {error}"
        ) from error
    return state


def check_callback(name: str, callback: Any) -> None:
    """Raises: ConfigError if it has no event, a misspelt one, or a state that nobody would save."""
    where = f"callbacks.{name} ({type(callback).__name__})"
    own = [a for a in dir(callback) if a.startswith("on_") and callable(getattr(callback, a))]
    for method in own:
        if method not in EVENTS:
            raise ConfigError(
                f"{where}: {method} is no event{nearest_hint(method, EVENTS)}; "
                f"there are {', '.join(EVENTS)}"
            )
    if not own:
        raise ConfigError(f"{where}: has no event; there are {', '.join(EVENTS)}")
    there = [method for method in STATE_METHODS if callable(getattr(callback, method, None))]
    if len(there) == 1:
        missing = next(method for method in STATE_METHODS if method not in there)
        raise ConfigError(f"{where}: has {there[0]}() but no {missing}(); a state needs both")
    if there:
        get_json_state(name, callback)
    changed = [] if there else find_assigned_attributes(type(callback))
    if changed:
        raise ConfigError(f"{where}: {undeclared_state_message(changed[0])}")


def undeclared_state_message(attribute: str) -> str:
    """What is said of a callback that changes without anything to save it by."""
    return (
        f"changes self.{attribute} while it runs, and a resumed run would not know it: give it "
        "state(), which returns a dict of JSON values, and load_state(saved); {} keeps nothing"
    )
