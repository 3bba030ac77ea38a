"""Rules that wait for a metric: early stopping, and what is changed on a plateau. No torch here.

An evaluation improves if it beats the best so far by more than `min_delta`. After `patience` others
in a row a rule acts, and waits anew; the best so far stays.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from runner.distributed.global_batch import configured_global_batch_size
from runner.errors import nearest_hint
from runner.metrics.settings import find_metric

DIRECTIONS = ("max", "min")


@dataclass(frozen=True)
class EarlyStop:
    """trainer.early_stop: ends a run that no longer improves, or that is good enough."""

    patience: int | None = None  # evaluations; None: off
    min_delta: float = 0.0
    threshold: float | None = None  # ends the run when the metric reaches it
    metric: str | None = None  # split/metric; None: the monitored one
    direction: str | None = None  # max or min; None: what is better by the metric's nature


@dataclass(frozen=True)
class LrOnPlateau:
    """trainer.lr_on_plateau: all learning rates times `factor`, on top of the schedule."""

    patience: int | None = None
    min_delta: float = 0.0
    factor: float = 0.5
    max_times: int | None = None
    min_scale: float = 0.0  # the schedule's rates are never multiplied by less
    metric: str | None = None
    direction: str | None = None


@dataclass(frozen=True)
class BatchOnPlateau:
    """trainer.batch_on_plateau: the rows of an update times `factor`."""

    patience: int | None = None
    min_delta: float = 0.0
    factor: int = 2
    max_times: int | None = None
    max_rows: int | None = None  # of an update, over all ranks
    metric: str | None = None
    direction: str | None = None


PatienceRule = EarlyStop | LrOnPlateau | BatchOnPlateau
PATIENCE_RULES: Mapping[str, type[PatienceRule]] = {
    "early_stop": EarlyStop,
    "lr_on_plateau": LrOnPlateau,
    "batch_on_plateau": BatchOnPlateau,
}


@dataclass(frozen=True)
class PatienceState:
    """How far a rule has waited; kept in checkpoints."""

    best: float | None = None
    since: int = 0  # evaluations since the best, or since the rule last acted
    times: int = 0  # that it has acted


def record_evaluation(
    state: PatienceState, value: float, *, direction: str, min_delta: float
) -> PatienceState:
    """One more evaluation. NaN improves nothing and counts as one without improvement."""
    if is_better(value, state.best, direction, min_delta=min_delta):
        return replace(state, best=value, since=0)
    return replace(state, since=state.since + 1)


def is_exhausted(state: PatienceState, patience: int | None, max_times: int | None = None) -> bool:
    """Whether the rule's patience has run out, and it may still act."""
    if patience is None or state.since < patience:
        return False
    return max_times is None or state.times < max_times


def reset(state: PatienceState) -> PatienceState:
    return replace(state, since=0, times=state.times + 1)


def is_better(value: float, best: float | None, direction: str, *, min_delta: float = 0.0) -> bool:
    """Better than the best so far by more than `min_delta`; NaN never is."""
    if math.isnan(value):
        return False
    if best is None:
        return True
    return value > best + min_delta if direction == "max" else value < best - min_delta


def reaches_threshold(value: float, threshold: float | None, direction: str) -> bool:
    if threshold is None or math.isnan(value):
        return False
    return value >= threshold if direction == "max" else value <= threshold


def next_lr_scale(scale: float, rule: LrOnPlateau) -> float:
    """The next factor of the schedule's rates; `scale` itself if there is none lower."""
    return min(scale, max(scale * rule.factor, rule.min_scale))


def next_batch_multiplier(multiplier: int, rule: BatchOnPlateau, base_rows: int) -> int:
    """The next number of original updates in one; `multiplier` itself if the cap leaves none higher.

    Whole multiples only, so that any number of ranks that shares the original update shares this.
    """
    wanted = multiplier * rule.factor
    if rule.max_rows is not None:
        wanted = min(wanted, rule.max_rows // base_rows)
    return max(multiplier, wanted)


def resolve_metric(rule: PatienceRule, monitor: Any) -> tuple[str, str]:
    """(metric as split/name, direction). Args: monitor: of the checkpoints, checked."""
    metric = rule.metric or monitor.metric
    if rule.direction is not None:
        return metric, rule.direction
    own = natural_direction(metric)
    return metric, own if own is not None else monitor.direction


def natural_direction(metric: str) -> str | None:
    """What is better by the nature of `split/name[/task]`; None if neither is."""
    name = metric.partition("/")[2].partition("/")[0]
    if name == "loss":
        return "min"
    known = find_metric(name)
    return known.direction if known is not None and known.direction in DIRECTIONS else None


def check_monitored_metrics(config: Mapping[str, Any]) -> Iterator[str]:
    """Mistakes in what is monitored and in the rules that wait, a message each."""
    monitor = config["checkpoint"]["monitor"]
    eval_names = ["loss", *config["metrics"]["eval"]]
    yield from _check_metric("checkpoint.monitor", monitor, eval_names)
    trainer = config["trainer"]
    rows = configured_global_batch_size(trainer)
    for name, kind in PATIENCE_RULES.items():
        node, where = trainer.get(name, {}), f"trainer.{name}"
        if node is None:
            yield f"{where}=null: is a group of keys; {where}.patience=null turns it off"
        if not node:  # a run of before it was there
            continue
        if not is_enabled(node):
            yield from _check_disabled(where, node, kind)
            continue
        own = {"metric": node.get("metric") or monitor["metric"], "direction": node["direction"]}
        if own["metric"] == monitor["metric"] and own["direction"] is None:
            own["direction"] = monitor["direction"]  # judged above
        else:
            yield from _check_metric(where, own, eval_names)
        if own["direction"] is None and natural_direction(own["metric"]) is None:
            yield (
                f"{where}.direction=null: is missing: what is better of {own['metric']} is not "
                "known; max or min"
            )
        yield from _check_numbers(where, node, rows)


def is_enabled(node: Mapping[str, Any] | None) -> bool:
    """Of a rule's node in the configuration, which older runs do not have."""
    return any((node or {}).get(key) is not None for key in ("patience", "threshold"))


def _check_disabled(where: str, node: Mapping[str, Any], kind: type[PatienceRule]) -> Iterator[str]:
    defaults = {f.name: f.default for f in fields(kind)}
    for key, value in node.items():
        if key in defaults and value != defaults[key]:
            yield f"{where}.{key}={value}: does nothing without {where}.patience (evaluations)"


def _check_metric(where: str, node: Mapping[str, Any], eval_names: list[str]) -> Iterator[str]:
    metric, direction = node["metric"], node["direction"]
    split, _, name = metric.partition("/")
    key = f"{where}.metric={metric}"
    if not name:
        if where != "checkpoint.monitor":  # whose form has a rule of its own
            yield f"{key}: write split/metric, such as validation/{split}"
        return
    if split != "validation":
        if split in ("train", "test"):
            yield f"{key}: only the validation split is evaluated on the way: validation/{name}"
        elif where != "checkpoint.monitor":
            yield f"{key}: there is no split {split}: validation/{name}"
        return
    base = name.partition("/")[0]
    if base not in eval_names:
        what = "metrics.eval does not list it" if find_metric(base) else "no such metric"
        yield f"{key}: {what}{nearest_hint(base, eval_names)}; measured are {', '.join(eval_names)}"
        return
    own = natural_direction(metric)
    if own is not None and direction in DIRECTIONS and direction != own:
        yield f"{where}.direction={direction}: of {metric} {own} is better; {where}.direction={own}"


def _check_numbers(where: str, node: Mapping[str, Any], rows: int) -> Iterator[str]:
    patience, direction = node["patience"], node["direction"]
    if patience is not None and patience < 1:
        yield f"{where}.patience={patience}: must be at least 1 evaluation; null turns it off"
    if direction is not None and direction not in DIRECTIONS:
        yield f"{where}.direction={direction}: one of max, min{nearest_hint(direction, DIRECTIONS)}"
    if not 0 <= node["min_delta"] < math.inf:
        yield f"{where}.min_delta={node['min_delta']}: must be a number from 0"
    if node.get("max_times") is not None and node["max_times"] < 1:
        yield f"{where}.max_times={node['max_times']}: must be at least 1; null: no limit"
    if "min_scale" in node:
        if not 0 < node["factor"] < 1:
            yield f"{where}.factor={node['factor']}: must be above 0 and below 1, to reduce a rate"
        if not 0 <= node["min_scale"] < 1:
            yield f"{where}.min_scale={node['min_scale']}: must be from 0 to below 1"
    if "max_rows" in node:
        if node["factor"] < 2:
            yield f"{where}.factor={node['factor']}: must be at least 2, to make an update larger"
        if node["max_rows"] is not None and node["max_rows"] < 2 * rows:
            yield (
                f"{where}.max_rows={node['max_rows']}: leaves no room to grow: an update has "
                f"{rows:,} rows over all ranks, and the next larger one has {2 * rows:,}"
            )
