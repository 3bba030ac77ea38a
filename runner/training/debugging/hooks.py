"""Watching an update at work: calls of modules forward, gradients backward, batches, optimizers.

Everything is hooks: nothing of the model, the loss or the step is changed, and nothing is left
behind. Gradients of activations are seen by tensor hooks, since those of modules
(`register_full_backward_hook`) forbid layers that work in place.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from runner.batch import Batch
from runner.data.core.dataset import Dataset, DatasetWrapper
from runner.models.layers.embedding import TableLookup

DATA_PART, OPTIMIZER_PART = "(data)", "(optimizer)"  # parts of an update that are no modules
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)  # compute nothing themselves


class Observer(Protocol):
    """Told of everything that is watched, in the order in which it happens.

    A part of an update is a module by its dotted name, `DATA` or `OPTIMIZER`. An observer may
    raise: the error comes out of `steps()`.
    """

    def step_begins(self) -> None:
        return

    def step_ends(self) -> None:
        return

    def call_begins(self, part: str, inputs: Any) -> None:
        return

    def call_ends(self, part: str, inputs: Any, outputs: Any) -> None:
        return

    def gradient_at_output(self, part: str, gradient: Tensor) -> None:
        return

    def gradient_at_input(self, part: str, gradient: Tensor) -> None:
        """Of everything that read the same tensor, not of this part alone."""
        return

    def gradient_of_parameter(self, name: str, gradient: Tensor) -> None:
        """The sum so far, over the micro-batches of the update."""
        return


class HookDispatcher:
    """Sends what hooks see to the observers, on a clock that stands still while they look."""

    def __init__(self, observers: Sequence[Observer], *, device: torch.device) -> None:
        self.observers = observers
        self.device = device
        self.clock: Callable[[], float] = time.perf_counter
        self.observing_s = 0.0  # what observers have taken so far
        self.time_s = 0.0  # of the event they are being told of
        self.step_s = 0.0  # the last update took, without what observers did
        self.begun_s = 0.0
        self.activation_hooks: list[Any] = []

    def dispatch(self, event: str, *details: Any) -> None:
        started = self._seconds()
        self.time_s = started - self.observing_s
        for observer in self.observers:
            getattr(observer, event)(*details)
        self.observing_s += self._seconds() - started

    def step_begins(self) -> None:
        self.dispatch("step_begins")
        self.begun_s = self.time_s

    def step_ends(self) -> None:
        self.dispatch("step_ends")
        self.step_s = self.time_s - self.begun_s
        self.remove_activation_hooks()

    def remove_activation_hooks(self) -> None:
        """Takes the hooks off a step's tensors; one of them may be a parameter, and stay."""
        for hook in self.activation_hooks:
            hook.remove()
        self.activation_hooks.clear()

    def before_call(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        inputs = (args, kwargs)
        for tensor in iter_float_tensors(inputs):
            if tensor.requires_grad:
                told = partial(self.dispatch, "gradient_at_input", name)
                self.activation_hooks.append(tensor.register_hook(told))
        self.dispatch("call_begins", name, inputs)

    def after_call(
        self, name: str, module: nn.Module, args: Any, kwargs: Any, outputs: Any
    ) -> None:
        self.dispatch("call_ends", name, (args, kwargs), outputs)
        for tensor in iter_float_tensors(outputs):
            if tensor.requires_grad:
                told = partial(self.dispatch, "gradient_at_output", name)
                self.activation_hooks.append(tensor.register_hook(told))

    def after_gradient(self, name: str, parameter: Tensor) -> None:
        self.dispatch("gradient_of_parameter", name, parameter.grad)

    def before_optimizer(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self.dispatch("call_begins", OPTIMIZER_PART, ())

    def after_optimizer(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self.dispatch("call_ends", OPTIMIZER_PART, (), ())

    def _seconds(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # sync: or a kernel's time is the next one's
        return self.clock()


@contextmanager
def attach_hooks(
    dispatcher: HookDispatcher,
    modules: Mapping[str, nn.Module],
    parameters: Mapping[str, nn.Parameter],
) -> Iterator[HookDispatcher]:
    """Hooks on these modules and parameters, and on all optimizers, until it is left."""
    hooks: list[Any] = []
    try:
        for name, module in modules.items():
            before = partial(dispatcher.before_call, name)
            hooks.append(module.register_forward_pre_hook(before, with_kwargs=True))
            after = partial(dispatcher.after_call, name)
            hooks.append(module.register_forward_hook(after, with_kwargs=True))
        for name, parameter in parameters.items():
            after_gradient = partial(dispatcher.after_gradient, name)
            hooks.append(parameter.register_post_accumulate_grad_hook(after_gradient))
        hooks.append(register_optimizer_step_pre_hook(dispatcher.before_optimizer))
        hooks.append(register_optimizer_step_post_hook(dispatcher.after_optimizer))
        yield dispatcher
    finally:
        for hook in hooks:
            hook.remove()
        dispatcher.remove_activation_hooks()


def collect_modules(roots: Mapping[str, object]) -> dict[str, nn.Module]:
    """Modules that compute something, by dotted name below the name of their root.

    Roots that are no modules are passed over. The root "" is the model: it is left out itself,
    being called by its halves. A `TableLookup` counts as one.
    """
    found: dict[str, nn.Module] = {}
    seen: set[int] = set()
    for root_name, root in _module_roots(roots):
        inside: tuple[str, ...] = ()  # of look-ups
        for name, module in root.named_modules(prefix=root_name):
            if not name or isinstance(module, CONTAINERS) or name.startswith(inside):
                continue
            if isinstance(module, TableLookup):
                inside += (f"{name}.",)
            if id(module) not in seen:
                seen.add(id(module))
                found[name] = module
    return found


def collect_parameters(roots: Mapping[str, object]) -> dict[str, nn.Parameter]:
    """Trainable parameters, each once."""
    found: dict[int, tuple[str, nn.Parameter]] = {}
    for root_name, root in _module_roots(roots):
        for name, parameter in root.named_parameters(prefix=root_name):
            if parameter.requires_grad:
                found.setdefault(id(parameter), (name, parameter))
    return dict(found.values())


def _module_roots(roots: Mapping[str, object]) -> list[tuple[str, nn.Module]]:
    return [(name, root) for name, root in roots.items() if isinstance(root, nn.Module)]


def iter_float_tensors(value: Any) -> Iterator[Tensor]:
    """Floating-point tensors in a module's inputs or outputs, however they are packed."""
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from iter_float_tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from iter_float_tensors(item)
    elif is_dataclass(value):
        for f in fields(value):
            yield from iter_float_tensors(getattr(value, f.name))


class ObservedDataset(DatasetWrapper):
    """A dataset whose batches are told to a watch as calls of `DATA`."""

    def __init__(self, dataset: Dataset, dispatcher: HookDispatcher) -> None:
        super().__init__(dataset)
        self.dispatcher = dispatcher

    def batches(self, split: str, **how: Any) -> Iterator[Batch]:
        source = self.dataset.batches(split, **how)
        while True:
            self.dispatcher.dispatch("call_begins", DATA_PART, ())
            batch = next(source, None)
            self.dispatcher.dispatch("call_ends", DATA_PART, (), batch)
            if batch is None:
                return
            yield batch
