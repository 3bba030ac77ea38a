"""Initial weights of embedding tables, as a function of (seed, table, row block) alone.

So training starts from the same weights under any sharding plan, device and order of construction.
R rows, D width.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from runner.embeddings.interface import TableSpec

BLOCK_ROWS = 65_536
_DRAWS = ContextVar("draws", default=True)


@contextmanager
def without_initial_weights() -> Iterator[None]:
    """Leave the weights of tables built in the block undefined: a checkpoint has all of them.

    Drawing a gigabyte of initial weights takes 0.7 s.
    """
    token = _DRAWS.set(False)
    try:
        yield
    finally:
        _DRAWS.reset(token)


def init_rows_(
    weight_RD: Tensor,
    *,
    seed: int,
    table: str,
    num_rows: int,
    first_row: int = 0,
    bound: float | None = None,
) -> None:
    """Write uniform(-bound, bound) weights of rows [first_row, first_row + R) of a table in place.

    Args:
        weight_RD: [R, D] on any device, a shard of the table or all of it.
        num_rows: rows of the whole table.
        first_row: the first row of the shard.
        bound: None for num_rows^-1/2.
    """
    if weight_RD.numel() == 0 or not _DRAWS.get():
        return
    if bound is None:
        bound = math.sqrt(1.0 / num_rows)
    if bound == 0:
        weight_RD.zero_()
        return
    last_row = first_row + weight_RD.shape[0]
    for block in range(first_row // BLOCK_ROWS, (last_row - 1) // BLOCK_ROWS + 1):
        start = block * BLOCK_ROWS
        stop = min(start + BLOCK_ROWS, num_rows)
        # whole blocks are drawn, so that rows do not depend on where a shard begins
        rows_BD = torch.empty(stop - start, weight_RD.shape[1])
        rows_BD.uniform_(-bound, bound, generator=hashed_generator(seed, table, block))
        low, high = max(start, first_row), min(stop, last_row)
        weight_RD[low - first_row : high - first_row].copy_(rows_BD[low - start : high - start])


def draw_row_weights(num_rows: int, spec: TableSpec, *, seed: int, draw: int) -> Tensor:
    """Return initial weights for rows that are reset, [rows, D], on the CPU.

    Args:
        draw: number of the draw; each has different weights.
    """
    weight_RD = torch.empty(num_rows, spec.dim)
    bound = math.sqrt(1.0 / spec.num_rows) if spec.init_bound is None else spec.init_bound
    generator = hashed_generator(seed, spec.name, f"new {draw}")
    return weight_RD.uniform_(-bound, bound, generator=generator)


def hashed_generator(*parts: int | str) -> torch.Generator:
    """Return a generator whose draws are a function of these values."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    seed = int.from_bytes(digest[:8], "little") >> 1  # it has 63 bits
    return torch.Generator().manual_seed(seed)
