"""Reading of tensors in the format of torch's distributed checkpoint.

Torch's `HuggingFaceStorageReader` reads what `staging` has written into any other sharding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.metadata import Metadata

from runner.distributed.shards import LocalShard, LocalShards, is_in_file, local_tensors
from runner.errors import UserError, nearest_hint
from runner.machine.memory import advise_random_reads
from runner.rundir.checkpoint.manifest import Checkpoint, DamagedError

BLOCK_BYTES = 16 << 20  # bytes in memory at a time
_WHOLE_BYTES = 256 << 20  # of a tensor in memory that is read as a whole


def tensor_shapes(saved: Checkpoint) -> dict[str, tuple[int, ...]]:
    """Return the names and (unsharded) shapes of all tensors of a checkpoint."""
    entries: Mapping[str, Any] = _open(saved)[1].state_dict_metadata
    return {name: tuple(entry.size) for name, entry in entries.items()}


def load_tensors(
    saved: Checkpoint, into: Mapping[str, Tensor], *, partial: bool = False, convert: bool = False
) -> None:
    """Copy the tensors of a checkpoint into existing ones, in place.

    Args:
        into: the tensors by name; of a sharded one only the local shards are read.
        partial: whether the checkpoint may have other tensors, which are ignored.
        convert: whether floating-point numbers may change their dtype.

    Raises:
        UserError: if names, shapes or dtypes differ; no tensor has been changed then.
    """
    reader, metadata = _open(saved)
    _check(saved, metadata.state_dict_metadata, into, partial=partial, convert=convert)
    in_files = [t for tensor in into.values() for t in local_tensors(tensor) if is_in_file(t)]
    with ExitStack() as stack:
        for tensor in in_files:
            stack.enter_context(read_from_front(tensor))
        _read(saved, reader, metadata, {name: in_blocks(t) for name, t in into.items()})


def check_tensors(saved: Checkpoint, tensors: Mapping[str, Tensor]) -> None:
    """Check that tensors could be loaded from a checkpoint, floats in any dtype; reads none.

    Raises:
        UserError: if the checkpoint lacks one, or has it in another shape.
    """
    _check(saved, _open(saved)[1].state_dict_metadata, tensors, partial=True, convert=True)


def read_tensors(saved: Checkpoint, names: Iterable[str]) -> dict[str, Tensor]:
    """Read some tensors of a checkpoint, unsharded, into host memory.

    Raises:
        UserError: for names that the checkpoint does not have.
    """
    reader, metadata = _open(saved)
    entries: Mapping[str, Any] = metadata.state_dict_metadata
    into = {}
    for name in names:
        if name not in entries:
            raise UserError(f"{saved.path} has no tensor {name!r}{nearest_hint(name, entries)}")
        into[name] = torch.empty(entries[name].size, dtype=entries[name].properties.dtype)
    _read(saved, reader, metadata, into)
    return into


def _open(saved: Checkpoint) -> tuple[HuggingFaceStorageReader, Metadata]:
    reader = HuggingFaceStorageReader(str(saved.path))
    try:
        return reader, reader.read_metadata()
    except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
        raise DamagedError(f"the tensors in {saved.path} cannot be read: {error!r}") from error


def _check(
    saved: Checkpoint,
    entries: Mapping[str, Any],
    into: Mapping[str, Tensor],
    *,
    partial: bool,
    convert: bool,
) -> None:
    missing = sorted(into.keys() - entries.keys())
    if missing:
        near = nearest_hint(missing[0], entries)
        raise UserError(
            f"{saved.path} lacks {len(missing)} tensors of this run, "
            f"the first is {missing[0]!r}{near}"
        )
    for name, tensor in into.items():
        size, dtype = entries[name].size, entries[name].properties.dtype
        if tuple(size) != tuple(tensor.size()):
            raise UserError(
                f"{name!r} is {tuple(size)} in {saved.path}, but {tuple(tensor.size())} in this run"
            )
        are_floats = dtype.is_floating_point and tensor.dtype.is_floating_point
        if dtype != tensor.dtype and not (convert and are_floats):
            raise UserError(f"{name!r} is {dtype} in {saved.path}, but {tensor.dtype} in this run")
    unexpected = [] if partial else sorted(entries.keys() - into.keys())
    if unexpected:
        near = nearest_hint(unexpected[0], into)
        raise UserError(
            f"{saved.path} has {len(unexpected)} tensors that this run does not, "
            f"the first is {unexpected[0]!r}{near}"
        )


def _read(
    saved: Checkpoint,
    reader: HuggingFaceStorageReader,
    metadata: Metadata,
    into: Mapping[str, Tensor],
) -> None:
    """Load like `torch.distributed.checkpoint.load`, but without its collectives.

    Every rank reads the tensors that it needs independently.

    Raises:
        DamagedError: if the files cannot be read.
    """
    planner = DefaultLoadPlanner(flatten_state_dict=False)
    planner.set_up_planner(dict(into), metadata, is_coordinator=True)
    reader.set_up_storage_reader(metadata, is_coordinator=True)
    try:
        reader.read_data(planner.finish_plan(planner.create_local_plan()), planner).wait()
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise DamagedError(f"the tensors in {saved.path} cannot be read: {error!r}") from error


def row_blocks(tensor: Tensor) -> tuple[Tensor, ...]:
    """Split a tensor by rows into blocks of a size that memory always has."""
    num_rows = max(1, BLOCK_BYTES * len(tensor) // max(1, tensor.nbytes))
    return torch.split(tensor, num_rows)


def in_blocks(tensor: Tensor) -> Tensor:
    """Divide a large tensor, or one in a file, into shards, each of which is read as a whole."""
    if not any(is_in_file(t) or _is_large(t) for t in local_tensors(tensor)):
        return tensor
    zeros = (0,) * tensor.dim()
    shards = tensor.shards if isinstance(tensor, LocalShards) else [LocalShard(tensor, zeros)]
    blocks = []
    for shard in shards:
        first_row, *offset_in_row = shard.offset
        for rows in row_blocks(shard.tensor):
            blocks.append(LocalShard(rows, (first_row, *offset_in_row)))
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
