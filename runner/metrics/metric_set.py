"""MetricSet: the metrics of one pass over a split, as sums that can be merged and saved.

The sums are our own because most classes of torchmetrics 1.0.3 have no row weights, synchronise at
each update to check values, and return 0 for an undefined metric.

B rows of a batch, T tasks, S sums, P parts of the loss, K levels of score.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from runner.batch import Prediction, TaskSpec, class_columns
from runner.metrics.buffer import MAX_ROWS, MetricRows, RowBuffer, WaitingBatch, make_metric_rows
from runner.metrics.curves import average_precision, average_precision_error, roc_auc, roc_auc_error
from runner.metrics.loss_sums import LossSums
from runner.metrics.names import METRICS, get_metric, split_task
from runner.metrics.result_keys import (
    NO_ROW,
    UNDEFINED_NOTE,
    ClassLabel,
    add_task_means,
    names_for_task,
    result_key,
    result_keys,
    undefined_note,
)
from runner.metrics.score_store import ScoreBuffer
from runner.metrics.settings import MetricSettings, find_group_column
from runner.metrics.sums import (
    NUM_SUMS,
    NUM_SUMS_WITH_R2,
    binary_results,
    binary_sums,
    class_results,
    class_sums,
    need_both_labels,
    regression_results,
    regression_sums,
)

TRAIN_BINS = 1 << 14  # 256 KiB per task in every checkpoint
EVAL_BINS = 1 << 18


class MetricSet:
    """The metrics of one pass. Implements `Metrics`.

    Rows with weight 0 do not count. An undefined metric is NaN. A NaN in a task's logits or
    labels makes all its metrics NaN; infinite logits count as +-1e30.
    """

    def __init__(
        self,
        tasks: Sequence[TaskSpec],
        *,
        exact: bool,
        device: torch.device,
        settings: MetricSettings,
        groups: Sequence[str] = (),
    ) -> None:
        """Make an empty set.

        Args:
            exact: True computes `settings.eval`, False the cheap metrics of `settings.train`.
            groups: names of the columns of `Prediction.groups_BG`.

        Raises:
            ConfigError: if a metric needs a group column that does not exist.
        """
        self._tasks = tuple(tasks)
        kinds = {task.kind for task in tasks}
        names = settings.eval if exact else settings.train
        self._names = tuple(name for name in names if get_metric(name).kind in kinds)
        self._group = find_group_column(settings, groups) if exact else None
        self._device = device
        self._exact = exact
        # the tasks of each kind, and their sums; see binary_sums and regression_sums
        self._columns = {
            kind: [i for i, task in enumerate(tasks) if task.kind == kind] for kind in sorted(kinds)
        }
        self._column_index_T = {
            kind: torch.tensor(columns, device=device) for kind, columns in self._columns.items()
        }
        binary = [task for task in tasks if task.kind == "binary"]
        self._class_columns = class_columns(binary)  # in the sums of binary tasks, by label
        has_r2 = any(split_task(name)[0] == "r2" for name in self._names)
        num_sums = NUM_SUMS_WITH_R2 if has_r2 else NUM_SUMS
        self._sums_ST = {
            kind: torch.zeros(num_sums[kind], len(columns), dtype=torch.float64, device=device)
            for kind, columns in self._columns.items()
        }
        self._losses = LossSums(device)
        self._buffer = None if exact else RowBuffer(len(tasks), device)
        self._waiting: list[WaitingBatch] = []  # of an exact set: of equal size, counted together
        self._without_mixed_group: set[int] = set()  # binary tasks, found by `compute`
        self._scores: ScoreBuffer | None = None
        if any(get_metric(name).needs != "sums" for name in self._names):
            self._scores = ScoreBuffer(
                len(self._columns["binary"]),
                row_limit=settings.exact_auroc_rows if exact else 0,
                num_bins=EVAL_BINS if exact else TRAIN_BINS,
                keep_groups=self._group is not None,
                device=device,
            )

    def names(self) -> list[str]:
        """Return the names of the results, without parts of the loss, which an update provides."""
        return result_keys(self._names, self._tasks)

    @torch.no_grad()
    def update(self, prediction: Prediction, losses: Mapping[str, Tensor]) -> None:
        """Add a batch, on its device and without synchronising.

        Args:
            losses: name -> [B]. A row's loss is the sum over the names, which must be the same, in
                the same order, at every update.

        Raises:
            ValueError: if the names differ from the earlier ones.
        """
        if self._losses.learn_names(losses):
            self._make_room(len(losses))
        # without the loss's other inputs: the scores of all candidates may be large
        batch, buffer = (replace(prediction, aux={}), tuple(losses.values())), self._buffer
        num_rows = len(prediction.weights_B)
        if buffer is None:
            if self._waiting and len(self._waiting[0][0].weights_B) != num_rows:
                self._flush()
            self._waiting.append(batch)
            if not self._may_wait(num_rows):
                self._flush()
            return
        if not buffer.fits(num_rows):
            self._flush()
            if not buffer.fits(num_rows):
                self._accumulate_batches([batch])
                return
        buffer.add(*batch)

    def _may_wait(self, num_rows: int) -> bool:
        """Return whether the next batch may be counted together with the waiting ones.

        Torch uses another formula for values that do not fill its vectors, and divides large arrays
        among its threads: together, rows must give the same bits as batches one by one.
        """
        num_numbers = (len(self._waiting) + 1) * num_rows * len(self._tasks)
        # a CUDA graph reuses the memory of a batch
        return self._device.type == "cpu" and num_rows % 16 == 0 and num_numbers <= MAX_ROWS

    @torch.no_grad()
    def _flush(self) -> None:
        """Count the waiting rows."""
        if self._buffer is not None:
            rows = self._buffer.pop(self._losses.num_parts)
            if rows is not None:
                self._accumulate(rows, None)
        elif self._waiting:
            self._accumulate_batches(self._waiting)
            self._waiting = []

    def _accumulate_batches(self, batches: Sequence[WaitingBatch]) -> None:
        groups_B = None
        if self._group is not None:
            groups_B = torch.cat([p.groups_BG[:, self._group] for p, _ in batches])
        self._accumulate(make_metric_rows(batches), groups_B, num_batches=len(batches))

    def _accumulate(
        self, rows: MetricRows, groups_B: Tensor | None, *, num_batches: int = 1
    ) -> None:
        """Count rows of `num_batches` batches of equal size, each of which is summed separately.

        The order of the sums, and so their last digits, is the same as for batches one by one; each
        operation of torch on a batch takes longer to start than to run.
        """
        weights_B, parts_PB = rows.weights_B.double(), rows.losses_PB.double()
        logits_BT, labels_BT = rows.logits_BT.double(), rows.labels_BT.double()
        # as for most rows; on a GPU the host would wait for the answer
        weigh_one = self._device.type == "cpu" and bool((rows.weights_B == 1).all())
        if not weigh_one:
            present_B1 = weights_B[:, None] > 0
            # torch.where, not a product: a row of weight 0 may contain NaN, and NaN times 0 is NaN
            weights_B = torch.where(present_B1[:, 0], weights_B, 0.0)
            logits_BT = torch.where(present_B1, logits_BT, 0.0)
            labels_BT = torch.where(present_B1, labels_BT, 0.0)
            parts_PB = torch.where(present_B1[:, 0], parts_PB, 0.0) * weights_B
        by_batch = (num_batches, len(weights_B) // num_batches)
        weight_K = weights_B.view(by_batch).sum(1)
        parts_PK = parts_PB.view(len(parts_PB), *by_batch).sum(2)
        losses_P = self._losses.sums_P[: 1 + len(parts_PB)]
        for batch_P in torch.cat((weight_K[None], parts_PK)).unbind(1):
            losses_P += batch_P
        for kind, index_T in self._column_index_T.items():
            x_BT, y_BT = logits_BT, labels_BT
            if len(self._column_index_T) > 1:
                x_BT, y_BT = x_BT.index_select(1, index_T), y_BT.index_select(1, index_T)
            sums = binary_sums if kind == "binary" else regression_sums
            sums_SBT = sums(x_BT, y_BT)[: len(self._sums_ST[kind])]
            for of_label in self._class_columns.values() if kind == "binary" else ():
                of_classes = class_sums(x_BT[:, of_label], y_BT[:, of_label])
                sums_SBT[3:5, :, of_label] = torch.stack(of_classes)
            if not weigh_one:
                sums_SBT *= weights_B[:, None]
            sums_SKBT = sums_SBT.view(len(sums_SBT), *by_batch, x_BT.shape[1])
            for batch_ST in sums_SKBT.sum(2).unbind(1):
                self._sums_ST[kind] += batch_ST
            if kind == "binary" and self._scores is not None:
                self._scores.add(x_BT, y_BT, weights_B, groups_B)

    def compute(self) -> dict[str, float]:
        """Return all metrics by name. Synchronises.

        With several tasks there are `auc/<task>` for each of them, and their mean `auc`.
        """
        self._flush()
        self._without_mixed_group.clear()
        results = self._losses.results()
        for label, columns in self._class_columns.items():
            values = class_results(self._sums_ST["binary"][:, columns].tolist())  # sync
            for name in names_for_task(self._names, ClassLabel(label)):
                results[f"{name}/{label}"] = values[name]
        for task_index, task in enumerate(self._tasks):
            index = self._columns[task.kind].index(task_index)
            sums = self._sums_ST[task.kind][:, index].tolist()  # sync
            if task.kind == "binary":
                values = binary_results(*sums)
                values |= self._curve_results(index, names_for_task(self._names, task), sums[3])
            else:
                values = regression_results(*sums)
            for name in names_for_task(self._names, task):
                results[result_key(name, task, self._tasks)] = values[name]
        return add_task_means(results, self._names, self._tasks)

    def notes(self) -> tuple[str, ...]:
        """Return which results of `compute` are undefined, and which binned, with error bounds."""
        self._flush()
        return (*self._undefined_notes(), *self._binned_notes()) if self._exact else ()

    def _undefined_notes(self) -> Iterator[str]:
        """Yield which metrics of an evaluation are NaN because of the labels, and why."""
        if not float(self._losses.sums_P[0]):  # sync
            yield f"loss: {UNDEFINED_NOTE} {NO_ROW}"
        for column, task in enumerate(self._tasks):
            index = self._columns[task.kind].index(column)
            names = names_for_task(self._names, task)
            weight, label, *parts = sums = self._sums_ST[task.kind][:, index].tolist()  # sync
            if not weight:
                why = NO_ROW
            elif task.kind == "regression":
                results = regression_results(*sums)
                is_constant = math.isnan(results["r2"]) and not math.isnan(results["mse"])
                names = [n for n in names if n == "r2" and is_constant]
                why = "all labels are equal"
            elif math.isnan(parts[1]):  # the log loss
                continue
            elif not 0 < label < weight:
                names = need_both_labels(names, has_positives=label > 0)
                why = f"all labels are {1 if label else 0}"
            else:
                is_mixed = index not in self._without_mixed_group
                names = [] if is_mixed else [n for n in names if n.startswith("gauc")]
                why = "no group has rows of both labels"
            if names:
                yield undefined_note(names, task, self._tasks, why)
        for name, columns in self._class_columns.items():
            label = ClassLabel(name)
            weights, labels, *_ = self._sums_ST["binary"][:, columns].tolist()  # sync
            names, why = names_for_task(self._names, label), NO_ROW
            if weights[0]:
                names = [n for n in names if n in ("normalized_entropy", "rce")]
                names, why = names if weights[0] in labels else [], "all rows have one class"
            if names:
                yield undefined_note(names, label, self._tasks, why)

    def _binned_notes(self) -> tuple[str, ...]:
        """Return which results of an evaluation are binned, with bounds of their errors."""
        if self._scores is None or not self._scores.is_binned:
            return ()
        where = f"beyond {self._scores.row_limit:,} rows (metrics.exact_auroc_rows)"
        notes = []
        for index, column in enumerate(self._columns["binary"]):
            levels = self._scores.score_levels(index)
            for name, error in (("auc", roc_auc_error), ("pr_auc", average_precision_error)):
                if name in names_for_task(self._names, self._tasks[column]):
                    key = result_key(name, self._tasks[column], self._tasks)
                    notes.append(f"{key}: binned {where}, within ±{error(*levels):.1e}")
        if grouped := ", ".join(name for name in self.names() if name.startswith("gauc")):
            notes.append(f"{grouped}: undefined {where}")
        return tuple(notes)

    def reset(self) -> None:
        for tensor in (*self._sums_ST.values(), self._losses.sums_P):
            tensor.zero_()
        if self._buffer is not None:
            self._buffer.clear()
        self._waiting = []
        if self._scores is not None:
            self._scores.reset()

    def state(self) -> dict[str, Tensor]:
        """Return tensors by name.

        Those of a cheap set are live and their shapes depend only on the parts of the loss, so
        that a checkpoint can copy into them; `rows` and `groups` of an exact set are copies.
        """
        if self._exact:
            self._flush()
        state = {f"sums/{kind}": sums_ST for kind, sums_ST in self._sums_ST.items()}
        state["losses"] = self._losses.sums_P
        if self._buffer is not None:
            state |= self._buffer.state()
        return state | (self._scores.state() if self._scores is not None else {})

    def loss_parts(self) -> tuple[str, ...]:
        return self._losses.names

    def restore_loss_parts(self, names: Sequence[str], room: int = 0) -> None:
        self._losses.restore_names(names)
        self._make_room(room)

    def _make_room(self, num_parts: int) -> None:
        self._losses.make_room(num_parts)
        if self._buffer is not None:
            self._buffer.make_room(num_parts)

    def merge(self, state: Mapping[str, Tensor]) -> None:
        """Add the state of another set with the same settings, such as another rank's."""
        self._flush()
        for kind, sums_ST in self._sums_ST.items():
            sums_ST += state[f"sums/{kind}"].to(self._device)
        self._make_room(len(state["losses"]) - 1)
        self._losses.sums_P[: len(state["losses"])] += state["losses"].to(self._device)
        if self._scores is not None:
            self._scores.merge(state)
        if self._buffer is not None:
            self._accumulate(self._buffer.rows_of_state(state), None)

    def _curve_results(
        self, index: int, names: Sequence[str], nan_check: float
    ) -> dict[str, float]:
        """Return the results of a task; `nan_check` is a sum that is NaN if a logit or label is."""
        names = [name for name in names if METRICS[name].needs != "sums"]
        if self._scores is None or math.isnan(nan_check):
            return dict.fromkeys(names, math.nan)
        results = {}
        if "auc" in names or "pr_auc" in names:
            levels = self._scores.score_levels(index)
            results = {"auc": roc_auc(*levels), "pr_auc": average_precision(*levels)}
        if self._group is not None:
            weighted, unweighted = self._scores.grouped_auc(index)
            if math.isnan(weighted) and not self._scores.is_binned:
                self._without_mixed_group.add(index)
            results |= {"gauc": weighted, "gauc_unweighted": unweighted}
        return results
