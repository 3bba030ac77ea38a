"""The optimizer of the dense half: any torch.optim class, its state as named tensors and JSON.

torch creates most states at the first step, each class in a different way, so a fresh optimizer has
no tensors to load into. `dense_state_values` therefore describes the states that exist, and
`create_dense_state` creates exactly these before tensors are loaded.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from runner.errors import ConfigError, deletion_hint, nearest_hint, unknown_setting

# Classes with a fused kernel, and the devices that support it. It is several times faster than the
# others on CPU, and torch never selects it by default.
_FUSED = {
    torch.optim.Adam: ("cpu", "cuda"),
    torch.optim.AdamW: ("cpu", "cuda"),
    torch.optim.SGD: ("cpu", "cuda"),
    torch.optim.Adagrad: ("cpu",),
}
_NOT_WITH_FUSED = ("foreach", "differentiable")


# which torch excludes from compilation
_NOT_COMPILED = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")


def postpone_compiler() -> None:
    """Prevent methods of optimizers from importing torch's compiler, which takes a second.

    They import it at their first call, to be excluded from compilation. If nothing else has
    imported it, nothing is compiled. Versions of torch that do this differently are not changed.
    """
    for name in _NOT_COMPILED:
        method = getattr(getattr(Optimizer, name), "__wrapped__", None)
        if method is not None and not hasattr(method, _GUARDED):
            setattr(method, _GUARDED, partial(_call_guarded, method))


_GUARDED = "__dynamo_disable"  # where torch stores the wrapper that replaces a method


def _call_guarded(method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if "torch._dynamo" not in sys.modules:
        return method(*args, **kwargs)
    setattr(method, _GUARDED, torch.compiler.disable(method))  # type: ignore[no-untyped-call]
    return getattr(method, _GUARDED)(*args, **kwargs)


def build_dense_optimizer(
    cls: type[Optimizer],
    settings: Mapping[str, Any],
    parameters: Mapping[str, nn.Parameter],
    *,
    where: str = "optimizer.dense",
) -> Optimizer:
    """Build an optimizer of named parameters, fused if torch supports it and `settings` allow it.

    Raises:
        ConfigError: for an unknown setting (with the nearest name), or a value refused by the
            class.
    """
    if not (isinstance(cls, type) and issubclass(cls, Optimizer)):
        raise ConfigError(f"{where}._target_: {cls!r} is not a torch optimizer class")
    accepted = inspect.signature(cls.__init__).parameters
    known = [name for name in accepted if name not in ("self", "params")]
    if not any(p.kind is p.VAR_KEYWORD for p in accepted.values()):
        wrong = [key for key in settings if key not in known]
        if wrong:
            hint = deletion_hint(where, wrong)
            raise ConfigError(unknown_setting(where, wrong[0], cls.__name__, known) + hint)
    options: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()
    }
    postpone_compiler()
    devices = {p.device.type for p in parameters.values()}
    if (
        cls in _FUSED
        and devices <= set(_FUSED[cls])
        and not any(options.get(k) for k in _NOT_WITH_FUSED)
    ):
        options.setdefault("fused", True)
    try:
        # as a group, since torch refuses an empty list, and a model may consist of tables only
        return cls([{"params": list(parameters.values())}], **options)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"{where}: {cls.__name__}: {error}") from error


def optimizer_parameters(optimizer: Optimizer) -> list[nn.Parameter]:
    """Return the parameters of all groups of an optimizer."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def dense_state_tensors(
    optimizer: Optimizer, parameters: Mapping[str, nn.Parameter]
) -> dict[str, Tensor]:
    """Return the live tensors of the existing states.

    Returns:
        Tensors by `<parameter>/<state>`, followed by `/<i>` for the items of a list.
    """
    tensors: dict[str, Tensor] = {}
    for name, state in _states(optimizer, parameters).items():
        for key, value in state.items():
            _collect(f"{name}/{key}", value, tensors)
    return tensors


def dense_state_values(
    optimizer: Optimizer, parameters: Mapping[str, nn.Parameter]
) -> dict[str, dict[str, Any]]:
    """Describe the states in JSON for `create_dense_state`: numbers by value, tensors by shape."""
    return {
        name: {key: _to_json(value, f"{name}/{key}") for key, value in state.items()}
        for name, state in _states(optimizer, parameters).items()
    }


def create_dense_state(
    optimizer: Optimizer,
    parameters: Mapping[str, nn.Parameter],
    values: Mapping[str, Mapping[str, Any]],
) -> None:
    """Create the states that `dense_state_values` described: numbers set, tensors zero.

    Raises:
        ConfigError: for a parameter that the optimizer does not have, or states of another class.
    """
    names = list(parameters)
    for name in values:
        if name not in parameters:
            raise ConfigError(
                f"the checkpoint's optimizer state is for a parameter {name!r} that the model "
                f"does not have{nearest_hint(name, names)}"
            )
    _check_state_names(optimizer, parameters, values)
    # load_state_dict knows the device and type of each state of a class
    described = optimizer.state_dict()
    numbers = _parameter_numbers(optimizer)
    described["state"] |= {  # Adagrad has states from the beginning
        numbers[id(parameters[name])]: {k: _from_json(v) for k, v in state.items()}
        for name, state in values.items()
    }
    optimizer.load_state_dict(described)


def create_dense_states(
    optimizers: Sequence[Optimizer],
    parameters: Mapping[str, nn.Parameter],
    values: Mapping[str, Mapping[str, Any]],
) -> None:
    """Call `create_dense_state` for several optimizers, each with its own parameters."""
    remaining = dict(values)
    for optimizer in optimizers[1:]:
        numbers = _parameter_numbers(optimizer)
        owned = {
            name: value
            for name, value in remaining.items()
            if name in parameters and id(parameters[name]) in numbers
        }
        create_dense_state(optimizer, parameters, owned)
        remaining = {name: value for name, value in remaining.items() if name not in owned}
    create_dense_state(optimizers[0], parameters, remaining)


def _check_state_names(
    optimizer: Optimizer,
    parameters: Mapping[str, nn.Parameter],
    values: Mapping[str, Mapping[str, Any]],
) -> None:
    """Check that states are those of the optimizer, without which its step would fail.

    Raises:
        ConfigError: if they differ.
    """
    cls = type(optimizer)
    if cls is not getattr(torch.optim, cls.__name__, None) or cls is torch.optim.SparseAdam:
        return  # a user's may add states at any step; SparseAdam refuses the gradient of a probe
    names = probe_state_names(optimizer)
    for name, state in values.items():
        expected, saved = names[id(parameters[name])], set(state)
        # LBFGS adds states after its first step
        if not (expected <= saved if cls is torch.optim.LBFGS else expected == saved):
            raise ConfigError(
                f"the checkpoint's states of the optimizer of {name!r} are "
                f"{', '.join(sorted(saved))}, and {cls.__name__} with its present settings keeps "
                f"{', '.join(sorted(expected)) or 'none'}"
            )


def probe_state_names(optimizer: Optimizer) -> dict[int, set[str]]:
    """Return the names of the states of an optimizer, by id(parameter).

    A similar optimizer makes a step with a small parameter for each number of dimensions.
    """
    names: dict[int, set[str]] = {}
    for group in optimizer.param_groups:
        by_dims = {p.dim(): p.device for p in group["params"]}
        probed = {d: _probe(optimizer, group, d, device) for d, device in by_dims.items()}
        names |= {id(p): probed[p.dim()] for p in group["params"]}
    return names


def _probe(
    optimizer: Optimizer, group: Mapping[str, Any], num_dims: int, device: torch.device
) -> set[str]:
    weight = nn.Parameter(torch.zeros((2,) * num_dims, device=device))
    weight.grad = torch.zeros_like(weight)
    accepted = inspect.signature(type(optimizer).__init__).parameters
    # AdamW's defaults contain some that only its base class takes
    takes_all = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
    settings = {k: group[k] for k in optimizer.defaults if takes_all or k in accepted}
    probe = type(optimizer)([weight], **settings)
    probe.step(lambda: 0.0)
    return set(probe.state.get(weight, {}))


def _states(
    optimizer: Optimizer, parameters: Mapping[str, nn.Parameter]
) -> dict[str, dict[str, Any]]:
    """Return the states by parameter name, without parameters that have none."""
    owned = _parameter_numbers(optimizer)
    return {
        name: optimizer.state[p]
        for name, p in parameters.items()
        if id(p) in owned and optimizer.state.get(p)
    }


def _parameter_numbers(optimizer: Optimizer) -> dict[int, int]:
    """Return id(parameter) -> its number in state_dict(), which follows the order of the groups."""
    return {id(p): i for i, p in enumerate(optimizer_parameters(optimizer))}


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
    raise TypeError(f"{name}: a {type(value).__name__} cannot be saved in a checkpoint")


def _from_json(node: Any) -> Any:
    if isinstance(node, list):
        return [_from_json(item) for item in node]
    if isinstance(node, Mapping):
        if "float" in node:
            return float(node["float"])
        return torch.zeros(node["shape"], dtype=getattr(torch, node["dtype"]))
    return node
