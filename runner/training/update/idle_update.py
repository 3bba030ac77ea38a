"""Finds out whether an update of a user's own task has trained anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from runner.training.update.context import Context
from runner.training.update.unsaved_state import state_of


@contextmanager
def watch_weights(context: Context) -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether anything outside of the tables was trained so far.

    Each step of an optimizer counts, also by a rate of 0 and without the context, and so does each
    weight or buffer with another value.
    """
    tensors: list[Tensor] = [*context.dense_parameters]
    for module in context.root_modules():
        tensors += module.buffers()
    for module in context.task_modules.values():
        tensors += module.parameters()
    before = [state_of(tensor) for tensor in tensors]
    stepped = []
    hook = register_optimizer_step_post_hook(lambda optimizer, *_: stepped.append(optimizer))
    try:
        yield lambda: bool(stepped) or [state_of(tensor) for tensor in tensors] != before
    finally:
        hook.remove()
