"""Puts factors of pairs of features into the vectors with which Wide & Deep starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from runner.models.wide_and_deep import WideAndDeep
from runner.training.health.logistic_regression import Columns, Fit
from runner.training.health.sample import Sample, read_sample
from runner.training.job import Job
from runner.training.state import weight_tensors
from runner.training.warm_start.factor_rows import Factors, Target
from runner.training.warm_start.pair_factors import MANY_ROWS, find_factors

MOST_IDS = 10_000_000  # of the rows in which factors are sought
SMALL = 0.01  # about the size of vectors of which nothing is known yet


def start_factors(
    job: Job, columns: Columns, train: Sample, judged: Sample, fits: Sequence[Fit]
) -> list[Factors]:
    """Write the factors that other rows gain by into the tables of a model with `pairs=fitted`.

    The network sees them as small as the vectors of other ids. So it first learns from numbers, as
    it does without factors, and does not learn by heart which ids stand together.

    Args:
        job: whose model starts.
        columns: of the regression from which factors are sought.
        train: the rows that it was fitted to.
        judged: other rows, which decide on the factors; without a validation split, a fifth of all
            train rows that are read do.
        fits: weights and intercept of each task.

    Returns:
        The factors; none for another model, or where nothing is gained.
    """
    schema, model = job.dataset.schema, job.context.model
    if not isinstance(model, WideAndDeep) or model.pair_scale is None or not judged.num_rows:
        return []
    wide, wide_columns = train, columns
    num_rows = min(train.split_rows, _most_rows(train))
    has_validation = "validation" in job.dataset.num_rows
    if num_rows > train.num_rows + (0 if has_validation else judged.num_rows):
        wide = read_sample(job.dataset, "train", num_rows)  # of rare ids each row counts
        if not has_validation:  # those of before are among these
            wide, judged = wide.hold_out()
        wide_columns = Columns(wide, columns.tables)
    if wide.num_rows > MANY_ROWS:
        job.view.note(
            f"checkpoint.init_linear=true: fits factors of pairs of ids to {wide.num_rows:,} train "
            "rows first, which takes from seconds to a minute or two"
        )
    learnt, other = (_targets(model, columns, sample, fits) for sample in (wide, judged))
    for task, target in enumerate(learnt):
        if schema.tasks[task].kind == "regression":
            noise = target.mean_square_error(wide.weights_N)
            learnt[task], other[task] = (replace(t[task], noise=noise) for t in (learnt, other))
    # each thread has arrays of its own of the vectors of all rows
    threads = min(torch.get_num_threads(), max(1, MOST_IDS // max(1, wide.num_rows)))
    found = find_factors(
        wide_columns, (wide, learnt), (judged, other), model.pair_width, threads=threads
    )
    names = [feature.name for feature in schema.sparse]
    scale_ND = model.pair_scale.view(len(names), -1)
    _write(found, wide_columns, weight_tensors(job.context), dict(zip(names, scale_ND)))
    return found


def _most_rows(train: Sample) -> int:
    """Return how many rows like these have `MOST_IDS` ids: fewer where lists have several."""
    num_ids = sum(len(ids.ids_V) for ids in train.ids.values())
    return int(MOST_IDS / max(num_ids / max(1, train.num_rows), len(train.ids)))


def _targets(
    model: WideAndDeep, columns: Columns, sample: Sample, fits: Sequence[Fit]
) -> list[Target]:
    x_NC = columns.matrix(sample)
    return [
        Target(sample.labels_NT[:, task], (x_NC @ weights_C + intercept) * scale, scale)
        for task, ((weights_C, intercept), scale) in enumerate(zip(fits, model.scales))
    ]


def _write(
    found: Sequence[Factors],
    columns: Columns,
    tensors: Mapping[str, Tensor],
    scales: Mapping[str, Tensor],
) -> None:
    """Write the factors into the vectors of their ids, those of each pair beside the others.

    Args:
        found: the factors.
        columns: the ids of each table.
        tensors: of the model, by name.
        scales: feature -> by what the network sees each number of its vectors, [D].
    """
    start = 0
    for factors in found:
        stop = start + factors.rank
        for name, vectors in zip(factors.pair, (factors.first_CK, factors.second_MK)):
            table = columns.tables[name]
            rows = tensors[f"tables/{table}/weight"]
            ids_C = torch.from_numpy(columns.ids[table]).to(rows.device)
            rows[ids_C, start:stop] = torch.from_numpy(vectors).to(rows)
            size = float(np.sqrt(np.mean(vectors**2)))
            scales[name][start:stop] = SMALL / max(size, SMALL)
        start = stop
