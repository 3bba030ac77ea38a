"""Tables that lie in scratch files: the memory of the machine holds the pages that are read often.

Weights and states are maps of files, so that the kernels are those of tables in memory, with the
same bits. The files have no name: the system frees them when the process ends, however it ends. The
checkpoint is what lasts.
V ids of a look-up.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from runner.distributed.shards import is_in_file
from runner.embeddings.interface import EmbeddingTables, Placement
from runner.errors import ConfigError
from runner.machine import advise_random_reads

# A smaller tensor takes less memory than the page that a file would keep of it.
_MIN_BYTES = 4096
# Reads that wait for the disk at once: 20,000 random rows took 1.9 s by 1 thread, 0.5 s by 16.
_NUM_READERS = 16


class _ZerosInFiles(TorchFunctionMode):
    """Lets `torch.zeros` map scratch files: FBGEMM and our engines get their memory from it."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is not torch.zeros:
            return func(*args, **kwargs)
        like = torch.empty(*args, **{**kwargs, "device": "meta"})
        return func(*args, **kwargs) if like.nbytes < _MIN_BYTES else _map(like, self._folder)


def _map(like: Tensor, folder: Path) -> Tensor:
    """Return zeros of the shape and dtype of a tensor, in a file that the disk has room for."""
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
        device: where they are looked up; the CPU.

    Raises:
        ConfigError: if the disk has too little room.
        OSError: if the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    try:
        if num_bytes > free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with _ZerosInFiles(folder):
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


class DiskTables(EmbeddingTables):
    """The tables of another engine, whose memory is in files.

    Before a look-up, several threads touch its rows, since the disk serves many reads at once and
    the kernels would wait for one after another.
    """

    def __init__(self, engine: EmbeddingTables, *, device: torch.device) -> None:
        super().__init__(engine.layout, engine.settings, device)
        self._engine = engine
        self._bytes_of: dict[str, list[tuple[np.ndarray, int]]] = {}
        for key, tensor in engine.state().items():
            if is_in_file(tensor):
                flat = tensor.view(torch.uint8).flatten().numpy()
                table = key.rpartition("/")[0]
                self._bytes_of.setdefault(table, []).append((flat, len(flat) // len(tensor)))
        self._table_of = {name: spec.name for spec in self.layout.tables for name in spec.features}
        self._readers = ThreadPoolExecutor(_NUM_READERS, thread_name_prefix="table-reader")

    def set_lr_and_step(self, lr: float, step: int) -> None:
        self._engine.set_lr_and_step(lr, step)

    def state(self) -> dict[str, Tensor]:
        return self._engine.state()

    def placement(self) -> list[Placement]:
        return self._engine.placement()

    def _pool(self, kjt: KeyedJaggedTensor) -> Tensor:
        self._read_ahead(kjt)
        return self._engine._pool(kjt)

    def _read_ahead(self, kjt: KeyedJaggedTensor) -> None:
        """Read a byte of each row, and of its states where the backward will update it."""
        values = kjt.values().detach().numpy()
        stops = np.cumsum(kjt.length_per_key())[:-1]
        reads: list[tuple[np.ndarray, np.ndarray]] = []
        for name, ids_V in zip(kjt.keys(), np.split(values, stops)):
            tensors = self._bytes_of.get(self._table_of[name], [])
            for flat, row_bytes in tensors if torch.is_grad_enabled() else tensors[:1]:
                places_V = ids_V * row_bytes
                # an id outside its table is refused by the look-up itself
                places_V = places_V[(places_V >= 0) & (places_V < len(flat))]
                reads += [(flat, part) for part in np.array_split(places_V, _NUM_READERS)]
        for _ in self._readers.map(_read_bytes, *zip(*reads)) if reads else ():
            pass


def _read_bytes(flat: np.ndarray, places: np.ndarray) -> None:
    flat.take(places)
