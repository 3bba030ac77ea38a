"""Writing of tensors in the format of torch's distributed checkpoint.

Torch's planner determines what each rank has to write, including sharded tensors. Only the writing
is ours: torch's `HuggingFaceStorageWriter` builds each file in memory twice while it holds the
interpreter (for 1 GB no training step is made for 3.2 s), refuses tensors that are not contiguous,
and of two shards of one tensor on the same rank keeps only one. Our files have the layout of its
files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import WriteItem

from runner.distributed.ranks import Ranks, current_ranks
from runner.distributed.shards import is_in_file, local_tensors
from runner.machine.free_memory import available_memory_bytes
from runner.rundir.checkpoint.files import FileDigest, write_file
from runner.rundir.checkpoint.manifest import TENSORS_SUFFIX
from runner.rundir.checkpoint.tensors import BLOCK_BYTES, read_from_front, row_blocks

_ALIGN_BYTES = 16
_DTYPE_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
    torch.bool: "BOOL",
}


@dataclass(frozen=True)
class StagedFile:
    """A file to be written: its header, and the place of its data in the host buffer.

    A tensor that is in a file itself, or for whose copy there is no memory, is not copied:
    `source`. It must be written before training continues.
    """

    name: str
    header: bytes
    begin: int
    end: int
    source: Tensor | None = None

    def contents(self, buffer: HostBuffer) -> Iterator[bytes | memoryview]:
        """Yield header and data."""
        yield self.header
        if self.source is None:
            yield buffer.bytes.numpy().data[self.begin : self.end]
            return
        for rows in row_blocks(self.source):
            yield rows.contiguous().flatten().view(torch.uint8).numpy().data


class HostBuffer:
    """Host memory that is reused for all saves, so that only the first one allocates it.

    It takes at most half of the memory that is available before the first save. If a rank's tensors
    need more, the large ones among them are not copied.

    Attributes:
        largest_copy: the bytes of the largest tensor that is copied; None: not decided yet.
    """

    def __init__(self) -> None:
        self.bytes = torch.empty(0, dtype=torch.uint8)
        self.largest_copy: float | None = None

    def copied(self, local: Sequence[Tensor]) -> list[bool]:
        """Return for each of this rank's tensors whether a save copies it."""
        in_memory = [not is_in_file(t) for t in local]
        if self.largest_copy is None:
            num_bytes = sum(t.nbytes for t, has_copy in zip(local, in_memory) if has_copy)
            free_bytes = available_memory_bytes() / (2 * current_ranks().local_world_size)
            self.largest_copy = math.inf if num_bytes <= free_bytes else BLOCK_BYTES
        return [
            has_copy and (t.is_cuda or t.nbytes <= self.largest_copy)
            for t, has_copy in zip(local, in_memory)
        ]

    def reserve(self, num_bytes: int, *, pinned: bool) -> None:
        """Allocate memory if there is too little, or if it must be pinned and is not."""
        if self.bytes.numel() < num_bytes or (pinned and not self.bytes.is_pinned()):
            self.bytes = torch.empty(0, dtype=torch.uint8)  # free the old one first
            self.bytes = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=pinned)

    def prepare(self, tensors: Iterable[Tensor]) -> None:
        """Allocate every page of the memory for a copy of these tensors (of this rank's shards)."""
        local = [t for tensor in tensors for t in local_tensors(tensor)]
        local = list(compress(local, self.copied(local)))
        num_bytes = sum(t.nbytes for t in local) + _ALIGN_BYTES
        self.reserve(num_bytes, pinned=any(t.is_cuda for t in local))
        self.bytes.zero_()  # the system allocates a page only at the first write

    def view(self, begin: int, like: Tensor) -> Tensor:
        """Return a view of the bytes from `begin` on, in the shape and dtype of `like`."""
        return self.bytes[begin : begin + like.nbytes].view(like.dtype).view(like.shape)


def stage_tensors(
    tensors: Mapping[str, Tensor], buffer: HostBuffer, ranks: Ranks
) -> list[StagedFile]:
    """Copy what this rank has to write into the buffer; training may continue afterwards.

    Collective.

    Raises:
        TypeError: for values that are not tensors, or dtypes that safetensors does not know.
    """
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name!r} is of type {type(tensor).__name__}, not a tensor")
        if tensor.dtype not in _DTYPE_NAMES or tensor.layout != torch.strided:
            raise TypeError(f"{name!r} is {tensor.dtype}, {tensor.layout}: it cannot be saved")
    planner = DefaultSavePlanner(flatten_state_dict=False)
    planner.set_up_planner(dict(tensors), is_coordinator=ranks.rank == 0)
    plans = ranks.all_gather_object(planner.create_local_plan())
    if ranks.rank == 0:
        plans, _ = planner.create_global_plan(plans)  # one rank writes what several have
    items = planner.finish_plan(ranks.broadcast_object(plans)[ranks.rank]).items
    data = [cast(Tensor, planner.resolve_data(item)).detach() for item in items]
    copied = buffer.copied(data)
    in_place = [_file_of(items[i], t, ranks.rank, i) for i, t in enumerate(data) if not copied[i]]
    items, data = list(compress(items, copied)), list(compress(data, copied))
    begins, files, num_bytes = _plan_files(items, data, ranks.rank)
    on_cuda = {t.device for t in data if t.is_cuda}
    buffer.reserve(num_bytes, pinned=bool(on_cuda))
    for tensor, begin in zip(data, begins, strict=True):
        buffer.view(begin, tensor).copy_(tensor, non_blocking=True)
    for device in on_cuda:
        torch.cuda.synchronize(device)  # sync: the copies must end before training goes on
    return [*files, *in_place]


def write_staged(
    files: Iterable[StagedFile], buffer: HostBuffer, folder: Path
) -> dict[str, FileDigest]:
    """Write and sync the staged files of this rank.

    Raises:
        OSError: if one cannot be written, with its name.
    """
    digests = {}
    for file in files:
        with read_from_front(file.source):
            digests[file.name] = write_file(folder / file.name, file.contents(buffer))
    return digests


def _file_of(item: WriteItem, tensor: Tensor, rank: int, number: int) -> StagedFile:
    """Return the file of one tensor that is not copied."""
    name = f"shard-{rank + 1:05d}-disk-{number}{TENSORS_SUFFIX}"
    return StagedFile(name, _encode_header([(item, tensor, 0)]), 0, tensor.nbytes, tensor)


def _plan_files(
    items: list[WriteItem], data: list[Tensor], rank: int
) -> tuple[list[int], list[StagedFile], int]:
    """Plan the files of this rank in the buffer, one after another.

    In a file the widest dtypes come first, so that all are aligned. A file can have only one shard
    per name; further shards go into further files.

    Returns:
        Where each item begins in the buffer, the files, and the bytes of the buffer.
    """
    items_by_file: list[list[int]] = []
    last_file: dict[str, int] = {}  # by name
    for i, item in enumerate(items):
        number = last_file[item.index.fqn] = last_file.get(item.index.fqn, -1) + 1
        if number == len(items_by_file):
            items_by_file.append([])
        items_by_file[number].append(i)
    begins, files, end = [0] * len(items), [], 0
    for number, members in enumerate(items_by_file):
        members.sort(key=lambda i: (-data[i].element_size(), items[i].index.fqn))
        begin = end
        for i in members:
            begins[i], end = end, end + data[i].nbytes
        header = _encode_header([(items[i], data[i], begins[i] - begin) for i in members])
        suffix = f"-{number + 1}" if number else ""
        files.append(
            StagedFile(f"shard-{rank + 1:05d}{suffix}{TENSORS_SUFFIX}", header, begin, end)
        )
        end = math.ceil(end / _ALIGN_BYTES) * _ALIGN_BYTES
    return begins, files, end


def _encode_header(entries: list[tuple[WriteItem, Tensor, int]]) -> bytes:
    """Encode the header of a safetensors file, with torch's note of each shard's offsets."""
    offsets = {}
    for item, _, _ in entries:
        assert item.tensor_data is not None
        offsets[item.index.fqn] = {"saved_offsets": list(item.tensor_data.chunk.offsets)}
    header: dict[str, Any] = {
        "__metadata__": {
            "DCP_SHARDING_INFO": json.dumps(offsets),
            "DCP_VERSION": "1.0",
            "format": "pt",
        }
    }
    for item, tensor, begin in entries:
        header[item.index.fqn] = {
            "dtype": _DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, begin + tensor.nbytes],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # so that the data starts aligned
    return len(text).to_bytes(8, "little") + text
