"""Losses that compare rows with each other: among which rows. No torch here.

Such a loss is no sum over rows, so that how an update is cut changes what it says. Its setting
`within` tells what is meant: all rows of the update, which must then be one micro-batch on one
rank, or those of each micro-batch of each rank, which then make the result and are signed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from runner.distributed.global_batch import GLOBAL_BATCH_KEYS
from runner.errors import nearest_hint

UPDATE_SCOPE, MICRO_BATCH_SCOPE = ROW_SCOPES = ("update", "micro_batch")
BUILTIN_LOSSES = "runner.models.losses."
ALWAYS_COMPARE_ROWS = ("JRC", "InBatchSoftmax")
COMPARE_ROWS_IN_BATCH = (
    "SampledSoftmax",
    "BPR",
    "SampledBCE",
)  # only of a net whose candidates are rows


def require_row_scope(within: str) -> str:
    """The setting of a loss. Raises: ValueError if it is none of the two."""
    if within not in ROW_SCOPES:
        raise ValueError(
            f"within={within}: one of {', '.join(ROW_SCOPES)}{nearest_hint(within, ROW_SCOPES)}"
        )
    return within


def loss_row_scope(config: Mapping[str, Any], default: str | None = None) -> str | None:
    """What the rows that the loss compares lie in; None if it takes each row by itself.

    Args: default: of a loss of ours whose setting is not there, as in the runs of older versions.
    """
    net, loss = (config.get("model", {}).get(name) or {} for name in ("net", "loss"))
    within, name = loss.get("within"), _builtin_loss_name(loss)
    if name in COMPARE_ROWS_IN_BATCH and not net.get("in_batch"):
        return None
    if within is None and name in (*ALWAYS_COMPARE_ROWS, *COMPARE_ROWS_IN_BATCH):
        return default
    return within if within in ROW_SCOPES else None


def check_loss_row_scope(config: Mapping[str, Any], from_run: bool) -> Iterator[str]:
    """What would compare other rows than those meant, a message each.

    Args: from_run: whether the configuration is that of a run, which may lack the setting.
    """
    loss, trainer = config["model"]["loss"], config["trainer"]
    given, name = loss.get("within"), _builtin_loss_name(loss)
    if name and given is not None and given not in ROW_SCOPES:
        yield (
            f"model.loss.within={given}: one of {', '.join(ROW_SCOPES)}{nearest_hint(str(given), ROW_SCOPES)}"
        )
        return
    within = loss_row_scope(config, None if from_run else UPDATE_SCOPE)
    if within is None and name and given == MICRO_BATCH_SCOPE:
        yield (
            f"model.loss.within={given}: without effect: {name} compares rows only where "
            "model.net.in_batch=true makes candidates of them"
        )
    if within != UPDATE_SCOPE:
        return
    cuts = [(f"trainer.{key}", trainer.get(key, 1)) for key in GLOBAL_BATCH_KEYS[1:]]
    plateau = (trainer.get("batch_on_plateau") or {}).get("patience")
    told = [f"{key}={n}" for key, n in cuts if n > 1]
    if plateau is not None:
        told.append(f"trainer.batch_on_plateau.patience={plateau}")
    for cut in told:
        yield (
            f"{cut}: {name or 'the loss'} compares all rows of an update with each other "
            "(model.loss.within=update), and each micro-batch of each rank sees its own only; "
            "model.loss.within=micro_batch says that comparing within these is meant"
        )


def _builtin_loss_name(loss: Mapping[str, Any]) -> str:
    target = str(loss.get("_target_"))
    return target.rpartition(".")[2] if target.startswith(BUILTIN_LOSSES) else ""
