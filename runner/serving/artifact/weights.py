"""Reads the weights of an artifact, and writes an artifact with other weights."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from runner.serving.artifact.folder import Artifact, graph_file, weights_file
from runner.serving.artifact.loaded_graph import check_same_shapes, read_weights, write_weights
from runner.serving.artifact.onnx_weights import read_initializers, with_initializers
from runner.serving.artifact.pt2_check import load_program

_BY_COMPLETENESS = ("pt2", "aoti", "onnx")  # ONNX lacks the row offsets of tables


def read_artifact_weights(artifact: Artifact) -> dict[str, np.ndarray]:
    """Return `<graph>/<weight>` -> values, without running any code of the artifact.

    Raises:
        UserError: for a `.pt2` that holds more than a graph and tensors.
    """
    format_ = next(f for f in _BY_COMPLETENESS if f in artifact.formats)
    weights: dict[str, np.ndarray] = {}
    for spec in artifact.graphs:
        graph_weights = _read(artifact.path, spec.name, format_)
        weights |= {f"{spec.name}/{name}": values for name, values in graph_weights.items()}
    return weights


def _read(folder: Path, graph: str, format_: str) -> dict[str, np.ndarray]:
    path = folder / graph_file(graph, format_)
    if format_ == "aoti":
        return read_weights(folder / weights_file(graph))
    if format_ == "onnx":
        return read_initializers(path.read_bytes())
    return {name: tensor.detach().numpy() for name, tensor in load_program(path).state_dict.items()}


def write_graph(
    base: Artifact, graph: str, format_: str, changed: Mapping[str, np.ndarray], folder: Path
) -> None:
    """Write one graph of an artifact with other values for some of its weights.

    The code of the graph stays the same; nothing is compiled.

    Raises:
        UserError: for a table with another number of rows in ONNX.
    """
    name = graph_file(graph, format_)
    if format_ == "pt2":
        import torch

        from runner.serving.artifact.formats import save_program

        program = load_program(base.path / name)
        for key, values in changed.items():
            old = program.state_dict[key]
            tensor = torch.from_numpy(np.array(values))
            is_parameter = isinstance(old, torch.nn.Parameter)
            program.state_dict[key] = torch.nn.Parameter(tensor) if is_parameter else tensor
        save_program(program, folder / name)
    elif format_ == "aoti":
        shutil.copy(base.path / name, folder / name)
        weights = read_weights(base.path / weights_file(graph))
        write_weights(folder / weights_file(graph), weights | dict(changed))
    else:  # it holds only what it reads
        model = (base.path / name).read_bytes()
        weights = read_initializers(model)
        check_same_shapes(weights, {n: x for n, x in changed.items() if n in weights})
        (folder / name).write_bytes(with_initializers(model, changed))
