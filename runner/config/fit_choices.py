"""Derives settings from the chosen options where none were given, and drops those that do not fit.

The metrics and the monitor follow from the kind of the model, and settings of an experiment for its
dataset or model are dropped if another one was chosen.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict

from runner.metrics.names import RETRIEVAL_METRICS, RETRIEVAL_NETS, find_metric

MONITOR = "checkpoint.monitor"


def follow_model_kind(
    config: DictConfig, overrides: Sequence[Override], default_config: Mapping[str, Any]
) -> tuple[str, ...]:
    """Evaluate a retrieval model by its rankings of all items, in place; return a note on that.

    What the command line, an experiment or another option of `metrics` sets stays: its metrics
    are ranked over the catalogue if all of them are metrics of rankings.

    Args:
        config: of a new run, with the overrides applied.
        default_config: the options without any override.
    """
    net = OmegaConf.select(config, "model.net")
    if not isinstance(net, DictConfig) or net.get("_target_") not in RETRIEVAL_NETS:
        return ()
    items = net.get("item")
    if isinstance(items, ListConfig) and len(items) > 1:
        return ()  # the vector of an item depends on more than its id, so there is no catalogue
    overridden = {override.key_or_group for override in overrides}
    chosen, monitor = (_chosen(config, n, default_config, overridden) for n in ("metrics", MONITOR))
    if chosen is None or monitor is None or "candidates" in chosen:
        return ()
    # settings of rankings, such as what they exclude, choose no other metrics
    names = list(chosen.get("eval", RETRIEVAL_METRICS))
    watched = str(monitor.get("metric", "")).removeprefix("validation/")
    if "eval" not in chosen and monitor:
        names = list(dict.fromkeys([*names, watched]))
    if not all(map(is_of_catalogue, names)):
        return ()  # metrics of rows, perhaps with negatives among them
    updates: dict[str, Any] = {"metrics.eval": names, "metrics.candidates": "full"}
    updates |= {} if "train" in chosen else {"metrics.train": []}
    if not monitor:
        metric = find_metric(names[0])
        assert metric is not None
        updates |= {f"{MONITOR}.metric": f"validation/{names[0]}"}
        updates |= {f"{MONITOR}.direction": metric.direction}
    for key, value in updates.items():
        OmegaConf.update(config, key, value, merge=False)
    return (
        f"since the model finds items, it is measured by {', '.join(names)} over all items "
        "(metrics.candidates=full); metrics.eval and checkpoint.monitor choose other metrics",
    )


def _chosen(
    config: DictConfig, node: str, default_config: Mapping[str, Any], overridden: Collection[str]
) -> dict[str, Any] | None:
    """Return what was explicitly set of a node; None if the whole node was replaced."""
    current = OmegaConf.select(config, node)
    default = OmegaConf.select(OmegaConf.create(dict(default_config)), node)
    if not isinstance(current, DictConfig) or not isinstance(default, DictConfig):
        return None
    values = {str(name): current[name] for name in current}
    if node in overridden:
        return values
    return {
        name: value
        for name, value in values.items()
        if f"{node}.{name}" in overridden or value != default.get(name)
    }


def is_of_catalogue(name: object) -> bool:
    """Return whether a metric is one of rankings, which may be over all items."""
    metric = find_metric(str(name))
    return metric is not None and metric.needs in ("users", "lists")


def drop_unfit_settings(
    config: DictConfig, config_without: DictConfig, group: str, experiment: str
) -> tuple[str, ...]:
    """Drop an experiment's settings for an option that was not chosen, in place; return a note.

    Args:
        config: the whole configuration, without the overrides of keys.
        config_without: the same without the experiment.
        group: dataset, or model.net.
    """
    node, known = OmegaConf.select(config, group), OmegaConf.select(config_without, group)
    if not isinstance(node, DictConfig) or not isinstance(known, DictConfig):
        return ()
    dropped = [str(name) for name in node if name not in known]
    with open_dict(node):
        for name in dropped:
            del node[name]
    if not dropped:
        return ()
    target = str(known.get("_target_")).rpartition(".")[2]
    return (
        f"experiments={experiment}: {group} is {target}, which has no {', no '.join(dropped)}: "
        "left out",
    )
