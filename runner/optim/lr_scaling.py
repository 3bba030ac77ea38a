"""Learning rates by the number of batches that an update adds up. No torch here.

An update of N batches (ranks x accumulated micro-batches) has a gradient N times less noisy than
one of a single batch, so that its rates may be larger: N times (`linear`, arXiv:1706.02677) or the
square root of N times (`sqrt`, arXiv:1404.5997).
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
    """What all full rates are multiplied by; batches: as `resolve_lr_batches` has found them."""
    assert rule == "constant" or batches is not None
    return LR_SCALING_RULES[rule](batches or 1)


def resolve_lr_batches(config: dict[str, Any], record: dict[str, Any]) -> None:
    """Writes into a configuration how many batches its rates are scaled by. In place.

    Once: a resume takes the number from its run, so that other ranks with the same rows an update
    leave the rates as they were. It makes the result, and is therefore signed.
    """
    trainer, kept = config.get("trainer"), record.get("trainer")
    if not isinstance(trainer, dict) or not isinstance(kept, dict):
        return
    scaling, noted = trainer.get("lr_scaling"), kept.get("lr_scaling")
    if not isinstance(scaling, dict) or not isinstance(noted, dict):
        return
    if scaling.get("rule") == "constant" or scaling.get("batches") is not None:
        return
    accumulate, num_ranks = trainer.get("accumulate", 1), trainer.get("num_processes", 1)
    if all(type(n) is int and n > 0 for n in (accumulate, num_ranks)):
        scaling["batches"] = noted["batches"] = batches_per_update(accumulate, num_ranks)


def describe_lr_scaling(rule: str, batches: int | None, full: Mapping[str, float]) -> str:
    """For the log; empty if nothing is scaled. full: the rates after scaling."""
    scale = lr_scale_factor(rule, batches)
    if rule == "constant":
        return ""
    rates = ", ".join(f"{name} {rate / scale:g} -> {rate:g}" for name, rate in full.items())
    return f"full learning rates x {scale:g} ({rule}, {batches} batches an update): {rates}"
