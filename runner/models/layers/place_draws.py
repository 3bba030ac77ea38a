"""Random numbers of the places of rows: a function of the seed, the epoch, the row and the place.

So a resume, other micro-batches and more ranks draw the same. B batch, L places of a row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from runner.batch import Batch


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
