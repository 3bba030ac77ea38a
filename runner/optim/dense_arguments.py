"""The settings of the optimizers of torch: which a class takes, and their ranges. No torch here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from runner.config_key import Key
from runner.optim.constructor_arguments import accepted_arguments

_Flag = bool | None
_FromZero = Annotated[float, Key(ge=0)]
_Share = Annotated[float, Key(ge=0, lt=1)]
_Above = Annotated[float, Key(gt=0)]
_Count = Annotated[int, Key(ge=1)]
# A name means the same in every class of torch.optim.
ARGUMENTS: Mapping[str, Any] = {
    "lr": _FromZero,
    "betas": Annotated[Sequence[_Share], Key(min_items=2, max_items=2)],
    "eps": Annotated[float | Sequence[float | None], Key(ge=0)],  # Adafactor has two
    "weight_decay": _FromZero,
    "lr_decay": _FromZero,
    "initial_accumulator_value": _FromZero,
    "momentum": _FromZero,
    "momentum_decay": _FromZero,
    "dampening": float,
    "rho": Annotated[float, Key(ge=0, le=1)],
    "alpha": _FromZero,
    "lambd": float,
    "t0": float,
    "beta2_decay": Annotated[float, Key(le=0)],
    "d": Annotated[float, Key(ge=1)],
    "etas": Annotated[Sequence[_Above], Key(min_items=2, max_items=2)],
    "step_sizes": Annotated[Sequence[_Above], Key(min_items=2, max_items=2)],
    "max_iter": _Count,
    "max_eval": Annotated[int | None, Key(ge=1)],
    "history_size": _Count,
    "tolerance_grad": _FromZero,
    "tolerance_change": _FromZero,
    "line_search_fn": Annotated[str | None, Key(choices=("strong_wolfe",))],
    "ns_steps": _Count,
    **dict.fromkeys(("nesterov", "amsgrad", "centered", "decoupled_weight_decay"), bool),
    **dict.fromkeys(("maximize", "foreach", "capturable", "differentiable", "fused"), _Flag),
}


def dense_arguments(target: str) -> dict[str, Any] | None:
    """Return name -> type of the settings of a class; None if they are not known."""
    names = accepted_arguments(target) if target.startswith("torch.optim.") else None
    return None if names is None else {name: ARGUMENTS.get(name, Any) for name in names}
