"""Where the time of an update goes: forward and backward of each module, data, optimizers."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from runner.training.debugging.hooks import HookDispatcher, Observer, iter_float_tensors

OUTSIDE = "(outside modules)"
Direction = Literal["forward", "backward"]


class ModuleTimer(Observer):
    """Seconds by part and direction, each moment counted once, for its innermost part.

    A module's backward lasts from the gradient at its output to the next gradient at another's,
    or at its own input. Whatever observers take is left out.
    """

    def __init__(self) -> None:
        self.dispatcher: HookDispatcher | None = (
            None  # whose clock it reads; set once both are there
        )
        self.seconds: dict[tuple[str, Direction], float] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}  # of each part's last output, by first call
        self.owner: tuple[str, Direction] = (OUTSIDE, "forward")
        self.outer: list[tuple[str, Direction]] = []
        self.since_s = 0.0
        self.num_steps = 0

    def reset(self) -> None:
        """Starts over, such as after a first update that warms things up."""
        self.seconds = {}
        self.num_steps = 0

    def total_s(self) -> float:
        return sum(self.seconds.values())

    def time_fraction(self, part: str, direction: Direction) -> float:
        return self.seconds.get((part, direction), 0.0) / max(self.total_s(), 1e-12)

    def step_begins(self) -> None:
        assert self.dispatcher is not None
        self.since_s = self.dispatcher.time_s
        self.owner = (OUTSIDE, "forward")
        self.outer = []

    def step_ends(self) -> None:
        self._turn_to((OUTSIDE, "forward"))
        self.num_steps += 1

    def call_begins(self, part: str, inputs: Any) -> None:
        # what comes after a call is not the backward that went before it
        self.outer.append(self.owner if self.owner[1] == "forward" else (OUTSIDE, "forward"))
        self._turn_to((part, "forward"))

    def call_ends(self, part: str, inputs: Any, outputs: Any) -> None:
        self._turn_to(self.outer.pop())
        first = next(iter_float_tensors(outputs), None)
        if first is not None:
            self.shapes[part] = tuple(first.shape)

    def gradient_at_output(self, part: str, gradient: Tensor) -> None:
        self._turn_to((part, "backward"))

    def gradient_at_input(self, part: str, gradient: Tensor) -> None:
        if self.owner == (part, "backward"):
            self._turn_to((OUTSIDE, "backward"))

    def _turn_to(self, owner: tuple[str, Direction]) -> None:
        assert self.dispatcher is not None
        now_s = self.dispatcher.time_s
        spent_s = now_s - self.since_s
        self.seconds[self.owner] = self.seconds.get(self.owner, 0.0) + spent_s
        self.owner, self.since_s = owner, now_s
