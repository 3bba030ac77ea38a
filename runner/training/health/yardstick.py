"""Logistic or linear regression beside a model: what it reaches on the same columns and rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import log_softmax

from runner.batch import TaskSpec, columns_by_label
from runner.metrics.curves import group_by_score, roc_auc
from runner.metrics.result_keys import add_task_means, result_key
from runner.training.health.findings import find_in_data
from runner.training.health.linear_regression import fit_numbers, judge_numbers
from runner.training.health.logistic_regression import (
    Columns,
    Fit,
    fit_tasks,
    mean_log_loss,
    softmax_losses,
)
from runner.training.health.sample import ENOUGH_RARE, Floats, Sample, most_train_rows, read_sample
from runner.training.health.verdict import NAME, NAME_OF_NUMBERS
from runner.training.job import Job

_NO_GAIN = "linear regression predicts validation rows no better than the mean of the train rows"
TRAIN_ROWS, JUDGED_ROWS = 100_000, 200_000


def measure_yardstick(job: Job, splits: Sequence[str]) -> dict[str, Any]:
    """Return what logistic regression reaches, or linear regression where no task is binary.

    Findings about the data are with it.

    It is a function of the data alone, so that every run of these data has the same one, and the
    state of the training has no part in it. Rank 0 only; it takes seconds, since it learns from
    at most `TRAIN_ROWS` rows.

    Args:
        job: its dataset is read.
        splits: the splits to judge it on.

    Returns:
        `name`, `metrics` (`split/metric[/task]`), `penalty`, rows, `findings`; nothing for
        data without a train split of their own.
    """
    schema = job.dataset.schema
    is_binary = any(task.kind == "binary" for task in schema.tasks)
    columns = [i for i, task in enumerate(schema.tasks) if (task.kind == "binary") == is_binary]
    if "train" not in job.dataset.num_rows or not columns or not splits:
        return {}
    limit = most_train_rows(schema, TRAIN_ROWS)
    train = read_sample(job.dataset, "train", limit, enough_rare=ENOUGH_RARE)
    samples = {split: read_sample(job.dataset, split, JUDGED_ROWS) for split in splits}
    samples = {split: sample for split, sample in samples.items() if sample.num_rows}
    labels = [
        list(range(of_label.start, of_label.stop))
        for of_label in columns_by_label(schema.tasks).values()
        if of_label.start in columns and train.num_rows
        if np.ptp(train.labels_NT[:, of_label], axis=0).any()
    ]
    columns = [i for indices in labels for i in indices]
    if not columns or not samples:  # of one label, as next items have, nothing can be learnt
        return {}
    matrix_of = Columns(train)
    judged = {split: matrix_of.matrix(sample) for split, sample in samples.items()}
    metrics: dict[str, float] = {}
    fits: Sequence[Fit]
    l2: float | None
    if is_binary:
        names = "auc", "log_loss"
        fits, l2 = fit_tasks(matrix_of, train, samples.get("validation"), labels)
    else:
        names = "mse", "mae"
        fits, l2 = fit_numbers(matrix_of, train, samples.get("validation"), columns)
    judge = _judge if is_binary else _judge_numbers
    fit_of = dict(zip(columns, fits))
    for split, x_NC in judged.items():
        values = dict.fromkeys(names, math.nan)  # the means come first, as the verdict reads them
        for indices in labels:
            found = [x_NC @ fit_of[i][0] + fit_of[i][1] for i in indices]
            values |= judge(np.column_stack(found), samples[split], indices, schema.tasks)
        values = add_task_means(values, names, schema.tasks)
        metrics |= {f"{split}/{key}": v for key, v in values.items() if not math.isnan(v)}
    return {
        "name": NAME if is_binary else NAME_OF_NUMBERS,
        "metrics": metrics,
        "penalty": l2,
        "train_rows": train.num_rows,
        "judged_rows": {split: sample.num_rows for split, sample in samples.items()},
        "findings": [*([_NO_GAIN] if l2 is None else []), *find_in_data(schema, train, samples)],
    }


def _judge(
    logits_NK: Floats, sample: Sample, indices: Sequence[int], tasks: Sequence[TaskSpec]
) -> dict[str, float]:
    """Return the metrics of a label by key: of one column of 0 and 1, or one for each class."""
    found, weights_N = {}, sample.weights_N
    y_NK, label = sample.labels_NT[:, indices], tasks[indices[0]].one_of
    if label:
        losses_N = softmax_losses(logits_NK, y_NK)
        found[f"log_loss/{label}"] = float(np.average(losses_N, weights=weights_N))
        logits_NK = log_softmax(logits_NK, axis=1)
    else:
        loss = mean_log_loss(logits_NK[:, 0], y_NK[:, 0], weights_N)
        found[result_key("log_loss", tasks[indices[0]], tasks)] = loss
    for index, logits_N, y_N in zip(indices, logits_NK.T, y_NK.T):
        levels = group_by_score(logits_N, weights_N * y_N, weights_N * (1 - y_N))
        found[result_key("auc", tasks[index], tasks)] = roc_auc(*levels)
    return found


def _judge_numbers(
    predicted_NK: Floats, sample: Sample, indices: Sequence[int], tasks: Sequence[TaskSpec]
) -> dict[str, float]:
    [index], found = indices, judge_numbers(predicted_NK[:, 0], sample, indices[0])
    return {result_key(name, tasks[index], tasks): value for name, value in found.items()}
