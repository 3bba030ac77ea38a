"""Tables in scratch files, of which memory caches the pages that are read often.

Weights and states are memory-mapped, so that the kernels are those of tables in memory, with the
same results. The files have no name: the system frees them when the process ends, however it ends.
Only checkpoints last.
F features, V ids of a look-up, H ids whose rows are in one file.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from runner.distributed.shards import is_in_file
from runner.embeddings.huge_pages import ZerosFrom
from runner.embeddings.interface import EmbeddingTables, Layout, WrappedTables
from runner.errors import ConfigError
from runner.machine.memory import advise_random_reads

# A smaller tensor takes less memory than the page that a file would keep of it.
_MIN_BYTES = 4096
# Reads that wait for the disk at once: 20,000 random rows took 1.9 s by 1 thread, 0.5 s by 16.
_NUM_READERS = 16


def _map(like: Tensor, folder: Path) -> Tensor | None:
    """Return zeros of the shape and dtype of a tensor, in a file that the disk has room for.

    None for small tensors, which are allocated as usual.
    """
    if like.nbytes < _MIN_BYTES:
        return None
    with tempfile.TemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, like.nbytes)
        name = f"/proc/self/fd/{file.fileno()}"
        flat = torch.from_file(name, shared=True, size=like.numel(), dtype=like.dtype)
    advise_random_reads(flat.data_ptr(), flat.nbytes, random=True)
    return flat.view(like.shape)


def build_in_files(
    build: Callable[[], EmbeddingTables], folder: Path, num_bytes: int, *, device: torch.device
) -> EmbeddingTables:
    """Build tables whose memory is in scratch files.

    Args:
        build: makes the tables, with memory from `torch.zeros`.
        folder: is made if it is not there.
        num_bytes: what the tables and their optimizer's states need.

    Raises:
        ConfigError: if the disk has too little room.
        OSError: if the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    try:
        if num_bytes > free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with ZerosFrom(partial(_map, folder=folder)):
            engine = build()
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise ConfigError(
            f"sharding.tables=disk: the tables and their optimizers' states need "
            f"{num_bytes / 1e9:,.1f} GB beside the checkpoints, and {folder} has "
            f"{free / 1e9:,.1f} GB free; RUNNER_CACHE names a folder on another disk"
        ) from error
    return DiskTables(engine, device=device)


class DiskTables(WrappedTables):
    """The tables of another engine, whose memory is in files.

    Before a look-up, several threads touch its rows, since the disk serves many reads at once and
    the kernels would wait for one after another.
    """

    def __init__(self, engine: EmbeddingTables, *, device: torch.device) -> None:
        super().__init__(engine, device=device)
        self._regions = _regions(self.layout, engine.state())
        self._readers = ThreadPoolExecutor(_NUM_READERS, thread_name_prefix="table-reader")

    def _pool(self, kjt: KeyedJaggedTensor) -> Tensor:
        self._read_ahead(kjt)
        return self._engine._pool(kjt)

    def _read_ahead(self, kjt: KeyedJaggedTensor) -> None:
        """Read a byte of each row, and of its states where the backward will update it."""
        values_V = kjt.values().detach().numpy()
        feature_V = np.repeat(np.arange(len(self._keys)), kjt.length_per_key())
        reads: list[tuple[np.ndarray, np.ndarray]] = []
        for region in self._regions:
            if not (region.has_weights or torch.is_grad_enabled()):
                continue
            # the look-up itself refuses an id outside its table
            is_here_V = (values_V >= 0) & (values_V < region.num_rows_F[feature_V])
            feature_H = feature_V[is_here_V]
            places_H = values_V[is_here_V] * region.row_bytes_F[feature_H]
            places_H += region.start_F[feature_H]
            reads += [(region.data, part) for part in np.array_split(places_H, _NUM_READERS)]
        for _ in self._readers.map(np.take, *zip(*reads)) if reads else ():
            pass


@dataclass(frozen=True)
class _Region:
    """The bytes of one file: weights, or a state, of the tables of some features."""

    data: np.ndarray
    has_weights: bool
    start_F: np.ndarray  # where the first row of the feature's table begins
    row_bytes_F: np.ndarray
    num_rows_F: np.ndarray  # 0: the table is not in this file


def _regions(layout: Layout, state: Mapping[str, Tensor]) -> list[_Region]:
    features_of = {spec.name: spec.features for spec in layout.tables}
    order = {name: f for f, name in enumerate(layout.feature_order)}
    regions: dict[int, _Region] = {}
    for key, tensor in state.items():
        if not is_in_file(tensor):
            continue
        table, _, name = key.rpartition("/")
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in regions:
            flat = torch.empty(0, dtype=torch.uint8).set_(storage)
            sizes = (np.zeros(len(order), np.int64) for _ in range(3))
            regions[storage.data_ptr()] = _Region(flat.numpy(), name == "weight", *sizes)
        region = regions[storage.data_ptr()]
        features_F = [order[feature] for feature in features_of[table]]
        region.start_F[features_F] = tensor.storage_offset() * tensor.element_size()
        region.row_bytes_F[features_F] = tensor.stride(0) * tensor.element_size()
        region.num_rows_F[features_F] = len(tensor)
    return list(regions.values())
