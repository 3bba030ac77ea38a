"""Rules that wait for a metric: early stopping, and changes on a plateau. No torch here.

An evaluation improves if it beats the best so far by more than `min_delta`. After `patience`
evaluations in a row that do not, a rule acts and starts waiting again; the best so far stays.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from runner.config_key import setting
from runner.distributed.global_batch import configured_global_batch_size
from runner.errors import nearest_hint
from runner.metrics.names import TRAIN_EVALUATION, evaluation_name, find_metric
from runner.metrics.result_keys import measured_names

DIRECTIONS = ("max", "min")


@dataclass(frozen=True, kw_only=True)
class PatienceRule:
    """The keys of every rule that waits for a metric."""

    patience: int | None = setting(
        None,
        "evaluations without an improvement before the rule acts; null: off",
        ge=1,
        note="null turns it off",
        unit="evaluations",
    )
    min_delta: float = setting(
        0.0, "an evaluation improves if it beats the best by more than this", ge=0, lt=math.inf
    )
    metric: str | None = setting(
        None,
        "split/metric, such as validation/log_loss or, of trainer.eval_splits, test/auc or "
        "train_eval/auc; null: checkpoint.monitor's",
    )
    direction: str | None = setting(
        None, "max or min; null: what is better by the metric's nature", choices=DIRECTIONS
    )


@dataclass(frozen=True, kw_only=True)
class EarlyStop(PatienceRule):
    """trainer.early_stop: ends a run that no longer improves, or that is good enough."""

    threshold: float | None = setting(None, "end as soon as the metric reaches this; null: never")


@dataclass(frozen=True, kw_only=True)
class PlateauRule(PatienceRule):
    """A rule that changes the training, and may do so several times."""

    max_times: int | None = setting(
        None, "how often the rule may act; null: no limit", ge=1, note="null sets no limit"
    )


@dataclass(frozen=True, kw_only=True)
class LrOnPlateau(PlateauRule):
    """trainer.lr_on_plateau: multiplies all learning rates, on top of the schedule."""

    factor: float = setting(
        0.5, "of all learning rates, each time", gt=0, lt=1, note="it reduces a rate"
    )
    min_scale: float = setting(0.0, "the schedule's rates are never multiplied by less", ge=0, lt=1)


@dataclass(frozen=True, kw_only=True)
class BatchOnPlateau(PlateauRule):
    """trainer.batch_on_plateau: multiplies the rows of an update."""

    factor: int = setting(
        2,
        "whole, so that the ranks that share an update can share the larger one",
        ge=2,
        note="it makes an update larger",
    )
    max_rows: int | None = setting(
        None, "largest number of rows of an update, over all ranks; null: no limit", unit="rows"
    )


PATIENCE_RULES: Mapping[str, type[PatienceRule]] = {
    "early_stop": EarlyStop,
    "lr_on_plateau": LrOnPlateau,
    "batch_on_plateau": BatchOnPlateau,
}


@dataclass(frozen=True)
class PatienceState:
    """How long a rule has waited. It is saved in checkpoints."""

    best: float | None = None
    since: int = 0  # evaluations since the best, or since the rule last acted
    times: int = 0  # how often the rule has acted


def record_evaluation(
    state: PatienceState, value: float, *, direction: str, min_delta: float
) -> PatienceState:
    """Return the state after one more evaluation; NaN counts as no improvement."""
    if is_better(value, state.best, direction, min_delta=min_delta):
        return replace(state, best=value, since=0)
    return replace(state, since=state.since + 1)


def is_exhausted(state: PatienceState, patience: int | None, max_times: int | None = None) -> bool:
    """Return whether the rule's patience has run out and the rule may still act."""
    if patience is None or state.since < patience:
        return False
    return max_times is None or state.times < max_times


def reset(state: PatienceState) -> PatienceState:
    """Return the state after the rule has acted."""
    return replace(state, since=0, times=state.times + 1)


def is_better(value: float, best: float | None, direction: str, *, min_delta: float = 0.0) -> bool:
    """Return whether a value beats the best so far by more than `min_delta`; NaN never does."""
    if math.isnan(value):
        return False
    if best is None:
        return True
    return value > best + min_delta if direction == "max" else value < best - min_delta


def reaches_threshold(value: float, threshold: float | None, direction: str) -> bool:
    """Return whether a value is at the threshold or better; NaN never is."""
    if threshold is None or math.isnan(value):
        return False
    return value >= threshold if direction == "max" else value <= threshold


def next_lr_scale(scale: float, rule: LrOnPlateau) -> float:
    """Return the next factor of the scheduled rates; `scale` itself if it cannot be lower."""
    return min(scale, max(scale * rule.factor, rule.min_scale))


def next_batch_multiplier(multiplier: int, rule: BatchOnPlateau, base_rows: int) -> int:
    """Return how many original updates the next, larger update combines.

    It is a whole number, so that the ranks that share the original update can share the larger one.

    Args:
        multiplier: the current number, which is returned if the cap allows no larger one.
        base_rows: rows of an original update, over all ranks.
    """
    target = multiplier * rule.factor
    if rule.max_rows is not None:
        target = min(target, rule.max_rows // base_rows)
    return max(multiplier, target)


def resolve_metric(rule: PatienceRule, monitor: Any) -> tuple[str, str]:
    """Return the metric of a rule as split/name, and its direction; both may be the monitor's."""
    metric = rule.metric or monitor.metric
    if rule.direction is not None:
        return metric, rule.direction
    natural = natural_direction(metric)
    return metric, natural if natural is not None else monitor.direction


def natural_direction(metric: str) -> str | None:
    """Return the better direction by the nature of `split/name[/task]`; None if there is none."""
    name = metric.partition("/")[2].partition("/")[0]
    if name == "loss":
        return "min"
    known = find_metric(name)
    return known.direction if known is not None and known.direction in DIRECTIONS else None


def check_monitored_metrics(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the mistakes in the monitored metric and in the rules that wait for one."""
    monitor = config["checkpoint"]["monitor"]
    eval_names = measured_names(config["metrics"])
    yield from _check_metric("checkpoint.monitor", monitor, eval_names, ["validation"])
    trainer = config["trainer"]
    # a run older than the key has the default
    splits = [evaluation_name(split) for split in trainer.get("eval_splits", ["validation"])]
    rows = configured_global_batch_size(trainer)
    for name, kind in PATIENCE_RULES.items():
        node, where = trainer.get(name, {}), f"trainer.{name}"
        if node is None:
            yield f"{where}=null: is a group of keys; {where}.patience=null turns it off"
        if not node:  # a run older than the rule
            continue
        if not is_enabled(node):
            yield from _check_disabled(where, node, kind)
            continue
        if node.get("patience") is None:  # a threshold has a metric, but needs no min_delta
            yield from _check_disabled(where, {"min_delta": node.get("min_delta", 0.0)}, kind)
        watched = {
            "metric": node.get("metric") or monitor["metric"],
            "direction": node.get("direction"),
        }
        if watched["metric"] == monitor["metric"] and watched["direction"] is None:
            watched["direction"] = monitor["direction"]  # checked above
        else:
            yield from _check_metric(where, watched, eval_names, splits)
        if watched["direction"] is None and natural_direction(watched["metric"]) is None:
            yield (
                f"{where}.direction is not set: whether more or less of {watched['metric']} is "
                f"better is not known; {where}.direction=max or {where}.direction=min says it"
            )
        if node.get("max_rows") is not None and node["max_rows"] < 2 * rows:
            yield (
                f"{where}.max_rows={node['max_rows']}: leaves no room to grow: an update has "
                f"{rows:,} rows over all ranks, and the next larger one has {2 * rows:,}"
            )


def is_enabled(node: Mapping[str, Any] | None) -> bool:
    """Return whether a rule is on, by its node; older runs lack the node."""
    return any((node or {}).get(key) is not None for key in ("patience", "threshold"))


def _check_disabled(where: str, node: Mapping[str, Any], kind: type[PatienceRule]) -> Iterator[str]:
    defaults = {f.name: f.default for f in fields(kind)}
    for key, value in node.items():
        if key in defaults and value != defaults[key]:
            yield f"{where}.{key}={value}: does nothing without {where}.patience (evaluations)"


def _check_metric(
    where: str, node: Mapping[str, Any], eval_names: list[str], splits: Sequence[str]
) -> Iterator[str]:
    """Return the problems of a metric; `splits` are the allowed evaluations during training."""
    metric, direction = node["metric"], node["direction"]
    split, _, name = metric.partition("/")
    key = f"{where}.metric={metric}"
    if not name:
        if where != "checkpoint.monitor":  # another rule checks the monitor's form
            yield f"{key}: write split/metric, such as validation/{split}"
        return
    if split not in splits:
        if where == "checkpoint.monitor" and split in ("train", "test"):
            yield f"{key}: the best checkpoint is that of the validation split: validation/{name}"
        elif where != "checkpoint.monitor" and split in ("train", "test", TRAIN_EVALUATION):
            listed = "test" if split == "test" else "train"
            yield (
                f"{key}: is not evaluated on the way; trainer.eval_splits=[validation,{listed}] "
                f"adds {evaluation_name(listed)}/{name}"
            )
        elif where != "checkpoint.monitor":
            near = nearest_hint(split, splits)
            yield f"{key}: there is no split {split}{near}: validation/{name}"
        return
    base = name.partition("/")[0]
    if base not in eval_names:
        what = "metrics.eval does not list it" if find_metric(base) else "no such metric"
        yield f"{key}: {what}{nearest_hint(base, eval_names)}; measured are {', '.join(eval_names)}"
        return
    better = natural_direction(metric)
    if better is not None and direction in DIRECTIONS and direction != better:
        yield (
            f"{where}.direction={direction}: {better} is better for {metric}; "
            f"{where}.direction={better}"
        )
