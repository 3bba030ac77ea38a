"""Loads and runs the graphs of an artifact, in each format, with their weights.

A loaded graph never changes: another version of its weights is another object, so that a request
is scored with the same weights from beginning to end. It needs only numpy, and torch or
onnxruntime.
"""

from __future__ import annotations

import contextlib
import copy
import re
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from runner.errors import UserError
from runner.rundir.regular_files import file_state
from runner.serving.artifact.folder import (
    EXPORT_AGAIN,
    EXPORT_WHOLE,
    FORMATS,
    GraphSpec,
    weights_file,
)
from runner.serving.artifact.onnx_weights import read_initializers, with_initializers
from runner.serving.artifact.pt2_check import load_program


class LoadedGraph(Protocol):
    """A graph that runs; it can be called from several threads at once."""

    def __call__(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the outputs; inputs and outputs are in the order of the graph's `GraphSpec`."""

    def weight(self, name: str) -> np.ndarray | None:
        """Return a weight, which must not be changed; None if the graph does not read it."""

    def with_weights(self, changed: Mapping[str, np.ndarray]) -> LoadedGraph:
        """Return the graph with other values for some of its weights.

        Raises:
            UserError: if the format cannot take them.
        """


def load_graph(path: Path, format_: str, spec: GraphSpec, *, num_threads: int = 0) -> LoadedGraph:
    """Load one graph.

    Raises:
        UserError: for a `.pt2` that holds more than a graph and tensors, and where the package
            that runs the format is not installed.
    """
    assert format_ in FORMATS, format_
    package = "onnxruntime" if format_ == "onnx" else "torch"
    if find_spec(package) is None:
        raise UserError(f"{path}: needs {package}: pip install {package}")
    if format_ == "onnx":
        return OnnxGraph(path, spec, num_threads)
    if format_ == "aoti":
        weights = read_weights(path.with_name(weights_file(spec.name)))
        return NativeGraph(NativePackages(path), weights)
    # guards are code from the file, and check what `raw_rows` makes sure of anyway
    return TorchGraph(load_program(path).module(check_guards=False))


def read_weights(path: Path) -> dict[str, np.ndarray]:
    """Read a safetensors file.

    Raises:
        UserError: if it cannot be read, or safetensors is not installed.
    """
    try:
        from safetensors import SafetensorError
        from safetensors.numpy import load_file
    except ImportError as error:
        raise UserError(f"{path}: needs safetensors: pip install safetensors") from error
    try:
        weights: dict[str, np.ndarray] = load_file(path)
    except (OSError, SafetensorError, KeyError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
    return weights


def write_weights(path: Path, weights: Mapping[str, np.ndarray]) -> None:
    """Write a safetensors file with the read permissions of its folder.

    Raises:
        UserError: if it cannot be written.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    try:
        save_file(dict(weights), path)
    except SafetensorError as error:  # an error of the disk that is not an OSError
        number = re.search(r"os error (\d+)", str(error))
        cause = OSError(int(number[1]), str(error)) if number else error
        raise UserError(f"{path}: cannot be written: {error}") from cause
    # safetensors makes it readable for its owner only
    path.chmod(path.parent.stat().st_mode & 0o666)


class TorchGraph:
    """A graph of torch's own operators, of a `.pt2`."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._weights = dict(module.named_parameters()) | dict(module.named_buffers())
        weakref.finalize(self, _drop_weights, module).atexit = False

    def __call__(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        import torch

        with torch.no_grad():
            outputs = self._module(*(torch.from_numpy(values) for values in inputs))
        return [output.numpy() for output in outputs]

    def weight(self, name: str) -> np.ndarray | None:
        tensor = self._weights.get(name)
        return None if tensor is None else tensor.detach().numpy()

    def with_weights(self, changed: Mapping[str, np.ndarray]) -> TorchGraph:
        import torch

        # copies the code, but no weights
        memo: dict[int, Any] = {id(weight): weight for weight in self._weights.values()}
        for name, values in changed.items():
            old, new = self._weights[name], torch.from_numpy(values)
            if isinstance(old, torch.nn.Parameter):
                new = torch.nn.Parameter(new, requires_grad=False)
            memo[id(old)] = new
        with without_tree_warning():
            return TorchGraph(copy.deepcopy(self._module, memo))


def _drop_weights(module: Any) -> None:
    """Free the weights of a graph that is no longer used.

    Its module refers to itself, so that they would stay until Python's garbage collector runs,
    which never examines objects that were loaded before `end_imports`.
    """
    for part in module.modules():
        part._parameters.clear()
        part._buffers.clear()


@contextlib.contextmanager
def without_tree_warning() -> Iterator[None]:
    """Suppress a warning of torch 2.13 about how it copies its own graphs."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`isinstance\(treespec", FutureWarning)
        yield


class NativePackages:
    """Loaded copies of one AOTInductor package, each with its own weights.

    A package whose graph is no longer used is reused for the next version, whose weights are copied
    into its tensors: with torch 2.13, unloading a package leaks some of its memory, and giving it
    new tensors keeps the old ones for ever.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # packages of dropped versions for reuse, each with the tensors that it reads
        self.idle: list[tuple[Any, dict[str, Any]]] = []

    def take(self, weights: Mapping[str, np.ndarray]) -> tuple[Any, dict[str, Any]]:
        """Return a package that runs on these weights, and the tensors that it reads.

        Raises:
            UserError: if a weight that the code reads is missing.
        """
        import torch
        from torch._inductor import aoti_load_package

        package, tensors = self.idle.pop() if self.idle else (None, {})
        if package is None:
            package = aoti_load_package(str(self._path))
        names = package.get_constant_fqns()
        if missing := sorted(set(names) - weights.keys()):
            raise UserError(f"{self._path}: its weights lack {missing[0]!r}; {EXPORT_AGAIN}")
        if all(n in tensors and tuple(tensors[n].shape) == weights[n].shape for n in names):
            for name in names:
                tensors[name].copy_(torch.from_numpy(weights[name]))
        else:
            tensors = {name: torch.tensor(weights[name]) for name in names}
            package.load_constants(tensors, check_full_update=True, user_managed=True)
        return package, tensors


class NativeGraph:
    """A graph as machine code of AOTInductor."""

    def __init__(self, packages: NativePackages, weights: Mapping[str, np.ndarray]) -> None:
        self._packages = packages
        self._package, self._tensors = packages.take(weights)
        in_use = weakref.finalize(self, packages.idle.append, (self._package, self._tensors))
        in_use.atexit = False

    def __call__(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        import torch

        # asking the package would take as long as scoring a row
        outputs = self._package.loader.boxed_run([torch.from_numpy(values) for values in inputs])
        return [output.numpy() for output in outputs]

    def weight(self, name: str) -> np.ndarray | None:
        tensor = self._tensors.get(name)
        return None if tensor is None else tensor.numpy()

    def with_weights(self, changed: Mapping[str, np.ndarray]) -> NativeGraph:
        weights = {name: tensor.numpy() for name, tensor in self._tensors.items()}
        return NativeGraph(self._packages, {**weights, **changed})


class OnnxGraph:
    """A graph in onnxruntime, from a file or from the bytes of one."""

    def __init__(self, model: Path | bytes, spec: GraphSpec, num_threads: int) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = num_threads
        options.log_severity_level = 3  # errors: it warns of constants that it computes each time
        self._state = file_state(model) if isinstance(model, Path) else None
        source = str(model) if isinstance(model, Path) else model
        self._session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        self._model, self._spec, self._num_threads = model, spec, num_threads

    def __call__(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        outputs: list[np.ndarray] = self._session.run(None, dict(zip(self._spec.inputs, inputs)))
        return outputs

    @cached_property
    def _bytes(self) -> bytes | memoryview:
        if isinstance(self._model, bytes):
            return self._model
        if file_state(self._model) != self._state:
            raise UserError(f"{self._model}: was changed since the model was loaded; load it again")
        return np.memmap(self._model, np.uint8, "r").data

    @cached_property
    def _weights(self) -> dict[str, np.ndarray]:
        return read_initializers(self._bytes)

    def weight(self, name: str) -> np.ndarray | None:
        return self._weights.get(name)

    def with_weights(self, changed: Mapping[str, np.ndarray]) -> OnnxGraph:
        check_same_shapes(self._weights, changed)
        return OnnxGraph(with_initializers(self._bytes, changed), self._spec, self._num_threads)


def check_same_shapes(weights: Mapping[str, np.ndarray], changed: Mapping[str, np.ndarray]) -> None:
    """Check that an ONNX graph can take other weights.

    Raises:
        UserError: for a table with another number of rows, since the ONNX exporter has folded the
            offsets of tables into constants.
    """
    for name, values in changed.items():
        if weights[name].shape != values.shape:
            raise UserError(
                f"the ONNX graph has {name} with {len(weights[name]):,} rows, and the delta makes "
                f"them {len(values):,}: {EXPORT_WHOLE}, or serve pt2 or aoti, whose tables may grow"
            )
