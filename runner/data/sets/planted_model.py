"""The known model that generates the synthetic data: the true click probability of each row.

logit = bias + dense part + effects of single ids + products of pairs of effects. It is a function
of what a model sees alone, so that the true probability is also the best possible prediction.
Shape legend: R rows, D numeric columns, T tasks, V values of a list column.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from runner.data.sets.planted_effects import flip_by_task, interest_effect, order_effect, sum_lists

MAX_EFFECTS = 1 << 20  # ids of larger columns share effects, so that memory stays bounded
CALIBRATION_ROWS = 1 << 16


@dataclass(frozen=True)
class ZipfColumn:
    """A column of Zipf-distributed ids, each with an effect on the logit.

    P(rank) ~ (rank + 1) ** -zipf, drawn by the inverse of the continuous distribution.
    id = (rank * step + shift) % num_ids, so that popular ids lie anywhere in the table.
    """

    num_ids: int
    zipf: float
    mean_length: float | None  # of a list column; None: one id a row
    step: int
    shift: int
    effects: np.ndarray  # float32, by rank
    weight: float  # of the column's effects among those of all columns

    def draw_ranks(self, rng: np.random.Generator, count: int) -> np.ndarray:
        # In double precision: single-precision `exp` differs between processors in the last bit,
        # which would give other ids.
        x = rng.random(count)
        power = 1.0 - self.zipf
        if abs(power) < 1e-9:
            x *= math.log(self.num_ids + 1)
            np.exp(x, out=x)
        else:
            x *= (self.num_ids + 1.0) ** power - 1
            x += 1
            np.log(x, out=x)
            x /= power
            np.exp(x, out=x)
        return np.minimum(x.astype(np.int64) - 1, self.num_ids - 1)


@dataclass(frozen=True)
class EffectPair:
    """Two columns with one id a row, whose effects are multiplied."""

    first: int
    second: int
    first_effects: np.ndarray
    second_effects: np.ndarray


@dataclass(frozen=True)
class DrawnFeatures:
    """The features of R rows, with ranks in place of ids."""

    numeric_DR: np.ndarray  # int32 counts, 0 where missing
    missing_DR: np.ndarray  # bool
    ranks: list[np.ndarray]  # for each column [R], or [V] for a list column
    offsets: list[np.ndarray | None]  # int32 [R + 1] for a list column


@dataclass(frozen=True)
class PlantedRows:
    """R generated rows, with their true probabilities."""

    numeric_DR: np.ndarray  # int32 counts, 0 where missing
    missing_DR: np.ndarray  # bool
    ids: list[np.ndarray]  # int32; for each column [R], or [V] for a list column
    offsets: list[np.ndarray | None]  # int32 [R + 1] for a list column
    labels_TR: np.ndarray  # int8
    probability_TR: np.ndarray  # float32


@dataclass(frozen=True)
class PlantedModel:
    """The true model; `calibrate` finds its scales and biases."""

    columns: tuple[ZipfColumn, ...]
    pairs: tuple[EffectPair, ...]
    dense_weights: np.ndarray
    missing: float  # share of missing numeric values
    scale: tuple[float, float, float] = (1.0, 1.0, 1.0)  # of the dense, id and pair part
    task_scales: tuple[tuple[float, float, float], ...] = ((1.0, 1.0, 1.0),)  # the same by task
    task_biases: tuple[float, ...] = (0.0,)
    drift: float = 0.0  # the logit moves from minus this to plus this over the rows of a split
    item: int | None = None  # index of the column of items that have a history
    sequence: int | None = None  # index of the column with the histories
    history: tuple[float, float] = (0.0, 0.0)  # scales of `interest_effect` and `order_effect`
    conflict: float = 0.0  # scale of the part that differs in sign by task, see `flip_by_task`

    def draw_rows(
        self, rng: np.random.Generator, count: int, age_R: np.ndarray | None = None
    ) -> PlantedRows:
        """Draw rows; the same ones from the same state of the generator.

        Args:
            age_R: place in the split, from 0 for its first row to 1 for its last.
        """
        drawn = self.draw_features(rng, count)
        parts = self.logit_parts(drawn)
        drift_R = 0.0 if age_R is None else self.drift * (2 * age_R - 1)
        probabilities, labels = [], []
        for task, (scales, bias) in enumerate(zip(self.task_scales, self.task_biases)):
            scaled = (a * b * part for a, b, part in zip(self.scale, scales, parts))
            logit_R = bias + sum(scaled) + drift_R + self.history_logit(drawn)
            if self.conflict:
                logit_R = logit_R + self.conflict * flip_by_task(task, parts[1], drawn.ranks[0])
            probabilities.append((1 / (1 + np.exp(-logit_R))).astype(np.float32))
            labels.append((rng.random(count) < probabilities[-1]).astype(np.int8))
        ids = [
            ((ranks * column.step + column.shift) % column.num_ids).astype(np.int32)
            for column, ranks in zip(self.columns, drawn.ranks)
        ]
        features = (drawn.numeric_DR, drawn.missing_DR, ids, drawn.offsets)
        return PlantedRows(*features, np.stack(labels), np.stack(probabilities))

    def draw_features(self, rng: np.random.Generator, count: int) -> DrawnFeatures:
        """Draw the features of some rows."""
        num_numeric = len(self.dense_weights)
        normal_DR = rng.standard_normal((num_numeric, count))
        numeric_DR = np.exp(normal_DR * 1.2 + 1.0).astype(np.int32)
        missing_DR = rng.random((num_numeric, count)) < self.missing
        numeric_DR[missing_DR] = 0  # a model is given 0 instead, so the truth must use it as well
        ranks: list[np.ndarray] = []
        offsets: list[np.ndarray | None] = []
        for column in self.columns:
            offsets_R1, num_values = None, count
            if column.mean_length is not None:
                max_length = round(2 * column.mean_length)
                offsets_R1 = np.zeros(count + 1, np.int32)
                np.cumsum(rng.integers(0, max_length, count, endpoint=True), out=offsets_R1[1:])
                num_values = int(offsets_R1[-1])
            ranks.append(column.draw_ranks(rng, num_values))
            offsets.append(offsets_R1)
        return DrawnFeatures(numeric_DR, missing_DR, ranks, offsets)

    def logit_parts(self, drawn: DrawnFeatures) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the dense, id and pair part of the logit, each [R] float64, before scaling."""
        count = drawn.numeric_DR.shape[1]
        x_DR = np.log1p(drawn.numeric_DR.astype(np.float32)) - np.float32(1.3)
        dense_R = self.dense_weights @ x_DR
        for d in range(0, len(x_DR) - 1, 4):  # a little that no linear model can learn
            dense_R += 0.5 * x_DR[d] * x_DR[d + 1]
        ids_R = np.zeros(count)
        for column, ranks, offsets_R1 in zip(self.columns, drawn.ranks, drawn.offsets):
            effects = column.weight * _take_effects(column.effects, ranks)
            if offsets_R1 is None:
                ids_R += effects
            else:
                ids_R += sum_lists(effects, offsets_R1) / math.sqrt(column.mean_length or 1)
        pairs_R = np.zeros(count)
        for pair in self.pairs:
            first_R = _take_effects(pair.first_effects, drawn.ranks[pair.first])
            pairs_R += first_R * _take_effects(pair.second_effects, drawn.ranks[pair.second])
        return dense_R, ids_R, pairs_R

    def history_logit(self, drawn: DrawnFeatures) -> np.ndarray | float:
        """Return what the row's item and its history add to the logit: [R], or 0."""
        if self.item is None or self.sequence is None:
            return 0.0
        offsets_R1 = drawn.offsets[self.sequence]
        assert offsets_R1 is not None
        item_R, history_V = drawn.ranks[self.item], drawn.ranks[self.sequence]
        interest_R = self.history[0] * interest_effect(item_R, history_V, offsets_R1)
        return interest_R + self.history[1] * order_effect(item_R, history_V, offsets_R1)


def build_planted_model(
    rng: np.random.Generator,
    *,
    num_ids: Sequence[int],
    mean_lengths: Sequence[float | None],
    zipf: float,
    num_numeric: int,
    num_pairs: int,
    item: int | None = None,
    sequence: int | None = None,
) -> PlantedModel:
    """Build a model with random effects, which is still to be calibrated.

    Args:
        num_ids: of each column.
        mean_lengths: of each column; None for one id a row. Pairs are made of such columns only.
        item: index of a column with one id a row, whose ids the sequence shares.
        sequence: index of the list column that has histories of items.
    """

    def effects(size: int) -> np.ndarray:
        return rng.standard_normal(min(size, MAX_EFFECTS), dtype=np.float32)

    columns = tuple(
        ZipfColumn(
            size,
            zipf,
            mean_length,
            _coprime_step(rng, size),
            int(rng.integers(size)),
            effects(size),
            float(rng.uniform(0.5, 1.5)),
        )
        for size, mean_length in zip(num_ids, mean_lengths)
    )
    singles = [f for f, mean_length in enumerate(mean_lengths) if mean_length is None]
    pairs = []
    for _ in range(num_pairs if len(singles) > 1 else 0):
        first, second = (int(f) for f in rng.choice(singles, 2, replace=False))
        pairs.append(EffectPair(first, second, effects(num_ids[first]), effects(num_ids[second])))
    if item is not None and sequence is not None:
        shared = replace(columns[sequence], step=columns[item].step, shift=columns[item].shift)
        columns = (*columns[:sequence], shared, *columns[sequence + 1 :])
    dense_weights = rng.standard_normal(num_numeric)
    return PlantedModel(
        columns, tuple(pairs), dense_weights, missing=0.0, item=item, sequence=sequence
    )


def calibrate(
    model: PlantedModel,
    rng: np.random.Generator,
    *,
    signal: tuple[float, float, float],
    positive_rate: float,
    missing: float,
    num_tasks: int = 1,
    drift: float = 0.0,
    history: tuple[float, float] = (0.0, 0.0),
    conflict: float = 0.0,
) -> PlantedModel:
    """Scale the parts of the logit and find the biases, on rows that are drawn for it.

    The first task has the whole of every part; the scales of each other task are drawn.

    Args:
        signal: standard deviations of the dense, id and pair part of the first task.
        positive_rate: mean probability of every task.
        history: standard deviations of the effects of interest and order.
        conflict: standard deviation of the part that differs in sign by task.
    """
    model = replace(model, missing=missing)
    drawn = model.draw_features(rng, CALIBRATION_ROWS)
    parts = model.logit_parts(drawn)
    history_R: np.ndarray | float = 0.0
    if model.item is not None:
        unit_models = (replace(model, history=(1.0, 0.0)), replace(model, history=(0.0, 1.0)))
        stds = [float(np.std(unit.history_logit(drawn))) or 1.0 for unit in unit_models]
        model = replace(model, history=(history[0] / stds[0], history[1] / stds[1]))
        history_R = model.history_logit(drawn)
    scale = [target / (float(part.std()) or 1.0) for target, part in zip(signal, parts)]
    task_scales = [(1.0, 1.0, 1.0)]
    task_scales += [tuple(rng.uniform(-0.5, 1.5, 3).tolist()) for _ in range(num_tasks - 1)]
    conflict /= float(parts[1].std()) or 1.0
    biases = []
    for task, scales in enumerate(task_scales):
        logit_R = sum(a * b * part for a, b, part in zip(scale, scales, parts))
        conflict_R = conflict * flip_by_task(task, parts[1], drawn.ranks[0]) if conflict else 0.0
        biases.append(_find_bias(np.asarray(logit_R + history_R + conflict_R), positive_rate))
    return replace(
        model,
        conflict=conflict,
        scale=(scale[0], scale[1], scale[2]),
        task_scales=tuple(task_scales),
        task_biases=tuple(biases),
        drift=drift,
    )


def _find_bias(logit_R: np.ndarray, positive_rate: float) -> float:
    """Find the bias that gives this mean probability, by bisection."""
    low, high = -30.0, 30.0
    for _ in range(60):
        bias = (low + high) / 2
        if np.mean(1 / (1 + np.exp(-(logit_R + bias)))) < positive_rate:
            low = bias
        else:
            high = bias
    return bias


def _coprime_step(rng: np.random.Generator, size: int) -> int:
    step = int(rng.integers(size)) | 1
    while math.gcd(step, size) != 1:
        step += 2
    return step


def _take_effects(effects: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    if len(effects) == MAX_EFFECTS:
        ranks = ranks % MAX_EFFECTS
    return np.take(effects, ranks, mode="clip")
