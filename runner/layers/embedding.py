"""The first half of every model: its table look-ups, declared here, placed by the builder."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from runner.batch import Batch, Embeddings, Schema, SparseFeature
from runner.optim.tables import Tables, TableSpec


def table_specs(features: Sequence[SparseFeature], dim: int) -> list[TableSpec]:
    """One specification a table; features that name the same table share its rows.

    Raises: ValueError if features of one table differ in rows or pooling.
    """
    by_table: dict[str, list[SparseFeature]] = {}
    for feature in features:
        by_table.setdefault(feature.table_name, []).append(feature)
    specs = []
    for name, sharing in by_table.items():
        first = sharing[0]
        for other in sharing[1:]:
            if (other.num_rows, other.pooling) != (first.num_rows, first.pooling):
                raise ValueError(
                    f"features {first.name!r} and {other.name!r} share table {name!r} but differ "
                    f"in rows or pooling: {first} {other}"
                )
        specs.append(
            TableSpec(name, first.num_rows, dim, tuple(f.name for f in sharing), first.pooling)
        )
    return specs


class TableLookup(nn.Module):
    """The pooled look-ups of a model. Declares tables; `place` gives them memory and an optimizer.

    Between the two nothing is allocated, so that the builder may choose kernel and sharding after
    the model is made.
    """

    def __init__(self, schema: Schema, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.features = tuple(f.name for f in schema.sparse)
        self.specs = table_specs(schema.sparse, dim)
        self.tables: Tables | None = None

    def place(self, tables: Tables) -> None:
        self.tables = tables

    def forward(self, batch: Batch) -> Embeddings:
        """[B, E]: the pooled embeddings side by side, E = number of features x dim."""
        assert self.tables is not None, "the builder places the tables before the first batch"
        return Embeddings(self.tables(batch.sparse))


def flat_triangle(num_vectors: int) -> Tensor:
    """Positions of the strict lower triangle of a flattened [num_vectors, num_vectors] matrix."""
    row, column = torch.tril_indices(num_vectors, num_vectors, offset=-1)
    return row * num_vectors + column
