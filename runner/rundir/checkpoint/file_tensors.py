"""Tensors that lie in files, and may be larger than memory: written and read in blocks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from runner.distributed.shards import LocalShard, LocalShards, is_in_file
from runner.machine import advise_random_reads

_BLOCK_BYTES = 16 << 20  # held in memory at a time


def local_tensors(tensor: Tensor) -> list[Tensor]:
    """Return what this rank has of a tensor."""
    return [s.tensor for s in tensor.shards] if isinstance(tensor, LocalShards) else [tensor]


def row_blocks(tensor: Tensor) -> tuple[Tensor, ...]:
    """Split a tensor by rows into blocks of a size that memory always has."""
    num_rows = max(1, _BLOCK_BYTES * len(tensor) // max(1, tensor.nbytes))
    return torch.split(tensor, num_rows)


def in_blocks(tensor: Tensor) -> Tensor:
    """Return a tensor in a file as many shards, since a shard is read into memory as a whole."""
    if not any(is_in_file(t) for t in local_tensors(tensor)):
        return tensor
    zeros = (0,) * tensor.dim()
    shards = tensor.shards if isinstance(tensor, LocalShards) else [LocalShard(tensor, zeros)]
    blocks = []
    for shard in shards:
        first_row, *others = shard.offset
        for rows in row_blocks(shard.tensor):
            blocks.append(LocalShard(rows, (first_row, *others)))
            first_row += len(rows)
    return LocalShards(tensor.shape, blocks, tensor.dtype, tensor.device)


@contextmanager
def read_from_front(tensor: Tensor | None) -> Iterator[None]:
    """Let the system read ahead in the file of a tensor within the block, if it lies in one."""
    if tensor is None or not tensor.nbytes:
        yield
        return
    storage = tensor.untyped_storage()
    advise_random_reads(storage.data_ptr(), storage.nbytes(), random=False)
    try:
        yield
    finally:
        advise_random_reads(storage.data_ptr(), storage.nbytes(), random=True)
