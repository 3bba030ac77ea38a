"""One update by an optimizer that evaluates the loss several times, such as L-BFGS."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class _NotFiniteError(ArithmeticError):
    """Leaves the optimizer in the middle of its step."""


def needs_closure(optimizer: Optimizer) -> bool:
    """Whether its `step` cannot be called without one."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is closure.empty


def step_with_closure(
    optimizer: Optimizer,
    parameters: Sequence[nn.Parameter],
    evaluate: Callable[[], tuple[Tensor, bool]],
    device: torch.device,
) -> bool:
    """Steps, or leaves parameters and states as they were if an evaluation is not finite.

    Every evaluation draws the same random numbers, or a line search would compare the losses of
    different dropout masks.

    Args: evaluate: sets the gradients; returns the loss and whether all of them are finite.
    Returns: whether it stepped.
    """
    before = [p.detach().clone() for p in parameters]
    states = copy.deepcopy(optimizer.state_dict())
    random = torch.get_rng_state()
    on_device = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def closure() -> Tensor:
        torch.set_rng_state(random)
        if on_device is not None:
            torch.cuda.set_rng_state(on_device, device)
        for parameter in parameters:
            parameter.grad = None
        loss, finite = evaluate()
        if not finite:
            raise _NotFiniteError
        return loss

    try:
        optimizer.step(closure)  # type: ignore[arg-type]  # torch asks for a float, and adds to it
    except _NotFiniteError:
        with torch.no_grad():
            for parameter, value in zip(parameters, before):
                parameter.copy_(value)
        optimizer.load_state_dict(states)
        return False
    return True
