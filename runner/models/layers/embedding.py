"""The first half of every model: its table look-ups, which the builder assigns to devices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from runner.batch import Batch, Embeddings, Schema, SparseFeature
from runner.config_value import check_value
from runner.embeddings.interface import EmbeddingTables, TableSpec
from runner.embeddings.padded_tables import STORED_MULTIPLE
from runner.models.argument_types import EmbeddingInit, LinearWeights, Size, Sizes
from runner.models.requirements import require_sparse_feature
from runner.models.table_widths import TableWidths

# suffix of first-order tables and of their features; torch allows no dot in it
LINEAR_SUFFIX = ":linear"


def count_first_order(schema: Schema, linear_weights: LinearWeights) -> int:
    """Return how many first-order weights an id has: one for each task, or one for all tasks.

    Raises:
        ValueError: for shared weights of tasks that are classes, which would change no softmax.
    """
    check_value("linear_weights", linear_weights, LinearWeights)
    labels = [task.one_of for task in schema.tasks if task.one_of]
    if linear_weights == "shared" and labels:
        raise ValueError(
            f"linear_weights=shared: adds the same to all classes of {labels[0]}, which changes "
            "none of their probabilities; linear_weights=own"
        )
    return 1 if linear_weights == "shared" else len(schema.tasks)


def count_equal_columns(num_weights: int) -> int:
    """Return how many equal columns store each first-order weight of an id, see `FirstOrder`.

    Their number makes the width of the table, which is this times `num_weights`, a multiple
    of 4, which FBGEMM stores without padding.
    """
    return math.lcm(STORED_MULTIPLE, num_weights) // num_weights


def make_table_specs(
    features: Sequence[SparseFeature],
    dim: TableWidths,
    *,
    bound: float | None = None,
    suffix: str = "",
    equal_columns: int = 1,
) -> list[TableSpec]:
    """Return one specification per table; features that name the same table share its rows.

    Args:
        dim: width of the tables, or of each table by name.
        bound: bound of the uniform initial weights; None for the square root of 1 / rows.
        suffix: what to append to the names of tables and features.
        equal_columns: of the tables, see `TableSpec`.

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
        spec = TableSpec(*size, names, first.pooling, bound, weighted, lengths)
        specs.append(replace(spec, equal_columns=equal_columns))
    return specs


class TableLookup(nn.Module):
    """The pooled look-ups of a model.

    The constructor declares tables. Nothing is allocated before the builder, which chooses kernel
    and sharding once the model exists, attaches tables with memory and an optimizer.

    Args:
        schema: needs at least one sparse feature.
        dim: D, width of every table, or widths by table.
        linear: number of first-order weights of an id, see `count_first_order`; above 0, they are
            in one table for each of the other tables, for `FirstOrder`.
        init: initial weights are uniform in [-init, init]; None for the square root of 1 / rows.

    Raises:
        ValueError: if the schema has no sparse feature, if features that share a table are
            incompatible, or if a size is out of range.
    """

    def __init__(
        self, schema: Schema, dim: TableWidths, *, linear: int = 0, init: float | None = None
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
            equal = count_equal_columns(linear)
            self.specs += make_table_specs(
                *(schema.sparse, equal * linear),
                bound=0.0,
                suffix=LINEAR_SUFFIX,
                equal_columns=equal,
            )
            self.widths += [equal * linear * len(names)]
            names += [f"{name}{LINEAR_SUFFIX}" for name in names]
        self.features = tuple(names)
        self._has_lists = any(f.is_list for f in schema.sparse)
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

        With `linear`, the columns of the first-order tables follow, of each feature those of its
        first weight first. `widths` has the width of both parts, for `torch.split`.
        """
        ids = self.lookup_ids(batch)
        pooled_BE = self.tables_for(batch)(ids)
        return Embeddings(pooled_BE, ids=ids if self._has_lists else None)
