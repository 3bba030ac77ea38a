"""Computes the vectors of all items and some queries with the graphs of an exported model.

I items, R rows, D width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from runner.data.columns.hash_text import hash_texts
from runner.serving.artifact.folder import Artifact, require_graph
from runner.serving.artifact.raw_rows import (
    EncodedRows,
    encode_rows,
    graph_features,
    select_features,
)
from runner.serving.items.item_table import (
    QUERIES,
    QUERY_ROWS,
    ItemTable,
    find_item_feature,
    item_ids,
    name_items,
    vectors_as_lists,
)

ITEMS_AT_A_TIME = 16_384


class GraphRunner(Protocol):
    """Runs the graphs of an artifact: a `Scorer`."""

    @property
    def artifact(self) -> Artifact:
        """The artifact."""

    def run(self, graph: str, rows: EncodedRows) -> dict[str, np.ndarray]:
        """Run a graph on encoded rows."""

    def run_arrays(self, graph: str, arrays: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Run a graph on its inputs."""


def make_item_table(scorer: GraphRunner, texts: Mapping[int, str] | None = None) -> ItemTable:
    """Return the items of a model with the vectors computed by its graph.

    Args:
        scorer: of a retrieval model whose items have no feature but their id.
        texts: the text of each hash, where raw ids are texts.
    """
    spec = find_item_feature(scorer.artifact)
    assert spec is not None
    raw = scorer.artifact.raw
    ids_I, first = item_ids(raw.declared.ids, raw.fitted, spec.name)
    vectors_ID = all_item_vectors(scorer, len(ids_I))[first:]
    return ItemTable(name_items(ids_I[first:], texts), np.arange(first, len(ids_I)), vectors_ID)


def with_vectors_of(items: ItemTable, scorer: GraphRunner) -> ItemTable:
    """Return the items of an older version with the vectors and rows of the present one.

    Args:
        items: the source of the texts of hashes; other hashes stay as ids.
        scorer: of the newer version.
    """
    texts = None
    if pa.types.is_string(items.ids.type):
        texts = dict(zip(hash_texts(items.ids).tolist(), items.ids.to_pylist()))
    return make_item_table(scorer, texts)


def all_item_vectors(scorer: GraphRunner, num_items: int) -> np.ndarray:
    """Return the vectors of all rows of the items' table, [I, D] float32."""
    spec = require_graph(scorer.artifact, "items")
    parts = []
    for start in range(0, num_items, ITEMS_AT_A_TIME):
        ids = np.arange(start, min(start + ITEMS_AT_A_TIME, num_items))
        lengths = np.ones((1, len(ids)), np.int64)
        arrays = {"values_0": ids, "lengths_0": lengths, "weights_0": np.ones(len(ids), "f4")}
        parts.append(scorer.run_arrays("items", [arrays[name] for name in spec.inputs])["vectors"])
    return np.concatenate(parts)


def query_columns(artifact: Artifact) -> tuple[str, ...]:
    """Return the raw columns that the graph of the query reads."""
    features = graph_features([require_graph(artifact, "query")])
    return tuple(select_features(artifact.raw.declared, features).columns)


def write_queries(folder: Path, scorer: GraphRunner, rows: pa.Table) -> None:
    """Write query vectors of some rows, on which an index is measured, and the rows themselves.

    Args:
        rows: with the raw columns of the query. Those that cannot be read are left out.
    """
    features = graph_features([require_graph(scorer.artifact, "query")])
    encoded = encode_rows(scorer.artifact.raw, rows, features, skip_bad_rows=True)
    vectors_RD = scorer.run("query", encoded)["vectors"]
    is_good = pa.array(~encoded.bad_R)
    queries = pa.table({"vector": vectors_as_lists(vectors_RD)}).filter(is_good)
    pq.write_table(queries, folder / QUERIES)
    pq.write_table(rows.filter(is_good), folder / QUERY_ROWS)
