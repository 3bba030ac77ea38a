"""Starts Wide & Deep as a logistic regression of its train rows, or a linear one for numbers.

Its linear half takes the weights, the last layer of its deep half starts at zero, and dot products
of vectors start near zero or, with `pairs=fitted`, as fitted factors. So at step 0 the model
predicts as the regression does; the run evaluates it there, and the best checkpoint is never worse
than that on validation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from runner.batch import columns_by_label
from runner.errors import ConfigError
from runner.models.layers.embedding import LINEAR_SUFFIX
from runner.models.layers.fm import PairTerm
from runner.models.layers.linear import FirstOrder
from runner.models.layers.members import MemberLogits
from runner.training.health.fit_again import fit_again
from runner.training.health.linear_regression import fit_numbers
from runner.training.health.logistic_regression import Chosen, Columns, fit_tasks
from runner.training.health.sample import ENOUGH_RARE, Sample, most_train_rows, read_sample
from runner.training.job import Job
from runner.training.state import weight_tensors
from runner.training.warm_start.factor_start import Regression, start_factors
from runner.training.warm_start.feature_penalties import refit_by_feature, refit_lists

MOST_ROWS = 100_000
KEY = "checkpoint.init_linear=true"
PAIR_INIT = 0.01  # bound of the random vectors whose dot products are not fitted


@torch.no_grad()
def start_linear(job: Job) -> str:
    """Write the weights of the regression into the model; return a line that says so.

    Each task gets the weights of its regression, in the scale of the task; tasks that share a
    linear half get their mean.

    Raises:
        ConfigError: for a model without the two halves, and on several ranks.
    """
    schema, model = job.dataset.schema, job.context.model
    linear = next((m for m in model.modules() if isinstance(m, FirstOrder)), None)
    deep = getattr(model, "deep", None)
    kinds = nn.Linear | MemberLogits
    maps = [m for m in deep.modules() if isinstance(m, kinds)] if deep is not None else []
    if linear is None or not maps:
        raise ConfigError(f"{KEY}: needs a linear and a deep half; wide_and_deep has them")
    if job.context.ranks.is_distributed:
        raise ConfigError(f"{KEY}: works on one rank; trainer.num_processes=1")
    num_tasks = len(schema.tasks)
    scales = getattr(model, "scales", [1.0] * num_tasks)  # a user's net may have none
    part, whole, held_out, parts = _fit_tasks(job, scales)
    columns, fits = whole.columns, whole.fits
    weights_SC = np.stack([weights_C for weights_C, _ in fits])
    if linear.num_sums == 1:
        weights_SC = weights_SC.mean(axis=0, keepdims=True)
    dense_SD = weights_SC[:, weights_SC.shape[1] - len(schema.dense) :] / columns.deviation_D
    shift_S = np.array([dense_D @ columns.mean_D for dense_D in dense_SD])
    tensors, start = weight_tensors(job.context), 0
    for table, ids in columns.ids.items():
        rows = tensors[f"tables/{table}{LINEAR_SUFFIX}/weight"]
        values = torch.from_numpy(weights_SC[:, start : start + len(ids)].T).to(rows)
        values = values.repeat_interleave(linear.num_equal, dim=1)
        rows[torch.from_numpy(ids).to(rows.device)] = values
        start += len(ids)
    has_pairs = any(isinstance(module, PairTerm) for module in model.modules())
    if has_pairs and job.config["model"]["net"].get("embedding_init") is None:
        for table in {feature.table_name for feature in schema.sparse}:
            vectors = tensors[f"tables/{table}/weight"]
            vectors.mul_(PAIR_INIT / vectors.abs().max().clamp(min=PAIR_INIT))
    factors = start_factors(job, part, held_out, whole)
    job.context.tables.take_over_weights()
    if linear.dense is not None:
        linear.dense.weight.copy_(torch.from_numpy(dense_SD))
        linear.dense.bias.zero_()
    maps[-1].weight.zero_()
    intercept_T = np.array([intercept for _, intercept in fits])
    maps[-1].bias.copy_(torch.from_numpy(intercept_T - shift_S))
    parts += [f"{f.rank} factors of {f.pair[0]} and {f.pair[1]}" for f in factors]
    return f"{KEY}: starts as {' and '.join(parts)}"


def _fit_tasks(
    job: Job, scales: Sequence[float]
) -> tuple[Regression, Regression, Sample, list[str]]:
    """Fit each task.

    Returns:
        The regression whose penalties were chosen on other rows, that of all train rows with these
        penalties (the same if there is a validation split), the other rows, and a description.
    """
    schema, num_tasks = job.dataset.schema, len(job.dataset.schema.tasks)
    limit = most_train_rows(schema, MOST_ROWS)
    if job.dataset.num_rows["train"] > limit:
        job.view.note(f"{KEY}: fits a regression to about {limit:,} train rows first ...")
    train = all_rows = read_sample(job.dataset, "train", limit, enough_rare=ENOUGH_RARE)
    if "validation" in job.dataset.num_rows:
        held_out = read_sample(job.dataset, "validation", MOST_ROWS)
    else:
        train, held_out = all_rows.hold_out()
    tables = {f.name: f.table_name for f in schema.sparse}
    part = Regression(Columns(train, tables), train, [(np.zeros(0), 0.0)] * num_tasks)
    used = part
    if train.num_rows < all_rows.num_rows:
        used = Regression(Columns(all_rows, tables), all_rows, list(part.fits))
    source = f"{all_rows.num_rows:,} of {all_rows.split_rows:,} train rows"
    parts = []
    for kind, name in (("binary", "logistic"), ("regression", "linear"), ("log", "Tweedie")):
        tasks = [i for i, task in enumerate(schema.tasks) if (task.link or task.kind) == kind]
        if not tasks:
            continue
        labels = [
            list(range(of_label.start, of_label.stop))
            for of_label in columns_by_label(schema.tasks).values()
            if of_label.start in tasks
        ]
        chosen, penalty = _fit(part.columns, train, held_out, labels, kind)
        mean = f"the mean label of {source}, which predicts other rows better than weights"
        parts.append(f"the {name} regression fitted to {source}, {penalty}" if penalty else mean)
        regressions = [(part, chosen.fits)]
        if used is not part:
            is_binary, logs = kind == "binary", tasks if kind == "log" else ()
            refit = fit_again(
                used.columns, all_rows, labels, chosen, is_binary=is_binary, logs=logs
            )
            regressions.append((used, refit))
        for regression, fits in regressions:
            for number, (weights_C, intercept) in zip(tasks, fits):
                intercept -= np.log(schema.tasks[number].scale)
                regression.fits[number] = weights_C / scales[number], intercept / scales[number]
    return part, used, held_out, parts


def _fit(
    columns: Columns, train: Sample, held_out: Sample, labels: Sequence[Sequence[int]], kind: str
) -> tuple[Chosen, str]:
    """Return weights and intercept of each task, and a note on the penalty; empty for a mean.

    All labels are of one kind: binary, regression, or log for one with a log link.
    """
    is_binary = kind == "binary"
    tasks = [index for indices in labels for index in indices]
    if is_binary:
        chosen = fit_tasks(columns, train, held_out, labels)
    else:
        chosen = fit_numbers(columns, train, held_out, tasks, tasks if kind == "log" else ())
    note = "" if chosen.l2 is None else f"with a penalty of {chosen.l2:g}"
    # classes share one penalty
    if held_out.num_rows and len(tasks) == len(labels) and kind != "log":
        stronger = refit_lists(columns, train, held_out, tasks, chosen.fits) if is_binary else None
        if stronger:
            chosen, note = stronger, "with a stronger penalty for the ids of lists"
        refit = refit_by_feature(columns, train, held_out, tasks, chosen.fits, is_binary=is_binary)
        if refit:
            return refit, "with a penalty for each feature"
    return chosen, note
