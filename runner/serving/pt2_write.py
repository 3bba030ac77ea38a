"""Writes a traced graph as a `.pt2` file that holds no pickle."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.export.pt2_archive import _package

_TO_BYTES = "_get_raw_tensor_bytes"


def save_program(program: torch.export.ExportedProgram, path: Path) -> None:
    """Write a traced graph and its weights, without its example inputs.

    Loading the inputs is what would unpickle.

    Args:
        program: the graph, whose weights lie on the CPU.
        path: the file.
    """
    program.example_inputs = None
    with _without_copies() if hasattr(_package, _TO_BYTES) else contextlib.nullcontext():
        torch.export.save(program, str(path))


@contextlib.contextmanager
def _without_copies() -> Iterator[None]:
    """Let `torch.export.save` write weights from where they lie.

    By itself it makes two copies of each, which a large table has no room for.
    """
    writer: Any = _package.PT2ArchiveWriter
    usual = getattr(_package, _TO_BYTES), writer.write_bytes
    setattr(_package, _TO_BYTES, _storage)
    writer.write_bytes = _write_bytes
    try:
        yield
    finally:
        setattr(_package, _TO_BYTES, usual[0])
        writer.write_bytes = usual[1]


def _storage(value: torch.Tensor) -> torch.UntypedStorage | bytes:
    return value.untyped_storage() if value.numel() else b""


def _write_bytes(writer: Any, name: str, data: torch.UntypedStorage | bytes) -> None:
    writer.archive_file.write_record(name, data, len(data))
