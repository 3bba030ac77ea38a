"""The part of a tensor that this rank holds, in a form that checkpoints save and load.

torch's distributed checkpoint asks any tensor with these three methods for its pieces, so that a
table can be saved under one plan and loaded under another.
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
    """A live tensor, and where its first element lies in the whole."""

    tensor: Tensor
    offset: tuple[int, ...]


class LocalShards(Tensor):
    """Shape, dtype and device of the whole; memory of this rank's pieces only, which may be none.

    Nothing can be computed with it: `pieces` are the tensors.
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
        whole = Tensor._make_wrapper_subclass(cls, torch.Size(shape), dtype=dtype, device=device)
        whole.shards = tuple(p for p in shards if p.tensor.numel())
        return whole

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise TypeError(f"{func}: only pieces of this tensor are here; nothing computes with it")

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        held = ", ".join(f"{tuple(p.tensor.shape)} at {p.offset}" for p in self.shards)
        return f"Pieces({tuple(self.shape)}, here: {held or 'none'})"

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
            ChunkStorageMetadata(offsets=torch.Size(p.offset), sizes=p.tensor.shape)
            for p in self.shards
        ]

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        for piece in self.shards:
            if index.offset is not None and piece.offset == tuple(index.offset):
                return piece.tensor
        raise ValueError(f"no piece at {index.offset} of {self!r}")


def stack_by_rank(local: Tensor, rank: int, world_size: int) -> Tensor:
    """[world_size, ...]: what every rank has of its own; `local` is row `rank` of it, live."""
    if world_size == 1:
        return local[None]
    shape = (world_size, *local.shape)
    piece = LocalShard(local[None], (rank, *(0 for _ in local.shape)))
    return LocalShards(shape, [piece], local.dtype, local.device)


def local_row(stack: Tensor) -> Tensor:
    """What `stack_of_ranks` was made of: of one rank, row 0; of several, the only piece here."""
    return stack.shards[0].tensor[0] if isinstance(stack, LocalShards) else stack[0]
