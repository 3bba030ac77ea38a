"""The settings of torch's optimizers: their names and ranges, by class.

They are read from the source of torch, which is not imported.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from runner.config_key import Key

PACKAGE = "torch.optim"
_Flag = bool | None
_FromZero = Annotated[float, Key(ge=0)]
_Share = Annotated[float, Key(ge=0, lt=1)]
_Above = Annotated[float, Key(gt=0)]
_Count = Annotated[int, Key(ge=1)]
# A name has the same meaning in all classes of torch.optim except those of `_OTHERS`.
ARGUMENTS: Mapping[str, Any] = {
    "lr": _FromZero,
    "betas": Annotated[Sequence[_Share], Key(min_items=2, max_items=2)],
    "eps": _Above,  # with 0 a weight with only zero gradients becomes 0 / 0
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
_OTHERS = {
    "Adafactor": {"eps": Annotated[Sequence[float | None], Key(gt=0, min_items=2, max_items=2)]}
}


def dense_arguments(target: str) -> dict[str, Any] | None:
    """Return name -> type of the settings of a class; None if they are unknown."""
    names = accepted_arguments(target)
    known = {**ARGUMENTS, **_OTHERS.get(target.rpartition(".")[2], {})}
    return None if names is None else {name: known.get(name, Any) for name in names}


def accepted_arguments(target: str) -> list[str] | None:
    """Return the names of a class's settings, without its parameters.

    Returns:
        None if the class is not one of torch.optim, or if its source does not list them all.
    """
    package, _, name = target.rpartition(".")
    spec = importlib.util.find_spec("torch")  # does not import it
    if not f"{package}.".startswith(f"{PACKAGE}.") or spec is None:
        return None
    for folder in spec.submodule_search_locations or []:
        files = Path(folder, "optim").glob("*.py")
        for path in sorted(files, key=lambda p: (p.stem != name.lower(), p)):  # usually the first
            text = path.read_text()
            if f"class {name}(" in text:
                return _settings(ast.parse(text), name)
    return None


def _settings(module: ast.Module, name: str) -> list[str] | None:
    for node in module.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            for function in node.body:
                if isinstance(function, ast.FunctionDef) and function.name == "__init__":
                    args = function.args
                    if args.kwarg is not None:
                        return None
                    names = [a.arg for a in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
                    return [n for n in names if n not in ("self", "params")]
    return None
