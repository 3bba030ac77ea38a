"""The exact order of examples: a pure function of (blocks, seed, epoch).

Blocks are permuted, consecutive blocks form windows, and the rows of each window are permuted.
Every permutation has a separate generator with the key (seed, epoch, kind, number), so that any
position is found without replaying earlier ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from runner.data.read.index import BlockIndex

BLOCK_PERMUTATION, ROW_PERMUTATION = 0, 1  # kinds of permutation

ORDER_VERSION = 1  # increase it when the order changes; it is part of a run's signature


@dataclass(frozen=True)
class EpochPlan:
    """The K windows of one epoch; an offset is a position in the epoch's sequence of examples."""

    seed: int | None  # None: file order
    epoch: int
    block_N: np.ndarray  # block numbers in this epoch's order
    first_K1: np.ndarray  # window k has the blocks block_N[first[k]:first[k + 1]]
    offset_K1: np.ndarray  # and the offsets offset[k] to offset[k + 1] - 1

    @property
    def num_windows(self) -> int:
        return len(self.first_K1) - 1

    def window_at(self, offset: int) -> int:
        return int(np.searchsorted(self.offset_K1, offset, side="right")) - 1

    def window_range(self, window: int) -> tuple[int, int]:
        """Return a window's first offset, and the end of its range."""
        return int(self.offset_K1[window]), int(self.offset_K1[window + 1])

    def blocks(self, window: int) -> np.ndarray:
        """Return a window's blocks in ascending order, so that neighbours are read together.

        The row order is applied afterwards, so the shuffle does not suffer.
        """
        return np.sort(self.block_N[self.first_K1[window] : self.first_K1[window + 1]])

    def row_order(self, window: int) -> np.ndarray | None:
        """Return a permutation of the concatenated rows of `blocks(window)`; None: unchanged."""
        if self.seed is None:
            return None
        num_rows = int(self.offset_K1[window + 1] - self.offset_K1[window])
        return _generator(self.seed, self.epoch, ROW_PERMUTATION, window).permutation(num_rows)


def plan_epoch(index: BlockIndex, *, seed: int | None, epoch: int, window_rows: int) -> EpochPlan:
    """Return windows of about `window_rows` rows, each of at least one block. No row is read."""
    blocks_per_window = max(1, window_rows // int(index.rows_N.max()))
    num_windows = -(-index.num_blocks // blocks_per_window)
    # Windows are equally large: rows of a last window with one block would hardly be shuffled.
    first_K1 = index.num_blocks * np.arange(num_windows + 1) // num_windows
    block_N = np.arange(index.num_blocks)
    if seed is not None:
        block_N = _generator(seed, epoch, BLOCK_PERMUTATION, 0).permutation(index.num_blocks)
    ends = np.concatenate([[0], np.cumsum(index.rows_N[block_N])])
    return EpochPlan(seed, epoch, block_N, first_K1, ends[first_K1])


def _generator(seed: int, epoch: int, kind: int, number: int) -> np.random.Generator:
    return np.random.default_rng([seed, epoch, kind, number])
