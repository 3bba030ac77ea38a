"""The shards of a tensor on this rank, in a form that checkpoints save and load.

torch's distributed checkpoint asks any tensor with the three methods `__create_write_items__`,
`__create_chunk_list__` and `__get_tensor_shard__` for its shards, so that a table can be saved
under one sharding plan and loaded under another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType


@dataclass(frozen=True)
class LocalShard:
    """A shard of a larger tensor."""

    tensor: Tensor  # the live one, not a copy
    offset: tuple[int, ...]  # of its first element in the whole tensor


class LocalShards(Tensor):
    """A tensor with the shape, dtype and device of the whole, and only this rank's shards.

    A rank may hold no shard. Nothing can be computed with this tensor, only with its `shards`.
    """

    shards: tuple[LocalShard, ...]

    @staticmethod
    def __new__(
        cls,
        shape: Sequence[int],
        shards: Sequence[LocalShard],
        dtype: torch.dtype,
        device: torch.device,
    ) -> LocalShards:
        sharded = Tensor._make_wrapper_subclass(cls, torch.Size(shape), dtype=dtype, device=device)
        sharded.shards = tuple(s for s in shards if s.tensor.numel())
        return sharded

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise TypeError(f"{func}: this rank has only shards of the tensor; compute with those")

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        shards = ", ".join(f"{tuple(s.tensor.shape)} at {s.offset}" for s in self.shards)
        return f"LocalShards({tuple(self.shape)}, here: {shards or 'none'})"

    def __create_write_items__(self, name: str, whole: Any) -> list[WriteItem]:
        properties = TensorProperties(dtype=self.dtype)
        return [
            WriteItem(
                index=MetadataIndex(name, chunk.offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk, properties, self.shape),
            )
            for chunk in self.__create_chunk_list__()
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [
            ChunkStorageMetadata(offsets=torch.Size(s.offset), sizes=s.tensor.shape)
            for s in self.shards
        ]

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        for shard in self.shards:
            if index.offset is not None and shard.offset == tuple(index.offset):
                return shard.tensor
        raise ValueError(f"no shard at {index.offset} of {self!r}")


def local_tensors(tensor: Tensor) -> list[Tensor]:
    """Return the parts of a tensor on this rank."""
    return [s.tensor for s in tensor.shards] if isinstance(tensor, LocalShards) else [tensor]


def is_in_file(tensor: Tensor) -> bool:
    """Return whether a tensor is a writable memory map of a file, instead of memory."""
    return tensor.device.type == "cpu" and tensor.untyped_storage().filename is not None


def stack_by_rank(local: Tensor, rank: int, world_size: int) -> Tensor:
    """Return a tensor [world_size, ...] whose row `rank` is the live tensor `local`."""
    if world_size == 1:
        return local[None]
    shape = (world_size, *local.shape)
    shard = LocalShard(local[None], (rank, *(0 for _ in local.shape)))
    return LocalShards(shape, [shard], local.dtype, local.device)


def local_row(stack: Tensor) -> Tensor:
    """Return this rank's row of a tensor made by `stack_by_rank`."""
    return stack.shards[0].tensor[0] if isinstance(stack, LocalShards) else stack[0]


def rows_in_shard(shard: LocalShard, rows_N: Tensor) -> tuple[Tensor, Tensor]:
    """Return which rows of the whole tensor are in a shard, [N] bool, and their numbers in it."""
    local_N = rows_N - shard.offset[0]
    inside_N = (local_N >= 0) & (local_N < len(shard.tensor))
    return inside_N, local_N[inside_N]


@torch.no_grad()
def set_rows(tensor: Tensor, rows_N: Tensor, values: Tensor) -> None:
    """Write some rows of a tensor in place; of a sharded one, those on this rank.

    Args:
        rows_N: their numbers in the whole tensor, int64 on the CPU.
        values: the whole rows, [N, ...].
    """
    if not isinstance(tensor, LocalShards):
        tensor.index_copy_(0, rows_N.to(tensor.device), values.to(tensor))
        return
    for shard in tensor.shards:
        part = shard.tensor
        here_N, local_N = rows_in_shard(shard, rows_N)
        new = values[here_N]
        if part.dim() > 1:
            new = new[:, shard.offset[1] : shard.offset[1] + part.shape[1]]
        part.index_copy_(0, local_N.to(part.device), new.to(part))
