"""User-defined metrics in an evaluation: classes of torchmetrics, one object per task.

B rows of a batch, T tasks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from runner.batch import Prediction, TaskSpec
from runner.errors import ConfigError, nearest_hint
from runner.metrics.protocol import Metrics
from runner.metrics.result_keys import (
    NO_ROW,
    UNWEIGHTED_NOTE,
    add_task_means,
    result_key,
    undefined_note,
)

if TYPE_CHECKING:
    from torchmetrics import Metric


@dataclass(frozen=True)
class OwnMetric:
    """A metric of the configuration's `metrics.own`."""

    name: str  # of its results
    make: Callable[[], Metric]  # makes an empty one
    tasks: Sequence[str] | None = None  # names of its tasks; None: all

    def is_for(self, task: TaskSpec) -> bool:
        return self.tasks is None or task.name in self.tasks

    def better_direction(self) -> str | None:
        """Return max or min, as declared by its class; None if it is not."""
        is_better = self.make().higher_is_better
        return None if is_better is None else "max" if is_better else "min"


class OwnMetrics(Metrics):
    """Metrics of the probabilities of a binary task, or of the predictions of a regression task.

    Implements `Metrics`. The target is the label, an integer for a binary task. Rows of
    weight 0 are left out; all others count once, since classes of torchmetrics take no weights.
    States of several ranks are combined as in torchmetrics: by each state's
    `dist_reduce_fx`. A NaN in a task's logits or labels makes its metrics NaN, and so does an
    error in the class, which `notes` reports.
    """

    def __init__(
        self, own: Sequence[OwnMetric], tasks: Sequence[TaskSpec], *, device: torch.device
    ) -> None:
        self._own, self._tasks, self._device = tuple(own), tuple(tasks), device
        self.reset()

    def reset(self) -> None:
        self._metrics: dict[tuple[str, int], Metric] = {}
        for metric in self._own:
            for index, task in enumerate(self._tasks):
                if metric.is_for(task):
                    self._metrics[metric.name, index] = _prepare(metric.make(), self._device)
        # rows, rows whose weight is not 1, rows with NaN, of each task
        self._counts_3T = torch.zeros(3, len(self._tasks), device=self._device, dtype=torch.int64)
        self._merged: list[Mapping[str, Tensor]] = []
        self._raised: dict[tuple[str, int], str] = {}  # errors of the classes' `update`
        self._undefined: dict[tuple[str, int], str] = {}  # reasons found by `compute`

    def names(self) -> list[str]:
        return list(self._named_results(dict.fromkeys(self._metrics, 0.0)))

    def _named_results(self, values: Mapping[tuple[str, int], float]) -> dict[str, float]:
        results = {
            result_key(name, self._tasks[index], self._tasks): value
            for (name, index), value in values.items()
        }
        return add_task_means(results, [metric.name for metric in self._own], self._tasks)

    @torch.no_grad()
    def update(self, prediction: Prediction, losses: Mapping[str, Tensor]) -> None:
        present_B = prediction.weights_B > 0
        weights_B = prediction.weights_B[present_B]
        logits_BT = prediction.logits_BT[present_B].double()
        labels_BT = prediction.labels_BT[present_B].double()
        nan_BT = (logits_BT + labels_BT).isnan()
        self._counts_3T[0] += len(weights_B)
        self._counts_3T[1] += (weights_B != 1).sum()
        self._counts_3T[2] += nan_BT.sum(0)
        for (name, index), metric in self._metrics.items():
            good_B = ~nan_BT[:, index]
            scores_B, labels_B = logits_BT[good_B, index], labels_BT[good_B, index]
            if not len(scores_B) or (name, index) in self._raised:
                continue
            try:
                metric.update(*_arguments(self._tasks[index].kind, scores_B, labels_B))
            except Exception as error:
                self._raised[name, index] = _describe(error)

    def compute(self) -> dict[str, float]:
        parts = [self.state(), *self._merged]
        computed = {key: self._compute_one(*key, parts) for key in self._metrics}
        self._undefined = {key: why for key, (_, why) in computed.items() if why}
        return self._named_results({key: value for key, (value, _) in computed.items()})

    def _compute_one(
        self, name: str, index: int, parts: Sequence[Mapping[str, Tensor]]
    ) -> tuple[float, str]:
        """Return a metric of a task, and why it is undefined; empty if it is not, or by NaN."""
        used = [part for part in parts if int(part["counts"][0, index])]
        if any(int(part["counts"][2, index]) for part in used):
            return math.nan, ""
        if not used:
            return math.nan, NO_ROW
        if any(int(part[f"raised/{name}/{index}"]) for part in used):
            return math.nan, self._raised.get((name, index), "its class raises on another rank")
        try:
            combined = _combine(self._metrics[name, index], f"{name}/{index}", used)
            value = float(combined.compute())
        except Exception as error:
            return math.nan, _describe(error)
        return value, "its class returns NaN for these rows" if math.isnan(value) else ""

    def notes(self) -> tuple[str, ...]:
        """Return the notes to show with the results of `compute`."""
        notes = [
            undefined_note([name], self._tasks[index], self._tasks, why)
            for (name, index), why in self._undefined.items()
        ]
        parts = [self._counts_3T, *(part["counts"].to(self._device) for part in self._merged)]
        if int(torch.stack(parts)[:, 1].sum()):
            names = ", ".join(metric.name for metric in self._own)
            notes.append(f"{names}: {UNWEIGHTED_NOTE} (metrics.own)")
        return tuple(notes)

    def state(self) -> dict[str, Tensor]:
        state = {"counts": self._counts_3T}
        for (name, index), metric in self._metrics.items():
            state[f"raised/{name}/{index}"] = torch.tensor((name, index) in self._raised)
            for key in metric._defaults:
                value = getattr(metric, key)
                if isinstance(value, list):
                    parts = [v.reshape(-1) if v.ndim == 0 else v for v in value]
                    value = torch.cat(parts or [torch.zeros(0)])
                state[f"{name}/{index}/{key}"] = value
        return state

    def merge(self, state: Mapping[str, Tensor]) -> None:
        self._merged.append(state)


def check_own_metric(own_metric: OwnMetric, tasks: Sequence[TaskSpec]) -> None:
    """Check a user-defined metric on two rows, before training.

    Raises:
        ConfigError: for a task that the dataset does not have, or a class that does not accept the
            scores and labels of its tasks or does not return one number.
    """
    key, known = f"metrics.own.{own_metric.name}", [task.name for task in tasks]
    for name in own_metric.tasks or ():
        if name not in known:
            raise ConfigError(
                f"{key}.tasks={name}: the dataset has no such task{nearest_hint(name, known)}; "
                f"there are {', '.join(known)}"
            )
    for task in tasks:
        if not own_metric.is_for(task):
            continue
        metric = _prepare(own_metric.make(), torch.device("cpu"))
        kind = type(metric).__name__
        where = f"{key}: {kind} on two rows of the {task.kind} task {task.name}"
        scores_B = torch.tensor([-1.0, 1.0], dtype=torch.float64)
        try:
            metric.update(*_arguments(task.kind, scores_B, (scores_B > 0).double()))
            value = metric.compute()
        except Exception as error:
            raise ConfigError(f"{where}: {error}; `tasks` chooses other tasks for it") from error
        if not isinstance(value, Tensor | float | int) or torch.as_tensor(value).numel() != 1:
            raise ConfigError(f"{where}: its compute() must give one number")


def _prepare(metric: Metric, device: torch.device) -> Metric:
    # its own exchange between ranks would wait in compute(), which only rank 0 calls
    metric.sync_on_compute = metric._to_sync = False
    return metric.to(device)


def _describe(error: Exception) -> str:
    return f"its class raises {type(error).__name__}: {' '.join(str(error).split())}"


def _arguments(kind: str, scores_B: Tensor, labels_B: Tensor) -> tuple[Tensor, Tensor]:
    """Return the arguments of `update` for a task's rows."""
    if kind == "binary":
        return scores_B.sigmoid(), (labels_B > 0.5).long()
    return scores_B, labels_B


def _combine(metric: Metric, prefix: str, parts: Sequence[Mapping[str, Tensor]]) -> Metric:
    """Return a metric with the combined states of all ranks that have rows."""
    combined = deepcopy(metric)
    for key, default in metric._defaults.items():
        values = [part[f"{prefix}/{key}"].to(metric.device) for part in parts]
        combined_value: Any
        if isinstance(default, list):
            combined_value = [value for value in values if value.numel()]
        elif len(values) == 1:
            combined_value = values[0]
        else:
            reduce: Any = metric._reductions[key]
            shape = max((value.shape for value in values), key=len)  # of one number: [] or [1]
            stacked = torch.stack([value.reshape(shape) for value in values])
            combined_value = stacked if reduce is None else reduce(stacked)
        setattr(combined, key, combined_value)
    combined._update_count = len(parts)  # otherwise its compute() would warn
    combined._computed = None
    return combined
