"""Measures the coverage of vocabularies, and the drift of features between train and other splits.

The drift of a column is its population stability index (Siddiqi 2006, Credit Risk Scorecards):

    PSI = sum over bins of (q - p) ln(q / p)

with the shares p of the train rows and q of the other split in each bin. Numbers have ten bins
between the train deciles; ids have a bin for each of the most frequent train ids, and one for all
others. Half a value is added to each bin, so that an empty one gives no infinity. By convention a
PSI below 0.1 means no change, above 0.25 a large one. For equal distributions it is about
(bins - 1) (1 / n + 1 / m) for n and m values (Yurdakul 2018, Statistical properties of the PSI).

N values, K bins, V ids of all rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.batch import Schema
from runner.training.health.sample import Floats, Ids, Sample, read_sample
from runner.training.job import Job

ROWS = 100_000  # read of each split
NUMBER_BINS, ID_BINS = 10, 20


def describe_features(job: Job) -> list[dict[str, Any]]:
    """Return coverage and drift of every feature and label, read from rows of all splits.

    It is a function of the data alone.

    Returns:
        For each column `name`, `kind` (number, ids or label) and `splits`: for each split `psi`
        against the train rows, of ids also `new`, the share of the look-ups whose id the train rows
        lack, and of ids with rows for unknown values `unknown`, the share that falls into these.
    """
    splits = [s for s in job.dataset.num_rows if s != "train" and job.dataset.num_rows[s]]
    if "train" not in job.dataset.num_rows:
        return []
    train = read_sample(job.dataset, "train", ROWS)
    others = {split: read_sample(job.dataset, split, ROWS) for split in splits}
    return compare_splits(job.dataset.schema, train, others) if train.num_rows else []


def compare_splits(
    schema: Schema, train: Sample, others: Mapping[str, Sample]
) -> list[dict[str, Any]]:
    """Return the columns of `describe_features` from rows that were read."""
    tables = {f.name: f.table_name for f in schema.id_features}
    special = {f.table_name: f.num_special for f in schema.sparse}
    facts = []
    for index, name in enumerate(schema.dense):
        columns = {split: sample.dense_ND[:, index] for split, sample in others.items()}
        facts.append(_describe_numbers(name, "number", train.dense_ND[:, index], columns))
    for index, task in enumerate(schema.tasks):
        columns = {split: sample.labels_NT[:, index] for split, sample in others.items()}
        facts.append(_describe_numbers(task.name, "label", train.labels_NT[:, index], columns))
    for name, ids in train.ids.items():
        ids_of_others = {split: sample.ids[name] for split, sample in others.items()}
        facts.append(_describe_ids(name, ids, ids_of_others, special.get(tables[name], 0)))
    return facts


def population_stability(train_K: NDArray[np.int64], other_K: NDArray[np.int64]) -> float:
    """Return the population stability index of two counts of the same bins."""
    p_K, q_K = ((k + 0.5) / (k.sum() + 0.5 * len(k)) for k in (train_K, other_K))
    return float(((q_K - p_K) * np.log(q_K / p_K)).sum())


def _describe_numbers(
    name: str, kind: str, train_N: Floats, others: Mapping[str, Floats]
) -> dict[str, Any]:
    values = np.unique(train_N)
    if len(values) > NUMBER_BINS:
        values = np.unique(np.quantile(train_N, np.arange(1, NUMBER_BINS) / NUMBER_BINS))

    def count(x_N: Floats) -> NDArray[np.int64]:
        return np.bincount(np.searchsorted(values, x_N), minlength=len(values) + 1)

    train_K = count(train_N)
    psi = {s: population_stability(train_K, count(x_N)) for s, x_N in others.items() if len(x_N)}
    return {"name": name, "kind": kind, "splits": {s: {"psi": v} for s, v in psi.items()}}


def _describe_ids(
    name: str, train: Ids, others: Mapping[str, Ids], num_special: int
) -> dict[str, Any]:
    known, counts = np.unique(train.ids_V, return_counts=True)
    frequent = np.sort(known[np.argsort(-counts, kind="stable")[: ID_BINS - 1]])

    def count(ids_V: NDArray[np.int64]) -> NDArray[np.int64]:
        place_V = np.minimum(np.searchsorted(frequent, ids_V), len(frequent) - 1)
        bins_V = np.where(frequent[place_V] == ids_V, place_V, len(frequent))
        return np.bincount(bins_V, minlength=len(frequent) + 1)

    splits: dict[str, dict[str, float]] = {}
    for split, ids in {"train": train, **others}.items():
        if not len(ids.ids_V):
            continue
        splits[split] = {}
        if num_special:
            splits[split]["unknown"] = float((ids.ids_V < num_special).mean())
        if split != "train" and len(known):
            splits[split]["psi"] = population_stability(count(train.ids_V), count(ids.ids_V))
            splits[split]["new"] = 1 - float(np.isin(ids.ids_V, known).mean())
    return {"name": name, "kind": "ids", "splits": splits}
