"""What follows from the chosen options where nobody has said otherwise, and what does not fit them.

The metrics and the monitor follow the kind of the model, and what an experiment sets for its own
dataset or model is left out where another one was chosen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict

from runner.metrics.names import RETRIEVAL_METRICS, RETRIEVAL_NETS

FULL_RANKING = {"eval": list(RETRIEVAL_METRICS), "train": [], "candidates": "full"}
MONITOR = {"metric": f"validation/{RETRIEVAL_METRICS[0]}", "direction": "max"}


def follow_model_kind(
    config: DictConfig, overrides: Sequence[Override], default_config: Mapping[str, Any]
) -> tuple[str, ...]:
    """Measure a model that finds items by its rankings of all items. In place.

    What the command line, an experiment or another option of `metrics` sets stays.

    Args:
        config: of a new run, with the overrides applied.
        overrides: those of keys.
        default_config: what the options say without any override.

    Returns:
        A note about what followed, if anything did.
    """
    net = OmegaConf.select(config, "model.net")
    if not isinstance(net, DictConfig) or net.get("_target_") not in RETRIEVAL_NETS:
        return ()
    items = net.get("item")
    if isinstance(items, ListConfig) and len(items) > 1:
        return ()  # the vector of an item depends on more than its id, so there is no catalogue
    given = {override.key_or_group for override in overrides}
    changed = []
    for node, values in (("metrics", FULL_RANKING), ("checkpoint.monitor", MONITOR)):
        found = OmegaConf.select(config, node)
        default: Any = default_config
        for name in node.split("."):
            default = default.get(name) or {}
        if not isinstance(found, DictConfig) or any(
            key == node or key.startswith(f"{node}.") for key in given
        ):
            return ()
        if any(found.get(name) != default.get(name) for name in values):
            return ()
        changed.append((node, values))
    for node, values in changed:
        for name, value in values.items():
            OmegaConf.update(config, f"{node}.{name}", value, merge=False)
    listed = ", ".join(RETRIEVAL_METRICS)
    return (
        f"metrics and monitor follow the model, which finds items: {listed} over the catalogue "
        "(metrics.candidates=full); metrics.eval and checkpoint.monitor set others",
    )


def drop_unfit_settings(
    config: DictConfig, config_without: DictConfig, group: str, experiment: str
) -> tuple[str, ...]:
    """Drop what an experiment sets for the option of a group that was not chosen. In place.

    Args:
        config: the whole configuration, without the overrides of keys.
        config_without: the same without the experiment.
        group: dataset, or model.net.
        experiment: its name.

    Returns:
        A note about what was left out, if anything was.
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
