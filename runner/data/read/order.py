"""The exact order of examples: a pure function of (blocks, seed, epoch).

Blocks are permuted, consecutive ones form windows, and the rows of a window are permuted. Every
permutation has a generator of its own, keyed (seed, epoch, number), so that any position is found
without replaying what came before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from runner.data.read.index import BlockIndex

BLOCK_PERMUTATION, ROW_PERMUTATION = 0, 1  # which permutation a generator is for; part of its key

ORDER_VERSION = 1  # raise it when the order changes: it is part of a run's signature


@dataclass(frozen=True)
class EpochPlan:
    """Windows of one epoch. K windows; offsets are positions in the epoch's sequence."""

    index: BlockIndex
    seed: int | None  # None: the order of the files
    epoch: int
    block_N: np.ndarray  # block numbers in this epoch's order
    first_K1: np.ndarray  # window k has blocks block_N[first[k]:first[k + 1]]
    offset_K1: np.ndarray  # and the offsets from offset[k] to offset[k + 1]

    @property
    def num_windows(self) -> int:
        return len(self.first_K1) - 1

    def window_at(self, offset: int) -> int:
        return int(np.searchsorted(self.offset_K1, offset, side="right")) - 1

    def blocks(self, window: int) -> np.ndarray:
        """Ascending, so that neighbours are read in one go; the row order does not suffer."""
        return np.sort(self.block_N[self.first_K1[window] : self.first_K1[window + 1]])

    def row_order(self, window: int) -> np.ndarray | None:
        """A permutation of the rows of `blocks(window)` laid end to end; None: as they are."""
        if self.seed is None:
            return None
        num_rows = int(self.offset_K1[window + 1] - self.offset_K1[window])
        return _generator(self.seed, self.epoch, ROW_PERMUTATION, window).permutation(num_rows)


def plan_epoch(index: BlockIndex, *, seed: int | None, epoch: int, window_rows: int) -> EpochPlan:
    """Windows of about `window_rows` rows, and of at least one block. O(blocks), no row is read."""
    per_window = max(1, window_rows // int(index.rows_N.max()))
    num_windows = -(-index.num_blocks // per_window)
    # Evenly filled: a last window of one block would be mixed with nothing.
    first_K1 = index.num_blocks * np.arange(num_windows + 1) // num_windows
    block_N = np.arange(index.num_blocks)
    if seed is not None:
        block_N = _generator(seed, epoch, BLOCK_PERMUTATION, 0).permutation(index.num_blocks)
    ends = np.concatenate([[0], np.cumsum(index.rows_N[block_N])])
    return EpochPlan(index, seed, epoch, block_N, first_K1, ends[first_K1])


def _generator(seed: int, epoch: int, kind: int, number: int) -> np.random.Generator:
    return np.random.default_rng([seed, epoch, kind, number])
