"""Builds the metrics of a job, and checks that rules and monitors read metrics that exist."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from runner.batch import TaskSpec
from runner.config.early_stopping import PATIENCE_RULES, is_enabled, resolve_metric
from runner.config.settings import EVALUATE_LOOP, CheckpointSettings, TrainerSettings
from runner.data.core.dataset import Dataset
from runner.errors import ConfigError, nearest_hint, raise_combined
from runner.metrics.factory import make_metrics
from runner.metrics.names import evaluation_name, find_metric
from runner.metrics.own import OwnMetric, OwnMetrics, check_own_metric
from runner.metrics.protocol import Metrics
from runner.metrics.result_keys import result_keys
from runner.metrics.settings import MetricSettings
from runner.training.builder.inputs import JobInputs

# The default monitor is a metric of binary labels.
_LOSS_HINT = '; "checkpoint.monitor={metric: validation/loss, direction: min}" is for any task'


def build_metrics(
    settings: MetricSettings, inputs: JobInputs, dataset: Dataset, checkpoint: CheckpointSettings
) -> tuple[Callable[[bool], Metrics], Metrics, dict[str, str]]:
    """Return a function that makes the metrics of a pass over data, and the metrics of training.

    The argument of the function is whether metrics are exact, as in an evaluation. The third item
    has the better direction of each metric of `metrics.own` whose class declares it.

    Raises:
        ConfigError: for metrics that do not fit the data, and for one that a rule or the monitor
            reads and no evaluation measures, or reads in the wrong direction.
    """
    tasks, device = dataset.schema.tasks, inputs.device
    own = make_own_metrics(settings.own, tasks, inputs)
    name_values = getattr(dataset, "name_values", None)
    metrics = partial(
        make_metrics, dataset.schema, device, settings, own=own, name_values=name_values
    )
    own_names = OwnMetrics(own, tasks, device=device).names()
    train_metrics = metrics(False)
    if inputs.config["loop"]["_target_"] != EVALUATE_LOOP:  # which nothing follows on
        check_monitors(checkpoint, inputs.trainer, settings, dataset, own_names)
        check_own_directions(checkpoint, inputs.trainer, own)
    better = {metric.name: metric.better_direction() for metric in own}
    return metrics, train_metrics, {name: way for name, way in better.items() if way is not None}


def make_own_metrics(
    node: Mapping[str, Mapping[str, Any]], tasks: Sequence[TaskSpec], inputs: JobInputs
) -> list[OwnMetric]:
    """Return the metrics of `metrics.own`, after a trial on two rows.

    Raises:
        ConfigError: for one that does not fit its tasks.
    """
    metrics = []
    for name, settings in node.items():
        arguments = {key: value for key, value in settings.items() if key != "tasks"}
        make = partial(inputs.make_part, "metrics.own", arguments, f"metrics.own.{name}")
        metric = OwnMetric(name, make, settings.get("tasks"))
        check_own_metric(metric, tasks)
        metrics.append(metric)
    return metrics


def check_monitors(
    checkpoint: CheckpointSettings,
    trainer: TrainerSettings,
    metric_settings: MetricSettings,
    dataset: Dataset,
    own_names: Sequence[str],
) -> None:
    """Check that evaluations during the training compute every monitored metric.

    Raises:
        ConfigError: for a metric that is not computed, and for a split that does not exist.
    """
    splits = [split for split in trainer.eval_splits if split in dataset.num_rows]
    for split in trainer.eval_splits:
        if split not in [*splits, "validation"] and "train" in dataset.num_rows:
            raise ConfigError(
                f"trainer.eval_splits={split}: the dataset has {', '.join(dataset.num_rows)}"
            )
    metrics = {}
    if "validation" in splits:
        metrics["checkpoint.monitor"] = checkpoint.monitor.metric
    for name in PATIENCE_RULES:
        rule = getattr(trainer, name)
        if not is_enabled(vars(rule)):
            continue
        metric, _ = resolve_metric(rule, checkpoint.monitor)
        split = metric.partition("/")[0]
        if split not in map(evaluation_name, splits):
            remedy = (
                f"have {split} evaluated on the way (trainer.eval_splits)"
                if split in dataset.num_rows
                else f"give the data a {split} split (of a table dataset.split says it)"
            )
            key = "patience" if rule.patience is not None else "threshold"
            raise ConfigError(
                f"trainer.{name}: waits for {metric}, and evaluations on the way are of "
                f"{', '.join(splits) or 'no split'}: {remedy}, or go without it "
                f"(trainer.{name}.{key}=null)"
            )
        metrics[f"trainer.{name}"] = metric
    names = [*result_keys(metric_settings.eval, dataset.schema.tasks), *own_names]
    known = [f"{evaluation_name(split)}/{name}" for split in splits for name in names]
    for key, metric in metrics.items():
        is_of_other_tasks = find_metric(metric.partition("/")[2]) is not None
        if metric not in known:
            raise ConfigError(
                f"{key}.metric={metric}: is not measured{nearest_hint(metric, known)}; "
                f"there are {', '.join(known)}"
                + (_LOSS_HINT if metric == checkpoint.monitor.metric and is_of_other_tasks else "")
            )


def check_own_directions(
    checkpoint: CheckpointSettings, trainer: TrainerSettings, own: Sequence[OwnMetric]
) -> None:
    """Check that no direction contradicts the better direction of a class in `metrics.own`.

    A rule without its own direction has the monitor's, and is not reported a second time.

    Raises:
        ConfigError: for each contradiction.
    """
    monitor = checkpoint.monitor
    watched = {"checkpoint.monitor": (monitor.metric, monitor.direction)}
    for name in PATIENCE_RULES:
        rule = getattr(trainer, name)
        if is_enabled(vars(rule)) and rule.direction is not None:
            watched[f"trainer.{name}"] = resolve_metric(rule, monitor)
    better = {metric.name: metric.better_direction() for metric in own}
    raise_combined(
        f"{where}.direction={direction}: {expected} is better for {metric}, as the class of "
        f"metrics.own.{name} says (higher_is_better); {where}.direction={expected}"
        for where, (metric, direction) in watched.items()
        if (expected := better.get(name := metric.split("/")[1])) not in (None, direction)
    )
