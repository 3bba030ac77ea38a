"""Stops, pauses or warns if the loss is not finite or spikes, or if updates are skipped."""

from __future__ import annotations

import math
from statistics import median
from typing import Annotated, Any

from runner.config_key import Key
from runner.config_value import check_arguments
from runner.training.debugging.losses import mean_losses

ACTIONS = ("stop", "pause", "warn", "ignore")
MAD_TO_STD = 1.4826  # standard deviation of a normal distribution / its median absolute deviation


class LossGuard:
    """Looks at the loss of this rank's rows at every update, which costs a synchronisation.

    A spike is a loss that lies more than `spike` deviations above the median of the last `window`
    losses. The deviation is 1.4826 times the median absolute deviation, so that one outlier cannot
    hide the next. A loss that is not finite does not enter the window. Each kind of problem is
    warned of once, and again only after an update without any.

    Args:
        max_skipped: updates in a row that may be skipped because a gradient is not finite, before
            `on_nonfinite` applies. None: any number.

    Raises:
        ConfigError: if an action is unknown or a number is out of its range.
    """

    on_every_rank = True

    def __init__(
        self,
        *,
        on_nonfinite: Annotated[str, Key(choices=ACTIONS)] = "stop",
        on_spike: Annotated[str, Key(choices=ACTIONS)] = "warn",
        spike: Annotated[float, Key(gt=0)] = 10.0,
        window: Annotated[int, Key(ge=1, le=100_000)] = 100,
        max_skipped: Annotated[int | None, Key(ge=1)] = 20,
    ) -> None:
        check_arguments(LossGuard.__init__, locals())
        self.on_nonfinite, self.on_spike = on_nonfinite, on_spike
        self.spike, self.window, self.max_skipped = spike, window, max_skipped
        self.losses: list[float] = []
        self.skipped = 0
        self.warned_kinds: list[str] = []

    def on_update(self, training: Any, output: Any) -> None:
        self.skipped = 0 if output.applied else self.skipped + 1
        parts = mean_losses(output)  # sync
        loss = sum(parts.values())
        if self.max_skipped is not None and self.skipped >= self.max_skipped:
            reason = f"{self.skipped} updates in a row were skipped: a gradient was not finite"
            self._act(training, self.on_nonfinite, "skipped", reason)
        if not math.isfinite(loss):
            by_name = ", ".join(f"{name} {part:.5g}" for name, part in parts.items())
            reason = f"the loss is {loss:g}" + (f" ({by_name})" if len(parts) > 1 else "")
            self._act(training, self.on_nonfinite, "nonfinite", reason)
            return
        if self._is_spike(loss):
            reason = (
                f"the loss is {loss:.5g}; the median of the last {len(self.losses)} updates is "
                f"{median(self.losses):.5g}"
            )
            self._act(training, self.on_spike, "spike", reason)
        elif not self.skipped:
            self.warned_kinds = []
        self.losses = [*self.losses, loss][-self.window :]

    def _is_spike(self, loss: float) -> bool:
        if len(self.losses) < self.window:
            return False
        typical = median(self.losses)
        deviation = MAD_TO_STD * median([abs(x - typical) for x in self.losses])
        return loss - typical > self.spike * deviation > 0

    def _act(self, training: Any, action: str, kind: str, reason: str) -> None:
        if action == "stop":
            training.stop(f"loss_guard: {reason}")
        elif action == "pause":
            training.pause(f"loss_guard: {reason}")
        elif action == "warn" and kind not in self.warned_kinds:
            self.warned_kinds = [*self.warned_kinds, kind]
            training.warn(f"step {training.step:,}: loss_guard: {reason}")

    def state(self) -> dict[str, Any]:
        # the key `told` stands in the checkpoints of old runs
        return {"losses": self.losses, "skipped": self.skipped, "told": self.warned_kinds}

    def load_state(self, saved: dict[str, Any]) -> None:
        self.losses, self.skipped = saved["losses"], saved["skipped"]
        self.warned_kinds = saved["told"]
