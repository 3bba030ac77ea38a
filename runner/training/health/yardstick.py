"""Measures logistic or linear regression on the columns and rows of a model, as its yardstick."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from runner.batch import TaskSpec, columns_by_label, log_columns
from runner.metrics.curves import average_precision, group_by_score, roc_auc
from runner.metrics.result_keys import ClassLabel, add_task_means, names_for_task, result_key
from runner.metrics.sums import (
    binary_results,
    binary_sums,
    class_results,
    class_sums,
    regression_results,
    regression_sums,
)
from runner.training.health.findings import find_in_data
from runner.training.health.fit_again import fit_again
from runner.training.health.linear_regression import fit_numbers, predict_numbers
from runner.training.health.logistic_regression import Columns, fit_tasks
from runner.training.health.sample import ENOUGH_RARE, Floats, Sample, most_train_rows, read_sample
from runner.training.health.verdict import (
    MEASURED,
    MEASURED_OF_LOGS,
    MEASURED_OF_NUMBERS,
    name_regression,
)
from runner.training.job import Job

_NO_GAIN = "linear regression predicts validation rows no better than the mean of the train rows"
TRAIN_ROWS, JUDGED_ROWS = 100_000, 200_000


def measure_yardstick(job: Job, splits: Sequence[str]) -> dict[str, Any]:
    """Return the metrics of logistic regression, or of linear regression if no task is binary.

    Findings about the data are returned with it.

    The result depends on the data only, not on the state of the training, so that it is the same
    for every run of these data. Rank 0 only; it takes seconds, since it learns from at most
    `TRAIN_ROWS` rows.

    Returns:
        `name`, `metrics` (`split/metric[/task]`), `penalty`, rows, `findings`; empty for data
        without a train split.
    """
    schema = job.dataset.schema
    is_binary = any(task.kind == "binary" for task in schema.tasks)
    columns = [i for i, task in enumerate(schema.tasks) if (task.kind == "binary") == is_binary]
    if "train" not in job.dataset.num_rows or not columns or not splits:
        return {}
    limit = most_train_rows(schema, TRAIN_ROWS)
    all_rows = train = read_sample(job.dataset, "train", limit, enough_rare=ENOUGH_RARE)
    samples = {split: read_sample(job.dataset, split, JUDGED_ROWS) for split in splits}
    samples = {split: sample for split, sample in samples.items() if sample.num_rows}
    if (judge := samples.get("validation")) is None:
        train, judge = all_rows.hold_out()
    labels = [
        list(range(of_label.start, of_label.stop))
        for of_label in columns_by_label(schema.tasks).values()
        if of_label.start in columns and train.num_rows
        if np.ptp(train.labels_NT[:, of_label], axis=0).any()
    ]
    columns = [i for indices in labels for i in indices]
    if not columns or not samples:  # all labels are equal, as for next items
        return {}
    matrix_of = Columns(train)
    metrics: dict[str, float] = {}
    names: Sequence[str]
    logs = log_columns(schema.tasks)
    if is_binary:
        names = MEASURED
        chosen = fit_tasks(matrix_of, train, judge, labels)
    else:
        names = MEASURED_OF_LOGS if len(logs) == len(schema.tasks) else MEASURED_OF_NUMBERS
        chosen = fit_numbers(matrix_of, train, judge, columns, logs)
    fits = chosen.fits
    if all_rows is not train and judge.num_rows:
        matrix_of = Columns(all_rows)
        fits = fit_again(matrix_of, all_rows, labels, chosen, is_binary=is_binary, logs=logs)
    fit_of = dict(zip(columns, fits))
    matrices = {split: matrix_of.matrix(sample) for split, sample in samples.items()}
    for split, x_NC in matrices.items():
        values = dict.fromkeys(names, math.nan)  # the means come first, as the verdict reads them
        for indices in labels:
            scores = [
                predict_numbers(x_NC @ fit_of[i][0] + fit_of[i][1], is_log=i in logs)
                for i in indices
            ]
            values |= _judge(np.column_stack(scores), samples[split], indices, schema.tasks)
        values = add_task_means(values, names, schema.tasks)
        metrics |= {f"{split}/{key}": v for key, v in values.items() if not math.isnan(v)}
    return {
        "name": name_regression(schema.tasks),
        "metrics": metrics,
        "penalty": chosen.l2,
        "train_rows": all_rows.num_rows,
        "judged_rows": {split: sample.num_rows for split, sample in samples.items()},
        "findings": [
            *([_NO_GAIN] if chosen.l2 is None else []),
            *find_in_data(schema, all_rows, samples),
        ],
    }


def _judge(
    scores_NK: Floats, sample: Sample, indices: Sequence[int], tasks: Sequence[TaskSpec]
) -> dict[str, float]:
    """Return the metrics of a label by key; it has one column, or one for each class."""
    x_NK, y_NK = torch.from_numpy(scores_NK), torch.from_numpy(sample.labels_NT[:, indices])
    label, weights_N = tasks[indices[0]].one_of, torch.from_numpy(sample.weights_N)
    if tasks[indices[0]].kind == "regression":
        [sums_S] = torch.einsum("snk,n->ks", regression_sums(x_NK, y_NK), weights_N).tolist()
        values = regression_results(*sums_S)
        return {result_key(n, tasks[indices[0]], tasks): values[n] for n in MEASURED_OF_NUMBERS}
    results = {}
    if label:  # logits of each class against all others
        log_p_NK = x_NK.log_softmax(1)
        x_NK = log_p_NK - torch.log1p(-log_p_NK.exp())
    sums_SNK = binary_sums(x_NK, y_NK)
    if label:
        sums_SNK[3:5] = torch.stack(class_sums(x_NK, y_NK))
    sums_SK = torch.einsum("snk,n->sk", sums_SNK, weights_N).tolist()
    if label:
        values = class_results(sums_SK)
        results = {f"{n}/{label}": values[n] for n in names_for_task(MEASURED, ClassLabel(label))}
    for index, sums_S, x_N, y_N in zip(indices, zip(*sums_SK), x_NK.T, y_NK.T):
        task = tasks[index]
        levels = group_by_score(
            x_N.numpy(), (weights_N * y_N).numpy(), (weights_N * (1 - y_N)).numpy()
        )
        values = binary_results(*sums_S)
        values |= {"auc": roc_auc(*levels), "pr_auc": average_precision(*levels)}
        results |= {result_key(n, task, tasks): values[n] for n in names_for_task(MEASURED, task)}
    return results
