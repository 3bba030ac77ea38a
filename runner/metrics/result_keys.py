"""The keys of results: which metrics are computed for which task, and their names.

It imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from runner.errors import ConfigError, nearest_hint
from runner.metrics.names import get_metric, split_task

# Of a label of classes they are those of its softmax: the log loss of the right class, how often it
# is the most probable one, and the first against always predicting the rates of the classes.
JOINT_METRICS = ("log_loss", "normalized_entropy", "rce", "accuracy")
UNDEFINED_NOTE = "undefined, since"  # in a note, after the names of metrics and a colon
UNWEIGHTED_NOTE = "each row counts once, whatever its weight"  # of user-defined metrics, likewise
NO_ROW = "no row counts: there is none of a weight above 0"


class TaskLike(Protocol):
    """The attributes of a `TaskSpec` used in this module."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def one_of(self) -> str: ...


@dataclass(frozen=True)
class ClassLabel:
    """A label of several classes, each of which is a task; `JOINT_METRICS` are for all together."""

    name: str
    kind: str = "classes"
    one_of: str = ""


def measured_units(tasks: Sequence[TaskLike]) -> tuple[TaskLike, ...]:
    """Return the units for which metrics are computed: labels of classes, then the tasks."""
    return (*(ClassLabel(name) for name in dict.fromkeys(t.one_of for t in tasks) if name), *tasks)


def measured_names(settings: Mapping[str, Any], key: str = "eval") -> list[str]:
    """Return the names, without tasks, of the metrics in a list of the group `metrics`.

    Args:
        settings: the group in the configuration.
        key: eval or train.
    """
    names = [split_task(name)[0] for name in settings.get(key, [])]
    own_metrics = (settings.get("own") or {}) if key == "eval" else {}
    return list(dict.fromkeys(["loss", *names, *own_metrics]))


def names_for_task(
    names: Sequence[str], task: TaskLike, tasks: Sequence[TaskLike] = ()
) -> list[str]:
    """Return those of the metrics that are computed for a task, without its name.

    Ranking metrics without a task are for the binary tasks, or for regressions, if there are none.

    Args:
        tasks: of the dataset; needed for ranking metrics only.
    """
    of_task = []
    for name in names:
        base, chosen = split_task(name)
        kind: str = get_metric(base).kind
        if get_metric(base).needs == "users" and (chosen or all(t.kind != kind for t in tasks)):
            kind = task.kind
        if task.one_of or isinstance(task, ClassLabel):
            is_joint = base in JOINT_METRICS
            fits = is_joint == isinstance(task, ClassLabel) and (is_joint or kind == task.kind)
        else:
            fits = kind == task.kind
        if chosen in ("", task.name) and fits:
            of_task.append(base)
    return list(dict.fromkeys(of_task))


def check_tasks(key: str, names: Sequence[str], tasks: Sequence[TaskLike]) -> None:
    """Check that metrics with a task name one of the dataset that supports them.

    Args:
        key: of the list, for the message.

    Raises:
        ConfigError: for an unknown task, or one of an unsupported kind.
    """
    units = {unit.name: unit for unit in measured_units(tasks)}
    for name in names:
        base, task = split_task(name)
        if not task:
            continue
        if task not in units:
            raise ConfigError(
                f"{key}: {name!r}: the dataset has no task {task!r}{nearest_hint(task, units)}; "
                f"there are {', '.join(units)}"
            )
        if names_for_task([name], units[task]):
            continue
        if (label := units[task].one_of) and base in JOINT_METRICS:
            raise ConfigError(
                f"{key}: {name!r}: is measured over all classes together: write {base}/{label}"
            )
        if isinstance(units[task], ClassLabel):
            classes = ", ".join(f"{base}/{t.name}" for t in tasks if t.one_of == task)
            raise ConfigError(f"{key}: {name!r}: each class of {task} is a task: write {classes}")
        raise ConfigError(f"{key}: {name!r}: {task} is a {units[task].kind} task")


def result_key(name: str, task: TaskLike, tasks: Sequence[TaskLike]) -> str:
    """Return the key of a result: `auc`, or `auc/<task>` if there are several tasks."""
    return name if len(tasks) == 1 else f"{name}/{task.name}"


def undefined_note(
    names: Sequence[str], task: TaskLike, tasks: Sequence[TaskLike], why: str
) -> str:
    """Return the note that metrics of a task are NaN, and with several tasks their means, too.

    Args:
        names: of the metrics, without the task.
        why: the reason, to follow the word since.
    """
    keys = [result_key(name, task, tasks) for name in names]
    if len(tasks) > 1:
        keys, why = [*keys, *names], f"{why} ({task.name})"
    return f"{', '.join(keys)}: {UNDEFINED_NOTE} {why}"


def result_keys(names: Sequence[str], tasks: Sequence[TaskLike]) -> list[str]:
    """Return the keys of the results of `MetricSet.compute`, without parts of the loss."""
    results = {"loss": 0.0}
    for task in measured_units(tasks):
        keys = [result_key(n, task, tasks) for n in names_for_task(names, task, tasks)]
        results |= dict.fromkeys(keys, 0.0)
    return list(add_task_means(results, names, tasks))


def add_task_means(
    results: Mapping[str, float], names: Sequence[str], tasks: Sequence[TaskLike]
) -> dict[str, float]:
    """Add the mean of each metric over tasks and labels, `auc` to `auc/click` and `auc/buy`.

    So there is a single number, for example for a checkpoint's monitor.
    """
    extended = dict(results)
    if len(tasks) > 1:
        for name in dict.fromkeys(split_task(name)[0] for name in names):
            keys = [result_key(name, unit, tasks) for unit in measured_units(tasks)]
            values = [results[key] for key in keys if key in results]
            if values:
                extended[name] = sum(values) / len(values)
    return extended
