"""Settings of the table (sparse) optimizer, checked by name and range. No torch here.

Every kind lists exactly the settings that its kernels honour on every device. A setting that a
kernel would take and silently ignore is refused with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runner.config_key import setting
from runner.errors import ConfigError
from runner.optim.setting_checks import check_choice, check_keys, check_number

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
# Settings that every kind has and no YAML names; they are off unless they are given.
KEYS_OF_EVERY_KIND = ("every_row", "l2_tables", "l2_lookups", "dtype")
ROW_DTYPES = ("fp32", "bf16", "fp16")
EVERY_ROW_LIMIT = 10_000_000  # rows of a table; each update passes over all of them

# Settings that users know from other optimizers, and why the tables cannot honour them.
_REFUSED = {
    "momentum": (
        "the table kernels of {kind} have no momentum and would ignore it; lars_sgd has momentum"
    ),
    "nesterov": "no table kernel has it; leave it out",
    "dampening": "no table kernel has it; leave it out",
    "weight_decay": "the table kernels of {kind} ignore it on CPU; adam and lamb honour it",
    "initial_accumulator_value": "the accumulators of table kernels start at 0",
    "lr_decay": "table rates follow the scheduler group",
    "amsgrad": "no table kernel has it; leave it out",
    "l2": "there are three: l2_tables (every row at every update), l2_lookups (what a batch looks "
    "up) and, where the rule has it, weight_decay (decoupled); see docs/training.md",
}


@dataclass(frozen=True)
class SparseSettings:
    """The update rule of all embedding tables. Build it with `parse_sparse`, which checks it."""

    kind: str
    lr: float  # the full rate, which the schedule multiplies
    eps: float = 1e-8
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0  # decoupled; applied to the rows of the batch, times the rate
    momentum: float = 0.9  # lars_sgd
    eta: float = 0.001  # lars_sgd: the trust coefficient
    every_row: bool = setting(
        False, "rows of a table that a batch does not look up take part in its update, too"
    )
    l2_tables: float = setting(
        0.0, "the loss has this / 2 * the squares of all weights of the tables", ge=0
    )
    l2_lookups: float = setting(
        0.0, "the loss of a row of data has this / 2 * the squares of its look-ups", ge=0
    )
    dtype: str = setting(
        "fp32", "of stored weights; gradients, the rule and its states are fp32", choices=ROW_DTYPES
    )
    rounding_seed: int = 0  # of the run, for the rounding of 16-bit weights; no key of its own

    @property
    def is_16_bit(self) -> bool:
        """Whether weights are stored in two bytes each."""
        return self.dtype != "fp32"


@dataclass(frozen=True)
class ClipSettings:
    """The bounds of `trainer.clip`; null does not clip.

    Several bounds are applied in the order value, parameter_norm, global_norm. Each then still
    holds at the end, since every later one only scales down.
    """

    value: float | None = setting(
        None, "largest magnitude of an element", gt=0, lt=math.inf, note="null does not clip"
    )
    parameter_norm: float | None = setting(
        None,
        "largest norm of each parameter's gradient, and of each table's look-ups",
        gt=0,
        lt=math.inf,
        note="null does not clip",
    )
    global_norm: float | None = setting(
        None, "largest norm of all gradients together", gt=0, lt=math.inf, note="null does not clip"
    )
    tables: bool = setting(
        True, "also clip tables, by the gradients at their look-ups; false: the dense half only"
    )

    @property
    def is_enabled(self) -> bool:
        return any(b is not None for b in (self.global_norm, self.parameter_norm, self.value))


def parse_sparse(settings: Mapping[str, Any], where: str = "optimizer.sparse") -> SparseSettings:
    """Check a mapping with `kind`, `lr` and the kind's own keys.

    Raises:
        ConfigError: with the key below `where`, the rule and the nearest right name.
    """
    kind = check_choice(settings.get("kind"), f"{where}.kind", SPARSE_KINDS)
    known = ("kind", "lr", *SPARSE_KINDS[kind], *KEYS_OF_EVERY_KIND)
    for key in settings:
        if key in _REFUSED and key not in known:
            raise ConfigError(f"{where}.{key}: {_REFUSED[key].format(kind=kind)}")
    check_keys(settings, known, where, kind)
    if "lr" not in settings:
        raise ConfigError(f"{where}.lr is missing; give a rate, as in {where}.lr=0.01")
    values = {key: settings[key] for key in known if key in settings}
    if "betas" in values:
        values["betas"] = _check_betas(values["betas"], f"{where}.betas")
    for key in ("lr", "weight_decay", "eta", "l2_tables", "l2_lookups"):
        if key in values:
            values[key] = check_number(values[key], f"{where}.{key}")
    if "momentum" in values:
        values["momentum"] = _check_fraction(values["momentum"], f"{where}.momentum")
    if "eps" in values:
        # at 0 a row whose gradient is zero would become 0 / 0
        values["eps"] = check_number(values["eps"], f"{where}.eps", above_low=True)
    parsed = SparseSettings(**values)
    if not isinstance(parsed.every_row, bool):
        raise ConfigError(f"{where}.every_row={parsed.every_row!r}: must be true or false")
    if parsed.l2_tables and not parsed.every_row and kind != "sgd":
        raise ConfigError(
            f"{where}.l2_tables={parsed.l2_tables:g}: reaches every row at every update, and under "
            f"{kind} no formula catches up on the updates in which a row was not looked up, since "
            f"its states change in each; {where}.every_row=true passes over all rows (tables of up "
            f"to {EVERY_ROW_LIMIT:,}), and l2_lookups penalises what is looked up"
        )
    if "dtype" in values:
        check_choice(parsed.dtype, f"{where}.dtype", ROW_DTYPES)
    for key in ("every_row", "l2_tables") if parsed.is_16_bit else ():
        if getattr(parsed, key):
            raise ConfigError(
                f"{where}.dtype={parsed.dtype}: does not work with {where}.{key}, which passes "
                "over all rows and would round each of them again; l2_lookups works"
            )
    return parsed


def _check_fraction(value: Any, key: str) -> float:
    return check_number(value, key, high=1.0, below_high=True)


def _check_betas(value: Any, key: str) -> tuple[float, float]:
    if isinstance(value, str) or not hasattr(value, "__len__") or len(value) != 2:
        raise ConfigError(f"{key}={value!r}: must be two numbers")
    first, second = (_check_fraction(beta, f"{key}[{i}]") for i, beta in enumerate(value))
    return first, second
