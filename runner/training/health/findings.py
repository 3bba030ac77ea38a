"""Findings about the rows that may harm a model, with numbers, for the page of a run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from runner.batch import Schema
from runner.metrics.curves import group_by_score, roc_auc
from runner.training.health.sample import Floats, Ints, Sample

MOST_SHOWN = 5  # features that one finding names
ONCE_SHARE = 0.5  # share of a table's ids that occur in a single row
NEW_SHARE = 0.3  # share of look-ups of another split with ids that train rows lack
RATE_RATIO, RATE_DEVIATIONS = 1.2, 4.0
FEW_LABELS = 100  # rows of the rarer label; with fewer, an AUC of 0.75 may be off by 0.06
ID_GAIN = 0.03  # gain in AUC of a number if each of its values gets its own rate
FEWEST_VALUES = 10  # of a number that may be an id
MOST_SHARING = 1.1  # ids for each number, such as items for each price


def find_in_data(schema: Schema, train: Sample, others: Mapping[str, Sample]) -> list[str]:
    """Return the findings, each a sentence.

    Args:
        others: split -> its rows.
    """
    extent = "" if train.num_rows >= train.split_rows else f" of {train.num_rows:,} rows drawn"
    return [
        *_dead_features(schema, train, extent),
        *_ids_seen_once(train),
        *_unknown_ids(train, others),
        *_label_rates(schema, train, others),
        *_few_labels(schema, others),
        *_numbers_like_ids(schema, train),
    ]


def numbers_like_ids(schema: Schema, train: Sample) -> list[tuple[str, float, float]]:
    """Return numbers that predict better by value than by order: name, AUC by order, AUC by value.

    The rate of positives of each value in one half of the rows predicts the other half. Numbers
    that are also read as ids, by value or in buckets, are left out.
    """
    better_as_ids = []
    y_N = train.labels_NT[:, 0]
    half = train.num_rows // 2
    if schema.tasks[0].kind != "binary" or half < 200:
        return []
    for name, x_N in zip(schema.dense, train.dense_ND.T):
        values, codes_N = np.unique(x_N, return_inverse=True)
        if not FEWEST_VALUES <= len(values) <= half / 10:
            continue
        counts = np.bincount(codes_N[:half], minlength=len(values))
        sums = np.bincount(codes_N[:half], weights=y_N[:half], minlength=len(values))
        rates = (sums + 5 * y_N[:half].mean()) / (counts + 5)
        as_number = _auc(x_N[half:], y_N[half:])
        by_value = _auc(rates[codes_N[half:]], y_N[half:])
        is_better = by_value > max(as_number, 1 - as_number) + ID_GAIN
        if is_better and not _has_ids(codes_N, train):
            better_as_ids.append((name, max(as_number, 1 - as_number), by_value))
    return sorted(better_as_ids, key=lambda item: item[1] - item[2])


def _has_ids(codes_N: Ints, train: Sample) -> bool:
    """Tell whether an id feature is made of a number: of its buckets, or of its values.

    Then, in the order of the number, the id changes as often as there are ids, and at most twice
    more if missing values share a number with others. A few ids may share a number, such as items
    with the same price.
    """
    every_row, num_values = np.arange(train.num_rows), int(codes_N.max()) + 1
    for ids in train.ids.values():
        if not np.array_equal(ids.rows_V, every_row):  # rows with several ids, or none
            continue
        count = len(np.unique(ids.ids_V))
        changes = np.count_nonzero(np.diff(ids.ids_V[np.lexsort((ids.ids_V, codes_N))]))
        if FEWEST_VALUES <= count <= 1 + MOST_SHARING * num_values and changes <= count + 1:
            return True
    return False


def _auc(scores_N: Floats, y_N: Floats) -> float:
    return roc_auc(*group_by_score(scores_N, y_N, 1 - y_N))


def _dead_features(schema: Schema, train: Sample, extent: str) -> Iterator[str]:
    dead = [n for n, x_N in zip(schema.dense, train.dense_ND.T) if len(x_N) and np.ptp(x_N) == 0]
    dead += [n for n, ids in train.ids.items() if len(np.unique(ids.ids_V)) <= 1]
    if dead:
        yield (
            f"columns with a single value in all train rows{extent}, from which nothing can be "
            f"learnt: {_listed(dead)}"
        )


def _ids_seen_once(train: Sample) -> Iterator[str]:
    shares = {}
    is_drawn = train.num_rows < train.split_rows
    for name, ids in train.ids.items():
        counts = np.unique(ids.ids_V, return_counts=True)[1]
        share = _share_of_single(counts)
        if is_drawn:  # at least: each other look-up shares its id with one or more of all rows
            pairs = float(counts @ (counts - 1)) / max(counts.sum(), 1)
            share = 1 - pairs * train.split_rows / train.num_rows
        if len(counts) and share > ONCE_SHARE:
            shares[name] = share
    if shares:
        least = "at least " if is_drawn else ""
        partial = f" (estimated from {train.num_rows:,})" if is_drawn else ""
        yield (
            f"columns most of whose ids occur in a single train row{partial}, so what is learnt "
            "of them helps no other row: "
            f"{_listed([f'{n} ({least}{s:.0%} of its rows)' for n, s in _sorted(shares)])}; "
            "`encode: vocabulary` with a `min_count` in the schema gives all rare ids one row"
        )


def _unknown_ids(train: Sample, others: Mapping[str, Sample]) -> Iterator[str]:
    is_drawn = train.num_rows < train.split_rows
    for split, sample in others.items():
        shares = {}
        for name, ids in sample.ids.items():
            if len(ids.ids_V):
                known, counts = np.unique(train.ids[name].ids_V, return_counts=True)
                share = 1 - float(np.isin(ids.ids_V, known).mean())
                # the share of train rows with ids that the sample lacks is as large (Good 1953)
                missed = _share_of_single(counts) if is_drawn else 0.0
                if missed < 1 and (share - missed) / (1 - missed) > NEW_SHARE:
                    shares[name] = (share - missed) / (1 - missed)
        if shares:
            about = "about " if is_drawn else ""
            listed = _listed([f"{n} ({about}{s:.0%})" for n, s in _sorted(shares)])
            partial = f" (estimated from {train.num_rows:,})" if is_drawn else ""
            yield (
                f"ids of {split} that the train rows{partial} lack, of which the model has learnt "
                f"nothing: {listed}"
            )


def _share_of_single(counts_I: Ints) -> float:
    """Return the share of look-ups whose id occurs once, from the counts of ids."""
    return float((counts_I == 1).sum() / max(counts_I.sum(), 1))


def _label_rates(schema: Schema, train: Sample, others: Mapping[str, Sample]) -> Iterator[str]:
    for index, task in enumerate(schema.tasks):
        if task.kind != "binary":
            continue
        # weighted, since a sample of train rows has more rows of a rare label, with lower weights
        rate = float(np.average(train.labels_NT[:, index], weights=train.weights_N))
        for split, sample in others.items():
            if not sample.num_rows or not 0 < rate < 1:
                continue
            other = float(np.average(sample.labels_NT[:, index], weights=sample.weights_N))
            error = np.sqrt(rate * (1 - rate) * (1 / sample.num_rows + 1 / train.num_rows))
            low, high = sorted((rate, other))
            if high > RATE_RATIO * low and abs(other - rate) > RATE_DEVIATIONS * error:
                yield (
                    f"{task.name}: the rate of positives is {rate:.2%} in train and {other:.2%} "
                    f"in {split}; a model learns the rate of train, so its predicted "
                    f"probabilities may not fit {split}"
                )


def _few_labels(schema: Schema, others: Mapping[str, Sample]) -> Iterator[str]:
    for index, task in enumerate(schema.tasks):
        for split, sample in others.items():
            if task.kind != "binary" or not sample.num_rows:
                continue
            is_drawn = sample.num_rows < sample.split_rows  # a sample has more rows of rare labels
            weights_N = sample.weights_N if is_drawn else None
            rate = float(np.average(sample.labels_NT[:, index], weights=weights_N))
            rarer = round(min(rate, 1 - rate) * sample.split_rows)
            if 0 < rarer < FEW_LABELS:
                error = 2 * auc_error(0.75, rarer, sample.split_rows - rarer)
                yield (
                    f"{task.name}: {split} has only {rarer} rows of label {int(rate <= 0.5)}: an "
                    f"AUC of 0.75 on so few may be off by {error:.2f}"
                )


def auc_error(auc: float, num_positive: int, num_negative: int) -> float:
    """Return the standard error of an AUC.

    Hanley and McNeil, The Meaning and Use of the Area under a Receiver Operating Characteristic
    (ROC) Curve (1982), equations 1 and 2.
    """
    of_ones, of_zeros = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    spread = auc * (1 - auc)
    spread += (num_positive - 1) * (of_ones - auc**2) + (num_negative - 1) * (of_zeros - auc**2)
    return math.sqrt(spread / (num_positive * num_negative))


def _numbers_like_ids(schema: Schema, train: Sample) -> Iterator[str]:
    if better_as_ids := numbers_like_ids(schema, train):
        listed = [f"{n} (AUC {a:.3f} as a number, {b:.3f} as an id)" for n, a, b in better_as_ids]
        yield (
            f"numbers that predict better as ids: {_listed(listed)}; declare them under "
            "`categorical` in the schema (`schema --categorical NAME`)"
        )


def _sorted(shares: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(shares.items(), key=lambda item: -item[1])


def _listed(names: list[str]) -> str:
    more = len(names) - MOST_SHOWN
    return ", ".join(names[:MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")
