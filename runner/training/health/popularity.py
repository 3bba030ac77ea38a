"""The baseline of a retrieval model: popularity recommends the items with the most train rows.

B rows of a batch, R of them that are ranked, I items, L ids of the batch's histories, T tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from runner.batch import Batch, Prediction
from runner.metrics.factory import make_metrics
from runner.metrics.names import split_task
from runner.metrics.settings import MetricSettings
from runner.models.layers.sequences import single_ids
from runner.training.catalogue import (
    COUNT_ROWS,
    attach_slices,
    count_ids,
    find_seen_items,
    without_overlaps,
)
from runner.training.health.sample import Floats, Ints, batch_ids
from runner.training.job import Job

NAME = "popularity"
# share of rows whose item is left out of their ranking above which a note says so
OWN_SHARE = 0.01


def popularity_key(job: Job) -> dict[str, Any]:
    """Return everything that the metrics depend on besides the data."""
    model: Any = job.context.model
    return {
        "targets": without_overlaps(model.target_features, job.dataset.schema),
        "history": model.history,
        "items": model.item.num_rows,
        "metrics": {k: v for k, v in job.config["metrics"].items() if k not in ("train", "own")},
    }


def measure_popularity(job: Job, splits: Sequence[str]) -> dict[str, Any]:
    """Return the ranking metrics when the score of an item is its number of train rows.

    Candidates, users and items that are left out are those of the run's own evaluations
    (`metrics.candidates`, `metrics.leave_history_out`, `metrics.leave_seen_out`, `metrics.group`);
    among equally popular items the right one ranks last. Rank 0 only.

    Args:
        job: its dataset is read, and its model says which features are items.

    Returns:
        `name`, `metrics` (`split/metric[/task]`), `train_rows`, `judged_rows`, `findings`.
    """
    model: Any = job.context.model
    settings, name_values = job.metric_settings, getattr(job.dataset, "name_values", None)
    batches = job.dataset.batches("train", batch_size=COUNT_ROWS)
    targets = without_overlaps(model.target_features, job.dataset.schema)
    counts_I = count_ids(batches, job.dataset.schema, targets).double().numpy()
    metrics: dict[str, float] = {}
    shares: dict[str, float] = {}
    rankings = replace(settings, eval=list(settings.ranking_metrics))  # it recommends no lists
    names = {split_task(name)[0] for name in settings.ranking_metrics}
    for split in splits:
        measured = make_metrics(
            job.dataset.schema, job.device, rankings, True, name_values=name_values
        )
        num_own = num_ranked = 0
        for prediction, own_R in _predict(job, split, counts_I, settings):
            measured.update(prediction, {})
            num_own += int(own_R.sum())
            num_ranked += len(own_R)
        shares[split] = num_own / max(1, num_ranked)
        for key, value in measured.compute().items():
            if split_task(key)[0] in names and not np.isnan(value):
                metrics[f"{split}/{key}"] = value
    return {
        "name": NAME,
        "metrics": metrics,
        "train_rows": job.dataset.num_rows["train"],
        "judged_rows": {split: job.dataset.num_rows[split] for split in splits},
        "findings": list(describe_own(shares, settings)),
    }


def describe_own(shares: Mapping[str, float], settings: MetricSettings) -> Iterator[str]:
    """Yield a finding if rankings leave out the items of many rows."""
    if max(shares.values(), default=0.0) >= OWN_SHARE:
        rows = " and ".join(f"{share:.1%} of the {split}" for split, share in shares.items())
        on = [key for key in ("leave_history_out", "leave_seen_out") if getattr(settings, key)]
        remedy = " and ".join(f"metrics.{key}=false" for key in on)
        yield (
            f"{rows} rows have an item that is left out of their ranking, since the user has had "
            "it before: they are misses for every model; to recommend such items again, set "
            f"{remedy}"
        )


def _predict(
    job: Job, split: str, counts_I: Floats, settings: MetricSettings
) -> Iterator[tuple[Prediction, np.ndarray]]:
    """Yield predictions, each with a mask [R] of ranked rows whose item is left out."""
    model: Any = job.context.model
    schema, name, history = job.dataset.schema, model.item.name, model.history
    history = history if settings.leave_history_out else None
    find_seen = find_seen_items(settings, job.dataset, split)
    for batch in job.dataset.batches(split, batch_size=COUNT_ROWS):
        item_B = single_ids(batch, name).numpy()
        score_B = torch.from_numpy(counts_I[item_B])
        aux, own_B = {}, np.zeros(batch.size, bool)
        if settings.ranks_full_catalogue:
            rows_L, ids_L = _history(batch, job, history)
            if find_seen is not None:
                seen_items = [array.numpy() for array in find_seen(batch.rows_B)]
                rows_L, ids_L = (np.concatenate(p) for p in zip((rows_L, ids_L), seen_items))
            rank_B = rank_by_count(counts_I, item_B, rows_L, ids_L, model.item.num_special)
            aux["rank_B"] = torch.from_numpy(rank_B).to(job.device)
            own_B = np.isinf(rank_B) & (item_B >= model.item.num_special)
        logits_BT = score_B[:, None].expand_as(batch.labels_BT).to(job.device)
        on_device = batch.to(job.device)
        prediction = Prediction.of(logits_BT, on_device, **aux)
        sliced = attach_slices(prediction, on_device, schema, settings.slice_by, model)
        yield sliced, own_B[batch.is_positive_B.numpy()]


def _history(batch: Batch, job: Job, name: str | None) -> tuple[Ints, Ints]:
    history = dict(batch_ids(batch, job.dataset.schema)).get(name) if name is not None else None
    none = np.zeros(0, np.int64)
    return (none, none) if history is None else (history.rows_V, history.ids_V)


def rank_by_count(
    counts_I: Floats, item_B: Ints, rows_L: Ints, ids_L: Ints, num_special: int = 0
) -> Floats:
    """Return [B], the rank from 1 of each row's item among all items, by their counts.

    Items with equal counts rank before it, as in `RetrievalModel.rank_in_catalogue`.

    Args:
        rows_L: the rows of ids that are left out of their row's ranking; pairs may repeat.
        ids_L: these ids; a row whose item is left out has an infinite rank.
        num_special: how many of the first ids are not items.
    """
    counts_I = np.where(np.arange(len(counts_I)) < num_special, -1, counts_I)  # behind all items
    ascending_I = np.sort(counts_I)
    count_B = counts_I[item_B]
    rank_B = (len(counts_I) - np.searchsorted(ascending_I, count_B)).astype(np.float64)
    pairs = np.unique(np.stack([rows_L, ids_L]), axis=1)
    is_own_L = pairs[1] == item_B[pairs[0]]
    rows, ids = pairs[:, ~is_own_L]
    before = counts_I[ids] >= count_B[rows]
    rank_B -= np.bincount(rows[before], minlength=len(item_B))
    rank_B[pairs[0, is_own_L]] = np.inf
    return np.where(item_B < num_special, np.inf, rank_B)
