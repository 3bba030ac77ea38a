"""Logistic or linear regression beside a model: what it reaches on the same columns and rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from runner.metrics.curves import group_by_score, roc_auc
from runner.metrics.result_keys import add_task_means, result_key
from runner.training.health.findings import find_in_data
from runner.training.health.linear_regression import fit_numbers, judge_numbers
from runner.training.health.logistic_regression import Columns, fit_tasks, mean_log_loss
from runner.training.health.sample import ENOUGH_RARE, Floats, Sample, read_sample
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
    train = read_sample(job.dataset, "train", TRAIN_ROWS, enough_rare=ENOUGH_RARE)
    samples = {split: read_sample(job.dataset, split, JUDGED_ROWS) for split in splits}
    samples = {split: sample for split, sample in samples.items() if sample.num_rows}
    columns = [i for i in columns if train.num_rows and np.ptp(train.labels_NT[:, i])]
    if not columns or not samples:  # of one label, as next items have, nothing can be learnt
        return {}
    matrix_of = Columns(train)
    judged = {split: matrix_of.matrix(sample) for split, sample in samples.items()}
    metrics: dict[str, float] = {}
    fit, judge = (fit_tasks, _judge) if is_binary else (fit_numbers, judge_numbers)
    fits, l2 = fit(matrix_of, train, samples.get("validation"), columns)
    names = ("auc", "log_loss") if is_binary else ("mse", "mae")
    for split, x_NC in judged.items():
        values = dict.fromkeys(names, math.nan)  # the means come first, as the verdict reads them
        for index, (weights_C, intercept) in zip(columns, fits):
            task = schema.tasks[index]
            found = judge(x_NC @ weights_C + intercept, samples[split], index)
            values |= {result_key(name, task, schema.tasks): v for name, v in found.items()}
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


def _judge(logits_N: Floats, sample: Sample, index: int) -> dict[str, float]:
    y_N, weights_N = sample.labels_NT[:, index], sample.weights_N
    levels = group_by_score(logits_N, weights_N * y_N, weights_N * (1 - y_N))
    return {"auc": roc_auc(*levels), "log_loss": mean_log_loss(logits_N, y_N, weights_N)}
