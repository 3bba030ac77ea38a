"""Writes and reads large tensors, which lie in memory or in files, in blocks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from runner.distributed.shards import LocalShard, LocalShards, is_in_file, local_tensors
from runner.machine.memory import advise_random_reads

BLOCK_BYTES = 16 << 20  # held in memory at a time
_WHOLE_BYTES = 256 << 20  # of a tensor in memory that is read as a whole


def row_blocks(tensor: Tensor) -> tuple[Tensor, ...]:
    """Split a tensor by rows into blocks of a size that memory always has."""
    num_rows = max(1, BLOCK_BYTES * len(tensor) // max(1, tensor.nbytes))
    return torch.split(tensor, num_rows)


def in_blocks(tensor: Tensor) -> Tensor:
    """Return a large tensor, or one in a file, as many shards, each of which is read as a whole."""
    if not any(is_in_file(t) or _is_large(t) for t in local_tensors(tensor)):
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


def _is_large(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.dim() > 0 and tensor.nbytes > _WHOLE_BYTES


@contextmanager
def read_from_front(tensor: Tensor | None) -> Iterator[None]:
    """Let the system read ahead in the file of a tensor within the block, if it lies in one."""
    if tensor is None or not tensor.nbytes or not is_in_file(tensor):
        yield
        return
    storage = tensor.untyped_storage()
    advise_random_reads(storage.data_ptr(), storage.nbytes(), random=False)
    try:
        yield
    finally:
        advise_random_reads(storage.data_ptr(), storage.nbytes(), random=True)
