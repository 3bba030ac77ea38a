"""Writes factors of pairs of features into the initial embeddings of Wide & Deep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from runner.models.wide_and_deep import WideAndDeep
from runner.training.health.logistic_regression import Columns, Fit
from runner.training.health.sample import Sample, read_sample
from runner.training.job import Job
from runner.training.state import weight_tensors
from runner.training.warm_start.factor_rows import Factors, Target
from runner.training.warm_start.pair_factors import MANY_ROWS, find_factors, fit_factors_again

MOST_IDS = 10_000_000  # in the rows that factors are fitted to
SMALL = 0.01  # about the size of random initial vectors


@dataclass(frozen=True)
class Regression:
    """A regression, and the rows that it is fitted to.

    Attributes:
        columns: of its matrix.
        rows: that it is fitted to.
        fits: weights and intercept of each task.
    """

    columns: Columns
    rows: Sample
    fits: list[Fit]


def start_factors(job: Job, part: Regression, held_out: Sample, whole: Regression) -> list[Factors]:
    """Write factors that improve held-out rows into the tables of a model with `pairs=fitted`.

    For the network they are scaled to the size of other vectors. So it first learns from numbers,
    as it does without factors, and does not memorise which ids occur together.

    Args:
        part: the regression to whose residuals factors are fitted.
        held_out: other rows, on which factors are chosen; without a validation split, a fifth of
            all train rows that are read.
        whole: the regression that the model starts with; if `part` lacks the rows of `held_out`,
            the factors are fitted once more to the residuals of this one.

    Returns:
        The factors; empty for another model, or if they gain nothing.
    """
    schema, model = job.dataset.schema, job.context.model
    if not isinstance(model, WideAndDeep) or model.pair_scale is None or not held_out.num_rows:
        return []
    wide, wide_columns, all_rows = part.rows, part.columns, whole.rows
    num_rows = min(all_rows.split_rows, _most_rows(all_rows))
    if num_rows > all_rows.num_rows:
        wide = all_rows = read_sample(
            job.dataset, "train", num_rows
        )  # for rare ids every row helps
        if whole is not part:  # these include the rows from before
            wide, held_out = all_rows.hold_out()
        wide_columns = Columns(wide, part.columns.tables)
    if wide.num_rows > MANY_ROWS:
        job.view.note(
            f"checkpoint.init_linear=true: fits factors of pairs of ids to {wide.num_rows:,} train "
            "rows first, which takes from seconds to a minute or two"
        )
    learnt, other = _targets(job, model, part, wide, held_out)
    # each thread allocates arrays with the vectors of all rows
    threads = min(torch.get_num_threads(), max(1, MOST_IDS // max(1, wide.num_rows)))
    factors = find_factors(
        wide_columns, (wide, learnt), (held_out, other), model.pair_width, threads=threads
    )
    if whole is not part:
        columns = Columns(all_rows, part.columns.tables)
        [learnt] = _targets(job, model, whole, all_rows)
        factors = fit_factors_again(columns, (all_rows, learnt), wide_columns, factors)
        wide_columns = columns
    names = [feature.name for feature in schema.sparse]
    scale_ND = model.pair_scale.view(len(names), -1)
    _write(factors, wide_columns, weight_tensors(job.context), dict(zip(names, scale_ND)))
    return factors


def _most_rows(train: Sample) -> int:
    """Return how many rows have `MOST_IDS` ids at this mean length of lists."""
    num_ids = sum(len(ids.ids_V) for ids in train.ids.values())
    return int(MOST_IDS / max(num_ids / max(1, train.num_rows), len(train.ids)))


def _targets(
    job: Job, model: WideAndDeep, regression: Regression, *samples: Sample
) -> list[list[Target]]:
    """Return the targets of each sample; the noise of numeric labels comes from the first one."""
    by_sample: list[list[Target]] = []
    for sample in samples:
        x_NC = regression.columns.matrix(sample)
        targets = []
        for number, task in enumerate(job.dataset.schema.tasks):
            (weights_C, intercept), scale = regression.fits[number], model.scales[number]
            y_N, logits_N = sample.labels_NT[:, number], (x_NC @ weights_C + intercept) * scale
            target = Target(y_N / task.scale, logits_N, scale, log_link=bool(task.link))
            if task.kind == "regression":
                first = by_sample[0][number].noise if by_sample else None
                target = replace(target, noise=first or target.estimate_noise(sample.weights_N))
            targets.append(target)
        by_sample.append(targets)
    return by_sample


def _write(
    all_factors: Sequence[Factors],
    columns: Columns,
    tensors: Mapping[str, Tensor],
    scales: Mapping[str, Tensor],
) -> None:
    """Write the factors into the vectors of their ids, each pair into its own dimensions.

    Args:
        columns: the ids of each table.
        tensors: of the model, by name.
        scales: feature -> the factor of each dimension of its vectors in the network, [D].
    """
    start = 0
    for factors in all_factors:
        stop = start + factors.rank
        for name, vectors in zip(factors.pair, (factors.first_CK, factors.second_MK)):
            table = columns.tables[name]
            rows = tensors[f"tables/{table}/weight"]
            ids_C = torch.from_numpy(columns.ids[table]).to(rows.device)
            rows[ids_C, start:stop] = torch.from_numpy(vectors).to(rows)
            size = float(np.sqrt(np.mean(vectors**2)))
            scales[name][start:stop] = SMALL / max(size, SMALL)
        start = stop
