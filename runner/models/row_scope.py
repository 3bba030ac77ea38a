"""The row scope of losses that compare rows with each other. Imports no torch.

Such a loss is not a sum over rows, so its value depends on how an update is divided. Its setting
`within` sets which rows it compares: all rows of the update, which must then be one micro-batch on
one rank, or the rows of each micro-batch on each rank. In the second case the division affects the
result and is signed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from runner.distributed.global_batch import GLOBAL_BATCH_KEYS
from runner.errors import unknown_choice

UPDATE_SCOPE, MICRO_BATCH_SCOPE = ROW_SCOPES = ("update", "micro_batch")
BUILTIN_LOSSES = "runner.models.losses."
ALWAYS_COMPARE_ROWS = ("JRC", "InBatchSoftmax")
# these compare rows only if the net's candidates are items of rows
COMPARE_ROWS_IN_BATCH = ("SampledSoftmax", "BPR", "SampledBCE")


def loss_row_scope(config: Mapping[str, Any], default: str | None = None) -> str | None:
    """Return the row scope of a configuration's loss; None if it treats rows independently.

    Args:
        default: the row scope of a built-in loss without the setting, as in runs of older versions.
    """
    net, loss = (config.get("model", {}).get(name) or {} for name in ("net", "loss"))
    within, name = loss.get("within"), builtin_loss_name(loss)
    if name in COMPARE_ROWS_IN_BATCH and not net.get("in_batch"):
        return None
    if within is None and name in (*ALWAYS_COMPARE_ROWS, *COMPARE_ROWS_IN_BATCH):
        return default
    return within if within in ROW_SCOPES else None


def check_loss_row_scope(config: Mapping[str, Any], from_run: bool) -> Iterator[str]:
    """Yield a message for each setting that makes the loss compare other rows than intended.

    Args:
        from_run: whether the configuration comes from a run, which may lack the setting.
    """
    loss, trainer = config["model"]["loss"], config["trainer"]
    scope, name = loss.get("within"), builtin_loss_name(loss)
    if name and scope is not None and scope not in ROW_SCOPES:
        yield unknown_choice("model.loss.within", scope, ROW_SCOPES)
        return
    within = loss_row_scope(config, None if from_run else UPDATE_SCOPE)
    if within is None and name and scope == MICRO_BATCH_SCOPE:
        yield (
            f"model.loss.within={scope}: has no effect, since {name} compares rows only if "
            "model.net.in_batch=true makes their items candidates"
        )
    if within != UPDATE_SCOPE:
        return
    counts = [(f"trainer.{key}", trainer.get(key, 1)) for key in GLOBAL_BATCH_KEYS[1:]]
    dividing = [f"{key}={n}" for key, n in counts if n > 1]
    patience = (trainer.get("batch_on_plateau") or {}).get("patience")
    if patience is not None:
        dividing.append(f"trainer.batch_on_plateau.patience={patience}")
    for setting in dividing:
        yield (
            f"{setting}: {name or 'the loss'} compares all rows of an update with each other "
            "(model.loss.within=update), but each micro-batch of each rank sees only its own rows; "
            "set model.loss.within=micro_batch to compare within these"
        )


def check_item_memory(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a message if the memory of a net's items cannot be used, or has no effect."""
    net, trainer = config["model"]["net"], config["trainer"]
    if net.get("memory_warmup") and not net.get("memory"):
        yield "model.net.memory_warmup: has no effect without model.net.memory=N"
    if net.get("memory") and (trainer.get("num_processes") or 1) > 1:
        yield (
            f"trainer.num_processes={trainer['num_processes']}: each rank would remember the items "
            "of its own rows only, so ranks would differ from one process; use one process, or "
            "model.net.memory=0"
        )


def builtin_loss_name(loss: Mapping[str, Any]) -> str:
    """Return the name of a configuration's loss if it is a built-in one, else an empty text."""
    target = str(loss.get("_target_"))
    return target.rpartition(".")[2] if target.startswith(BUILTIN_LOSSES) else ""
