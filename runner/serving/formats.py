"""Writes a graph as a `.pt2`, an AOTInductor package or an ONNX file."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch

from runner.errors import UserError
from runner.serving.artifact import GraphSpec

ONNX_OPSET = 20
# Machine code that every x86-64 processor since 2013 runs; the default is that of this machine.
PORTABLE = {"cpp.march": "x86-64-v3", "cpp.simdlen": 256}


def save_graph(
    program: torch.export.ExportedProgram, spec: GraphSpec, path: Path, format_: str, portable: bool
) -> None:
    """Write a graph in a format.

    Args:
        program: the traced graph.
        spec: names its inputs and outputs.
        path: the new file.
        format_: one of `FORMATS`.
        portable: of machine code: for any x86-64 processor, not only for this machine's.

    Raises:
        UserError: for what the format cannot hold, with the reason.
    """
    try:
        if format_ == "pt2":
            _drop_example_inputs(program)
            torch.export.save(program, str(path))
        elif format_ == "aoti":
            _compile(program, path, portable)
        else:
            _save_onnx(program, spec, path)
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        raise UserError(
            f"format {format_}: {spec.name} cannot be written: {type(error).__name__}: {first}"
        ) from error


def _drop_example_inputs(program: torch.export.ExportedProgram) -> None:
    """Leave out the inputs of the trace: loading them is what would unpickle."""
    program.example_inputs = None


def _compile(program: torch.export.ExportedProgram, path: Path, portable: bool) -> None:
    from torch._inductor import aoti_compile_and_package, config

    with config.patch(PORTABLE if portable else {}):
        aoti_compile_and_package(program, package_path=str(path))


def _save_onnx(program: torch.export.ExportedProgram, spec: GraphSpec, path: Path) -> None:
    with _quiet():
        written = torch.onnx.export(
            program,
            input_names=list(spec.inputs),
            output_names=list(spec.outputs),
            opset_version=ONNX_OPSET,
            dynamo=True,
            verbose=False,
        )
    assert written is not None
    written.save(str(path), external_data=False)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Drop what the ONNX exporter says about its own progress."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels):
                logger.setLevel(level)
