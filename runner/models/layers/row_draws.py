"""Random numbers for rows of an update, independent of how the rows are divided.

So a resume, other micro-batches and more ranks draw the same. B batch, L places of a row.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from runner.batch import Batch

BLOCK_ROWS = 512  # rows that share a generator, whose creation takes the time of 20,000 numbers
_LAST_DRAW = np.iinfo(np.uint64).max


@dataclass
class RowDraws:
    """The draws of a forward pass for consecutive rows of an update."""

    seed: int  # of the update, the same for all its rows
    first_row: int  # index of the first row in the update
    num_rows: int  # their number
    num_calls: int = 0  # how often the forward pass has drawn so far

    def draw_bits(self, shape: torch.Size) -> Iterator[np.ndarray]:
        """Yield random uint16, flat and in pieces, for a shape.

        The first dimension must have the same number of entries for each row; otherwise, as for
        items, the numbers are not assigned to rows.
        """
        call = self.num_calls
        self.num_calls += 1
        if shape[0] % self.num_rows:
            yield _draw(shape.numel(), (self.seed, call, self.first_row))
            return
        numbers = shape.numel() // self.num_rows  # of a row
        row, stop = self.first_row, self.first_row + self.num_rows
        while row < stop:
            block, skipped = divmod(row, BLOCK_ROWS)
            row = min((block + 1) * BLOCK_ROWS, stop)
            bits = _draw((row - block * BLOCK_ROWS) * numbers, (self.seed, call, block))
            yield bits[skipped * numbers :]


_of_thread = threading.local()


@contextmanager
def row_draws(draws: RowDraws) -> Iterator[None]:
    """Let `draw_bits` in this thread draw for these rows while the block runs."""
    before = getattr(_of_thread, "draws", None)
    _of_thread.draws = draws
    try:
        yield
    finally:
        _of_thread.draws = before


@contextmanager
def shared_draws() -> Iterator[None]:
    """Draw numbers in the block that are the same for all rows of the update."""
    draws: RowDraws | None = getattr(_of_thread, "draws", None)
    if draws is None:
        yield
        return
    rows = draws.first_row, draws.num_rows
    draws.first_row, draws.num_rows = 0, 1
    try:
        yield
    finally:
        draws.first_row, draws.num_rows = rows


def draw_bits(shape: torch.Size) -> Iterator[np.ndarray]:
    """Yield the bits of `RowDraws.draw_bits`; outside `row_draws` with a seed from torch."""
    draws: RowDraws | None = getattr(_of_thread, "draws", None)
    if draws is None:
        draws = RowDraws(int(torch.randint(1 << 62, ())), 0, max(shape[0], 1))
    return draws.draw_bits(shape)


def _draw(count: int, seed: tuple[int, ...]) -> np.ndarray:
    generator = np.random.Generator(np.random.SFC64(seed))
    # 64 bits a draw; `integers` releases the GIL meanwhile
    draws = generator.integers(_LAST_DRAW, size=(count + 3) // 4, dtype=np.uint64, endpoint=True)
    return draws.view(np.uint16)[:count]


def draw_at_places(batch: Batch, num_places: int, seed: int) -> Tensor:
    """Return a random int64 for each place of each row, [B, L].

    It is a hash (the finaliser of SplitMix64) of seed, epoch, row and place.
    """
    place_L = torch.arange(num_places, device=batch.rows_B.device)
    x_BL = batch.rows_B.long()[:, None] * num_places + place_L
    for part in (seed, batch.cursor.epoch):
        x_BL = _mix(x_BL + part * 0x1E3779B97F4A7C15 % 2**62)
    return x_BL


def _mix(x: Tensor) -> Tensor:
    """Return a hash of each int64; products wrap around."""
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        x = (x ^ (x >> shift)) * factor
    return x ^ (x >> 31)
