"""The planted model of the synthetic data: rows whose true click probability is known.

logit = bias + dense part + effects of single ids + products of pairs of ids. All of it is a
function of what a model sees, so the true probability is also the best possible prediction.
Shape legend: R rows, D numeric columns, V values of a list column.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

MAX_EFFECTS = 1 << 20  # ids of larger columns share effects, so that memory stays bounded
CALIBRATION_ROWS = 1 << 16


@dataclass(frozen=True)
class ZipfColumn:
    """Zipf-distributed ids: P(rank) ~ (rank + 1) ** -zipf, by the inverse of the continuous law."""

    num_ids: int
    zipf: float
    mean_length: float | None  # of a list column; None: one id a row
    step: int  # id = rank * step + shift, modulo num_ids: popular ids lie anywhere in the table
    shift: int
    effects: np.ndarray  # float32, by rank
    weight: float

    def draw_ranks(self, rng: np.random.Generator, count: int) -> np.ndarray:
        # Double precision: `exp` in single precision differs between processors in the last bit,
        # which would make other ids.
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

    def rank_to_id(self, ranks: np.ndarray) -> np.ndarray:
        return (ranks * self.step + self.shift) % self.num_ids

    def effect_of_rank(self, ranks: np.ndarray) -> np.ndarray:
        return _by_rank(self.effects, ranks)


@dataclass(frozen=True)
class EffectPair:
    """A product of one effect from each of two single-id columns."""

    first: int
    second: int
    first_effects: np.ndarray
    second_effects: np.ndarray


@dataclass(frozen=True)
class DrawnFeatures:
    """What a model sees of R rows, ids still as ranks."""

    numeric_DR: np.ndarray  # int32 counts, 0 where missing
    missing_DR: np.ndarray  # bool
    ranks: list[np.ndarray]  # a column each: [R], or [V] for a list column
    offsets: list[np.ndarray | None]  # int32 [R + 1] for a list column


@dataclass(frozen=True)
class PlantedRows:
    """R generated rows."""

    numeric_DR: np.ndarray  # int32 counts
    missing_DR: np.ndarray  # bool
    ids: list[np.ndarray]  # int32, a column each: [R], or [V] for a list column
    offsets: list[np.ndarray | None]  # int32 [R + 1] for a list column
    labels_TR: np.ndarray  # int8, a row a task
    probability_TR: np.ndarray  # float32


@dataclass(frozen=True)
class PlantedModel:
    """The planted model. `scale` and `bias` come from calibration on rows of its own."""

    columns: tuple[ZipfColumn, ...]
    pairs: tuple[EffectPair, ...]
    dense_weights: np.ndarray
    missing: float
    scale: tuple[float, float, float] = (1.0, 1.0, 1.0)
    task_scales: tuple[tuple[float, float, float], ...] = ((1.0, 1.0, 1.0),)  # share of each part
    task_biases: tuple[float, ...] = (0.0,)  # of every task
    drift: float = 0.0  # added to the logit from the first row (minus) to the last (plus)
    item: int | None = None  # column of the item whose history the first sequence is
    sequence: int | None = None
    history: tuple[float, float] = (0.0, 0.0)  # scales of interest and order
    conflict: float = 0.0  # scale of the id part that tasks turn round, see `turned`

    def draw_rows(
        self, rng: np.random.Generator, count: int, age_R: np.ndarray | None = None
    ) -> PlantedRows:
        """The same rows for the same state of the generator. age_R: from 0, first, to 1, last."""
        drawn = self.draw_features(rng, count)
        parts = self.logit_parts(drawn)
        drift_R = 0.0 if age_R is None else self.drift * (2 * age_R - 1)
        probabilities, labels = [], []
        for k, (shares, bias) in enumerate(zip(self.task_scales, self.task_biases)):
            weighted = (a * b * part for a, b, part in zip(self.scale, shares, parts))
            logit_R = bias + sum(weighted) + drift_R + self.history_logit(drawn)
            if self.conflict:
                logit_R = logit_R + self.conflict * flip_by_task(k, parts[1], drawn.ranks[0])
            probabilities.append((1 / (1 + np.exp(-logit_R))).astype(np.float32))
            labels.append((rng.random(count) < probabilities[-1]).astype(np.int8))
        labels_TR, probability_TR = np.stack(labels), np.stack(probabilities)
        ids = [
            column.rank_to_id(ranks).astype(np.int32)
            for column, ranks in zip(self.columns, drawn.ranks)
        ]
        missing_DR = drawn.missing_DR
        return PlantedRows(
            drawn.numeric_DR, missing_DR, ids, drawn.offsets, labels_TR, probability_TR
        )

    def draw_features(self, rng: np.random.Generator, count: int) -> DrawnFeatures:
        num_numeric = len(self.dense_weights)
        normal_DR = rng.standard_normal((num_numeric, count))
        numeric_DR = np.exp(normal_DR * 1.2 + 1.0).astype(np.int32)
        missing_DR = rng.random((num_numeric, count)) < self.missing
        numeric_DR[missing_DR] = 0  # what a model is given instead, so what the truth must use
        ranks: list[np.ndarray] = []
        offsets: list[np.ndarray | None] = []
        for column in self.columns:
            offset, size = None, count
            if column.mean_length is not None:
                longest = round(2 * column.mean_length)
                offset = np.zeros(count + 1, np.int32)
                np.cumsum(rng.integers(0, longest, count, endpoint=True), out=offset[1:])
                size = int(offset[-1])
            ranks.append(column.draw_ranks(rng, size))
            offsets.append(offset)
        return DrawnFeatures(numeric_DR, missing_DR, ranks, offsets)

    def logit_parts(self, drawn: DrawnFeatures) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Dense, id and pair part of the logit, each [R] float64, before they are scaled."""
        count = drawn.numeric_DR.shape[1]
        x_DR = np.log1p(drawn.numeric_DR.astype(np.float32)) - np.float32(1.3)
        dense_R = self.dense_weights @ x_DR
        for d in range(0, len(x_DR) - 1, 4):  # a little that no linear model can see
            dense_R += 0.5 * x_DR[d] * x_DR[d + 1]
        ids_R = np.zeros(count)
        for column, rank, offset in zip(self.columns, drawn.ranks, drawn.offsets):
            effect = column.weight * column.effect_of_rank(rank)
            if offset is None:
                ids_R += effect
            else:
                ends = np.concatenate([[0.0], np.cumsum(effect, dtype=np.float64)])
                ids_R += (ends[offset[1:]] - ends[offset[:-1]]) / math.sqrt(column.mean_length or 1)
        pairs_R = np.zeros(count)
        for pair in self.pairs:
            first = _by_rank(pair.first_effects, drawn.ranks[pair.first])
            pairs_R += first * _by_rank(pair.second_effects, drawn.ranks[pair.second])
        return dense_R, ids_R, pairs_R

    def history_logit(self, drawn: DrawnFeatures) -> np.ndarray | float:
        """What the row's item and its history add to the logit."""
        if self.item is None or self.sequence is None:
            return 0.0
        offsets_R1 = drawn.offsets[self.sequence]
        assert offsets_R1 is not None
        given = (drawn.ranks[self.item], drawn.ranks[self.sequence], offsets_R1)
        return self.history[0] * interest_effect(*given) + self.history[1] * order_effect(*given)


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
    """A world with random effects, not yet calibrated. Pairs join single-id columns.

    item, sequence: columns, of one id a row and of lists, that are to have ids in common.
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
    world: PlantedModel,
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
    """Parts of the logit get the standard deviations `signal`; the mean probabilities the rate.

    The first task has the whole of every part, each other one shares of its own.
    """
    world = replace(world, missing=missing)
    drawn = world.draw_features(rng, CALIBRATION_ROWS)
    parts = world.logit_parts(drawn)
    of_history: np.ndarray | float = 0.0
    if world.item is not None:
        ones = (replace(world, history=(1.0, 0.0)), replace(world, history=(0.0, 1.0)))
        spread = [float(np.std(one.history_logit(drawn))) or 1.0 for one in ones]
        world = replace(world, history=(history[0] / spread[0], history[1] / spread[1]))
        of_history = world.history_logit(drawn)
    scale = [wanted / (float(part.std()) or 1.0) for wanted, part in zip(signal, parts)]
    tasks = [(1.0, 1.0, 1.0)]
    tasks += [tuple(rng.uniform(-0.5, 1.5, 3).tolist()) for _ in range(num_tasks - 1)]
    conflict /= float(parts[1].std()) or 1.0
    biases = []
    for k, shares in enumerate(tasks):
        logit_R = sum(a * b * part for a, b, part in zip(scale, shares, parts))
        own_R = conflict * flip_by_task(k, parts[1], drawn.ranks[0]) if conflict else 0.0
        biases.append(_bias(np.asarray(logit_R + of_history + own_R), positive_rate))
    return replace(
        world,
        conflict=conflict,
        scale=(scale[0], scale[1], scale[2]),
        task_scales=tuple(tasks),
        task_biases=tuple(biases),
        drift=drift,
    )


def _bias(logit_R: np.ndarray, positive_rate: float) -> float:
    """What to add for this mean probability, by bisection."""
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


def _by_rank(effects: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    if len(effects) == MAX_EFFECTS:
        ranks = ranks % MAX_EFFECTS
    return np.take(effects, ranks, mode="clip")


CLUSTERS = 8


def interest_effect(
    item_R: np.ndarray, history_V: np.ndarray, offsets_R1: np.ndarray
) -> np.ndarray:
    """[R]: how many items of a history lie in the cluster of the row's item, less the expected.

    What a sum over a history forgets: it counts for one item, not for another.
    """
    lengths_R = np.diff(offsets_R1)
    alike_V = history_V % CLUSTERS == np.repeat(item_R % CLUSTERS, lengths_R)
    ends = np.concatenate([[0.0], np.cumsum(alike_V, dtype=np.float64)])
    counts_R = ends[offsets_R1[1:]] - ends[offsets_R1[:-1]]
    return counts_R - lengths_R / CLUSTERS


def order_effect(item_R: np.ndarray, history_V: np.ndarray, offsets_R1: np.ndarray) -> np.ndarray:
    """[R]: 1 if the row's item lies in the cluster after that of the last item, else 0.

    What a model without places cannot see. A row without a history has 0.
    """
    there_R = np.diff(offsets_R1) > 0
    last_R = np.zeros(len(item_R), np.int64)
    last_R[there_R] = history_V[offsets_R1[1:][there_R] - 1]
    return (there_R & (item_R % CLUSTERS == (last_R + 1) % CLUSTERS)).astype(np.float64)


def flip_by_task(task: int, ids_R: np.ndarray, ranks_R: np.ndarray) -> np.ndarray:
    """[R]: the id part for the first task; for each other one its opposite in the rows where the
    first column's rank has the task's own bit. What is right for one task misleads another, and
    which of them it is changes with the row."""
    if task == 0:
        return ids_R
    return np.where((ranks_R >> (task - 1)) & 1, -ids_R, ids_R)
