"""Finds settings of a net and a loss without an effect, given the others. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from runner.models.norm_scope import hidden_settings, norm_row_scope
from runner.models.row_scope import builtin_loss_name

# setting of hidden layers -> the lists of widths, of any net, whose layers it affects
_MLPS = ("deep", "top", "tower", "user_tower", "item_tower", "streams", "first", "second")
_WITH_NORM = (*_MLPS, "experts", "bottom")
LAYERS_OF = {
    "dropout": (*_MLPS, "blocks"),
    "norm": _WITH_NORM,
    "norm_place": _WITH_NORM,
    "activation": (*_WITH_NORM, "attention"),
    "attention_activation": ("attention",),
}


def find_unused_settings(
    config: Mapping[str, Any], default_config: Mapping[str, Any]
) -> Iterator[str]:
    """Yield a sentence for each setting of a built-in net that is signed, but has no effect.

    Args:
        config: a composed configuration without mistakes.
        default_config: the same options without overrides. What an option says by itself stays.
    """
    net, defaults = config["model"]["net"], default_config["model"].get("net") or {}
    reported = set()
    for key, reason in _unused_of_net(config) if hidden_settings(config) else ():
        if key in net and net[key] != defaults.get(key) and key not in reported:
            reported.add(key)
            yield f"model.net.{key}={net[key]} has no effect {reason}"


def check_loss_correction(config: Mapping[str, Any], *, from_run: bool) -> Iterator[str]:
    """Yield a message for a correction of log q if the negatives do not use log q.

    Args:
        from_run: whether the configuration comes from a run, which may have such settings.
    """
    net, loss = config["model"]["net"], config["model"].get("loss") or {}
    if from_run or not loss.get("corrected") or not builtin_loss_name(loss):
        return
    for key in ("every", "hardest"):
        if net.get(key):
            yield (
                "model.loss.corrected=true: has no effect on what is learnt, since it corrects "
                f"log q, which model.net.{key}={str(net[key]).lower()} leaves out"
            )


def _empty_lists(key: str, net: Mapping[str, Any]) -> list[str]:
    """Return the lists of widths that a setting affects, if all of them are empty; else nothing."""
    lists = [name for name in LAYERS_OF[key] if name in net]
    if key == "activation" and net.get("attention_activation") is not None:
        lists.remove("attention")  # its layers have that activation
    return [] if any(net[name] for name in lists) else lists


def _unused_of_net(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield names of settings of a built-in net without an effect, and the reason."""
    net = config["model"]["net"]
    idle = {key: lists for key in LAYERS_OF if (lists := _empty_lists(key, net))}
    for key, lists in idle.items():
        empty = " and ".join(f"model.net.{name}=[]" for name in lists)
        remedy = f"model.net.{lists[0]}=[128,64] adds two hidden layers"
        if net.get("structure") == "serial":
            remedy = "model.net.structure=parallel takes hidden layers there"
        yield key, f"with {empty}; {remedy}"
    acting = {**config, "model": {"net": {k: v for k, v in net.items() if k not in idle}}}
    if net.get("norm") is None:
        yield "norm_place", "without model.net.norm"
    if norm_row_scope(acting) is None:
        yield "norm_scope", "without batch statistics, which norm=batch and activation=dice take"
    if "rank" in net and net["rank"] is None:
        yield "num_experts", "without model.net.rank=N, the rank of their matrices"
    if net.get("first_order") == "field":
        yield "linear_weights", "without a weight for each id; model.net.first_order=id has them"
    if "contexts" in net and not any(net["contexts"]):
        yield "gate", "where gates are parameters; model.net.contexts names features that make them"
