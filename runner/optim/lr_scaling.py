"""Scaling of learning rates by the number of batches that an update adds up. No torch here.

The gradient of an update of N batches (ranks x accumulated micro-batches) has 1/N of the variance
of a single batch's, so its rates may be larger: N times (`linear`, arXiv:1706.02677) or the square
root of N times (`sqrt`, arXiv:1404.5997).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from runner.distributed.global_batch import batches_per_update

LR_SCALING_RULES: dict[str, Callable[[int], float]] = {
    "constant": lambda batches: 1.0,
    "sqrt": math.sqrt,
    "linear": float,
}


def lr_scale_factor(rule: str, batches: int | None) -> float:
    """Return the factor of all full rates.

    Args:
        rule: a name in `LR_SCALING_RULES`.
        batches: batches of an update, as `resolve_lr_batches` has set them.
    """
    assert rule == "constant" or batches is not None
    return LR_SCALING_RULES[rule](batches or 1)


def resolve_lr_batches(
    config: dict[str, Any], record: dict[str, Any], previous: Mapping[str, Any]
) -> None:
    """Record in a configuration, in place, the number of batches by which its rates are scaled.

    A number that is already set stays. So a resume uses that of its run, and another number of
    ranks with the same rows per update does not change the rates. The number affects the result, so
    it is part of the signature.

    Args:
        config: the configuration with its references resolved.
        record: the same configuration as recorded, which gets the same number.
        previous: the configuration of the run that this command continues; empty without one.
    """
    trainer, recorded_trainer = config.get("trainer"), record.get("trainer")
    if not isinstance(trainer, dict) or not isinstance(recorded_trainer, dict):
        return
    scaling, recorded = trainer.get("lr_scaling"), recorded_trainer.get("lr_scaling")
    if not isinstance(scaling, dict) or not isinstance(recorded, dict):
        return
    if scaling.get("rule") == "constant" or scaling.get("batches") is not None:
        return
    before = ((previous.get("trainer") or {}).get("lr_scaling") or {}).get("batches")
    counts = [trainer.get("accumulate", 1), trainer.get("num_processes", 1)]
    if all(type(n) is int and n > 0 for n in counts):
        scaling["batches"] = recorded["batches"] = before or batches_per_update(*counts)


def describe_lr_scaling(rule: str, batches: int | None, full_rates: Mapping[str, float]) -> str:
    """Describe the scaling for the log; "" if nothing is scaled.

    Args:
        rule: a name in `LR_SCALING_RULES`.
        full_rates: the full rates after scaling, by name.
    """
    scale = lr_scale_factor(rule, batches)
    if rule == "constant":
        return ""
    rates = ", ".join(f"{name} {rate / scale:g} -> {rate:g}" for name, rate in full_rates.items())
    return f"full learning rates x {scale:g} ({rule}, {batches} batches an update): {rates}"
