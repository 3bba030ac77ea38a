"""Finds interactions of ids before the training: factors of pairs of features.

A factorization machine (Rendle 2010) is fitted to the residuals of a regression, one pair of
features at a time. Its penalty is a trace norm that is weighted by half (Salakhutdinov and Srebro
2010, arXiv:1002.2780, alpha = 1/2): the square of a vector counts with the root of the rows that
have its id. On planted clicks of users who are active to very different degrees, the best strength
found a test AUC of .653; with alpha = 1, which is an L2 of look-ups, .639.

How strong it must be follows from chance. If labels had nothing to do with pairs, the gradient at
vectors of zero would be about as large as one whose signs are drawn at random, and a penalty of
that size would leave all vectors at zero.

N rows, C and M ids of the first and of the second feature, K factors.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh
from threadpoolctl import threadpool_limits

from runner.training.health.logistic_regression import Columns, minimise
from runner.training.health.sample import Floats, Sample
from runner.training.warm_start.factor_rows import (
    Factors,
    LearntRows,
    RowIds,
    Target,
    dot_products,
)

# Least number of ids of each of the two features, and their mean count.
FEWEST_IDS, LEAST_COUNT = 8, 2
MOST_FEATURES, MOST_FITTED, MOST_PAIRS = 8, 3, 4
# Mean rows of a pair of ids; a network learns interactions of more frequent pairs by itself.
MOST_ROWS_OF_A_CELL = 4
RANKS = (2, 4, 8)
MANY_ROWS = 200_000  # with more, half as many ranks and strengths are tried
# of the strength from which on chance alone leaves all vectors at zero; each starts from the last
STRENGTHS = (0.9, 0.75, 0.6, 0.5, 0.4, 0.3)
DRAWS, ABOVE_CHANCE = 4, 1.02  # of signs; least ratio of the gradient's norm to theirs
ERRORS = 1.0  # standard errors that the gain on other rows must exceed
START_SIZE = 0.3  # of the vectors, along the steepest directions
TOLERANCE, APART = 1e-6, 1e-9  # relative, of squares of norms; between equal ones
LEAST_GAIN = 1e-5  # relative decrease of the loss in a step below which a fit ends

LOG = logging.getLogger(__name__)


def find_factors(
    columns: Columns,
    train: tuple[Sample, Sequence[Target]],
    held_out: tuple[Sample, Sequence[Target]],
    width: int,
    threads: int = 1,
) -> list[Factors]:
    """Find factors of pairs of features, one pair after the other, while they improve other rows.

    Args:
        columns: the ids of each table.
        train: rows to learn from, with their labels.
        held_out: other rows, on which pairs, ranks and penalties are chosen.
        width: the most factors of all pairs together.
        threads: how many fit; the result does not depend on it.

    Returns:
        Factors of the pairs that gain; no two pairs share a dimension.
    """
    features = _choose_features(columns, train[0])
    learnt, other = (
        LearntRows({n: RowIds(columns.feature_matrix(n, s)) for n in features}, t, s.weights_N)
        for s, t in (train, held_out)
    )
    sizes = {name: len(columns.ids[columns.tables[name]]) for name in features}
    least = train[0].num_rows / MOST_ROWS_OF_A_CELL
    ids = learnt.ids
    pairs = [
        (a, b)
        for a, b in combinations(features, 2)
        if sizes[a] * sizes[b] >= least
        # if one id determines the other, its own weight already expresses the interaction
        and not (ids[a].decides(ids[b]) or ids[b].decides(ids[a]))
    ]
    chosen: list[Factors] = []
    with threadpool_limits(limits=1, user_api="blas"), ThreadPoolExecutor(threads) as pool:
        try:
            while pairs and width >= min(RANKS) and len(chosen) < MOST_PAIRS:
                factors = _find_pair(learnt, other, pairs, [r for r in RANKS if r <= width], pool)
                if factors is None:
                    break
                chosen.append(factors)
                pairs.remove(factors.pair)
                width -= factors.rank
                learnt, other = (rows.add(rows.products(factors)) for rows in (learnt, other))
        except BaseException:  # such as Ctrl-C: end the fits of other threads
            learnt.stop.set()
            raise
    return chosen


def fit_factors_again(
    columns: Columns,
    rows: tuple[Sample, Sequence[Target]],
    columns_of_found: Columns,
    chosen: Sequence[Factors],
) -> list[Factors]:
    """Fit factors that were found in a part of the rows to all rows, starting from these factors.

    The penalties stay the same: the effect of chance is about as large with more rows, since it is
    divided by the roots of their counts.

    Args:
        columns: the ids of each table in all rows.
        rows: all rows, with their labels.
        columns_of_found: the ids of each table in the part.
        chosen: what was found there.

    Returns:
        Factors of the same pairs and ranks.
    """
    names = {name for factors in chosen for name in factors.pair}
    sample, targets = rows
    ids = {name: RowIds(columns.feature_matrix(name, sample)) for name in names}
    learnt = LearntRows(ids, targets, sample.weights_N)
    fitted: list[Factors] = []
    for factors in chosen:
        fit = _PairFit(learnt, factors.pair, of_binary=factors.of_binary)
        parts = []
        vectors = factors.first_CK, factors.second_MK
        for name, root_C, found_CK in zip(factors.pair, fit.roots, vectors):
            ids_C, ids_of_found_C = (c.ids[c.tables[name]] for c in (columns, columns_of_found))
            _, to, of = np.intersect1d(ids_C, ids_of_found_C, True, return_indices=True)
            part = np.zeros((len(root_C), factors.rank))
            part[to] = root_C[to, None] * found_CK[of]
            parts.append(part)
        fitted.append(fit.fit(parts, factors.l2)[1])
        learnt = learnt.add(learnt.products(fitted[-1]))
    return fitted


def _find_pair(
    learnt: LearntRows,
    other: LearntRows,
    pairs: Sequence[tuple[str, str]],
    ranks: Sequence[int],
    pool: ThreadPoolExecutor,
) -> Factors | None:
    """Return the factors of the pair that improves other rows most; None if none does.

    Beside numeric labels, whose far values may hide what the binary ones tell of a pair, factors
    are also fitted to the binary labels alone. The losses of other rows are those of all labels.
    """
    is_mixed = 0 < len(learnt.binary) < len(learnt.targets)
    likely: list[_PairFit] = []
    for of_binary in (False, True) if is_mixed else (False,):
        fits = [_PairFit(learnt, pair, of_binary=of_binary) for pair in pairs]
        tried = [
            fit for fit, is_likely in zip(fits, pool.map(lambda f: f.is_likely, fits)) if is_likely
        ]
        likely += sorted(tried, key=lambda fit: -fit.above_chance)[:MOST_FITTED]
    strengths: Sequence[float] = STRENGTHS
    if len(learnt.weights_N) > MANY_ROWS:
        ranks, strengths = ranks[1:] or ranks, STRENGTHS[1::2]
    best_N = before_N = other.losses(np.zeros(1))[0]
    best: Factors | None = None
    choices = [(fit, rank) for fit in likely for rank in ranks]
    for losses_N, factors in pool.map(lambda c: c[0].choose(c[1], strengths, other), choices):
        if losses_N.sum() < best_N.sum():
            best_N, best = losses_N, factors
    gains_N = before_N - best_N
    return best if gains_N.mean() > ERRORS * gains_N.std() / len(gains_N) ** 0.5 else None


def _choose_features(columns: Columns, train: Sample) -> list[str]:
    """Return the features with the most ids, among those with enough ids that occur repeatedly.

    Features that share a table are left out, since factors give an id one vector for each of them.
    """
    tables = list(columns.tables.values())
    sizes = {
        name: len(columns.ids[table])
        for name, table in columns.tables.items()
        if tables.count(table) == 1
        and FEWEST_IDS <= len(columns.ids[table]) <= len(train.ids[name].ids_V) / LEAST_COUNT
    }
    return sorted(sizes, key=lambda name: -sizes[name])[:MOST_FEATURES]


class _PairFit:
    """The factors of one pair, from the strongest penalty on.

    Attributes:
        chance: the least penalty at which all vectors stay zero if labels are random.
        above_chance: the least penalty at which they stay zero for the labels, divided by `chance`.
    """

    def __init__(self, rows: LearntRows, pair: tuple[str, str], *, of_binary: bool = False) -> None:
        self.rows, self.pair = replace(rows, targets=rows.binary) if of_binary else rows, pair
        self.of_binary = of_binary
        self.ids = [rows.ids[name] for name in pair]
        # the fourth root: it divides both vectors of a product
        counts = [ids.add_up(rows.weights_N) for ids in self.ids]
        self.roots = [np.where(count_C > 0, count_C, 1.0) ** 0.25 for count_C in counts]

    @property
    def chance(self) -> float:
        return self._strengths[0]

    @property
    def above_chance(self) -> float:
        return self._strengths[1]

    @property
    def is_likely(self) -> bool:
        """Whether the ids interact more than by chance."""
        return self.above_chance > ABOVE_CHANCE

    @cached_property
    def _strengths(self) -> tuple[float, float]:
        """The values of `chance` and `above_chance`."""
        slopes_N, tiny = self.rows.losses(np.zeros(1))[1], float(np.finfo(float).tiny)
        if not slopes_N.any():
            return tiny, 0.0
        norm, chance = float(self._steepest(slopes_N, 1)[1][0]), tiny
        draw = np.random.default_rng(0)
        for _ in range(DRAWS):
            signs_N = draw.choice([-1.0, 1.0], len(slopes_N))
            chance = max(chance, float(self._steepest(slopes_N * signs_N, 1)[1][0]))
            if norm / chance <= ABOVE_CHANCE or chance == tiny:
                return chance, 0.0
        return chance, norm / chance

    def _steepest(self, slopes_N: Floats, count: int) -> tuple[list[Floats], Floats]:
        """Return the directions in which the loss falls most, [C, K] and [M, K], and their norms.

        They are the singular vectors of the gradient by the products of all pairs of ids; all are
        zero if the features have no row in common, or if none are found.
        """
        (first, root_C), (second, root_M) = sides = list(zip(self.ids, self.roots))
        if is_turned := second.size > first.size:
            (first, root_C), (second, root_M) = sides[::-1]

        def gradient(x_M: Floats) -> Floats:
            return first.add_up(slopes_N * second.pool(x_M.ravel() / root_M)) / root_C

        def square(x_M: Floats) -> Floats:
            slopes_of_N = slopes_N * first.pool(gradient(x_M) / root_C)
            squares_M: Floats = second.add_up(slopes_of_N) / root_M
            return squares_M + apart_M * x_M.ravel()

        draw, apart_M = np.random.default_rng(1), np.zeros(second.size)
        start_M = draw.normal(size=second.size)
        size = np.linalg.norm(square(start_M)) / np.linalg.norm(start_M)
        v_MK = np.zeros((second.size, count))
        if size > 0:
            # ARPACK draws without a seed when only vectors of equal norms are left.
            apart_M = APART * size * draw.random(second.size)
            operator = LinearOperator((second.size, second.size), square, dtype=np.float64)
            try:
                v_MK = eigsh(operator, k=count, v0=start_M, tol=TOLERANCE)[1]
            except ArpackError as error:
                LOG.warning(
                    "factors of the pair %s and %s are left out of the start: %s", *self.pair, error
                )
        u_CK = np.stack([gradient(v_M) for v_M in v_MK.T], axis=1)
        norms_K = np.linalg.norm(u_CK, axis=0)
        u_CK = u_CK / np.maximum(norms_K, np.finfo(float).tiny)
        order = np.argsort(-norms_K)
        directions = [-u_CK[:, order], v_MK[:, order]]
        return directions[::-1] if is_turned else directions, norms_K[order]

    def choose(
        self, rank: int, strengths: Sequence[float], other: LearntRows
    ) -> tuple[Floats, Factors | None]:
        """Return the least losses of other rows, and the factors of this rank that give them.

        Penalties become weaker until the losses of other rows rise.
        """
        count = min(rank, *(ids.size - 1 for ids in self.ids))
        directions, _ = self._steepest(self.rows.losses(np.zeros(1))[1], count)
        parts = [START_SIZE * vectors for vectors in directions]
        least_N, best = np.full(len(other.weights_N), np.inf), None
        for strength in strengths:
            parts, factors = self.fit(parts, strength * self.chance)
            losses_N = other.losses(other.products(factors))[0]
            if losses_N.sum() >= least_N.sum():
                break
            least_N, best = losses_N, factors
        return least_N, best

    def fit(self, parts: Sequence[Floats], l2: float) -> tuple[list[Floats], Factors]:
        """Fit once; return the vectors times the roots of their rows, and the factors.

        Args:
            parts: the vectors to start from, times the roots of their rows, [C, K] and [M, K].
        """
        shape, num_first = (-1, parts[0].shape[1]), parts[0].size
        point = np.concatenate([part.ravel() for part in parts])
        point = minimise(self._objective(l2, num_first, shape), point, LEAST_GAIN)
        vectors = [part.reshape(shape) for part in (point[:num_first], point[num_first:])]
        first_CK, second_MK = self._vectors(point, num_first, shape)
        return vectors, Factors(self.pair, first_CK, second_MK, l2, self.of_binary)

    def _vectors(self, point: Floats, num_first: int, shape: tuple[int, int]) -> list[Floats]:
        parts = point[:num_first].reshape(shape), point[num_first:].reshape(shape)
        return [part / root[:, None] for part, root in zip(parts, self.roots)]

    def _objective(self, l2: float, num_first: int, shape: tuple[int, int]) -> Any:
        def objective(point: Floats) -> tuple[float, Floats]:
            vectors = self._vectors(point, num_first, shape)
            pooled = [ids.pool(vectors_CK) for ids, vectors_CK in zip(self.ids, vectors)]
            losses_N, slopes_N = self.rows.losses(dot_products(*pooled))
            gradient = [
                (ids.add_up(slopes_N[:, None] * other_NK) / root[:, None]).ravel()
                for ids, other_NK, root in zip(self.ids, pooled[::-1], self.roots)
            ]
            return losses_N.sum() + l2 / 2 * (point @ point), np.concatenate(gradient) + l2 * point

        return objective
