"""The kinds of parts: what each group of a configuration accepts as its `_target_`.

A class is recognised by its base class or its methods, a function by its mark (`runner.parts`).
Nothing is called here, and parts that are not recognised are never called, since a configuration
may come with the run directory of a stranger.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from torch import nn, optim

from runner.config.targets import (
    PartKind,
    check_reserved_keys,
    find_targets,
    is_in_packages,
    misplaced_target,
    resolve_part,
)
from runner.errors import ConfigError, raise_combined
from runner.models.losses import Loss
from runner.parts import is_internal, is_marked
from runner.training.builder.instantiate import wrong_arguments
from runner.training.callbacks import EVENTS

TASK_METHODS = ("train_step", "eval_step")
TRACKER_METHODS = ("start", "log", "state", "finish", "messages")
MODEL_METHODS = ("embed", "dense")
DELIVERY_METHODS = ("start", "deliver", "protected_steps", "finish")


def is_dataset(target: Any) -> bool:
    """Return whether it is a marked function, or a class whose `batches` takes a `split`."""
    if is_marked(target, "dataset"):
        return True
    return has_methods(target, ["batches"]) and first_argument(target, "batches") == "split"


def is_model(target: Any) -> bool:
    """Return whether it is a module of two halves, as a `Recommender` is."""
    return has_methods(target, MODEL_METHODS) and issubclass(target, nn.Module)


def is_loss(target: Any) -> bool:
    """Return whether it is a class that derives from `Loss`, or is called with a `prediction`."""
    if not is_concrete_class(target):
        return False
    if Loss in target.__mro__:
        return True
    method = "forward" if issubclass(target, nn.Module) else "__call__"
    return first_argument(target, method) == "prediction"


def is_optimizer(target: Any) -> bool:
    """Return whether it is an optimizer of torch, or derives from one."""
    if not is_concrete_class(target) or target is optim.Optimizer:
        return False
    return issubclass(target, optim.Optimizer)


def is_schedule(target: Any) -> bool:
    """Return whether it is a marked function, or a class whose objects are called by `update`."""
    if is_marked(target, "scheduler"):
        return True
    return is_concrete_class(target) and first_argument(target, "__call__") == "update"


def is_callback(target: Any) -> bool:
    """Return whether it is a class with at least one event."""
    return any(has_methods(target, [event]) for event in EVENTS)


def is_metric(target: Any) -> bool:
    """Return whether it derives from torchmetrics' `Metric`; its own only if they are of scores.

    Its metrics of texts and images download models.
    """
    from torchmetrics import Metric  # takes a second, so only here

    if not is_concrete_class(target) or not issubclass(target, Metric) or target is Metric:
        return False
    inside = str(target.__module__).split(".")
    return inside[0] != "torchmetrics" or inside[1] in ("classification", "regression")


def is_concrete_class(target: Any) -> bool:
    """Return whether it is a class of parts: no protocol, nothing abstract, nothing internal."""
    if not isinstance(target, type) or inspect.isabstract(target) or is_internal(target):
        return False
    return not vars(target).get("_is_protocol", False)


def has_methods(target: Any, names: Sequence[str]) -> bool:
    """Return whether it is a concrete class that defines or inherits all these methods."""
    if not is_concrete_class(target):
        return False
    methods = [get_method(target, name) for name in names]
    return all(callable(m) and not getattr(m, "__isabstractmethod__", False) for m in methods)


def get_method(cls: type, name: str) -> Any:
    """Return the attribute of a class or its bases by name, without calling its metaclass."""
    return next((vars(c)[name] for c in cls.__mro__ if name in vars(c)), None)


def first_argument(cls: type, name: str) -> str | None:
    """Return the name of a method's first argument after `self`; None if it has none."""
    method = get_method(cls, name)
    names = list(inspect.signature(method).parameters) if inspect.isfunction(method) else []
    return names[1] if len(names) > 1 else None


KINDS: Mapping[str, PartKind] = {
    "dataset": PartKind(
        is_dataset,
        "a function marked with @runner.dataset_option, or a class of datasets",
        "put the mark on a function of your own; a class needs batches(split, ...), schema and "
        "num_rows",
        attributes=("schema", "num_rows"),
    ),
    "loop": PartKind(
        partial(is_marked, group="loop"),
        "a function marked with @runner.loop_option",
        "put the mark on a function of your own",
    ),
    "delivery": PartKind(
        partial(has_methods, names=DELIVERY_METHODS),
        "a class with the methods of a Delivery",
        "yours has the methods start, deliver, protected_steps and finish",
        methods=DELIVERY_METHODS,
    ),
    "model.net": PartKind(
        is_model,
        "a class of models",
        "derive yours from runner.Recommender, with the methods embed and dense",
        given=("schema",),
        methods=MODEL_METHODS,
    ),
    "model.loss": PartKind(
        is_loss,
        "a class of losses",
        "yours takes `prediction` as the first argument of its forward or __call__, or derives "
        "from runner.Loss",
        given=("schema",),
    ),
    "optimizer.dense": PartKind(
        is_optimizer,
        "an optimizer: a class of torch.optim",
        "derive yours from torch.optim.Optimizer",
        given=("params",),
    ),
    "scheduler": PartKind(
        is_schedule,
        "a function marked with @runner.schedule_option, or a class of schedules",
        "put the mark on a function of your own; a class needs __call__(self, update)",
        given=("total_steps", "steps_per_epoch"),
    ),
    "task": PartKind(
        partial(has_methods, names=TASK_METHODS),
        "a class of tasks",
        "yours needs train_step and eval_step; runner.Supervised has both",
        methods=TASK_METHODS,
    ),
    "tracker": PartKind(
        partial(has_methods, names=TRACKER_METHODS),
        "a class of trackers",
        f"yours needs {', '.join(TRACKER_METHODS)}, as runner.Tracker says",
        methods=TRACKER_METHODS,
    ),
    "metrics.own": PartKind(
        is_metric,
        "a class of torchmetrics.classification or torchmetrics.regression",
        "derive yours from torchmetrics.Metric",
    ),
    "callbacks": PartKind(
        is_callback, "a class of callbacks", f"yours needs one of {', '.join(EVENTS)}"
    ),
}


def find_parts(config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], PartKind]]:
    """Yield the key, the node and the kind of every part of a whole configuration."""
    for group in ("dataset", "loop", "task"):
        yield group, config[group], KINDS[group]
    for name in ("net", "loss"):
        yield f"model.{name}", config["model"][name], KINDS[f"model.{name}"]
    optimizer = config["optimizer"]
    yield "optimizer.dense", optimizer["dense"], KINDS["optimizer.dense"]
    schedules = {"scheduler": config.get("scheduler")}
    for name, node in (optimizer.get("schedules") or {}).items():
        schedules[f"optimizer.schedules.{name}"] = node
    for i, group in enumerate(optimizer.get("parts") or ()):
        if "_target_" in (dense := group.get("dense") or {}):  # otherwise the group's own optimizer
            yield f"optimizer.parts[{i}].dense", dense, KINDS["optimizer.dense"]
        schedules[f"optimizer.parts[{i}].schedule"] = group.get("schedule")
    for key, node in schedules.items():
        if node is not None and "_target_" in node:
            yield key, node, KINDS["scheduler"]
    nodes = {group: config.get(group) for group in ("tracker", "callbacks")}
    nodes["metrics.own"] = (config.get("metrics") or {}).get("own")
    for group, parts in nodes.items():
        for name, node in (parts or {}).items():
            yield f"{group}.{name}", node, KINDS[group]


def check_parts(config: Mapping[str, Any], allowed: Sequence[str]) -> None:
    """Check the kind and arguments of every part of a configuration, before one is called.

    Raises:
        ConfigError: with a message for each `_target_` that names no part of the required kind, and
            for each key that its part does not take, or lacks.
    """
    problems = check_reserved_keys(config)
    parts = {f"{key}._target_": (key, node, kind) for key, node, kind in find_parts(config)}
    problems += [misplaced_target(k, path) for k, path in find_targets(config) if k not in parts]
    for key, node, kind in parts.values():
        try:
            part = resolve_part(node.get("_target_", ""), allowed, kind, key)
            settings = [name for name in node if name != "_target_"]
            if is_in_packages(node["_target_"], ("runner",)):
                continue  # its arguments are checked with the configuration
            if kind is KINDS["metrics.own"]:
                settings = [name for name in settings if name != "tasks"]  # it is not passed on
            if kind is not KINDS["loop"]:  # whose settings are in its job
                problems += wrong_arguments(part, settings, kind.given, key)
        except ConfigError as error:
            problems.append(str(error))
    raise_combined(problems)
