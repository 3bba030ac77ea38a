"""The rows that factors of pairs of features are fitted to: their ids and labels.

N rows, C and M ids of the first and of the second feature, K factors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Any

import numpy as np

from runner.models.losses.protocol import TWEEDIE_POWER
from runner.training.health.sample import Floats

DECIDED = 0.99  # share of the repeated rows of ids


@dataclass(frozen=True)
class Target:
    """A label with the prediction of a regression, to which products of vectors are added.

    Attributes:
        y_N: the label.
        logits_N: of the regression, and of the factors that were found.
        scale: the factor of a product.
        noise: residual variance of a numeric label; None: the label is binary.
        log_link: whether exponentials of logits predict the label, whose variance is the noise
            times their power 1.5, as for `tweedie_losses`.
    """

    y_N: Floats
    logits_N: Floats
    scale: float
    noise: float | None = None
    log_link: bool = False

    def estimate_noise(self, weights_N: Floats) -> float:
        """Return the mean squared residual, with a log link relative to the power; above zero."""
        mean_N = np.exp(self.logits_N) if self.log_link else self.logits_N
        squares_N = (self.y_N - mean_N) ** 2 / (mean_N**TWEEDIE_POWER if self.log_link else 1.0)
        return max(float(np.average(squares_N, weights=weights_N)), np.finfo(float).tiny)

    def losses(self, products_N: Floats) -> tuple[Floats, Floats]:
        """Return the loss of each row [N] with products added, and its derivative by them."""
        z_N = self.logits_N + self.scale * products_N
        if self.noise is not None and self.log_link:  # half of the deviance, but for a constant
            root_N = np.exp(z_N / 2)
            slopes_N = (root_N - self.y_N / root_N) * (self.scale / self.noise)
            return 2 * (root_N + self.y_N / root_N) / self.noise, slopes_N
        if self.noise is not None:
            left_N = z_N - self.y_N
            return left_N**2 / (2 * self.noise), left_N * (self.scale / self.noise)
        exp_N = np.exp(-np.abs(z_N))
        losses_N = np.maximum(z_N, 0) + np.log1p(exp_N) - self.y_N * z_N
        return losses_N, self.scale * (np.where(z_N > 0, 1.0, exp_N) / (1 + exp_N) - self.y_N)

    def add(self, products_N: Floats) -> Target:
        """Return the target with products added to its logits."""
        return replace(self, logits_N=self.logits_N + self.scale * products_N)


@dataclass(frozen=True)
class Factors:
    """Vectors of the ids of two features, in the order of `Columns.ids`, and their penalty.

    `of_binary` tells whether they are fitted to binary labels alone, though there are others.
    """

    pair: tuple[str, str]
    first_CK: Floats
    second_MK: Floats
    l2: float
    of_binary: bool = False

    @property
    def rank(self) -> int:
        """K."""
        return len(self.first_CK.T)


class RowIds:
    """The ids of a feature, in rows of a split.

    If each row has at most one id, vectors are gathered and summed in a fifth of the time of a
    sparse matrix.

    Args:
        matrix_NC: sparse, the share of each id in each row.
    """

    def __init__(self, matrix_NC: Any) -> None:
        self.size = matrix_NC.shape[1]
        counts_N = np.diff(matrix_NC.indptr)
        self.is_single = bool((counts_N <= 1).all() and (matrix_NC.data == 1).all())
        if self.is_single:
            self.place_N = np.full(len(counts_N), self.size)
            self.place_N[counts_N == 1] = matrix_NC.indices
            self.order_N = np.argsort(self.place_N, kind="stable")
            self.ids_I, self.start_I = np.unique(self.place_N[self.order_N], return_index=True)
        else:
            self.matrix_NC, self.transposed_CN = matrix_NC, matrix_NC.T.tocsr()

    def decides(self, other: RowIds) -> bool:
        """Return whether nearly all rows of an id have the same id of another feature.

        A user decides the zip code, for example, and an item the title. False for lists of ids.
        """
        if not (self.is_single and other.is_single):
            return False
        last_C = np.zeros(self.size + 1, int)
        last_C[self.place_N] = other.place_N
        agrees = np.count_nonzero(last_C[self.place_N] == other.place_N)
        repeats = len(self.place_N) - len(self.ids_I)  # rows other than the last one of each id
        return bool(agrees - len(self.ids_I) > DECIDED * repeats)

    def pool(self, vectors_CK: Floats) -> Floats:
        """Return the pooled vectors of each row, [N, K] or of numbers [N]."""
        if self.is_single:
            unknown = np.zeros_like(vectors_CK[:1])
            return np.concatenate([vectors_CK, unknown]).take(self.place_N, axis=0)
        pooled_NK: Floats = self.matrix_NC @ vectors_CK
        return pooled_NK

    def add_up(self, x_NK: Floats) -> Floats:
        """Return the sums over the rows of each id, [C, K] or of numbers [C]."""
        if not self.is_single:
            sums_CK: Floats = self.transposed_CN @ x_NK
            return sums_CK
        sums_CK = np.zeros((self.size + 1, *x_NK.shape[1:]))
        sums_CK[self.ids_I] = np.add.reduceat(x_NK.take(self.order_N, axis=0), self.start_I)
        return sums_CK[:-1]


def dot_products(first_NK: Floats, second_NK: Floats) -> Floats:
    """Return the dot product of the two vectors of each row, [N]."""
    products_N: Floats = np.einsum("nk,nk->n", first_NK, second_NK)
    return products_N


@dataclass(frozen=True)
class LearntRows:
    """Rows of a split: their ids by feature, as matrices [N, C], and their labels."""

    ids: Mapping[str, RowIds]
    targets: Sequence[Target]
    weights_N: Floats
    stop: Event = field(default_factory=Event)  # when set, fits to these rows end

    def products(self, factors: Factors) -> Floats:
        """Return what factors add to each row, [N]."""
        vectors = factors.first_CK, factors.second_MK
        return dot_products(*(self.ids[name].pool(v) for name, v in zip(factors.pair, vectors)))

    def losses(self, products_N: Floats) -> tuple[Floats, Floats]:
        """Return the loss of each row and its derivative by the product, times its weight.

        Raises:
            CancelledError: if the start is interrupted.
        """
        if self.stop.is_set():
            raise CancelledError
        pairs = [target.losses(products_N) for target in self.targets]
        losses_N, slopes_N = (np.sum(parts, axis=0) for parts in zip(*pairs))
        return losses_N * self.weights_N, slopes_N * self.weights_N

    @property
    def binary(self) -> list[Target]:
        """The targets of binary labels."""
        return [target for target in self.targets if target.noise is None]

    def add(self, products_N: Floats) -> LearntRows:
        """Return the rows with products added to the logits of all targets."""
        return replace(self, targets=[target.add(products_N) for target in self.targets])
