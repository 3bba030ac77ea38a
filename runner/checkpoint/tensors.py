"""Tensors on their way to disk and back, in the format of torch's distributed checkpoint.

Torch's planner says what this rank has to write, sharded tensors included, and its
`HuggingFaceStorageReader` reads it back into any other sharding. Only the writing is ours: torch's
`HuggingFaceStorageWriter` builds each file in memory twice over while it holds the interpreter
(3.2 s without a training step for 1 GB), refuses tensors that are not contiguous, and of two parts
of one tensor on the same rank keeps one. Our files have the layout of its files.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.planner import WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from runner.checkpoint.files import FileSum, write_file
from runner.checkpoint.manifest import TENSORS, CheckpointError, DamagedError, Saved
from runner.errors import UserError, nearest

# Torch warns of it at every save and load; a filter for the time of the call would not be safe
# beside other threads.
warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninit")

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
        """Have the memory for a copy of these ready, every page of it."""
        tensors = list(tensors)
        num_bytes = sum(t.nbytes for t in tensors) + _ALIGN_BYTES
        self.reserve(num_bytes, pinned=any(t.is_cuda for t in tensors))
        self.bytes.zero_()  # the system hands out a page only when it is first written to

    def view(self, begin: int, like: Tensor) -> Tensor:
        """`[*like.shape]`, of the dtype of `like`, on the bytes from `begin` on."""
        return self.bytes[begin : begin + like.nbytes].view(like.dtype).view(like.shape)


def stage(
    tensors: Mapping[str, Tensor], buffer: HostBuffer, group: dist.ProcessGroup | None
) -> list[StagedFile]:
    """Collective. Copy what this rank has to write into the buffer; training may go on afterwards.

    Raises: TypeError for what is no tensor or has a dtype that safetensors does not know;
    CheckpointError if it cannot be copied, for want of memory.
    """
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name!r} is of type {type(tensor).__name__}, not a tensor")
        if tensor.dtype not in _DTYPE_NAMES or tensor.layout != torch.strided:
            raise TypeError(f"{name!r} is {tensor.dtype}, {tensor.layout}: it cannot be saved")
    writer = _Stager(buffer, rank=dist.get_rank(group) if group else 0)
    try:
        dcp.save(dict(tensors), storage_writer=writer, process_group=group, no_dist=group is None)
    except dcp.CheckpointException as error:  # no Exception, so it must not get further
        raise CheckpointError(f"the state could not be copied: {_first(error)!r}") from error
    return writer.files


def write_staged(
    files: Iterable[StagedFile], buffer: HostBuffer, folder: Path
) -> dict[str, FileSum]:
    """Write and sync the staged files of this rank. Raises: OSError that names the file."""
    data = buffer.bytes.numpy().data
    return {f.name: write_file(folder / f.name, (f.header, data[f.begin : f.end])) for f in files}


def tensor_shapes(saved: Saved) -> dict[str, tuple[int, ...]]:
    """Names and (unsharded) shapes of all tensors of a checkpoint."""
    return {name: tuple(known.size) for name, known in _known(saved).items()}


def load_tensors(saved: Saved, into: Mapping[str, Tensor], *, partial: bool = False) -> None:
    """Collective with several ranks. Copy the tensors of a checkpoint into those given, in place.

    Args: partial: the checkpoint may hold others, which are left there.
    Raises: UserError, before any is touched, if names, shapes or dtypes are not the same.
    """
    known = _known(saved)
    _check(saved, known, into)
    unexpected = [] if partial else sorted(known.keys() - into.keys())
    if unexpected:
        near = nearest(unexpected[0], into)
        raise UserError(
            f"{saved.path} has {len(unexpected)} tensors that this run does not, "
            f"the first is {unexpected[0]!r}{near}"
        )
    _load(saved, into)


def read_tensors(saved: Saved, names: Iterable[str]) -> dict[str, Tensor]:
    """Some tensors of a checkpoint, whole, in host memory. Raises: UserError for unknown names."""
    known = _known(saved)
    wanted = list(names)
    for name in wanted:
        if name not in known:
            raise UserError(f"{saved.path} has no tensor {name!r}{nearest(name, known)}")
    into = {n: torch.empty(known[n].size, dtype=known[n].properties.dtype) for n in wanted}
    _load(saved, into, alone=True)
    return into


class _Stager(dcp.StorageWriter):
    """A storage of torch's distributed checkpoint that only copies; the files are written later."""

    def __init__(self, buffer: HostBuffer, rank: int) -> None:
        self.files: list[StagedFile] = []
        self._buffer = buffer
        self._rank = rank

    def write_data(self, plan: dcp.SavePlan, planner: dcp.SavePlanner) -> Future[list[WriteResult]]:
        assert all(item.type != WriteItemType.BYTE_IO for item in plan.items)
        data = [cast(Tensor, planner.resolve_data(item)).detach() for item in plan.items]
        on_cuda = {t.device for t in data if t.is_cuda}
        begins, self.files, num_bytes = self._lay_out(plan.items, data)
        self._buffer.reserve(num_bytes, pinned=bool(on_cuda))
        for tensor, begin in zip(data, begins, strict=True):
            self._buffer.view(begin, tensor).copy_(tensor, non_blocking=True)
        for device in on_cuda:
            torch.cuda.synchronize(device)  # sync: the copies must end before training goes on
        done: Future[list[WriteResult]] = Future()
        done.set_result([])
        return done

    def _lay_out(
        self, items: list[WriteItem], data: list[Tensor]
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
            name = f"shard-{self._rank + 1:05d}{suffix}{TENSORS}"
            files.append(StagedFile(name, header, begin, end))
            end = math.ceil(end / _ALIGN_BYTES) * _ALIGN_BYTES
        return begins, files, end

    def prepare_local_plan(self, plan: dcp.SavePlan) -> dcp.SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[dcp.SavePlan]) -> list[dcp.SavePlan]:
        return plans

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing to set up."""

    def reset(self, checkpoint_id: Any = None) -> None:
        """Used once, so there is nothing to forget."""

    def finish(self, metadata: dcp.Metadata, results: list[list[WriteResult]]) -> None:
        """The manifest takes the place of torch's metadata, which would be a pickle."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return True


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


def _known(saved: Saved) -> dict[str, TensorStorageMetadata]:
    try:
        known = dcp.HuggingFaceStorageReader(str(saved.path)).read_metadata().state_dict_metadata
    except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
        raise DamagedError(f"the tensors in {saved.path} cannot be read: {error!r}") from error
    return dict(known)  # type: ignore[arg-type]


def _check(
    saved: Saved, known: Mapping[str, TensorStorageMetadata], into: Mapping[str, Tensor]
) -> None:
    missing = sorted(into.keys() - known.keys())
    if missing:
        near = nearest(missing[0], known)
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


def _load(saved: Saved, into: Mapping[str, Tensor], *, alone: bool = False) -> None:
    if into:
        reader = dcp.HuggingFaceStorageReader(str(saved.path))
        no_dist = alone or not dist.is_initialized()
        try:
            dcp.load(dict(into), storage_reader=reader, no_dist=no_dist)
        except dcp.CheckpointException as error:
            raise DamagedError(
                f"the tensors in {saved.path} cannot be read: {_first(error)!r}"
            ) from error


def _first(error: dcp.CheckpointException) -> BaseException:
    return next(iter(error.failures.values()))[0]
