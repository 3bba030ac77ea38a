"""Tensors on their way to disk and back, in the format of torch's distributed checkpoint.

Torch's planner says what each rank has to write, sharded tensors included, and its
`HuggingFaceStorageReader` reads it back into any other sharding. Only the writing is ours: torch's
`HuggingFaceStorageWriter` builds each file in memory twice over while it holds the interpreter
(3.2 s without a training step for 1 GB), refuses tensors that are not contiguous, and of two parts
of one tensor on the same rank keeps one. Our files have the layout of its files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.checkpoint.planner import WriteItem

from runner.distributed.ranks import Ranks
from runner.distributed.shards import LocalShards
from runner.errors import UserError, nearest_hint
from runner.rundir.checkpoint.files import FileDigest, write_file
from runner.rundir.checkpoint.manifest import TENSORS_SUFFIX, Checkpoint, DamagedError

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
    """One file to be: its header, and where in the host buffer its data lies."""

    name: str
    header: bytes
    begin: int
    end: int


class HostBuffer:
    """Host memory that outlives a save, so that the next one allocates nothing."""

    def __init__(self) -> None:
        self.bytes = torch.empty(0, dtype=torch.uint8)

    def reserve(self, num_bytes: int, *, pinned: bool) -> None:
        if self.bytes.numel() < num_bytes or (pinned and not self.bytes.is_pinned()):
            self.bytes = torch.empty(0, dtype=torch.uint8)  # the old one goes first
            self.bytes = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=pinned)

    def prepare(self, tensors: Iterable[Tensor]) -> None:
        """Have the memory for a copy of these ready, every page of it; of a tensor in pieces only
        those of this rank."""
        held = [part for tensor in tensors for part in _local_tensors(tensor)]
        num_bytes = sum(t.nbytes for t in held) + _ALIGN_BYTES
        self.reserve(num_bytes, pinned=any(t.is_cuda for t in held))
        self.bytes.zero_()  # the system hands out a page only when it is first written to

    def view(self, begin: int, like: Tensor) -> Tensor:
        """`[*like.shape]`, of the dtype of `like`, on the bytes from `begin` on."""
        return self.bytes[begin : begin + like.nbytes].view(like.dtype).view(like.shape)


def _local_tensors(tensor: Tensor) -> list[Tensor]:
    return [p.tensor for p in tensor.shards] if isinstance(tensor, LocalShards) else [tensor]


def stage_tensors(
    tensors: Mapping[str, Tensor], buffer: HostBuffer, ranks: Ranks
) -> list[StagedFile]:
    """Collective. Copy what this rank has to write into the buffer; training may go on afterwards.

    Raises: TypeError for what is no tensor or has a dtype that safetensors does not know.
    """
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name!r} is of type {type(tensor).__name__}, not a tensor")
        if tensor.dtype not in _DTYPE_NAMES or tensor.layout != torch.strided:
            raise TypeError(f"{name!r} is {tensor.dtype}, {tensor.layout}: it cannot be saved")
    planner = dcp.DefaultSavePlanner(flatten_state_dict=False)
    planner.set_up_planner(dict(tensors), is_coordinator=ranks.rank == 0)
    plans = ranks.all_gather_object(planner.create_local_plan())
    if ranks.rank == 0:
        plans, _ = planner.create_global_plan(plans)  # what several ranks hold, one writes
    items = planner.finish_plan(ranks.broadcast_object(plans)[ranks.rank]).items
    data = [cast(Tensor, planner.resolve_data(item)).detach() for item in items]
    begins, files, num_bytes = _lay_out(items, data, ranks.rank)
    on_cuda = {t.device for t in data if t.is_cuda}
    buffer.reserve(num_bytes, pinned=bool(on_cuda))
    for tensor, begin in zip(data, begins, strict=True):
        buffer.view(begin, tensor).copy_(tensor, non_blocking=True)
    for device in on_cuda:
        torch.cuda.synchronize(device)  # sync: the copies must end before training goes on
    return files


def write_staged(
    files: Iterable[StagedFile], buffer: HostBuffer, folder: Path
) -> dict[str, FileDigest]:
    """Write and sync the staged files of this rank. Raises: OSError that names the file."""
    data = buffer.bytes.numpy().data
    return {f.name: write_file(folder / f.name, (f.header, data[f.begin : f.end])) for f in files}


def tensor_shapes(saved: Checkpoint) -> dict[str, tuple[int, ...]]:
    """Names and (unsharded) shapes of all tensors of a checkpoint."""
    entries: Mapping[str, Any] = _open(saved)[1].state_dict_metadata
    return {name: tuple(entry.size) for name, entry in entries.items()}


def load_tensors(saved: Checkpoint, into: Mapping[str, Tensor], *, partial: bool = False) -> None:
    """Copy the tensors of a checkpoint into those given, in place; of sharded ones the own part.

    Args: partial: the checkpoint may hold others, which are left there.
    Raises: UserError, before any is touched, if names, shapes or dtypes are not the same.
    """
    reader, known = _open(saved)
    _check(saved, known.state_dict_metadata, into, partial=partial)
    _read(saved, reader, known, into)


def read_tensors(saved: Checkpoint, names: Iterable[str]) -> dict[str, Tensor]:
    """Some tensors of a checkpoint, whole, in host memory. Raises: UserError for unknown names."""
    reader, known = _open(saved)
    entries: Mapping[str, Any] = known.state_dict_metadata
    into = {}
    for name in names:
        if name not in entries:
            raise UserError(f"{saved.path} has no tensor {name!r}{nearest_hint(name, entries)}")
        into[name] = torch.empty(entries[name].size, dtype=entries[name].properties.dtype)
    _read(saved, reader, known, into)
    return into


def _lay_out(
    items: list[WriteItem], data: list[Tensor], rank: int
) -> tuple[list[int], list[StagedFile], int]:
    """Places in the buffer: file after file, and in a file the widest dtypes first: aligned."""
    parts: list[list[int]] = []  # of one name a file can hold one part only
    seen: dict[str, int] = {}
    for i, item in enumerate(items):
        part = seen[item.index.fqn] = seen.get(item.index.fqn, -1) + 1
        if part == len(parts):
            parts.append([])
        parts[part].append(i)
    begins, files, end = [0] * len(items), [], 0
    for part, members in enumerate(parts):
        members.sort(key=lambda i: (-data[i].element_size(), items[i].index.fqn))
        begin = end
        for i in members:
            begins[i], end = end, end + data[i].nbytes
        header = _header([(items[i], data[i], begins[i] - begin) for i in members])
        suffix = f"-{part + 1}" if part else ""
        files.append(
            StagedFile(f"shard-{rank + 1:05d}{suffix}{TENSORS_SUFFIX}", header, begin, end)
        )
        end = math.ceil(end / _ALIGN_BYTES) * _ALIGN_BYTES
    return begins, files, end


def _header(entries: list[tuple[WriteItem, Tensor, int]]) -> bytes:
    """The head of a safetensors file, with torch's note of where each part lies in its tensor."""
    offsets = {}
    for item, _, _ in entries:
        assert item.tensor_data is not None
        offsets[item.index.fqn] = {"saved_offsets": list(item.tensor_data.chunk.offsets)}
    head: dict[str, Any] = {
        "__metadata__": {
            "DCP_SHARDING_INFO": json.dumps(offsets),
            "DCP_VERSION": "1.0",
            "format": "pt",
        }
    }
    for item, tensor, begin in entries:
        head[item.index.fqn] = {
            "dtype": _DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, begin + tensor.nbytes],
        }
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)  # the data starts aligned
    return len(text).to_bytes(8, "little") + text


def _open(saved: Checkpoint) -> tuple[dcp.HuggingFaceStorageReader, dcp.Metadata]:
    reader = dcp.HuggingFaceStorageReader(str(saved.path))
    try:
        return reader, reader.read_metadata()
    except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
        raise DamagedError(f"the tensors in {saved.path} cannot be read: {error!r}") from error


def _check(
    saved: Checkpoint, known: Mapping[str, Any], into: Mapping[str, Tensor], *, partial: bool
) -> None:
    missing = sorted(into.keys() - known.keys())
    if missing:
        near = nearest_hint(missing[0], known)
        raise UserError(
            f"{saved.path} lacks {len(missing)} tensors of this run, "
            f"the first is {missing[0]!r}{near}"
        )
    for name, tensor in into.items():
        size, dtype = known[name].size, known[name].properties.dtype
        if tuple(size) != tuple(tensor.size()):
            raise UserError(
                f"{name!r} is {tuple(size)} in {saved.path}, but {tuple(tensor.size())} in this run"
            )
        if dtype != tensor.dtype:
            raise UserError(f"{name!r} is {dtype} in {saved.path}, but {tensor.dtype} in this run")
    unexpected = [] if partial else sorted(known.keys() - into.keys())
    if unexpected:
        near = nearest_hint(unexpected[0], into)
        raise UserError(
            f"{saved.path} has {len(unexpected)} tensors that this run does not, "
            f"the first is {unexpected[0]!r}{near}"
        )


def _read(
    saved: Checkpoint,
    reader: dcp.HuggingFaceStorageReader,
    known: dcp.Metadata,
    into: Mapping[str, Tensor],
) -> None:
    """What `dcp.load` does, without its collectives: every rank reads what it needs by itself."""
    planner = dcp.DefaultLoadPlanner(flatten_state_dict=False)
    planner.set_up_planner(dict(into), known, is_coordinator=True)
    reader.set_up_storage_reader(known, is_coordinator=True)
    try:
        reader.read_data(planner.finish_plan(planner.create_local_plan()), planner).wait()
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise DamagedError(f"the tensors in {saved.path} cannot be read: {error!r}") from error
