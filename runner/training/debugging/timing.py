"""Measures where the time of an update goes: modules forward and backward, data, optimizers."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from runner.training.debugging.hooks import HookDispatcher, Observer, iter_float_tensors

OUTSIDE = "(outside modules)"
Direction = Literal["forward", "backward"]


class ModuleTimer(Observer):
    """Seconds by part and direction; each moment counts once, for the innermost part.

    A module's backward lasts from the gradient at its output to the gradient at another module's
    output or at its own input. The time that observers take is left out.
    """

    def __init__(self) -> None:
        # its clock is read; set once both exist
        self.dispatcher: HookDispatcher | None = None
        self.seconds: dict[tuple[str, Direction], float] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}  # of each part's last output, by first call
        self.owner: tuple[str, Direction] = (OUTSIDE, "forward")
        self.outer: list[tuple[str, Direction]] = []  # owners to return to, innermost last
        self.since_s = 0.0
        self.num_steps = 0

    def reset(self) -> None:
        """Start over, such as after a first update that also warms caches up."""
        self.seconds = {}
        self.num_steps = 0

    def total_s(self) -> float:
        """Return the seconds of all parts."""
        return sum(self.seconds.values())

    def time_fraction(self, part: str, direction: Direction) -> float:
        """Return the share of a part and direction in all seconds."""
        return self.seconds.get((part, direction), 0.0) / max(self.total_s(), 1e-12)

    def step_begins(self) -> None:
        assert self.dispatcher is not None
        self.since_s = self.dispatcher.time_s
        self.owner = (OUTSIDE, "forward")
        self.outer = []

    def step_ends(self) -> None:
        self._switch_to((OUTSIDE, "forward"))
        self.num_steps += 1

    def call_begins(self, part: str, inputs: Any) -> None:
        # a backward that went before a call does not go on after it
        self.outer.append(self.owner if self.owner[1] == "forward" else (OUTSIDE, "forward"))
        self._switch_to((part, "forward"))

    def call_ends(self, part: str, inputs: Any, outputs: Any) -> None:
        self._switch_to(self.outer.pop())
        first = next(iter_float_tensors(outputs), None)
        if first is not None:
            self.shapes[part] = tuple(first.shape)

    def gradient_at_output(self, part: str, gradient: Tensor) -> None:
        self._switch_to((part, "backward"))

    def gradient_at_input(self, part: str, gradient: Tensor) -> None:
        if self.owner == (part, "backward"):
            self._switch_to((OUTSIDE, "backward"))

    def _switch_to(self, owner: tuple[str, Direction]) -> None:
        assert self.dispatcher is not None
        now_s = self.dispatcher.time_s
        spent_s = now_s - self.since_s
        self.seconds[self.owner] = self.seconds.get(self.owner, 0.0) + spent_s
        self.owner, self.since_s = owner, now_s
