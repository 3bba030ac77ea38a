"""Which rows of which table a batch reads, and which columns of the look-up they make.

E width of all pooled embeddings side by side, R rows of a table, U rows read.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from runner.batch import Batch
from runner.models.layers.embedding import TableLookup


def looked_up_ids(lookup: TableLookup, batch: Batch, *more: Any) -> dict[str, Tensor]:
    """The ids that a batch looks up, by table, with repetitions. more: that the look-up is given,
    such as candidates."""
    sparse = lookup.lookup_ids(batch, *more)
    return {
        spec.name: torch.cat([sparse[feature].values() for feature in spec.features])
        for spec in lookup.specs
    }


def pooled_columns(lookup: TableLookup) -> dict[str, list[slice]]:
    """Columns of the pooled embeddings, by table: one slice for each feature that reads it."""
    spec_of = {feature: spec for spec in lookup.specs for feature in spec.features}
    columns: dict[str, list[slice]] = {spec.name: [] for spec in lookup.specs}
    start = 0
    for feature in lookup.features:
        spec = spec_of[feature]
        columns[spec.name].append(slice(start, start + spec.dim))
        start += spec.dim
    return columns


def lookup_weights(lookup: TableLookup) -> dict[str, Tensor]:
    """[R, D] by table: live tensors."""
    assert lookup.tables is not None
    state = lookup.tables.state()
    return {spec.name: state[f"{spec.name}/weight"] for spec in lookup.specs}


def find_non_finite_rows(lookup: TableLookup, batch: Batch, *more: Any) -> dict[str, Tensor]:
    """Rows among those read that hold a NaN or an infinity, by table; tables without are left out.

    Synchronises.
    """
    weights = lookup_weights(lookup)
    found = {}
    for name, ids in looked_up_ids(lookup, batch, *more).items():
        rows_U = ids.unique()
        bad_U = ~weights[name].index_select(0, rows_U).isfinite().all(1)
        if bad_U.any():  # sync
            found[name] = rows_U[bad_U]
    return found
