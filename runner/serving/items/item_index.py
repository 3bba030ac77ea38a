"""Finds the items with the best scores for a query: exactly, or by an approximate index of faiss.

It needs only Arrow and NumPy, so that a scorer can use it. I items, R rows, K best items,
L length of the history, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from runner.data.core.blocks import read_parquet
from runner.errors import UserError
from runner.machine.imports import missing_extra
from runner.serving.artifact.folder import check_own_hash, read_manifest, verify_files
from runner.serving.items.item_table import ITEMS, ItemTable, read_items
from runner.serving.rows.outputs import TOP_ITEMS, TOP_SCORES

KINDS = ("exact", "hnsw", "ivf")
FAISS_FILE = "index.faiss"
MAX_SCORES = 1 << 24  # scores of queries and items in memory at once
ROWS_AT_ONCE = 2048  # rows whose histories are compared with the results at once
NO_INDEX = "no index; `python -m runner index MODEL` makes one"

# queries [R, D] and a number of items -> positions [R, n], -1 for none, and scores [R, n]
Search = Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class ItemIndex:
    """Items that can be searched."""

    ids: pa.Array  # [I] raw ids, int64 or string
    rows_I: np.ndarray  # the items' rows in their table
    search: Search  # returns the positions of the best items
    # of the index; empty for one that was never written
    manifest: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def exact(cls, items: ItemTable) -> ItemIndex:
        """Return an index that compares a query with every item."""
        return cls(items.ids, items.rows_I, partial(search_exactly, items.vectors_ID))

    def find(
        self,
        query_RD: np.ndarray,
        top_k: int,
        seen: tuple[np.ndarray, np.ndarray] | None = None,
        left_out: Sequence[int] = (),
    ) -> tuple[np.ndarray, np.ndarray]:
        """Find the best items, best first.

        Args:
            query_RD: float32.
            seen: rows of the table that are left out, [R, L], and their number, [R].
            left_out: rows of the table that are left out for every query.

        Returns:
            Positions [R, K], -1 where there are no more items, and their scores [R, K].
        """
        if seen is None and not left_out:
            return self._search(query_RD, top_k)
        no_ids_RL = np.zeros((len(query_RD), 0), np.int64)
        ids_RL, length_R = seen or (no_ids_RL, no_ids_RL.sum(axis=1))
        parts = [
            self._find_unseen(query_RD[rows], top_k, ids_RL[rows], length_R[rows], left_out)
            for start in range(0, max(1, len(query_RD)), ROWS_AT_ONCE)
            for rows in (slice(start, start + ROWS_AT_ONCE),)
        ]
        positions, scores = zip(*parts)
        return np.concatenate(positions), np.concatenate(scores)

    def table_rows(self, items: Sequence[int | str]) -> list[int]:
        """Return the table rows of raw ids, without those of ids that the index does not know."""
        if not items:
            return []
        positions = pc.index_in(pa.array(items, self.ids.type), self.ids).drop_null()
        rows: list[int] = self.rows_I[positions.to_numpy()].tolist()
        return rows

    def _find_unseen(
        self,
        query_RD: np.ndarray,
        top_k: int,
        seen_RL: np.ndarray,
        length_R: np.ndarray,
        left_out: Sequence[int],
    ) -> tuple[np.ndarray, np.ndarray]:
        longest = int(length_R.max(initial=0))
        seen_RL = np.where(np.arange(longest) < length_R[:, None], seen_RL[:, :longest], -1)
        positions, scores = self._search(query_RD, top_k + longest + len(left_out))
        rows = self.rows_I[positions]
        out = (positions < 0) | np.isin(rows, left_out)
        for place in range(longest):
            out |= rows == seen_RL[:, place, None]
        order_RK = np.argsort(out, axis=1, kind="stable")[:, :top_k]
        out_RK = np.take_along_axis(out, order_RK, 1)
        positions_RK = np.where(out_RK, -1, np.take_along_axis(positions, order_RK, 1))
        return positions_RK, np.where(out_RK, -np.inf, np.take_along_axis(scores, order_RK, 1))

    def _search(self, query_RD: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Search, and fill up with -1 where there are fewer items."""
        num_found = min(count, len(self.ids))
        positions, scores = self.search(np.ascontiguousarray(query_RD, np.float32), num_found)
        missing = ((0, 0), (0, count - num_found))
        positions = np.pad(positions, missing, constant_values=-1)
        return positions, np.pad(scores, missing, constant_values=-np.inf).astype(np.float32)

    @property
    def kind(self) -> str:
        """How it searches."""
        return str(self.manifest.get("kind", "exact"))

    @property
    def version(self) -> str:
        """The hash of all files of the index."""
        return str(self.manifest["version"])


def item_columns(
    ids: pa.Array, positions_RK: np.ndarray, scores_RK: np.ndarray, bad_R: np.ndarray | None = None
) -> dict[str, pa.Array]:
    """Return `top_items` and `top_scores`, lists of K raw ids and scores.

    Args:
        ids: the raw id of each position.
        positions_RK: -1 where there is no item; both values are null there.
        scores_RK: float32.
        bad_R: rows whose lists are null; None for no row.
    """
    none, width = positions_RK.reshape(-1) < 0, positions_RK.shape[1]
    ids_of_rows = ids.take(pa.array(positions_RK.reshape(-1), mask=none))
    scores = pa.array(scores_RK.reshape(-1), mask=none)
    mask = None if bad_R is None else pa.array(bad_R)
    lists = [pa.FixedSizeListArray.from_arrays(x, width, mask=mask) for x in (ids_of_rows, scores)]
    return dict(zip((TOP_ITEMS, TOP_SCORES), lists))


def search_exactly(
    vectors_ID: np.ndarray, query_RD: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions and scores of the best items, best first; ties go to the first."""
    step = max(1, MAX_SCORES // max(1, len(vectors_ID)))
    positions, scores = [], []
    for start in range(0, max(1, len(query_RD)), step):
        scores_RI = query_RD[start : start + step] @ vectors_ID.T
        best = np.broadcast_to(np.arange(count), (len(scores_RI), count))
        if scores_RI.shape[1] > count:
            best = _best_positions(scores_RI, count)
        values = np.take_along_axis(scores_RI, best, 1)
        order = np.argsort(-values, axis=1, kind="stable")
        positions.append(np.take_along_axis(best, order, 1))
        scores.append(np.take_along_axis(values, order, 1))
    return np.concatenate(positions), np.concatenate(scores)


def _best_positions(scores_RI: np.ndarray, count: int) -> np.ndarray:
    """Return the positions of the best items, ascending; ties go to the first."""
    worst = scores_RI.shape[1] - count
    best_RK = np.sort(np.argpartition(scores_RI, worst, axis=1)[:, worst:], axis=1)
    least_R1 = np.take_along_axis(scores_RI, best_RK, 1).min(axis=1, keepdims=True)
    # which of the tied items at the boundary are included is arbitrary
    for row in np.flatnonzero((scores_RI >= least_R1).sum(axis=1) > count):
        above = np.flatnonzero(scores_RI[row] > least_R1[row])
        equal = np.flatnonzero(scores_RI[row] == least_R1[row])
        best_RK[row] = np.sort(np.concatenate((above, equal[: count - len(above)])))
    return best_RK


def open_index(path: Path | str, model: Mapping[str, Any]) -> ItemIndex:
    """Open an index after checking its files against their hashes.

    Args:
        model: the model it must be of: keys of `manifest["model"]` and their values.

    Raises:
        UserError: for a folder that is no index, is damaged, or is of another model.
    """
    folder = Path(path)
    manifest = read_index_manifest(folder, model)
    if manifest["kind"] == "exact":
        items = read_items(folder / ITEMS, "make it again: `python -m runner index MODEL`")
        return replace(ItemIndex.exact(items), manifest=manifest)
    import faiss

    table = read_parquet(folder / ITEMS)
    search = search_by_faiss(faiss.read_index(str(folder / FAISS_FILE)), manifest["parameters"])
    return ItemIndex(table["id"].combine_chunks(), table["row"].to_numpy(), search, manifest)


def read_index_manifest(folder: Path, model: Mapping[str, Any]) -> dict[str, Any]:
    """Read and check the manifest of an index, as `open_index` does. Imports no faiss.

    Raises:
        UserError: as `open_index`, and for a package that is missing.
    """
    manifest = read_manifest(folder, NO_INDEX, remedy="make it again")
    verify_files(folder, manifest["files"])
    indexed = manifest.get("model")
    is_index = manifest.get("kind") in KINDS and isinstance(manifest.get("parameters"), dict)
    if not is_index or not isinstance(indexed, dict):
        raise UserError(f"{folder}: {NO_INDEX}")
    for key, value in model.items():
        if indexed.get(key) != value:
            raise UserError(
                f"{folder}: is the index of another model: its {key} is {indexed.get(key)}, and "
                f"{value} here; `python -m runner index MODEL` makes one of this model"
            )
    check_own_hash(folder, manifest)
    if manifest["kind"] != "exact":
        check_faiss(str(manifest["kind"]))
    return manifest


def search_by_faiss(index: Any, parameters: Mapping[str, int]) -> Search:
    """Return the search of a faiss index.

    Args:
        parameters: `ef_search` of HNSW, or `num_probes` of IVF.
    """
    if "ef_search" in parameters:
        index.hnsw.efSearch = parameters["ef_search"]
    else:
        index.nprobe = parameters["num_probes"]

    def search(query_RD: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        scores, positions = index.search(query_RD, count)
        return positions, np.where(positions < 0, -np.inf, scores)

    return search


def check_faiss(kind: str) -> None:
    """Check that faiss is installed.

    Raises:
        UserError: with the command that installs it.
    """
    for missing in missing_extra(f"an index of kind {kind}", "ann", "faiss"):
        raise UserError(f"{missing}; --kind exact needs nothing")
