"""The interface of the table engines, the order of tables and features in them, and pooling.

B batch, F features, E width of all pooled embeddings, V values of a jagged tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from runner.optim.settings import SparseSettings


@dataclass(frozen=True)
class TableSpec:
    """One embedding table and the features that read it."""

    name: str
    num_rows: int
    dim: int
    features: tuple[str, ...]
    pooling: str = "sum"  # or mean: the sum (weighted or not) divided by the number of ids
    # initial weights are uniform(-init_bound, init_bound); None: num_rows^-1/2
    init_bound: float | None = None
    weighted: bool = False  # ids have weights; then those of all tables of a batch have them
    # mean number of ids in a row of each feature, for the planner; (): 1 for each
    mean_lengths: tuple[float, ...] = ()
    padding: int = 0  # how many of the last of the `dim` columns are padding: `PaddedTables`
    first_row: int = 0  # of a shard stored as a table: its first row in the whole table
    equal_columns: int = 1  # how many adjacent columns represent one weight: `FirstOrder`

    @property
    def true_dim(self) -> int:
        """The width without the padding."""
        return self.dim - self.padding


@dataclass(frozen=True)
class Layout:
    """Tables and features in the order in which an engine stores and reads them."""

    tables: tuple[TableSpec, ...]
    feature_order: tuple[str, ...]  # of the batches and of the output
    engine_order: tuple[int, ...]  # indices into feature_order, in the engine's order
    table_of: tuple[int, ...]  # index into `tables` for each feature, in the engine's order

    @property
    def widths(self) -> list[int]:
        """The widths of the features, in the engine's order."""
        return [self.tables[t].dim for t in self.table_of]

    @property
    def is_permuted(self) -> bool:
        """Whether the engine's order differs from that of the batches."""
        return self.engine_order != tuple(range(len(self.engine_order)))


def make_layout(
    specs: Sequence[TableSpec], feature_order: Sequence[str], *, by_dim: bool
) -> Layout:
    """Order tables by first use, with the features of a table adjacent.

    FBGEMM's CPU kernels update a table once for each run of its features, so a table whose features
    are not adjacent would be updated twice in one update.

    Args:
        feature_order: the features in the order of the batches.
        by_dim: whether tables of equal width are adjacent, too.
    """
    table_of = {name: spec for spec in specs for name in spec.features}
    assert len(table_of) == sum(len(s.features) for s in specs), (
        "a feature reads more than one table"
    )
    assert set(table_of) == set(feature_order), (
        "the features of the tables are not those of the batches"
    )
    assert len({s.name for s in specs}) == len(specs), "several tables have the same name"
    assert all(s.features and s.num_rows > 0 and s.dim > 0 for s in specs), specs
    tables = list(dict.fromkeys(table_of[name] for name in feature_order))
    if by_dim:
        dims = list(dict.fromkeys(t.dim for t in tables))
        tables.sort(key=lambda t: dims.index(t.dim))
    index = {spec.name: i for i, spec in enumerate(tables)}
    indices = [index[table_of[name].name] for name in feature_order]
    order = sorted(range(len(indices)), key=lambda f: indices[f])
    return Layout(
        tables=tuple(tables),
        feature_order=tuple(feature_order),
        engine_order=tuple(order),
        table_of=tuple(indices[f] for f in order),
    )


def feature_columns(specs: Iterable[TableSpec], features: Iterable[str]) -> dict[str, slice]:
    """Return the columns that each feature fills in the output of a look-up, in this order."""
    widths = {name: spec.dim for spec in specs for name in spec.features}
    columns, start = {}, 0
    for name in features:
        columns[name] = slice(start, start + widths[name])
        start += widths[name]
    return columns


@dataclass(frozen=True)
class Placement:
    """A shard of a table: rows [first_row, first_row + num_rows) and columns likewise."""

    table: str
    plan: str
    rank: int
    first_row: int
    num_rows: int
    first_column: int
    num_columns: int


class EmbeddingTables(nn.Module):
    """Embedding tables with their optimizer inside: the backward of a look-up updates the rows.

    Weights and optimizer states are not parameters or buffers of the module, so that no dense
    optimizer, `state_dict` or `.to()` sees them. They are accessible through `state()`.
    """

    def __init__(self, layout: Layout, settings: SparseSettings, device: torch.device) -> None:
        super().__init__()
        self.layout = layout
        self.settings = settings
        self._keys = list(layout.feature_order)
        self._order = list(layout.engine_order)
        self._order_F = torch.tensor(self._order, dtype=torch.int32, device=device)
        in_engine = [self._keys[f] for f in self._order]
        self._to_output, self._to_engine = column_orders(
            in_engine, layout.widths, self._keys, device
        )
        self._scale_row_E = _scale_rows(layout, device)

    @property
    def output_width(self) -> int:
        """The width E of all pooled embeddings."""
        return sum(self.layout.widths)

    def forward(self, kjt: KeyedJaggedTensor) -> Tensor:
        """Look up and pool the embeddings of a batch.

        Args:
            kjt: keys in `feature_order`, int64 ids in [0, num_rows) of the feature's table. With
                weights, the pooled sum is weighted. An empty bag gives zeros.

        Returns:
            [B, E] float32, the features side by side in `feature_order`.
        """
        assert kjt.keys() == self._keys, f"the keys are {kjt.keys()}, not {self._keys}"
        if torch.is_inference_mode_enabled():
            # FBGEMM's operators are registered for autograd only, which inference mode skips
            with torch.inference_mode(False), torch.no_grad():
                return self._pool(kjt)
        return self._pool(kjt)

    def _pool(self, kjt: KeyedJaggedTensor) -> Tensor:
        ids = kjt.permute(self._order, self._order_F) if self.layout.is_permuted else kjt
        pooled_BE = self._look_up(ids.values(), ids.offsets(), ids.weights_or_none())
        if self.layout.is_permuted:
            pooled_BE = permute_columns(pooled_BE, self._to_output, self._to_engine)
        return self._apply_mean_pooling(pooled_BE, kjt)

    def _apply_mean_pooling(self, pooled_BE: Tensor, kjt: KeyedJaggedTensor) -> Tensor:
        """Turn the sums of mean-pooled tables into means."""
        if self._scale_row_E is None:
            return pooled_BE
        lengths_FB = kjt.lengths().view(len(self._keys), -1)
        return pooled_BE * _mean_scale(lengths_FB, self._scale_row_E)

    def set_lr_and_step(self, lr: float, step: int) -> None:
        """Set rate and number (from 1) of the coming update. Call it before the look-up.

        Like FBGEMM's kernels, all tables read both at the look-up, not at the update.
        """
        raise NotImplementedError

    def state(self) -> dict[str, Tensor]:
        """Return the live tensors: `<table>/weight`, and states such as `<table>/exp_avg`."""
        raise NotImplementedError

    def resume_state(self) -> dict[str, Tensor]:
        """Return further live tensors that only a resumed training needs."""
        return {}

    def take_over_weights(self) -> None:
        """Use the weights that have been written into the tensors of `state` from now on.

        Call it on every rank after weights were loaded without `resume_state`.
        """

    def placement(self) -> list[Placement]:
        """Return the shards of all ranks; an empty list if this process has all tables whole."""
        return []

    def torchrec_modules(self) -> list[nn.Module]:
        """Return TorchRec's sharded modules in these tables, in the order of their look-ups."""
        return []

    def torchrec_inputs(self, kjt: KeyedJaggedTensor) -> list[KeyedJaggedTensor]:
        """Return the input of each of `torchrec_modules` when these tables look up `kjt`.

        Collective.
        """
        return []

    def _look_up(self, values_V: Tensor, offsets: Tensor, weights_V: Tensor | None) -> Tensor:
        """Look up and pool by sum in the engine's order of features.

        Args:
            offsets: F x B + 1, feature-major.
        """
        raise NotImplementedError


class WrappedTables(EmbeddingTables):
    """A wrapper of the tables of another engine, to which it delegates what it does not change.

    Methods are collective where those of the engine are.
    """

    def __init__(
        self,
        engine: EmbeddingTables,
        layout: Layout | None = None,
        settings: SparseSettings | None = None,
        *,
        device: torch.device,
    ) -> None:
        """Wrap tables; None stands for the layout or settings of the engine."""
        super().__init__(layout or engine.layout, settings or engine.settings, device)
        self._engine = engine

    def set_lr_and_step(self, lr: float, step: int) -> None:
        self._engine.set_lr_and_step(lr, step)

    def state(self) -> dict[str, Tensor]:
        return self._engine.state()

    def placement(self) -> list[Placement]:
        return self._engine.placement()

    def torchrec_modules(self) -> list[nn.Module]:
        return self._engine.torchrec_modules()

    def torchrec_inputs(self, kjt: KeyedJaggedTensor) -> list[KeyedJaggedTensor]:
        return self._engine.torchrec_inputs(kjt)


def permute_columns(x_BE: Tensor, order_E: Tensor, inverse_E: Tensor) -> Tensor:
    """Return the columns in another order, [B, E]; `inverse_E` is the inverse of `order_E`."""
    permuted_BE: Tensor = _PermuteColumns.apply(  # type: ignore[no-untyped-call]
        x_BE, order_E, inverse_E
    )
    return permuted_BE


class _PermuteColumns(torch.autograd.Function):
    """A gather whose backward is a gather too, where the backward of index_select scatters."""

    @staticmethod
    def forward(ctx: Any, x_BE: Tensor, order_E: Tensor, inverse_E: Tensor) -> Tensor:
        ctx.inverse_E = inverse_E
        return x_BE.index_select(1, order_E)

    @staticmethod
    def backward(ctx: Any, grad_BE: Tensor) -> tuple[Tensor, None, None]:
        return grad_BE.index_select(1, ctx.inverse_E), None, None


def column_orders(
    keys: Sequence[str], widths: Sequence[int], order_of_keys: Sequence[str], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return the orders of columns (given -> wanted, wanted -> given) for `permute_columns`.

    Args:
        keys: names of the adjacent blocks of columns.
        widths: of these blocks.
        order_of_keys: the same names in another order.
    """
    ends = accumulate(widths)
    columns = {k: range(end - width, end) for k, end, width in zip(keys, ends, widths, strict=True)}
    order = torch.tensor([c for k in order_of_keys for c in columns[k]], device=device)
    return order, torch.argsort(order)


def _scale_rows(layout: Layout, device: torch.device) -> Tensor | None:
    """Return, [E], the feature of each output column, or F if it is sum-pooled; None if all are."""
    specs = {name: spec for spec in layout.tables for name in spec.features}
    pooling = {specs[name].pooling for name in layout.feature_order}
    assert pooling <= {"sum", "mean"}, pooling
    if "mean" not in pooling:
        return None
    rows: list[int] = []
    for f, name in enumerate(layout.feature_order):
        row = f if specs[name].pooling == "mean" else len(layout.feature_order)
        rows += [row] * specs[name].dim
    return torch.tensor(rows, device=device)


def _mean_scale(lengths_FB: Tensor, scale_row_E: Tensor) -> Tensor:
    """Return, [B, E], one over the number of ids in mean-pooled columns, and 1 elsewhere."""
    scale_FB = lengths_FB.clamp(min=1).to(torch.float32).reciprocal()
    ones_1B = scale_FB.new_ones(1, lengths_FB.shape[1])
    return torch.cat([scale_FB, ones_1B]).t().index_select(1, scale_row_E)
