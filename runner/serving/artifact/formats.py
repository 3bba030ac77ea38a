"""Writes a graph as a `.pt2` that holds no pickle, an AOTInductor package or an ONNX file."""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.export.pt2_archive import _package

from runner.errors import NO_ROOM, UserError
from runner.serving.artifact.folder import FORMATS, GraphSpec, weights_file
from runner.serving.artifact.loaded_graph import without_tree_warning, write_weights
from runner.serving.artifact.onnx_weights import read_initializers

ONNX_OPSET = 20
GRAPH_BYTES = 4_000_000  # upper bound of the size of a graph without its weights
# Machine code that every x86-64 processor since 2013 runs; the default is that of this machine.
PORTABLE = {"cpp.march": "x86-64-v3", "cpp.simdlen": 256}
# All weights are in a file beside the code, also small ones, which would otherwise be constants in
# the code: so a delta can replace them without compiling again.
WEIGHTS_APART = {
    "always_keep_tensor_constants": True,
    "aot_inductor.package_constants_in_so": False,
}
_TO_BYTES = "_get_raw_tensor_bytes"


def save_graph(
    program: torch.export.ExportedProgram, spec: GraphSpec, path: Path, format_: str, portable: bool
) -> None:
    """Write a graph in a format.

    Args:
        portable: whether machine code is for any x86-64 processor, not only for this machine's.

    Raises:
        UserError: for what the format cannot hold, with the reason.
        OSError: if the disk becomes full.
    """
    try:
        if format_ == "pt2":
            save_program(program, path)
            return
        _check_room(program, path)
        if format_ == "aoti":
            _compile(program, path, portable)
            write_weights(path.with_name(weights_file(spec.name)), program_weights(program))
        else:
            _save_onnx(program, spec, path)
    except UserError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            raise
        first = (str(error).strip().splitlines() or [""])[0]
        raise UserError(
            f"--format {format_}: the graph {spec.name} cannot be written: {type(error).__name__}: "
            f"{first}; try another of {', '.join(FORMATS)}"
        ) from error


def _check_room(program: torch.export.ExportedProgram, path: Path) -> None:
    """Check that there is room for a file: PyTorch's writer aborts the process if there is none.

    Raises:
        UserError: if the disk, a quota or a limit leaves too little.
    """
    tensors = [*program.state_dict.values(), *program.constants.values()]
    needed = sum(t.nbytes for t in tensors if torch.is_tensor(t)) + GRAPH_BYTES
    free = shutil.disk_usage(path.parent).free
    if free < needed:
        raise UserError(
            f"{path.parent.parent}: no space left on device: the exported model needs up to "
            f"{needed / 1e6:,.1f} MB, and {free / 1e6:,.1f} MB are free"
        ) from OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    try:
        with path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, needed)
    except OSError as error:
        if error.errno in NO_ROOM:  # other file systems cannot tell
            raise UserError(
                f"{path.name}: {error.strerror}: the exported model needs up to "
                f"{needed / 1e6:,.1f} MB in one file, which a quota or a limit (ulimit -f) forbids"
            ) from error
    finally:
        path.unlink(missing_ok=True)


def _compile(program: torch.export.ExportedProgram, path: Path, portable: bool) -> None:
    from torch._inductor import aoti_compile_and_package, config

    with config.patch(WEIGHTS_APART | (PORTABLE if portable else {})), without_tree_warning():
        aoti_compile_and_package(program, package_path=str(path))


def program_weights(program: torch.export.ExportedProgram) -> dict[str, np.ndarray]:
    """Return the weights and constants of a traced graph by name."""
    tensors = {**program.state_dict, **program.constants}
    return {n: t.detach().contiguous().numpy() for n, t in tensors.items() if torch.is_tensor(t)}


def _save_onnx(program: torch.export.ExportedProgram, spec: GraphSpec, path: Path) -> None:
    """Write an ONNX file whose weights have their names, so that a delta can replace them.

    If the exporter's optimizer folds weights, such as those of a batch norm, the graph is exported
    again without it; onnxruntime folds them when it loads the file.

    Raises:
        ValueError: if the exporter changes a weight in spite of that.
    """
    for optimize in (True, False):
        _convert_to_onnx(program, spec, path, optimize)
        saved = read_initializers(path.read_bytes())
        lost = [n for n, x in _trained_weights(program).items() if not _is_same(x, saved.get(n))]
        if not lost:
            return
    raise ValueError(f"the file would not hold the weight {lost[0]!r} as it is")


def _is_same(values: np.ndarray, saved: np.ndarray | None) -> bool:
    return saved is not None and saved.shape == values.shape and saved.tobytes() == values.tobytes()


def _trained_weights(program: torch.export.ExportedProgram) -> dict[str, np.ndarray]:
    """Return the weights that the graph reads and training changes: all except row offsets."""
    signature, weights = program.graph_signature, program_weights(program)
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    used = {names[node.name] for node in program.graph.nodes if node.users and node.name in names}
    return {n: x for n, x in weights.items() if n in used and x.dtype not in (np.int64, np.bool_)}


def _convert_to_onnx(
    program: torch.export.ExportedProgram, spec: GraphSpec, path: Path, optimize: bool
) -> None:
    with _quiet():
        written = torch.onnx.export(
            program,
            input_names=list(spec.inputs),
            output_names=list(spec.outputs),
            opset_version=ONNX_OPSET,
            dynamo=True,
            optimize=optimize,
            verbose=False,
        )
    assert written is not None
    written.save(str(path), external_data=False)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the progress messages of the ONNX exporter."""
    with contextlib.ExitStack() as after, contextlib.redirect_stdout(io.StringIO()):
        after.enter_context(warnings.catch_warnings(action="ignore"))
        for logger in map(logging.getLogger, ("torch.onnx", "onnxscript", "onnx_ir")):
            after.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.ERROR)
        yield


def save_program(program: torch.export.ExportedProgram, path: Path) -> None:
    """Write a traced graph and its weights, without its example inputs.

    Example inputs would be unpickled when the file is loaded.

    Args:
        program: the graph, whose weights lie on the CPU.

    Raises:
        UserError: if there is no room for it.
    """
    _check_room(program, path)
    program.example_inputs = None
    with _without_copies() if hasattr(_package, _TO_BYTES) else contextlib.nullcontext():
        torch.export.save(program, str(path))


@contextlib.contextmanager
def _without_copies() -> Iterator[None]:
    """Let `torch.export.save` write weights from their own memory.

    By default it makes two copies of each, for which a large table leaves no room.
    """
    writer: Any = _package.PT2ArchiveWriter
    originals = getattr(_package, _TO_BYTES), writer.write_bytes
    setattr(_package, _TO_BYTES, _storage)
    writer.write_bytes = _write_bytes
    try:
        yield
    finally:
        setattr(_package, _TO_BYTES, originals[0])
        writer.write_bytes = originals[1]


def _storage(value: torch.Tensor) -> torch.UntypedStorage | bytes:
    return value.untyped_storage() if value.numel() else b""


def _write_bytes(writer: Any, name: str, data: torch.UntypedStorage | bytes) -> None:
    writer.archive_file.write_record(name, data, len(data))
