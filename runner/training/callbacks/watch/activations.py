"""Statistics of the activations of modules and of their gradients during a training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Annotated, Any

from torch import nn

from runner.config_key import Key
from runner.config_value import check_arguments
from runner.errors import ConfigError
from runner.training.callbacks.watch.histograms import select_names
from runner.training.debugging.hooks import HookDispatcher, attach_hooks, collect_modules
from runner.training.debugging.statistics import ActivationStatistics, Moments

STATISTICS = ("mean", "std", "rms", "max", "zeros", "bad")


class TrainingModeStatistics(ActivationStatistics):
    """Activation statistics without what an evaluation between two updates computes.

    Args:
        model: whose mode tells an evaluation, also where the loss is called, which keeps its mode.
        modules: by name, those that are observed.
        scale: see `ActivationStatistics`.
    """

    def __init__(
        self, model: nn.Module, modules: Mapping[str, nn.Module], scale: Callable[[], float]
    ) -> None:
        self.model = model
        super().__init__(modules, scale)

    def call_ends(self, part: str, inputs: Any, outputs: Any) -> None:
        if self.model.training:
            super().call_ends(part, inputs, outputs)


class Activations:
    """Writes a row `activations` of metrics.jsonl for every update whose number `every` divides.

    The row holds `<module>/output_<statistic>` and `<module>/gradient_<statistic>`, the latter of
    the gradient of the loss at the module's output, both of the rows of rank 0.

    Only the updates that are observed are slower: hooks are attached before such an update and
    removed after it. One thread computes them, so that a model with batch norms is rounded
    otherwise than on several threads.

    Args:
        every: a number of updates.
        modules: patterns that match whole dotted names, such as `top.*`.
        statistics: some of `STATISTICS`; max is the largest magnitude, zeros and bad (NaN or
            infinite) are shares.

    Raises:
        ConfigError: if a setting is wrong; at the start of the run, if a pattern matches nothing.
    """

    stateless = True  # which update is observed next follows from the step

    def __init__(
        self,
        *,
        every: Annotated[int, Key(ge=1, unit="updates")],
        modules: Annotated[Sequence[str], Key(min_items=1)] = (".*",),
        statistics: Annotated[Sequence[str], Key(choices=STATISTICS, min_items=1)] = (
            "rms",
            "zeros",
        ),
    ) -> None:
        check_arguments(Activations.__init__, locals())
        self.every, self.patterns, self.statistics = every, tuple(modules), tuple(statistics)
        self.modules: dict[str, nn.Module] = {}
        self.hooks = ExitStack()
        self.observer: TrainingModeStatistics | None = None

    def on_run_start(self, training: Any) -> None:
        if training.job.trainer.compile:
            raise ConfigError(
                "a compiled dense half has no modules to observe; trainer.compile=false"
            )
        by_name = collect_modules({"": training.context.model, "(loss)": training.context.loss})
        self.modules = {
            n: by_name[n] for n in select_names(self.patterns, list(by_name), "modules")
        }
        self._attach_hooks(training)

    def on_update(self, training: Any, output: Any) -> None:
        if self.observer is not None:
            training.log("activations", self._values(self.observer))
            self._detach_hooks()
        self._attach_hooks(training)

    def on_run_end(self, training: Any, result: Any) -> None:
        self._detach_hooks()

    def _attach_hooks(self, training: Any) -> None:
        """Attach hooks for the next update, if it is to be observed."""
        if (training.step + 1) % self.every:
            return
        context = training.context
        scale = context.loss_scale
        self.observer = TrainingModeStatistics(
            context.model,
            self.modules,
            lambda: 1.0 if scale is None else float(scale.state[0]),
        )
        dispatcher = HookDispatcher([self.observer], device=context.device)
        self.hooks.enter_context(attach_hooks(dispatcher, self.modules, {}))

    def _detach_hooks(self) -> None:
        self.hooks.close()
        self.observer = None

    def _values(self, observer: ActivationStatistics) -> dict[str, float]:
        return {
            f"{name}/{kind}_{statistic}": statistic_value(moments, statistic)
            for name in observer.modules
            for kind, by_module in (("output", observer.outputs), ("gradient", observer.gradients))
            if (moments := by_module.get(name)) is not None
            for statistic in self.statistics
        }


def statistic_value(moments: Moments, statistic: str) -> float:
    """Return one of `STATISTICS` from the moments of a module."""
    if statistic in ("zeros", "bad"):
        return float(getattr(moments, statistic) / max(moments.count, 1))
    return float(getattr(moments, "abs_max" if statistic == "max" else statistic))
