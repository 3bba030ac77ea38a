"""A batch in one piece of memory, for sending it to another process, and from the host to a GPU.

Ids and offsets take half of their bytes if they are small enough, and offsets of features with one
id per row take none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from runner.batch import Batch, DataPosition

_ALIGNMENT = 64  # bytes, of the tensors in the memory of a batch


class PackedBatch(Batch):
    """A batch in one piece of host memory; tensors are read when they are accessed."""

    _packed: tuple[BatchLayout, Tensor]  # and the memory; no field, so that `replace` drops it

    @classmethod
    def of(cls, layout: BatchLayout, buffer: Tensor) -> PackedBatch:
        batch = object.__new__(cls)
        object.__setattr__(batch, "_packed", (layout, buffer))
        object.__setattr__(batch, "cursor", layout.cursor)
        return batch

    if not TYPE_CHECKING:  # type checkers would take all attributes for known

        def __getattr__(self, name: str) -> Any:
            if "_packed" not in vars(self) or name not in self._packed[0].field_names:
                raise AttributeError(name)
            layout, buffer = self._packed
            object.__setattr__(self, name, layout.read_field(name, buffer))
            return vars(self)[name]

    def to(self, device: torch.device, non_blocking: bool = False) -> Batch:
        if "_packed" not in vars(self):
            return super().to(device, non_blocking)
        layout, buffer = self._packed
        return layout.read(buffer.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch:
        if "_packed" not in vars(self) or not self._packed[1].is_pinned():
            return super().pin_memory()
        return self


@dataclass(frozen=True)
class TensorPlace:
    """The position and encoding of a tensor in a piece of memory."""

    start: int  # bytes
    shape: torch.Size
    dtype: torch.dtype
    stored: torch.dtype  # int32 for int64 whose values allow it
    num_counted: int = 0  # so many first elements are 0, 1, 2, ..., and are not stored

    @property
    def stop(self) -> int:
        return self.start + (self.shape.numel() - self.num_counted) * self.stored.itemsize

    def read(self, buffer: Tensor) -> Tensor:
        """Return the tensor, on the device of the memory: a view, or decoded."""
        if not self.shape.numel():
            return torch.empty(self.shape, dtype=self.dtype, device=buffer.device)
        stored = buffer[self.start : self.stop].view(self.stored).to(self.dtype)
        if self.num_counted:
            counted = torch.arange(self.num_counted, dtype=self.dtype, device=buffer.device)
            stored = torch.cat([counted, stored])
        return stored.view(self.shape)


@dataclass(frozen=True)
class BatchLayout:
    """The positions of a batch's tensors in one piece of memory, and the batch without them.

    Lengths are left out if there are offsets, from which they are computed when accessed.
    """

    places: Mapping[str, TensorPlace]  # of jagged tensors: `sparse.values` and so on
    jagged: Mapping[str, Mapping[str, Any]]  # the other arguments of each jagged tensor
    cursor: DataPosition
    num_bytes: int

    @classmethod
    def of(cls, batch: Batch, num_singles: int) -> BatchLayout:
        """Lay out a batch of the host compactly.

        Args:
            num_singles: number of first features with at most one id per row.
        """
        places, end = {}, 0
        for name, tensor in cls.tensors_of(batch).items():
            stored, num_counted = tensor.dtype, 0
            if stored == torch.int64 and tensor.numel():
                # also of unchecked ids; negative ones count as large
                if tensor.numpy().view(np.uint64).max() < 2**31:
                    stored = torch.int32
                singles = num_singles * batch.size
                # a row that pads a batch has no ids, so the last offset is below their number
                if name == "sparse.offsets" and tensor[singles] == singles:
                    num_counted = singles + 1
            places[name] = TensorPlace(end, tensor.shape, tensor.dtype, stored, num_counted)
            end = -(-places[name].stop // _ALIGNMENT) * _ALIGNMENT
        jagged = {
            name: {
                "keys": kjt.keys(),
                "stride": kjt.stride(),
                "length_per_key": kjt.length_per_key_or_none(),
                "offset_per_key": kjt.offset_per_key_or_none(),
            }
            for name, kjt in (("sparse", batch.sparse), ("sequences", batch.sequences))
            if kjt is not None
        }
        return cls(places, jagged, batch.cursor, end)

    @staticmethod
    def tensors_of(batch: Batch) -> dict[str, Tensor]:
        """Return the tensors of a batch by the names of their positions."""
        tensors: dict[str, Tensor] = {}
        for f in fields(batch):
            value = getattr(batch, f.name)
            if isinstance(value, Tensor):
                tensors[f.name] = value
            elif isinstance(value, KeyedJaggedTensor):
                offsets = value.offsets_or_none()
                parts = {
                    "values": value.values(),
                    "weights": value.weights_or_none(),
                    "lengths": value.lengths_or_none() if offsets is None else None,
                    "offsets": offsets,
                }
                tensors |= {f"{f.name}.{n}": t for n, t in parts.items() if t is not None}
        return tensors

    @property
    def field_names(self) -> set[str]:
        return {name.partition(".")[0] for name in self.places} | {"sequences"}

    def read_field(self, name: str, buffer: Tensor) -> Tensor | KeyedJaggedTensor | None:
        """Return a tensor of the batch in a piece of memory, on its device."""
        if name in self.places:
            return self.places[name].read(buffer)
        if name not in self.jagged:
            return None
        parts = {
            part: place.read(buffer)
            for owner, _, part, place in ((*n.partition("."), p) for n, p in self.places.items())
            if owner == name
        }
        return KeyedJaggedTensor(**self.jagged[name], **parts)

    def read(self, buffer: Tensor) -> Batch:
        """Return the batch in a piece of memory, on its device."""
        values: dict[str, Any] = {n: self.read_field(n, buffer) for n in self.field_names}
        return Batch(cursor=self.cursor, **values)
