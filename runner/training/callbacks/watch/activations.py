"""Activations of every module and their gradients, as training goes on."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from torch import nn

from runner.errors import ConfigError, nearest_hint
from runner.training.debugging.hooks import HookDispatcher, attach_hooks, collect_modules
from runner.training.debugging.statistics import ActivationStatistics, Moments

STATISTICS = ("mean", "std", "rms", "max", "zeros", "bad")


class TrainingModeStatistics(ActivationStatistics):
    """Leaves out what an evaluation between two updates computes."""

    def call_ends(self, part: str, inputs: Any, outputs: Any) -> None:
        if part in self.modules and self.modules[part].training:
            super().call_ends(part, inputs, outputs)


class Activations:
    """A row `activations` of metrics.jsonl for every update whose number `every` divides:
    `<module>/output_<statistic>` and `<module>/gradient_<statistic>`, of the loss's gradient at the
    module's output. On rank 0, of its own rows.

    The update that is looked at is slower, the others pay nothing: hooks are put on before it and
    taken off after it.

    Args:
        every: updates. modules: patterns of whole dotted names, such as `top.*`.
        statistics: of `STATISTICS`; max is the largest magnitude, zeros and bad (NaN or infinite)
        are shares.
    Raises: ConfigError; a pattern that matches nothing is one.
    """

    def __init__(
        self, *, every: int, modules: Sequence[str] = (".*",), statistics: Sequence[str] = ("rms",)
    ) -> None:
        if every < 1:
            raise ConfigError(f"every={every}: must be at least 1 update")
        for name in statistics:
            if name not in STATISTICS:
                raise ConfigError(
                    f"no statistic {name!r}{nearest_hint(name, STATISTICS)}; "
                    f"there are {', '.join(STATISTICS)}"
                )
        self.every, self.patterns, self.statistics = every, tuple(modules), tuple(statistics)
        self.hooks = ExitStack()
        self.observer: TrainingModeStatistics | None = None

    def state(self) -> dict[str, Any]:
        """Nothing: what is looked at next follows from the step."""
        return {}

    def load_state(self, saved: Mapping[str, Any]) -> None:
        return

    def on_run_start(self, training: Any) -> None:
        if training.job.trainer.compile:
            raise ConfigError("a compiled half has no modules to look at; trainer.compile=false")
        self._attach_hooks(training)

    def on_update(self, training: Any, output: Any) -> None:
        if self.observer is not None:
            training.log("activations", self._numbers(self.observer))
            self._detach_hooks()
        self._attach_hooks(training)

    def on_run_end(self, training: Any, result: Any) -> None:
        self._detach_hooks()

    def _attach_hooks(self, training: Any) -> None:
        """Puts hooks on for the next update, if it is one of those."""
        if (training.step + 1) % self.every:
            return
        context = training.context
        modules = select_modules(
            collect_modules({"": context.model, "(loss)": context.loss}), self.patterns
        )
        scale = context.loss_scale
        self.observer = TrainingModeStatistics(
            modules, lambda: 1.0 if scale is None else float(scale.state[0])
        )
        watch = HookDispatcher([self.observer], device=context.device)
        self.hooks.enter_context(attach_hooks(watch, modules, {}))

    def _detach_hooks(self) -> None:
        self.hooks.close()
        self.observer = None

    def _numbers(self, seen: ActivationStatistics) -> dict[str, float]:
        return {
            f"{name}/{kind}_{statistic}": statistic_value(moments, statistic)
            for name in seen.modules
            for kind, found in (("output", seen.outputs), ("gradient", seen.gradients))
            if (moments := found.get(name)) is not None
            for statistic in self.statistics
        }


def select_modules(
    modules: Mapping[str, nn.Module], patterns: Sequence[str]
) -> dict[str, nn.Module]:
    """Raises: ConfigError for a pattern that is none, or matches no module."""
    for pattern in patterns:
        try:
            if not any(re.fullmatch(pattern, name) for name in modules):
                raise ConfigError(
                    f"modules: {pattern!r} matches none{nearest_hint(pattern, modules)}"
                )
        except re.error as error:
            raise ConfigError(f"modules: pattern {pattern!r}: {error}") from error
    return {n: m for n, m in modules.items() if any(re.fullmatch(p, n) for p in patterns)}


def statistic_value(moments: Moments, statistic: str) -> float:
    if statistic in ("zeros", "bad"):
        return getattr(moments, statistic) / max(moments.count, 1)
    return float(getattr(moments, "abs_max" if statistic == "max" else statistic))
