"""Steps of optimizers that evaluate the loss several times in an update, such as L-BFGS."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class _NotFiniteError(ArithmeticError):
    """Raised inside a closure to abandon the optimizer's step."""


def needs_closure(optimizer: Optimizer) -> bool:
    """Return whether the `step` of an optimizer requires a closure."""
    return _requires_closure(type(optimizer).step)


@cache  # every update asks
def _requires_closure(step: Callable[..., object]) -> bool:
    closure = inspect.signature(step).parameters.get("closure")
    return closure is not None and closure.default is closure.empty


def step_with_closure(
    optimizer: Optimizer,
    parameters: Sequence[nn.Parameter],
    evaluate: Callable[[], tuple[Tensor, bool]],
    device: torch.device,
) -> bool:
    """Step once, or leave parameters and states as they were if an evaluation is not finite.

    Every evaluation draws the same random numbers, or a line search would compare the losses of
    different dropout masks.

    Args:
        optimizer: whose `step` takes a closure.
        evaluate: sets the gradients; returns the loss, and whether loss and gradients are finite.
        device: whose random state is kept.

    Returns:
        Whether it stepped.
    """
    values_before = [p.detach().clone() for p in parameters]
    states_before = copy.deepcopy(optimizer.state_dict())
    rng_state = torch.get_rng_state()
    cuda_rng_state = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def closure() -> Tensor:
        torch.set_rng_state(rng_state)
        if cuda_rng_state is not None:
            torch.cuda.set_rng_state(cuda_rng_state, device)
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
            for parameter, value in zip(parameters, values_before):
                parameter.copy_(value)
        optimizer.load_state_dict(states_before)
        return False
    return True
