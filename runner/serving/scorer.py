"""Scores raw rows with an exported model, with numpy, pyarrow and torch or onnxruntime alone.

It never imports TorchRec, FBGEMM or Hydra.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa

from runner.errors import UserError
from runner.serving.artifact.check_artifact import check_artifact, check_graphs, check_schema
from runner.serving.artifact.delta import open_delta
from runner.serving.artifact.folder import Artifact, graph_file, require_graph
from runner.serving.artifact.loaded_graph import LoadedGraph, load_graph
from runner.serving.artifact.raw_rows import EncodedRows, encode_rows, graph_features, graph_inputs
from runner.serving.items.item_index import ItemIndex, item_columns, open_index
from runner.serving.items.item_table import find_history, read_item_table
from runner.serving.items.item_vectors import with_vectors_of


class Scorer:
    """A loaded artifact. It can be used from several threads at once.

    Each answer comes from one version, also while `apply_delta` replaces it. For several calls on
    the same version, or to report the version of an answer, use a `snapshot`.

    Args:
        artifact: verified by `open_artifact`.
        graphs: by name.
        index: an index of the items of a retrieval model; None: all items are compared.
    """

    def __init__(
        self, artifact: Artifact, graphs: Mapping[str, LoadedGraph], index: ItemIndex | None = None
    ) -> None:
        self._now = _Version(artifact, dict(graphs), index)  # replaced as one
        self._delta_lock = Lock()

    @property
    def artifact(self) -> Artifact:
        """The artifact that is served, after all applied deltas."""
        return self._now.artifact

    @property
    def version(self) -> str:
        """The model's version, which answers name."""
        return self.artifact.version

    def snapshot(self) -> Scorer:
        """Return a scorer that stays at the present version and shares its weights."""
        return self._at(self._now)

    @classmethod
    def _at(cls, version: _Version) -> Scorer:
        same = cls(version.artifact, {})
        same._now = version
        return same

    def apply_delta(self, path: Path | str) -> None:
        """Switch to the version of a delta, between two answers.

        Answers in progress use the version before. The tables that change are copied, so that
        they are in memory twice until the last of these answers is given. The items of a retrieval
        model get new vectors; an approximate index would be outdated, so that from now on all
        items are compared.

        Args:
            path: the folder of the delta; `runner.serving.next_delta` finds it.

        Raises:
            UserError: a ValueError, for a delta whose base is not the version that is served,
                naming both, and for a damaged one; nothing has changed then.
        """
        with self._delta_lock:
            now, delta = self._now, open_delta(path)
            delta.check_base(now.artifact)
            changed = {
                name: graph.with_weights(delta.new_weights(name, graph.weight))
                for name, graph in now.graphs.items()
            }
            new = _Version(delta.applied_to(now.artifact), changed, has_deltas=True)
            if new.artifact.raw is not now.artifact.raw:
                check_schema(new.artifact, delta.path)
                check_graphs(new.artifact, changed, delta.path)
            if now.index is not None:  # built now, so that no answer waits for it
                new.index = self._at(new).index
            self._now = new

    @classmethod
    def load(
        cls,
        path: Path | str,
        *,
        format: str | None = None,
        trust_native_code: bool = False,
        num_threads: int = 0,
        index: Path | str | None = None,
    ) -> Scorer:
        """Load an artifact, after checking its files against the manifest.

        A `.pt2` or an ONNX file runs nothing but its graph, whoever has written it. An
        AOTInductor package is machine code, which runs with all your rights once it is loaded.

        Args:
            path: the folder.
            format: one of those in the artifact; None: the first of them.
            trust_native_code: whether an AOTInductor package may be loaded.
            num_threads: of onnxruntime; 0: its default. torch has its own setting.
            index: a folder of `python -m runner index` for this version of the model.

        Raises:
            UserError: for a folder that is damaged or not an artifact, a format that it does not
                have, for native code that is not trusted, and for an index of another model.
        """
        artifact, chosen = check_artifact(path, format, trust_native_code)
        item_index = None if index is None else open_index(index, {"version": artifact.version})
        graphs = {}
        for spec in artifact.graphs:
            path_of = artifact.path / graph_file(spec.name, chosen)
            graphs[spec.name] = load_graph(path_of, chosen, spec, num_threads=num_threads)
        check_graphs(artifact, graphs, artifact.path)
        return cls(artifact, graphs, item_index)

    @property
    def is_retrieval(self) -> bool:
        """Whether a row's score is the dot product of its query and its item."""
        return len(self.artifact.graphs) > 1

    def score(self, rows: Any, *, skip_bad_rows: bool = False) -> dict[str, np.ndarray]:
        """Score raw rows.

        Args:
            rows: an Arrow table, column -> values, or a list of rows, column -> value each; see
                `schema.json` for the columns.
            skip_bad_rows: give a row that cannot be scored NaN instead of raising an error.

        Returns:
            Task -> [R] float32: the probability of a binary label or a class, or the value of a
            regression. Of a label of classes also `class_LABEL` -> [R] texts: the most probable.

        Raises:
            DataError: naming the column that is missing, or the first bad row and its value.
        """
        scorer = self.snapshot()
        encoded = scorer.encode(rows, skip_bad_rows=skip_bad_rows)
        return scorer.task_scores(scorer.logits(encoded), encoded.bad_R)

    def encode(self, rows: Any, *, skip_bad_rows: bool = False) -> EncodedRows:
        """Encode raw rows for all graphs.

        Raises:
            DataError: as in `score`.
        """
        artifact = self.artifact
        features = graph_features(artifact.graphs)
        return encode_rows(artifact.raw, rows, features, skip_bad_rows=skip_bad_rows)

    def task_scores(self, logits_RT: np.ndarray, bad_R: np.ndarray) -> dict[str, np.ndarray]:
        """Return the scores of logits, as `score` does; of bad rows NaN, and no class."""
        scores = {}
        for t, task in enumerate(self.artifact.tasks):
            x_R = logits_RT[:, t]
            with np.errstate(over="ignore"):
                y_R = 1 / (1 + np.exp(-x_R)) if task.kind == "binary" else x_R.copy()
            y_R[bad_R] = np.nan
            scores[task.name] = y_R.astype(np.float32)
        for label, columns in self.artifact.classes.items():
            names = [self.artifact.tasks[t].name.removeprefix(f"{label}.") for t in columns]
            classes_R = np.array(names, object)[logits_RT[:, columns].argmax(axis=1)]
            classes_R[bad_R] = None
            scores[f"class_{label}"] = classes_R
        return scores

    def logits(self, rows: EncodedRows) -> np.ndarray:
        """Return the logits of encoded rows, [R, T] float32."""
        scorer = self.snapshot()
        if not rows.num_rows:
            return np.zeros((0, len(scorer.artifact.tasks)), np.float32)
        if not scorer.is_retrieval:
            return scorer.run("model", rows)["logits"]
        query_RD, item_RD = scorer.vectors("query", rows), scorer.vectors("items", rows)
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
        scorer = self.snapshot()
        if not isinstance(rows, EncodedRows):
            features = graph_features([require_graph(scorer.artifact, graph)])
            rows = encode_rows(scorer.artifact.raw, rows, features)
        return scorer.run(graph, rows)["vectors"]

    def top_k(self, rows: Any, top_k: int) -> pa.Table:
        """Find the best items of each row; items of its history as in the model's evaluation.

        Args:
            rows: raw rows with the columns of the query.
            top_k: how many items, K.

        Returns:
            `top_items`, raw ids best first, and `top_scores`: [R] lists of K. Both are null where
            no more items are left.

        Raises:
            DataError: as in `score`, and for a model that has no query.
            UserError: for a model without a table of items.
        """
        if not isinstance(top_k, int | np.integer) or top_k < 1:
            raise UserError(f"top_k={top_k!r}: must be at least 1, and whole")
        scorer = self.snapshot()
        query = require_graph(scorer.artifact, "query")
        encoded = encode_rows(scorer.artifact.raw, rows, graph_features([query]))
        return pa.table(
            item_columns(scorer.index.ids, *scorer.search(scorer.index, encoded, top_k))
        )

    def search(
        self, index: ItemIndex, rows: EncodedRows, top_k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions in an index of the best items of encoded rows, and their scores."""
        return self.search_arrays(index, self.arrays("query", rows), top_k)

    def search_arrays(
        self,
        index: ItemIndex,
        arrays: Sequence[np.ndarray],
        top_k: int,
        leave_out: Sequence[int | str] = (),
    ) -> tuple[np.ndarray, np.ndarray]:
        """Search as `search` does, for inputs of the graph `query`, whose ids are not checked.

        Args:
            leave_out: raw ids of items that are found for no row.
        """
        vectors_RD = self.run_arrays("query", arrays)["vectors"]
        return index.find(vectors_RD, top_k, self._seen(arrays), index.table_rows(leave_out))

    @property
    def index(self) -> ItemIndex:
        """The index that was loaded, or an exact one over the items of the present version.

        Raises:
            UserError: for a model without a table of items.
        """
        scorer = self.snapshot()
        with scorer._now.index_lock:
            if scorer._now.index is None:
                items = read_item_table(scorer.artifact)
                if scorer._now.has_deltas:
                    items = with_vectors_of(items, scorer)
                scorer._now.index = ItemIndex.exact(items)
            return scorer._now.index

    def _seen(self, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the table rows that a search leaves out, [R, L], and their number, [R]."""
        history, query = find_history(self.artifact), require_graph(self.artifact, "query")
        if history is None:
            return None
        place = [sequence.name for sequence in query.sequences].index(history)
        inputs = dict(zip(query.inputs, arrays, strict=True))
        return inputs[f"ids_{place}"], inputs[f"length_{place}"]

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
        now = self._now
        spec = require_graph(now.artifact, graph)
        return dict(zip(spec.outputs, now.graphs[graph](arrays), strict=True))


@dataclass
class _Version:
    """One version of the model. It never changes; its index is built when first needed."""

    artifact: Artifact
    graphs: Mapping[str, LoadedGraph]
    index: ItemIndex | None = None
    has_deltas: bool = False
    index_lock: Any = field(default_factory=Lock, repr=False)
