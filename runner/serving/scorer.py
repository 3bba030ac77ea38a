"""Scores raw rows with an exported model, with numpy, pyarrow and torch or onnxruntime alone.

TorchRec, FBGEMM and Hydra are imported nowhere on this way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from runner.errors import UserError, unknown_choice
from runner.serving.artifact import (
    FORMATS,
    Artifact,
    GraphSpec,
    graph_file,
    open_artifact,
    require_graph,
)
from runner.serving.raw_rows import (
    EncodedRows,
    as_table,
    encode_rows,
    graph_features,
    graph_inputs,
)

RunGraph = Callable[[Sequence[np.ndarray]], list[np.ndarray]]


class Scorer:
    """A loaded artifact. It can be used from several threads at once.

    Args:
        artifact: verified by `open_artifact`.
        run: what runs each graph.
    """

    def __init__(self, artifact: Artifact, run: Mapping[str, RunGraph]) -> None:
        self.artifact = artifact
        self._run = dict(run)

    @classmethod
    def load(
        cls,
        path: Path | str,
        *,
        format: str | None = None,
        trust_native_code: bool = False,
        num_threads: int = 0,
    ) -> Scorer:
        """Load an artifact, after its files were held against the manifest.

        A `.pt2` and an ONNX file run nothing but their graph, whoever has written them. An
        AOTInductor package is machine code, which runs with all your rights when it is loaded.

        Args:
            path: the folder.
            format: one of those in the artifact; None: the first of them.
            trust_native_code: whether an AOTInductor package may be loaded.
            num_threads: of onnxruntime; 0: its default. torch has its own setting.

        Raises:
            UserError: for a folder that is damaged or not an artifact, a format that it does not
                have, and for native code that is not trusted.
        """
        artifact = open_artifact(path)
        chosen = artifact.formats[0] if format is None else format
        if chosen not in artifact.formats:
            raise UserError(unknown_choice("format", chosen, artifact.formats))
        if chosen == "aoti" and not trust_native_code:
            raise UserError(
                f"{path}: holds machine code, which runs with all your rights when it is loaded; "
                "trust_native_code=True loads an artifact of your own"
            )
        run = {}
        for spec in artifact.graphs:
            name = graph_file(spec.name, chosen)
            if name not in artifact.manifest["files"]:
                raise UserError(f"{path}: the manifest lists no {name}")
            run[spec.name] = load_graph(artifact.path / name, chosen, spec, num_threads=num_threads)
        return cls(artifact, run)

    @property
    def is_retrieval(self) -> bool:
        """Whether a row's score is the dot product of its query and its item."""
        return len(self.artifact.graphs) > 1

    def score(self, rows: Any, *, skip_bad_rows: bool = False) -> dict[str, np.ndarray]:
        """Score raw rows.

        Args:
            rows: an Arrow table, or column -> values; see `schema.json` for the columns.
            skip_bad_rows: give a row that cannot be scored NaN instead of raising an error.

        Returns:
            Task -> [R] float32: the probability of a binary label, or the value of a regression.

        Raises:
            DataError: naming the column that is missing, or the first bad row and its value.
        """
        return self.score_encoded(self.encode(rows, skip_bad_rows=skip_bad_rows))

    def encode(self, rows: Any, *, skip_bad_rows: bool = False, first_row: int = 0) -> EncodedRows:
        """Encode raw rows for all graphs.

        Raises:
            DataError: as in `score`.
        """
        features = graph_features(self.artifact.graphs)
        raw = self.artifact.raw
        return encode_rows(
            raw, as_table(rows), features, first_row=first_row, skip_bad_rows=skip_bad_rows
        )

    def score_encoded(self, rows: EncodedRows) -> dict[str, np.ndarray]:
        """Score encoded rows, as `score` does."""
        logits_RT = self.logits(rows)
        scores = {}
        for t, task in enumerate(self.artifact.tasks):
            x_R = logits_RT[:, t]
            with np.errstate(over="ignore"):
                y_R = 1 / (1 + np.exp(-x_R)) if task.kind == "binary" else x_R.copy()
            y_R[rows.bad_R] = np.nan
            scores[task.name] = y_R.astype(np.float32)
        return scores

    def logits(self, rows: EncodedRows) -> np.ndarray:
        """Return the logits of encoded rows, [R, T] float32."""
        if not rows.num_rows:
            return np.zeros((0, len(self.artifact.tasks)), np.float32)
        if not self.is_retrieval:
            return self.run("model", rows)["logits"]
        query_RD, item_RD = self.vectors("query", rows), self.vectors("items", rows)
        logits: np.ndarray = np.einsum("rd,rd->r", query_RD, item_RD)[:, None]
        return logits

    def vectors(self, graph: str, rows: EncodedRows | Any) -> np.ndarray:
        """Return the vectors of `query` or `items`, [R, D] float32.

        Args:
            graph: `query` or `items`.
            rows: encoded rows, or raw ones with the columns that this graph reads.

        Raises:
            DataError: as in `score`, and for a model that has no such half.
        """
        if not isinstance(rows, EncodedRows):
            features = graph_features([require_graph(self.artifact, graph)])
            rows = encode_rows(self.artifact.raw, as_table(rows), features)
        return self.run(graph, rows)["vectors"]

    def run(self, graph: str, rows: EncodedRows) -> dict[str, np.ndarray]:
        """Run one graph on encoded rows; return its outputs by name.

        Raises:
            DataError: if the artifact has no such graph.
        """
        return self.run_arrays(graph, self.arrays(graph, rows))

    def arrays(self, graph: str, rows: EncodedRows) -> list[np.ndarray]:
        """Return the inputs of a graph in their order; see `GraphSpec`.

        Raises:
            DataError: if the artifact has no such graph.
        """
        spec = require_graph(self.artifact, graph)
        inputs = graph_inputs(spec, rows)
        return [inputs[name] for name in spec.inputs]

    def run_arrays(self, graph: str, arrays: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Run one graph on its inputs, whose ids are not checked; return its outputs by name.

        Raises:
            DataError: if the artifact has no such graph.
        """
        spec = require_graph(self.artifact, graph)
        return dict(zip(spec.outputs, self._run[graph](arrays), strict=True))


def load_graph(path: Path, format_: str, spec: GraphSpec, *, num_threads: int = 0) -> RunGraph:
    """Load one graph; the function takes its inputs and returns its outputs, in order.

    Raises:
        UserError: for a `.pt2` that holds more than a graph and tensors, and where the package
            that runs the format is not installed.
    """
    assert format_ in FORMATS, format_
    try:
        if format_ == "onnx":
            import onnxruntime as ort

            options = ort.SessionOptions()
            options.intra_op_num_threads = num_threads
            session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            return partial(_run_onnx, session, spec.inputs)
        import torch
    except ImportError as error:
        missing = "onnxruntime" if format_ == "onnx" else "torch"
        raise UserError(f"{path}: needs {missing}: pip install {missing}") from error
    if format_ == "aoti":
        from torch._inductor import aoti_load_package

        return partial(_run_native, aoti_load_package(str(path)).loader)
    from runner.serving.pt2_check import check_pt2

    check_pt2(path)
    # guards are code of the file, and say what `raw_rows` makes sure of
    return partial(_run_torch, torch.export.load(str(path)).module(check_guards=False))


def _run_torch(module: Any, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    import torch

    with torch.no_grad():
        outputs = module(*(torch.from_numpy(values) for values in inputs))
    return [output.numpy() for output in outputs]


def _run_native(loader: Any, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Run the package itself: the call around it costs as much as a row."""
    import torch

    outputs = loader.boxed_run([torch.from_numpy(values) for values in inputs])
    return [output.numpy() for output in outputs]


def _run_onnx(session: Any, names: Sequence[str], inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    outputs: list[np.ndarray] = session.run(None, dict(zip(names, inputs)))
    return outputs
