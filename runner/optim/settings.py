"""Settings of the table (sparse) optimizer, checked by name and range. No torch here.

Every kind lists exactly the settings that its kernels honour on every device. What a kernel would
take and silently ignore is refused with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from runner.config_key import Key
from runner.errors import ConfigError, nearest_hint

_ADAM = ("betas", "eps", "weight_decay")
SPARSE_KINDS: dict[str, tuple[str, ...]] = {
    "sgd": (),
    "lars_sgd": ("momentum", "eta", "weight_decay"),
    "adagrad": ("eps",),
    "rowwise_adagrad": ("eps",),
    "adam": _ADAM,
    "lamb": _ADAM,
    "partial_rowwise_adam": _ADAM,
    "partial_rowwise_lamb": _ADAM,
}

# Settings of other optimizers that people carry over, and why they cannot be honoured here.
_REFUSED = {
    "momentum": "the table kernels of {kind} have no momentum and would ignore it; lars_sgd has",
    "nesterov": "no table kernel has it",
    "dampening": "no table kernel has it",
    "weight_decay": "the table kernels of {kind} ignore it on CPU; adam and lamb honour it",
    "initial_accumulator_value": "the accumulators of table kernels start at 0",
    "lr_decay": "table rates follow the scheduler group",
    "amsgrad": "no table kernel has it",
}


@dataclass(frozen=True)
class SparseSettings:
    """The update rule of all embedding tables. Build it with `parse_sparse`, which checks it."""

    kind: str
    lr: float  # full rate; the schedule multiplies it
    eps: float = 1e-8
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0  # decoupled: taken from the rows of the batch, times the rate
    momentum: float = 0.9  # lars_sgd
    eta: float = 0.001  # lars_sgd: trust coefficient


@dataclass(frozen=True)
class ClipSettings:
    """`trainer.clip`: null does not clip. With several: value, parameter_norm, global_norm.

    In this order each bound still holds at the end, since every later one only scales down.
    """

    value: Annotated[
        float | None,
        Key("largest magnitude of an element", gt=0, lt=math.inf, note="null does not clip"),
    ] = None
    parameter_norm: Annotated[
        float | None,
        Key(
            "largest norm of each parameter's gradient, and of each table's look-ups",
            gt=0,
            lt=math.inf,
            note="null does not clip",
        ),
    ] = None
    global_norm: Annotated[
        float | None,
        Key(
            "largest norm of all gradients together",
            gt=0,
            lt=math.inf,
            note="null does not clip",
        ),
    ] = None
    tables: Annotated[
        bool,
        Key("also clip tables, by the gradients at their look-ups; false: the dense half only"),
    ] = True

    @property
    def is_enabled(self) -> bool:
        return any(b is not None for b in (self.global_norm, self.parameter_norm, self.value))


def parse_sparse(settings: Mapping[str, Any], where: str = "optimizer.sparse") -> SparseSettings:
    """Checked settings from a mapping with `kind`, `lr` and the kind's own keys.

    Raises: ConfigError that names the key below `where`, the rule, and the nearest right name.
    """
    kind = settings.get("kind")
    if kind not in SPARSE_KINDS:
        raise ConfigError(
            f"{where}.kind {kind!r} is no table optimizer{nearest_hint(str(kind), SPARSE_KINDS)}; "
            f"known: {', '.join(SPARSE_KINDS)}"
        )
    known = ("kind", "lr", *SPARSE_KINDS[kind])
    for key in settings:
        if key in known:
            continue
        if key in _REFUSED:
            raise ConfigError(f"{where}.{key}: {_REFUSED[key].format(kind=kind)}")
        raise ConfigError(
            f"{where}.{key} is no setting of {kind}{nearest_hint(key, known)}; known: {', '.join(known)}"
        )
    if "lr" not in settings:
        raise ConfigError(f"{where}.lr is missing")
    values = {key: settings[key] for key in known if key in settings}
    if "betas" in values:
        values["betas"] = _betas(values["betas"], f"{where}.betas")
    for key in ("lr", "weight_decay", "eta"):
        if key in values:
            values[key] = _number(values[key], f"{where}.{key}", low=0.0)
    if "momentum" in values:
        values["momentum"] = _number(values["momentum"], f"{where}.momentum", low=0.0, below=1.0)
    if "eps" in values:
        values["eps"] = _number(values["eps"], f"{where}.eps", low=0.0)
        if values["eps"] == 0:
            # a row whose gradient is zero would become 0 / 0
            raise ConfigError(f"{where}.eps must be above 0")
    return SparseSettings(**values)


def _number(value: Any, where: str, *, low: float, below: float = math.inf) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{where} must be a number, not {value!r}")
    if not (math.isfinite(value) and low <= value < below):
        upper = "" if below == math.inf else f" and below {below:g}"
        raise ConfigError(f"{where} must be at least {low:g}{upper}, not {value!r}")
    return float(value)


def _betas(value: Any, where: str) -> tuple[float, float]:
    if isinstance(value, str) or not hasattr(value, "__len__") or len(value) != 2:
        raise ConfigError(f"{where} must be two numbers, not {value!r}")
    first, second = (_number(v, f"{where}[{i}]", low=0.0, below=1.0) for i, v in enumerate(value))
    return first, second
