"""The items of an exported retrieval model: their raw ids and vectors. Imports no torch.

I items, R rows, D width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from runner.data.columns.column_specs import IdSpec
from runner.data.columns.vocabulary import FIRST_VALUE_ID
from runner.data.core.blocks import read_parquet
from runner.data.core.fitted import FittedTransforms
from runner.errors import UserError, first_line
from runner.serving.artifact.folder import (
    EXPORT_AGAIN,
    MANIFEST,
    Artifact,
    hash_file,
    require_graph,
)

ITEMS, QUERIES = "items.parquet", "queries.parquet"
QUERY_ROWS = "query_rows.parquet"  # the raw rows of the queries


@dataclass(frozen=True)
class ItemTable:
    """The items that can be found, without the table rows of unknown and missing values."""

    ids: pa.Array  # [I] raw ids, int64, uint64 or string
    rows_I: np.ndarray  # int64: the items' rows in their table, ascending
    vectors_ID: np.ndarray  # float32


def find_item_feature(artifact: Artifact) -> IdSpec | None:
    """Return the feature with the ids of items; None if an item's vector depends on more."""
    graphs = [graph for graph in artifact.graphs if graph.name == "items"]
    names = [name for graph in graphs for group in graph.groups for name in group.features]
    return _id_spec(artifact.raw.declared.ids, names[0]) if len(names) == 1 else None


def find_history(artifact: Artifact) -> str | None:
    """Return the name of the sequence of items that a search leaves out, the history.

    None if there is none, or if the model's evaluation does not leave it out.
    """
    item, ids = find_item_feature(artifact), artifact.raw.declared.ids
    if item is None or not artifact.manifest.get("leave_history_out"):
        return None
    names = [sequence.name for sequence in require_graph(artifact, "query").sequences]
    tables = {name: _id_spec(ids, name).table_name for name in names}
    return next((name for name in names if tables[name] == item.table_name), None)


def _id_spec(ids: Sequence[IdSpec], name: str) -> IdSpec:
    [spec] = [spec for spec in ids if spec.name == name]
    return spec


def item_ids(
    ids: Sequence[IdSpec], fitted: FittedTransforms, feature: str
) -> tuple[np.ndarray, int]:
    """Return the raw id [I] of each row of a feature's table, and how many rows have no item.

    If ids were hashed to rows, the number of the row stands for them; texts of a vocabulary are
    represented by their hash.
    """
    spec = _id_spec(ids, feature)
    ids_I = np.arange(fitted.num_rows[spec.table_name])
    if spec.encode != "vocabulary":
        return ids_I, 0
    ids_I[FIRST_VALUE_ID:] = fitted.vocabularies[spec.table_name]
    is_unsigned = fitted.id_types.get(spec.column) == "unsigned"
    return ids_I.view(np.uint64) if is_unsigned else ids_I, FIRST_VALUE_ID


def name_items(ids_I: np.ndarray, texts: Mapping[int, str] | None) -> pa.Array:
    """Return items with the texts of their hashes as ids, if these are known."""
    return pa.array([texts.get(h, str(h)) for h in ids_I.tolist()] if texts else ids_I)


def write_item_table(folder: Path, items: ItemTable) -> None:
    """Write `items.parquet`: `id`, `row` and `vector` of each item."""
    columns = {"id": items.ids, "row": items.rows_I, "vector": vectors_as_lists(items.vectors_ID)}
    pq.write_table(pa.table(columns), folder / ITEMS, write_page_checksum=True)


def read_item_table(artifact: Artifact) -> ItemTable:
    """Read the items of an artifact.

    Raises:
        UserError: for a model without items, with the reason, and if the file is not what it was
            when the artifact was opened, such as in a folder that was replaced since.
    """
    if (why := why_no_items(artifact)) is not None:
        raise UserError(f"{artifact.path}: {why}")
    file = artifact.path / ITEMS
    if hash_file(file) != artifact.manifest["files"][ITEMS]:
        raise UserError(f"{file}: was changed since the model was loaded; load it again")
    return read_items(file, EXPORT_AGAIN)


def read_items(file: Path, remedy: str) -> ItemTable:
    """Read the items of a model or an index, whose hash was verified.

    Raises:
        UserError: for other columns, with the command to run again.
    """
    table = read_parquet(file)
    try:
        vectors_ID = vectors_as_matrix(table["vector"])
        return ItemTable(table["id"].combine_chunks(), table["row"].to_numpy(), vectors_ID)
    except (KeyError, ValueError, AttributeError) as error:
        problem = f"has not the columns of items (id, row, vector): {first_line(error)}"
        raise UserError(f"{file}: {problem}; {remedy}") from error


def why_no_items(artifact: Artifact) -> str | None:
    """Return why an artifact has no items to find; None if it has them."""
    if ITEMS in artifact.manifest["files"]:
        return None
    if len(artifact.graphs) == 1:
        why = "scores rows and has no vectors of items; model=two_tower and model=sasrec do"
    elif find_item_feature(artifact) is None:
        why = (
            "makes an item's vector of more features than its id, and these are known for the "
            "items of rows only; train with one feature in model.net.item"
        )
    else:
        why = f"has no {ITEMS}: it is of an earlier version; {EXPORT_AGAIN}"
    return f"{artifact.manifest.get('model', 'the model')} {why}"


def read_queries(artifact: Artifact) -> np.ndarray:
    """Return the queries of an artifact, [R, D] float32.

    Raises:
        UserError: if it has none.
    """
    return vectors_as_matrix(_read_listed(artifact, QUERIES)["vector"])


def read_query_rows(artifact: Artifact) -> pa.Table:
    """Return the raw rows of the queries.

    Raises:
        UserError: if there are none.
    """
    return _read_listed(artifact, QUERY_ROWS)


def _read_listed(artifact: Artifact, name: str) -> pa.Table:
    if name not in artifact.manifest["files"]:
        raise UserError(f"{artifact.path / MANIFEST}: lists no {name}; {EXPORT_AGAIN}")
    return read_parquet(artifact.path / name)


def vectors_as_lists(vectors_RD: np.ndarray, bad_R: np.ndarray | None = None) -> pa.Array:
    """Return a column of vectors as lists of equal length; null for bad rows."""
    flat = pa.array(np.ascontiguousarray(vectors_RD, np.float32).reshape(-1))
    mask = None if bad_R is None else pa.array(bad_R)
    return pa.FixedSizeListArray.from_arrays(flat, vectors_RD.shape[1], mask=mask)


def vectors_as_matrix(column: pa.ChunkedArray) -> np.ndarray:
    """Return a column of vectors as an array, [R, D]; of a row without one they are NaN."""
    lists = column.combine_chunks()
    flat: np.ndarray = lists.flatten().to_numpy(zero_copy_only=False)  # without those of nulls
    vectors_RD = flat.reshape(-1, lists.type.list_size)
    if not lists.null_count:
        return vectors_RD
    whole_RD = np.full((len(lists), lists.type.list_size), np.nan, np.float32)
    whole_RD[lists.is_valid().to_numpy(zero_copy_only=False)] = vectors_RD
    return whole_RD
