"""The signature of a run: a short hash of everything that determines its result.

It identifies a run, whatever the name of its folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from runner.config.declarations import all_declarations, keys_signed
from runner.config.early_stopping import is_enabled
from runner.config_key import Signed
from runner.distributed.global_batch import GLOBAL_BATCH_KEYS, configured_global_batch_size
from runner.models.argument_types import HIDDEN_KEYS, LATER_KEYS, default_uniform
from runner.models.norm_scope import BUILTIN_MODELS, hidden_settings, norm_row_scope
from runner.models.row_scope import MICRO_BATCH_SCOPE, UPDATE_SCOPE, loss_row_scope
from runner.rundir.diff import flatten
from runner.rundir.moved_targets import with_signed_targets

UNSIGNED_CALLBACKS = "runner.training.callbacks.watch."  # they change at most the rounding
# Nodes that affect how a run is watched, stored or computed, but not its result. The declarations
# of the keys of other groups say which of them are signed.
UNSIGNED_NODES = (
    "tracker",
    "launcher",
    "search",
    "remote",
    "sharding",
    "delivery",
    "dataset",  # the data's fingerprint covers its content, settings and order
)


def signed_as(key: str) -> Signed:
    """Return how a dotted key enters the signature; a key inherits what its group declares."""
    if key.split(".")[0] in UNSIGNED_NODES:
        return "no"
    node, _, name = key.rpartition(".")
    if node == "model.net" and name in HIDDEN_KEYS:
        return HIDDEN_KEYS[name].signed
    if key in LATER_KEYS:
        return LATER_KEYS[key].signed
    for above, declaration in all_declarations():
        if declaration.key.signed != "yes" and f"{key}.".startswith(f"{above}."):
            return declaration.key.signed
    return "yes"


def signature_fields(
    config: Mapping[str, Any], data_fingerprint: str, source: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return everything that determines the result, by dotted key.

    Args:
        source: for an evaluation, the checkpoint and run that it evaluates.
    """
    unsigned = [*UNSIGNED_NODES, *keys_signed("no", "in global_batch")]
    prefixes = tuple(f"{key}." for key in unsigned)
    signed = {
        key: value
        for key, value in flatten(with_signed_targets(active_settings(config)))
        if key not in unsigned and not key.startswith(prefixes)
    }
    trainer = config["trainer"]
    signed["global_batch"] = configured_global_batch_size(trainer)
    if MICRO_BATCH_SCOPE in (loss_row_scope(config), norm_row_scope(config)):
        signed |= {f"trainer.{name}": trainer.get(name) or 1 for name in GLOBAL_BATCH_KEYS}
    signed["data"] = data_fingerprint
    return {**signed, **{f"source.{k}": v for k, v in (source or {}).items()}}


def active_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration without settings that have no effect on the result.

    These are: rules that are off, keys that count only when they are set (also arguments added to
    nets later), callbacks that only watch, and the row scope that losses had
    before it became a choice.
    """
    active = dict(config)
    rules = keys_signed("when on")
    for key in [*rules, *keys_signed("when set")]:
        group, _, name = key.partition(".")
        node = active.get(group) or {}
        is_active = is_enabled(node.get(name)) if key in rules else node.get(name)
        if name in node and not is_active:
            active[group] = {k: v for k, v in node.items() if k != name}
    model = config.get("model") or {}
    loss = model.get("loss") or {}
    if loss.get("within") == UPDATE_SCOPE:
        without_scope = {k: v for k, v in loss.items() if k != "within"}
        active["model"] = model = {**model, "loss": without_scope}
    active["optimizer"] = _without_default_dtypes(active.get("optimizer") or {})
    unset = [name for name, value in hidden_settings(config).items() if value is None]
    if unset:
        net = {k: v for k, v in model["net"].items() if k not in unset}
        active["model"] = {**model, "net": net}
    active["model"] = _without_unset_arguments(active.get("model") or {})
    callbacks = active.pop("callbacks", None) or {}
    acting = {
        name: node
        for name, node in callbacks.items()
        if not str(node.get("_target_")).startswith(UNSIGNED_CALLBACKS)
    }
    return {**active, "callbacks": acting} if acting else active


def _without_default_dtypes(optimizer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the group `optimizer` without a `dtype: fp32` of its tables, which is the default."""

    def stripped(node: Mapping[str, Any]) -> dict[str, Any]:
        sparse = node.get("sparse")
        if not isinstance(sparse, Mapping) or sparse.get("dtype") != "fp32":
            return dict(node)
        return {**node, "sparse": {k: v for k, v in sparse.items() if k != "dtype"}}

    # for a part that only undoes another dtype the key matters
    if (optimizer.get("sparse") or {}).get("dtype", "fp32") != "fp32":
        return dict(optimizer)
    parts = optimizer.get("parts")
    signed = stripped(optimizer)
    return {**signed, "parts": [stripped(part) for part in parts]} if parts else signed


def _without_unset_arguments(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the group `model` without unset arguments of `LATER_KEYS`.

    If the number of negatives is not set, the default number is inserted.
    """
    signed = dict(model)
    for part in ("net", "loss"):
        node = signed.get(part) or {}
        if str(node.get("_target_")).startswith(BUILTIN_MODELS):
            signed[part] = {
                k: v for k, v in node.items() if v or f"model.{part}.{k}" not in LATER_KEYS
            }
    return {**signed, "net": with_drawn_negatives(signed["net"])} if signed.get("net") else signed


def with_drawn_negatives(net: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `model.net` with the number of negatives that `uniform: null` means.

    The signatures of runs had this number when the options had it in place of null.
    """
    is_unset = "uniform" in net and net["uniform"] is None
    if not (is_unset and str(net.get("_target_")).startswith(BUILTIN_MODELS)):
        return net
    return {**net, "uniform": default_uniform(bool(net.get("every")))}


def hash_fields(fields: Mapping[str, Any]) -> str:
    """Return 8 hexadecimal digits for the fields of a signature."""
    text = json.dumps(fields, sort_keys=True, default=str, allow_nan=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def compute_signature(
    config: Mapping[str, Any], data_fingerprint: str, source: Mapping[str, Any] | None = None
) -> str:
    """Return the signature of a run; the arguments are those of `signature_fields`."""
    return hash_fields(signature_fields(config, data_fingerprint, source))
