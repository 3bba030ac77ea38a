"""The dense half's optimizer: any torch.optim class, and its state as named tensors and JSON.

torch makes most states at the first step, each class in its own way, so a fresh optimizer has no
tensors to load into. `dense_values` therefore writes down which states there are; before loading,
`create_dense_state` makes exactly these.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from runner.errors import ConfigError, nearest_hint

# Classes with a fused kernel, and the devices that have it. Several times faster than the others on
# CPU, and never chosen by torch itself.
_FUSED = {
    torch.optim.Adam: ("cpu", "cuda"),
    torch.optim.AdamW: ("cpu", "cuda"),
    torch.optim.SGD: ("cpu", "cuda"),
    torch.optim.Adagrad: ("cpu",),
}
_NOT_WITH_FUSED = ("foreach", "differentiable")


def build_dense_optimizer(
    cls: type[Optimizer],
    settings: Mapping[str, Any],
    parameters: Mapping[str, nn.Parameter],
    *,
    where: str = "optimizer.dense",
) -> Optimizer:
    """An optimizer over named parameters, fused where torch can and `settings` do not say.

    Raises: ConfigError for an unknown setting (with the nearest name) or a value that the class
    refuses.
    """
    if not (isinstance(cls, type) and issubclass(cls, Optimizer)):
        raise ConfigError(f"{where}._target_: {cls!r} is no torch optimizer class")
    accepted = inspect.signature(cls.__init__).parameters
    known = [name for name in accepted if name not in ("self", "params")]
    if not any(p.kind is p.VAR_KEYWORD for p in accepted.values()):
        wrong = [key for key in settings if key not in known]
        if wrong:
            out = ""
            if "[" not in where:  # of a list, as parts are, the command line can take nothing
                keys = " ".join(f"~{where}.{key}" for key in wrong)
                out = f"; {keys} {'leaves it' if len(wrong) == 1 else 'leave them'} out"
            raise ConfigError(
                f"{where}.{wrong[0]} is no setting of {cls.__name__}{nearest_hint(wrong[0], known)}; "
                f"known: {', '.join(known)}{out}"
            )
    options: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()
    }
    devices = {p.device.type for p in parameters.values()}
    if devices <= set(_FUSED.get(cls, ())) and not any(options.get(k) for k in _NOT_WITH_FUSED):
        options.setdefault("fused", True)
    try:
        # a group, since torch refuses an empty list, and a model may be tables and nothing else
        return cls([{"params": list(parameters.values())}], **options)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"{where}: {cls.__name__}: {error}") from error


def dense_state_tensors(
    optimizer: Optimizer, parameters: Mapping[str, nn.Parameter]
) -> dict[str, Tensor]:
    """Live tensors of the states that exist now: `<parameter>/<state>`, list items `/<i>` below."""
    tensors: dict[str, Tensor] = {}
    for name, state in _states(optimizer, parameters).items():
        for key, value in state.items():
            _collect(f"{name}/{key}", value, tensors)
    return tensors


def dense_state_values(
    optimizer: Optimizer, parameters: Mapping[str, nn.Parameter]
) -> dict[str, dict[str, Any]]:
    """JSON of the states: numbers as they are, tensors by shape, for `create_dense_state`."""
    return {
        name: {key: _to_json(value, f"{name}/{key}") for key, value in state.items()}
        for name, state in _states(optimizer, parameters).items()
    }


def create_dense_state(
    optimizer: Optimizer,
    parameters: Mapping[str, nn.Parameter],
    values: Mapping[str, Mapping[str, Any]],
) -> None:
    """Gives the optimizer the states of `dense_values`: numbers set, tensors to be loaded into.

    Raises: ConfigError for a parameter that the optimizer does not have.
    """
    names = list(parameters)
    for name in values:
        if name not in parameters:
            raise ConfigError(
                f"the checkpoint's optimizer state is for a parameter {name!r} that the model "
                f"does not have{nearest_hint(name, names)}"
            )
    # through load_state_dict, since it knows on which device and in which type a class keeps what
    described = optimizer.state_dict()
    numbers = _numbers(optimizer)
    described["state"] = {
        numbers[id(parameters[name])]: {k: _from_json(v) for k, v in state.items()}
        for name, state in values.items()
    }
    optimizer.load_state_dict(described)


def create_dense_states(
    optimizers: Sequence[Optimizer],
    parameters: Mapping[str, nn.Parameter],
    values: Mapping[str, Mapping[str, Any]],
) -> None:
    """`create_dense_state` for several optimizers, each of which has parameters of its own."""
    left = dict(values)
    for optimizer in optimizers[1:]:
        owned = _numbers(optimizer)
        mine = {n: v for n, v in left.items() if n in parameters and id(parameters[n]) in owned}
        create_dense_state(optimizer, parameters, mine)
        left = {name: v for name, v in left.items() if name not in mine}
    create_dense_state(optimizers[0], parameters, left)


def probe_state_names(optimizer: Optimizer, num_dims: int) -> set[str]:
    """Names of the states that such an optimizer keeps of a parameter with so many dimensions,
    tried on one of its own."""
    [first, *_] = (p for group in optimizer.param_groups for p in group["params"])
    weight = nn.Parameter(torch.zeros((2,) * num_dims, device=first.device))
    weight.grad = torch.zeros_like(weight)
    accepted = inspect.signature(type(optimizer).__init__).parameters
    # AdamW's defaults hold what only its base class takes
    takes_all = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
    settings = {k: v for k, v in optimizer.defaults.items() if takes_all or k in accepted}
    probe = type(optimizer)([weight], **settings)
    probe.step(lambda: 0.0)
    return set(probe.state.get(weight, {}))


def _states(
    optimizer: Optimizer, parameters: Mapping[str, nn.Parameter]
) -> dict[str, dict[str, Any]]:
    """States by parameter name; those that have none are left out."""
    owned = _numbers(optimizer)
    return {
        name: optimizer.state[p]
        for name, p in parameters.items()
        if id(p) in owned and optimizer.state.get(p)
    }


def _numbers(optimizer: Optimizer) -> dict[int, int]:
    """How state_dict() numbers the parameters: in the order of the groups."""
    ordered = (p for group in optimizer.param_groups for p in group["params"])
    return {id(p): i for i, p in enumerate(ordered)}


def _collect(name: str, value: Any, into: dict[str, Tensor]) -> None:
    if isinstance(value, Tensor):
        into[name] = value
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            _collect(f"{name}/{i}", item, into)


def _to_json(value: Any, name: str) -> Any:
    if isinstance(value, Tensor):
        return {"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
    if isinstance(value, list | tuple):
        return [_to_json(item, f"{name}/{i}") for i, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}  # JSON has no NaN and no infinity
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{name}: a {type(value).__name__} cannot be kept in a checkpoint")


def _from_json(node: Any) -> Any:
    if isinstance(node, list):
        return [_from_json(item) for item in node]
    if isinstance(node, Mapping):
        if "float" in node:
            return float(node["float"])
        return torch.zeros(node["shape"], dtype=getattr(torch, node["dtype"]))
    return node
