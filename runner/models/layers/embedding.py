"""The first half of every model: its table look-ups, which the builder places on devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from runner.batch import Batch, Embeddings, Schema, SparseFeature
from runner.config_key import check_value
from runner.embeddings.interface import EmbeddingTables, TableSpec
from runner.models.argument_types import EmbeddingInit, Size, Sizes
from runner.models.requirements import require_sparse_feature
from runner.models.table_widths import TableWidths

# ends the names of first-order tables and of their features; torch allows no dot in them
LINEAR_SUFFIX = ":linear"
LINEAR_COLUMNS = 4  # equal columns that stand for the only one of a first-order table: FirstOrder


def count_equal_columns(table: str) -> int:
    """Return how many equal columns of a table, known by its name, stand for each of its values."""
    return LINEAR_COLUMNS if table.endswith(LINEAR_SUFFIX) else 1


def make_table_specs(
    features: Sequence[SparseFeature],
    dim: TableWidths,
    *,
    bound: float | None = None,
    suffix: str = "",
) -> list[TableSpec]:
    """Return one specification per table; features that name the same table share its rows.

    Args:
        features: the features that read the tables.
        dim: width of the tables, or of each table by name.
        bound: bound of the uniform initial weights; None for the square root of 1 / rows.
        suffix: what to append to the names of tables and features.

    Raises:
        ValueError: if features that share a table differ in its rows or in their pooling.
    """
    by_table: dict[str, list[SparseFeature]] = {}
    for feature in features:
        by_table.setdefault(feature.table_name, []).append(feature)
    specs = []
    weighted = any(
        feature.weighted for feature in features
    )  # a batch has weights for all features or none
    for name, readers in by_table.items():
        first = readers[0]
        for other in readers[1:]:
            if (other.num_rows, other.pooling) != (first.num_rows, first.pooling):
                raise ValueError(
                    f"features {first.name!r} and {other.name!r} share table {name!r} but differ "
                    f"in rows or pooling: {first} {other}"
                )
        names = tuple(f"{f.name}{suffix}" for f in readers)
        width = dim if isinstance(dim, int) else dim[name]
        size = f"{name}{suffix}", first.num_rows, width
        lengths = tuple(f.mean_length for f in readers)
        specs.append(TableSpec(*size, names, first.pooling, bound, weighted, lengths))
    return specs


class TableLookup(nn.Module):
    """The pooled look-ups of a model.

    The constructor declares tables. Nothing is allocated before the builder, which chooses kernel
    and sharding once the model exists, attaches tables with memory and an optimizer.

    Args:
        schema: needs at least one sparse feature.
        dim: D, width of every table, or widths by table.
        linear: whether to add a first-order table for each of the other tables, for `FirstOrder`.
        init: initial weights are uniform in [-init, init]; None for the square root of 1 / rows.

    Raises:
        ValueError: if the schema has no sparse feature, if features that share a table do not fit
            together, or if a size is out of range.
    """

    def __init__(
        self, schema: Schema, dim: TableWidths, *, linear: bool = False, init: float | None = None
    ) -> None:
        super().__init__()
        require_sparse_feature(schema)
        widths = [dim if isinstance(dim, int) else dim[f.table_name] for f in schema.sparse]
        is_one = isinstance(dim, int)
        check_value("embedding_dim", dim if is_one else widths, Size if is_one else Sizes)
        check_value("embedding_init", init, EmbeddingInit)
        self.dim = max(widths)
        self.linear = linear
        names = [f.name for f in schema.sparse]
        self.specs = make_table_specs(schema.sparse, dim, bound=init)
        self.widths = [sum(widths)]  # of the pooled embeddings, then of the first-order ones
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
        """Whether candidates are looked up besides the ids of the batch."""
        return False

    def attach_tables(self, tables: EmbeddingTables) -> None:
        self.tables = tables

    def set_observer(self, observer: Callable[[Batch], None] | None) -> None:
        """Call `observer` with every batch before its look-up; None stops that."""
        self._observer = observer

    def tables_for(self, batch: Batch) -> EmbeddingTables:
        """Return the tables for a look-up of this batch, after a call of the observer."""
        assert self.tables is not None, "the builder attaches the tables before the first batch"
        if self._observer is not None:
            self._observer(batch)
        return self.tables

    def lookup_ids(self, batch: Batch) -> KeyedJaggedTensor:
        """Return the ids to look up, with a key for each of `features`."""
        sparse = batch.sparse
        if not self.linear:
            return sparse
        weights = sparse.weights_or_none()
        lengths = sparse.length_per_key_or_none()  # on the host: no wait for a GPU
        return KeyedJaggedTensor(
            keys=list(self.features),
            values=sparse.values().repeat(2),
            weights=None if weights is None else weights.repeat(2),
            lengths=sparse.lengths().repeat(2),
            length_per_key=None if lengths is None else [*lengths, *lengths],
        )

    def forward(self, batch: Batch) -> Embeddings:
        """Return the concatenated pooled embeddings, [B, E] with E the sum of their widths.

        With `linear`, LINEAR_COLUMNS more columns per feature follow. `widths` has the width of
        both parts, for `torch.split`.
        """
        return Embeddings(self.tables_for(batch)(self.lookup_ids(batch)))
