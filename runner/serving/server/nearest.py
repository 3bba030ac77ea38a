"""Finds the nearest items of a request's rows, as tensors.

R rows, K items that are asked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from runner.errors import DataError
from runner.serving.artifact.folder import Artifact
from runner.serving.items.item_table import ITEMS, find_history, why_no_items
from runner.serving.rows.outputs import TOP_ITEMS, TOP_SCORES
from runner.serving.scorer import Scorer

TOP_K = "top_k"  # the parameter of a request for the number of items of a row
LEAVE_OUT = "leave_out"  # the parameter for raw ids of items to leave out
MAX_LEFT_OUT = 4096
TOP_COUNT = "top_count"
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")  # JSON can express it, but no text can hold it
NEAREST = (TOP_ITEMS, TOP_SCORES, TOP_COUNT)


def read_top_k(
    artifact: Artifact, parameters: Mapping[str, Any], outputs: Sequence[str], max_top_k: int
) -> int:
    """Return the number of items that a request wants for each row; 0 for none.

    Args:
        outputs: names of the tensors that it asks for; empty: the default ones.

    Raises:
        DataError: for a number out of range, a model without items, and outputs that do not fit.
    """
    top_k, about = parameters.get(TOP_K), f"parameters.{TOP_K}"
    requested = [name for name in outputs if name in NEAREST]
    if top_k is None:
        if requested:
            raise DataError(
                f"output {requested[0]!r} needs {about}: how many items, 1 to {max_top_k}"
            )
        return 0
    if (why := why_no_items(artifact)) is not None:
        raise DataError(f"{about}: {why}")
    if type(top_k) is not int or not 1 <= top_k <= max_top_k:
        raise DataError(f"{about}={top_k!r:.40}: must be a whole number of 1 to {max_top_k}")
    if outputs and not requested:
        raise DataError(f"{about}: none of the outputs asked for is one of {', '.join(NEAREST)}")
    return top_k


def read_left_out(artifact: Artifact, parameters: Mapping[str, Any]) -> tuple[int | str, ...]:
    """Return the raw ids that a request's search leaves out, of the type of the model's items.

    Raises:
        DataError: for a value that is no list of such ids, a list that is too long, and a request
            without `top_k`.
    """
    items, about = parameters.get(LEAVE_OUT), f"parameters.{LEAVE_OUT}"
    if items is None:
        return ()
    if parameters.get(TOP_K) is None:
        raise DataError(f"{about}: is for the nearest items, which parameters.{TOP_K} asks for")
    if not isinstance(items, list) or len(items) > MAX_LEFT_OUT:
        raise DataError(f"{about}={items!r:.40}: must be a list of at most {MAX_LEFT_OUT:,} items")
    type_ = _item_type(artifact)
    are_texts = pa.types.is_string(type_)
    low, high = (0, 2**64) if pa.types.is_uint64(type_) else (-(2**63), 2**63)
    kind = "a text of whole characters" if are_texts else "a whole number of 64 bits"
    for n, item in enumerate(items):
        is_number = type(item) is int and low <= item < high
        is_text = isinstance(item, str) and not _HALF_CHARACTER.search(item)
        if not (is_text if are_texts else is_number):
            raise DataError(f"{about}[{n}]={item!r:.40}: must be {kind}, as the ids of items are")
    return tuple(items)


def nearest_items(
    scorer: Scorer, arrays: Sequence[np.ndarray], top_k: int, leave_out: Sequence[int | str] = ()
) -> dict[str, np.ndarray]:
    """Find the best items of rows.

    Args:
        scorer: at one version.
        arrays: inputs of the graph `query`.
        leave_out: raw ids of items to leave out; ids that the model does not know are ignored.

    Returns:
        `top_items` [R, K] int64, uint64 or texts, `top_scores` [R, K] float32, best first, and
        `top_count` [R], the number of items. Beyond it, ids are 0 or "", and scores are NaN.
    """
    index = scorer.index
    positions_RK, scores_RK = scorer.search_arrays(index, arrays, top_k, leave_out)
    none = positions_RK.ravel() < 0
    ids_of_rows = index.ids.take(pa.array(positions_RK.ravel(), mask=none))
    blank = "" if pa.types.is_string(ids_of_rows.type) else 0
    ids: np.ndarray = ids_of_rows.fill_null(blank).to_numpy(zero_copy_only=False)
    return {
        TOP_ITEMS: ids.reshape(positions_RK.shape),
        TOP_SCORES: np.where(positions_RK < 0, np.float32(np.nan), scores_RK),
        TOP_COUNT: (positions_RK >= 0).sum(axis=1),
    }


def describe_nearest(artifact: Artifact) -> list[dict[str, object]]:
    """Return the descriptions of the output tensors for metadata."""
    kind = _item_type(artifact)
    whole = "UINT64" if pa.types.is_uint64(kind) else "INT64"
    datatypes = ("BYTES" if pa.types.is_string(kind) else whole, "FP32", "INT64")
    shapes = ([-1, -1], [-1, -1], [-1])
    return [
        {"name": name, "datatype": datatype, "shape": shape}
        for name, datatype, shape in zip(NEAREST, datatypes, shapes)
    ]


def _item_type(artifact: Artifact) -> pa.DataType:
    return _read_item_type(artifact.path, artifact.version)


@lru_cache(maxsize=16)
def _read_item_type(artifact: Path, version: str) -> pa.DataType:
    """Return the type of item ids, read once per version instead of per request."""
    return pq.read_schema(artifact / ITEMS).field("id").type


def left_out(artifact: Artifact) -> dict[str, str]:
    """Return the parameter of answers that names the history whose items are left out."""
    history = find_history(artifact)
    return {} if history is None else {"leaves_out": history}
