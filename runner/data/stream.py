"""The rest of an epoch as pieces of windows: what one rank's batches are made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from runner.data.columns import Columns
from runner.data.decode import Reader, Rows
from runner.data.index import Index
from runner.data.order import plan

Part = tuple[Rows, int, int]  # rows [start, stop) of a window


@dataclass(frozen=True)
class Piece:
    """One batch of one rank, not yet put together."""

    parts: tuple[Part, ...]
    end: int  # offset in the epoch after the GLOBAL batch
    padding: bool = False  # the rank has no row in the last batch: one row, of weight 0


@dataclass(frozen=True)
class Share:
    """Which offsets from `start` to `total` are this rank's.

    Global batch k is the k-th run of batch_size * world_size offsets, and rank r has the r-th part
    of it. The last global batch is shorter and split as evenly as can be.
    """

    start: int
    total: int
    batch_size: int
    rank: int
    world_size: int

    @property
    def num_full(self) -> int:
        return (self.total - self.start) // self.global_size

    @property
    def global_size(self) -> int:
        return self.batch_size * self.world_size

    @property
    def last(self) -> tuple[int, int]:
        """Offsets of this rank in the shorter last batch; both the same: none."""
        done = self.start + self.num_full * self.global_size
        rest = self.total - done
        return (
            done + rest * self.rank // self.world_size,
            done + rest * (self.rank + 1) // self.world_size,
        )

    def within(self, low: int, high: int) -> np.ndarray | slice:
        """This rank's offsets in the window [low, high), counted from `low`."""
        if self.world_size == 1:
            return slice(max(self.start - low, 0), high - low)
        offsets = np.arange(max(low, self.start), high)
        mine = (offsets - self.start) // self.batch_size % self.world_size == self.rank
        tail = offsets >= self.start + self.num_full * self.global_size
        first, stop = self.last
        mine[tail] = (offsets[tail] >= first) & (offsets[tail] < stop)
        return offsets[mine] - low


def pieces(
    index: Index, columns: Columns, share: Share, *, seed: int | None, epoch: int, window_rows: int
) -> Iterator[Piece]:
    """Batches of `share.rank` in the exact order. Memory: two windows at most."""
    plan_ = plan(index, seed=seed, epoch=epoch, window_rows=window_rows)
    reader = Reader(index, columns)
    waiting: list[Part] = []
    num_waiting, num_done = 0, 0
    try:
        for window in range(plan_.window_at(share.start), plan_.num_windows):
            low, high = (int(o) for o in plan_.offset_K1[window : window + 2])
            rows = _open(reader, plan_.blocks(window), plan_.row_order(window), share, low, high)
            if rows is None:
                continue
            at = 0
            while num_done < share.num_full and num_waiting + len(rows) - at >= share.batch_size:
                stop = at + share.batch_size - num_waiting
                num_done += 1
                end = share.start + num_done * share.global_size
                yield Piece((*waiting, (rows, at, stop)), end)
                waiting, num_waiting, at = [], 0, stop
            if at < len(rows):
                waiting.append((rows, at, len(rows)))
                num_waiting += len(rows) - at
        if share.start + num_done * share.global_size < share.total:
            if waiting:
                yield Piece(tuple(waiting), share.total)
            else:  # every rank makes the same number of updates
                first = reader.rows(plan_.blocks(0), slice(0, 1))
                yield Piece(((first, 0, 1),), share.total, padding=True)
    finally:
        reader.close()


def _open(
    reader: Reader,
    blocks: np.ndarray,
    order: np.ndarray | None,
    share: Share,
    low: int,
    high: int,
) -> Rows | None:
    wanted = share.within(low, high)
    if isinstance(wanted, np.ndarray) and not len(wanted):
        return None
    return reader.rows(blocks, wanted if order is None else order[wanted])
