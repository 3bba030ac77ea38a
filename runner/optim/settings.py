"""Settings of the table (sparse) optimizer, checked by name and range. No torch here.

Every kind lists exactly the settings that its kernels support on every device. A setting that a
kernel would take and silently ignore is refused with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass
from typing import Any

from runner.config_key import field_hints, setting
from runner.config_value import find_problem
from runner.errors import raise_combined, unknown_setting

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
# Settings of every kind that are in no YAML; they are off unless given.
KEYS_OF_EVERY_KIND = ("every_row", "l2_tables", "l2_lookups", "dtype")
ROW_DTYPES = ("fp32", "bf16", "fp16")
EVERY_ROW_LIMIT = 10_000_000  # rows of a table; each update passes over all of them

# Settings that users know from other optimizers, and why tables cannot support them.
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

    kind: str = setting(MISSING, "the rule of the updates", choices=tuple(SPARSE_KINDS))
    lr: float = setting(MISSING, "learning rate of the tables, which the schedule multiplies", ge=0)
    # at 0 a row whose gradient is zero would become 0 / 0
    eps: float = setting(
        1e-8, "added to the root of the squares, by which a gradient is divided", gt=0
    )
    betas: tuple[float, float] = setting(
        (0.9, 0.999),
        "shares of the first and the second moment that an update keeps",
        ge=0,
        lt=1,
        min_items=2,
        max_items=2,
    )
    weight_decay: float = setting(
        0.0, "decoupled; applied to the rows of the batch, times the rate", ge=0
    )
    momentum: float = setting(0.9, "the share of the last update that is kept", ge=0, lt=1)
    eta: float = setting(0.001, "the trust coefficient", ge=0)
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
    rounding_seed: int = 0  # of the run, for the rounding of 16-bit weights; not a key

    @property
    def is_16_bit(self) -> bool:
        """Whether weights are stored in two bytes each."""
        return self.dtype != "fp32"


@dataclass(frozen=True)
class ClipSettings:
    """The bounds of `trainer.clip`; null means no clipping.

    Several bounds are applied in the order value, parameter_norm, global_norm. Each still holds
    at the end, since every later one only scales down.
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
        ConfigError: with every mistake: the key below `where`, the rule and the nearest valid name.
    """
    raise_combined(find_sparse_problems(settings, where))
    return _make_settings(settings)


def find_sparse_problems(
    settings: Mapping[str, Any], where: str = "optimizer.sparse"
) -> Iterator[str]:
    """Yield a message for every mistake in the settings, see `parse_sparse`."""
    kind, hints = settings.get("kind"), field_hints(SparseSettings)
    if kind_problem := find_problem(f"{where}.kind", kind, hints["kind"]):
        yield kind_problem
    of_kind = () if kind_problem else SPARSE_KINDS[str(kind)]
    known = ("kind", "lr", *of_kind, *KEYS_OF_EVERY_KIND)
    valid = {}
    for key, value in settings.items():
        if key in known:
            if not (problem := find_problem(f"{where}.{key}", value, hints[key])):
                valid[key] = value
            elif key != "kind":
                yield problem
        elif not kind_problem:
            yield (
                f"{where}.{key}: {_REFUSED[key].format(kind=kind)}"
                if key in _REFUSED
                else unknown_setting(where, str(key), str(kind), known)
            )
    if "lr" not in settings:
        yield f"{where}.lr is missing; give a rate, as in {where}.lr=0.01"
    if not kind_problem:
        yield from _find_conflicts(_make_settings({"lr": 0.0, **valid}), where)


def _make_settings(settings: Mapping[str, Any]) -> SparseSettings:
    values: dict[str, Any] = {k: float(v) if type(v) is int else v for k, v in settings.items()}
    if "betas" in values:
        values["betas"] = tuple(map(float, values["betas"]))
    return SparseSettings(**values)


def _find_conflicts(parsed: SparseSettings, where: str) -> Iterator[str]:
    """Yield a message for settings that are valid individually, but not together."""
    if parsed.l2_tables and not parsed.every_row and parsed.kind != "sgd":
        yield (
            f"{where}.l2_tables={parsed.l2_tables:g}: reaches every row at every update, and under "
            f"{parsed.kind} no formula catches up on the updates in which a row was not looked up, "
            f"since its states change in each; {where}.every_row=true passes over all rows (tables "
            f"of up to {EVERY_ROW_LIMIT:,}), and l2_lookups penalises what is looked up"
        )
    for key in ("every_row", "l2_tables") if parsed.is_16_bit else ():
        if getattr(parsed, key):
            yield (
                f"{where}.dtype={parsed.dtype}: does not work with {where}.{key}, which passes "
                "over all rows and would round each of them again; l2_lookups works"
            )
