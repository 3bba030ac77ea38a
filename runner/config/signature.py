"""What makes a result, and its short hash: how a run is known, whatever its folder is called."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from runner.config.early_stopping import PATIENCE_RULES, is_enabled
from runner.distributed.global_batch import GLOBAL_BATCH_KEYS, configured_global_batch_size
from runner.models.row_scope import MICRO_BATCH_SCOPE, UPDATE_SCOPE, loss_row_scope
from runner.rundir.diff import flatten
from runner.rundir.moved_targets import with_signed_targets

UNSIGNED_CALLBACKS = (
    "runner.training.callbacks.watch."  # callbacks that change nothing of the training
)
# empty: none
WARM_START_KEYS = ("init_names", "init_tables", "init_optimizer", "init_average")
# Keys that change how a run is watched, stored or computed, but not what comes out of it.
UNSIGNED_KEYS = (
    "name",
    "run",
    "report",
    "tracker",
    "launcher",
    "search",
    "remote",
    "sharding",
    "dataset",  # the fingerprint stands for its content, settings and order
    "trainer.device",
    "trainer.num_threads",
    "trainer.num_processes",
    "trainer.rank_timeout_s",
    "trainer.pipeline",
    "trainer.batch_size",  # with the next one in the global batch
    "trainer.accumulate",
    "trainer.log_every",
    "trainer.log_gradients",
    "trainer.traceback",
    "trainer.compile",
    "trainer.profile",
    "checkpoint.save_every",
    "checkpoint.keep",
    "checkpoint.step",
    "checkpoint.path",
)


def signature_fields(
    config: Mapping[str, Any], data_fingerprint: str, source: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Everything that makes the result, by dotted key.

    Args: source: of an evaluation, which checkpoint of which run it takes.
    """
    kept = {
        key: value
        for key, value in flatten(with_signed_targets(active_settings(config)))
        if not any(key == left or key.startswith(f"{left}.") for left in UNSIGNED_KEYS)
    }
    trainer = config["trainer"]
    kept["global_batch"] = configured_global_batch_size(trainer)
    if loss_row_scope(config) == MICRO_BATCH_SCOPE:
        kept |= {f"trainer.{name}": trainer.get(name) or 1 for name in GLOBAL_BATCH_KEYS}
    kept["data"] = data_fingerprint
    return {**kept, **{f"source.{k}": v for k, v in (source or {}).items()}}


def active_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Without rules that are off and callbacks that only watch: with or without them, the result
    is the same."""
    trainer = config["trainer"]
    idle = [n for n in PATIENCE_RULES if not is_enabled(trainer.get(n))]
    kept = {**config, "trainer": {k: v for k, v in trainer.items() if k not in idle}}
    if "checkpoint" in config:
        own = config["checkpoint"]
        kept["checkpoint"] = {k: v for k, v in own.items() if v or k not in WARM_START_KEYS}
    model = config.get("model") or {}
    loss = model.get("loss") or {}
    if loss.get("within") == UPDATE_SCOPE:  # what it was before there was a choice
        own = {k: v for k, v in loss.items() if k != "within"}
        kept["model"] = {**model, "loss": own}
    callbacks = kept.pop("callbacks", None) or {}
    acting = {
        name: own
        for name, own in callbacks.items()
        if not str(own.get("_target_")).startswith(UNSIGNED_CALLBACKS)
    }
    return {**kept, "callbacks": acting} if acting else kept


def hash_fields(fields: Mapping[str, Any]) -> str:
    """8 hexadecimal digits of an identity."""
    text = json.dumps(fields, sort_keys=True, default=str, allow_nan=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def compute_signature(
    config: Mapping[str, Any], data_fingerprint: str, source: Mapping[str, Any] | None = None
) -> str:
    return hash_fields(signature_fields(config, data_fingerprint, source))
