"""Settings of the hidden layers of nets: their values, and the rows of batch statistics. No torch.

A batch norm and the activation Dice depend on other rows of an update. Over the update, their
statistics do not depend on how it is divided: the dense half runs on all micro-batches as one, and
ranks exchange their sums. Within micro-batches, the division affects the result and is signed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from runner.distributed.global_batch import configured_global_batch_size
from runner.models.argument_types import BATCH_NORM, DICE, HIDDEN_KEYS
from runner.models.row_scope import MICRO_BATCH_SCOPE, ROW_SCOPES, UPDATE_SCOPE, loss_row_scope

BUILTIN_MODELS = "runner.models."


def hidden_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the hidden layers of a built-in net; none for a user's net."""
    net = (config.get("model") or {}).get("net") or {}
    if not str(net.get("_target_")).startswith(BUILTIN_MODELS):
        return {}
    return {name: net[name] for name in HIDDEN_KEYS if name in net}


def norm_row_scope(config: Mapping[str, Any]) -> str | None:
    """Return the rows over which a net computes batch statistics; None if rows are independent.

    A user's net with a setting `norm_scope` follows the same rules.
    """
    settings = hidden_settings(config)
    if not settings:
        scope = ((config.get("model") or {}).get("net") or {}).get("norm_scope")
        return scope if scope in ROW_SCOPES else None
    activations = (settings.get("activation"), settings.get("attention_activation"))
    norms = (settings.get("norm"), settings.get("inner_norm"))
    if BATCH_NORM not in norms and DICE not in activations:
        return None
    return settings.get("norm_scope") or UPDATE_SCOPE


def check_hidden_settings(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a message for each setting that is not an allowed choice."""
    for name, value in hidden_settings(config).items():
        if problem := HIDDEN_KEYS[name].find_problem(f"model.net.{name}", value):
            yield problem


def check_batch_statistics(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a message for updates of too few rows, and for scopes that are incompatible.

    Args:
        config: a composed configuration of a training.
    """
    trainer, scope = config["trainer"], norm_row_scope(config)
    is_whole = scope == UPDATE_SCOPE
    num_rows = configured_global_batch_size(trainer) if is_whole else trainer["batch_size"]
    if scope is not None and num_rows == 1:
        yield (
            "trainer.batch_size=1: a batch norm and Dice take the variance of a batch, and one row "
            "has none; use more rows, or model.net.norm=layer"
            + (" model.net.inner_norm=null" if hidden_settings(config).get("inner_norm") else "")
        )
    divides = (trainer.get("accumulate") or 1) > 1 or (
        (trainer.get("batch_on_plateau") or {}).get("patience") is not None
    )
    if is_whole and loss_row_scope(config) == MICRO_BATCH_SCOPE and divides:
        yield (
            "model.loss.within=micro_batch: compares the rows of each micro-batch, but batch "
            "statistics over the update need its micro-batches as one; set "
            "model.net.norm_scope=micro_batch as well, or trainer.accumulate=1 without "
            "trainer.batch_on_plateau"
        )
