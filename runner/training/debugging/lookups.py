"""The rows of tables that a batch reads, and the columns of the look-up's output that they fill.

R rows of a table, D embedding width, U different rows that are read.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from runner.batch import Batch
from runner.embeddings.interface import feature_columns
from runner.models.layers.embedding import TableLookup


def looked_up_ids(lookup: TableLookup, batch: Batch, *args: Any) -> dict[str, Tensor]:
    """Return the ids that a batch looks up, by table, with repetitions.

    Args:
        args: further arguments of the look-up, such as candidates.
    """
    sparse = lookup.lookup_ids(batch, *args)
    return {
        spec.name: torch.cat([sparse[feature].values() for feature in spec.features])
        for spec in lookup.specs
    }


def pooled_columns(lookup: TableLookup) -> dict[str, list[slice]]:
    """Return the columns of the pooled embeddings, by table: a slice for each feature."""
    columns = feature_columns(lookup.specs, lookup.features)
    return {spec.name: [columns[feature] for feature in spec.features] for spec in lookup.specs}


def lookup_weights(lookup: TableLookup) -> dict[str, Tensor]:
    """Return the weights of each table, [R, D]; the live tensors, not copies."""
    assert lookup.tables is not None
    state = lookup.tables.state()
    return {spec.name: state[f"{spec.name}/weight"] for spec in lookup.specs}


def find_non_finite_rows(lookup: TableLookup, batch: Batch, *args: Any) -> dict[str, Tensor]:
    """Return the rows that were read and hold a NaN or an infinity, by table. Synchronises.

    Args:
        args: further arguments of the look-up, such as candidates.

    Returns:
        [U] row numbers by table; tables without such rows are left out.
    """
    weights = lookup_weights(lookup)
    bad_rows = {}
    for name, ids in looked_up_ids(lookup, batch, *args).items():
        rows_U = torch.unique(ids)
        bad_U = ~weights[name].index_select(0, rows_U).isfinite().all(1)
        if bad_U.any():  # sync
            bad_rows[name] = rows_U[bad_U]
    return bad_rows
