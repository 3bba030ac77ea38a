"""Observes an update by hooks: calls of modules, gradients, batches and optimizers.

The model, the loss and the step are not changed, and no hook is left behind. Gradients of
activations are seen by hooks on tensors, since those on modules (`register_full_backward_hook`)
forbid layers that work in place.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
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
from runner.parts import internal

DATA_PART, OPTIMIZER_PART = "(data)", "(optimizer)"  # parts of an update that are not modules
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)  # compute nothing themselves


class Observer(Protocol):
    """Is called for every event of an update, in the order in which they happen.

    A part of an update is the dotted name of a module, `DATA_PART` or `OPTIMIZER_PART`. An
    observer may raise: the error leaves `steps()`.
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
        """Take the gradient from all parts that read this tensor, not from this part alone."""
        return

    def gradient_of_parameter(self, name: str, gradient: Tensor) -> None:
        """Take the gradient summed over the micro-batches of the update so far."""
        return


class HookDispatcher:
    """Sends what hooks see to the observers, on a clock that stops while the observers run."""

    def __init__(self, observers: Sequence[Observer], *, device: torch.device) -> None:
        self.observers = observers
        self.device = device
        self.clock: Callable[[], float] = time.perf_counter
        self.observing_s = 0.0  # time that the observers have taken so far
        self.time_s = 0.0  # when the present event happened
        self.step_s = 0.0  # duration of the last update, without the observers
        self.step_start_s = 0.0
        self.activation_hooks = ExitStack()

    def dispatch(self, event: str, *details: Any) -> None:
        """Call the method `event` of every observer."""
        started = self._seconds()
        self.time_s = started - self.observing_s
        for observer in self.observers:
            getattr(observer, event)(*details)
        self.observing_s += self._seconds() - started

    def step_begins(self) -> None:
        self.dispatch("step_begins")
        self.step_start_s = self.time_s

    def step_ends(self) -> None:
        self.dispatch("step_ends")
        self.step_s = self.time_s - self.step_start_s
        self.activation_hooks.close()  # some are on parameters, which stay

    def before_call(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        inputs = (args, kwargs)
        self._watch_gradients("gradient_at_input", name, inputs)
        self.dispatch("call_begins", name, inputs)

    def after_call(
        self, name: str, module: nn.Module, args: Any, kwargs: Any, outputs: Any
    ) -> None:
        self.dispatch("call_ends", name, (args, kwargs), outputs)
        self._watch_gradients("gradient_at_output", name, outputs)

    def _watch_gradients(self, event: str, name: str, tensors: Any) -> None:
        for tensor in iter_float_tensors(tensors):
            if tensor.requires_grad:
                hook = partial(self.dispatch, event, name)
                self.activation_hooks.enter_context(tensor.register_hook(hook))  # type: ignore[no-untyped-call]

    def after_gradient(self, name: str, parameter: Tensor) -> None:
        self.dispatch("gradient_of_parameter", name, parameter.grad)

    def _seconds(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # sync: else a kernel counts for the next part
        return self.clock()


@contextmanager
def attach_hooks(
    dispatcher: HookDispatcher,
    modules: Mapping[str, nn.Module],
    parameters: Mapping[str, nn.Parameter],
) -> Iterator[HookDispatcher]:
    """Attach hooks to these modules and parameters and to all optimizers, and remove them."""
    with ExitStack() as hooks:
        hooks.callback(dispatcher.activation_hooks.close)
        for name, module in modules.items():
            before = partial(dispatcher.before_call, name)
            hooks.enter_context(module.register_forward_pre_hook(before, with_kwargs=True))
            after = partial(dispatcher.after_call, name)
            hooks.enter_context(module.register_forward_hook(after, with_kwargs=True))
        for name, parameter in parameters.items():
            after_gradient = partial(dispatcher.after_gradient, name)
            handle = parameter.register_post_accumulate_grad_hook(after_gradient)  # type: ignore[no-untyped-call]
            hooks.enter_context(handle)
        begin = partial(dispatcher.dispatch, "call_begins", OPTIMIZER_PART, ())
        hooks.enter_context(register_optimizer_step_pre_hook(lambda *_: begin()))
        end = partial(dispatcher.dispatch, "call_ends", OPTIMIZER_PART, (), ())
        hooks.enter_context(register_optimizer_step_post_hook(lambda *_: end()))
        yield dispatcher


def collect_modules(roots: Mapping[str, object]) -> dict[str, nn.Module]:
    """Return the modules that compute something, by dotted name below the name of their root.

    Roots that are not modules are skipped. The root "" is the model, which is left out itself
    since its halves are called one by one. A `TableLookup` counts as a single module.
    """
    modules: dict[str, nn.Module] = {}
    seen: set[int] = set()
    for root_name, root in _module_roots(roots):
        inside: tuple[str, ...] = ()  # prefixes of the names of look-ups' own modules
        for name, module in root.named_modules(prefix=root_name):
            if not name or isinstance(module, CONTAINERS) or name.startswith(inside):
                continue
            if isinstance(module, TableLookup):
                inside += (f"{name}.",)
            if id(module) not in seen:
                seen.add(id(module))
                modules[name] = module
    return modules


def collect_parameters(roots: Mapping[str, object]) -> dict[str, nn.Parameter]:
    """Return the trainable parameters by name, each once."""
    parameters: dict[int, tuple[str, nn.Parameter]] = {}
    for root_name, root in _module_roots(roots):
        for name, parameter in root.named_parameters(prefix=root_name):
            if parameter.requires_grad:
                parameters.setdefault(id(parameter), (name, parameter))
    return dict(parameters.values())


def _module_roots(roots: Mapping[str, object]) -> list[tuple[str, nn.Module]]:
    return [(name, root) for name, root in roots.items() if isinstance(root, nn.Module)]


def iter_float_tensors(value: Any) -> Iterator[Tensor]:
    """Yield the floating-point tensors in a module's inputs or outputs, however nested."""
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


@internal
class ObservedDataset(DatasetWrapper):
    """A dataset that reports the reading of each batch as a call of `DATA_PART`."""

    def __init__(self, dataset: Dataset, dispatcher: HookDispatcher) -> None:
        super().__init__(dataset)
        self.dispatcher = dispatcher

    def batches(self, split: str, **kwargs: Any) -> Iterator[Batch]:
        source = iter(self.dataset.batches(split, **kwargs))
        while True:
            self.dispatcher.dispatch("call_begins", DATA_PART, ())
            batch = next(source, None)
            self.dispatcher.dispatch("call_ends", DATA_PART, (), batch)
            if batch is None:
                return
            yield batch
