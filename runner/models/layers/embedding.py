"""The first half of every model: its table look-ups, declared here, placed by the builder."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from runner.batch import Batch, Embeddings, Schema, SparseFeature
from runner.embeddings.factory import EmbeddingTables, TableSpec
from runner.models.layers.sizes import check_sizes

LINEAR_SUFFIX = (
    ":linear"  # ends names of first-order tables and their features; torch allows no dot
)
LINEAR_COLUMNS = 4  # equal columns that stand for the one of a first-order table, see FirstOrder


def make_table_specs(
    features: Sequence[SparseFeature], dim: int, *, bound: float | None = None, suffix: str = ""
) -> list[TableSpec]:
    """One specification a table; features that name the same table share its rows.

    Args: bound: of the uniform initial weights; None: the tables' own rule. suffix: of all names.
    Raises: ValueError if features of one table differ in rows or pooling.
    """
    by_table: dict[str, list[SparseFeature]] = {}
    for feature in features:
        by_table.setdefault(feature.table_name, []).append(feature)
    specs = []
    weighted = any(feature.weighted for feature in features)  # a batch has weights of all or none
    for name, sharing in by_table.items():
        first = sharing[0]
        for other in sharing[1:]:
            if (other.num_rows, other.pooling) != (first.num_rows, first.pooling):
                raise ValueError(
                    f"features {first.name!r} and {other.name!r} share table {name!r} but differ "
                    f"in rows or pooling: {first} {other}"
                )
        names = tuple(f"{f.name}{suffix}" for f in sharing)
        sized = f"{name}{suffix}", first.num_rows, dim
        lengths = tuple(f.mean_length for f in sharing)
        specs.append(TableSpec(*sized, names, first.pooling, bound, weighted, lengths))
    return specs


class TableLookup(nn.Module):
    """The pooled look-ups of a model. Declares tables; `place` gives them memory and an optimizer.

    Between the two nothing is allocated, so that the builder may choose kernel and sharding after
    the model is made.

    Args:
        dim: D, width of every table; a multiple of 4.
        linear: a first-order table for each of the others beside them, for `FirstOrder`.
        init: initial weights are uniform in [-init, init]; None: the square root of 1 / rows.
    Raises: ValueError if the schema has no sparse feature, or two of one table that do not fit.
    """

    def __init__(
        self, schema: Schema, dim: int, *, linear: bool = False, init: float | None = None
    ) -> None:
        super().__init__()
        if not schema.sparse:
            raise ValueError("needs at least one sparse feature; the dataset has none")
        check_sizes(embedding_dim=dim)
        if init is not None and not 0 <= init < math.inf:
            raise ValueError(f"embedding_init={init}: a number from 0, or null")
        self.dim = dim
        self.linear = linear
        names = [f.name for f in schema.sparse]
        self.specs = make_table_specs(schema.sparse, dim, bound=init)
        self.widths = [dim * len(names)]  # of the parts of the pooled embeddings
        if linear:
            self.specs += make_table_specs(
                schema.sparse, LINEAR_COLUMNS, bound=0.0, suffix=LINEAR_SUFFIX
            )
            self.widths += [LINEAR_COLUMNS * len(names)]
            names += [f"{name}{LINEAR_SUFFIX}" for name in names]
        self.features = tuple(names)
        self.tables: EmbeddingTables | None = None
        self._observer: Callable[[Batch], None] | None = None

    @property
    def draws_candidates(self) -> bool:
        """Whether more is looked up than the ids of the batch."""
        return False

    def attach_tables(self, tables: EmbeddingTables) -> None:
        self.tables = tables

    def set_observer(self, observer: Callable[[Batch], None] | None) -> None:
        """Told of every batch before it is looked up; None: nobody is."""
        self._observer = observer

    def tables_for(self, batch: Batch) -> EmbeddingTables:
        """The tables, for a look-up of this batch."""
        assert self.tables is not None, "the builder places the tables before the first batch"
        if self._observer is not None:
            self._observer(batch)
        return self.tables

    def lookup_ids(self, batch: Batch) -> KeyedJaggedTensor:
        """What is looked up: a key for each of `features`."""
        sparse = batch.sparse
        if not self.linear:
            return sparse
        weights = sparse.weights_or_none()
        known = sparse.length_per_key_or_none()  # on the host: a GPU would be waited for
        return KeyedJaggedTensor(
            keys=list(self.features),
            values=sparse.values().repeat(2),
            weights=None if weights is None else weights.repeat(2),
            lengths=sparse.lengths().repeat(2),
            length_per_key=None if known is None else [*known, *known],
        )

    def forward(self, batch: Batch) -> Embeddings:
        """[B, E]: the pooled embeddings side by side, E = number of features x dim.

        With `linear`, COPIES more columns a feature follow: `pooled_BE.split(lookup.widths, 1)`.
        """
        return Embeddings(self.tables_for(batch)(self.lookup_ids(batch)))
