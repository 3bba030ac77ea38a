"""What the table engines share: which feature reads which table, in which order, and pooling.

B batch, F features, E width of all pooled embeddings, V values of a jagged tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
    init_bound: float | None = (
        None  # initial weights are uniform(-bound, bound); None: num_rows^-1/2
    )
    weighted: bool = False  # ids come with weights, as those of all tables of a batch then do
    mean_lengths: tuple[float, ...] = ()  # ids a row of each feature, for the planner; (): 1


@dataclass(frozen=True)
class Layout:
    """Tables and features in the order in which an engine stores and reads them."""

    tables: tuple[TableSpec, ...]
    feature_order: tuple[str, ...]  # of the batches and of the output
    engine_order: tuple[int, ...]  # places in feature_order, in the engine's order
    table_of: tuple[int, ...]  # for each feature in the engine's order: its place in `tables`

    @property
    def widths(self) -> list[int]:
        """Of the features in the engine's order."""
        return [self.tables[t].dim for t in self.table_of]

    @property
    def is_permuted(self) -> bool:
        return self.engine_order != tuple(range(len(self.engine_order)))


def make_layout(
    specs: Sequence[TableSpec], feature_order: Sequence[str], *, by_dim: bool
) -> Layout:
    """Tables by first use, features of one table side by side; `by_dim`: equal widths too.

    FBGEMM's CPU kernels step a table once for each run of its features, so a table whose features
    stand apart would be stepped twice in one update.
    """
    table_of = {name: spec for spec in specs for name in spec.features}
    assert len(table_of) == sum(len(s.features) for s in specs), "a feature reads one table"
    assert set(table_of) == set(feature_order), "every feature reads a table and none is left over"
    assert len({s.name for s in specs}) == len(specs), "tables of equal name"
    assert all(s.features and s.num_rows > 0 and s.dim > 0 for s in specs), specs
    tables = list(dict.fromkeys(table_of[name] for name in feature_order))
    if by_dim:
        dims = list(dict.fromkeys(t.dim for t in tables))
        tables.sort(key=lambda t: dims.index(t.dim))
    place = {spec.name: i for i, spec in enumerate(tables)}
    places = [place[table_of[name].name] for name in feature_order]
    order = sorted(range(len(places)), key=lambda f: places[f])
    return Layout(
        tables=tuple(tables),
        feature_order=tuple(feature_order),
        engine_order=tuple(order),
        table_of=tuple(places[f] for f in order),
    )


@dataclass(frozen=True)
class Placement:
    """A piece of a table: rows [first_row, first_row + num_rows), and columns likewise."""

    table: str
    plan: str
    rank: int
    first_row: int
    num_rows: int
    first_column: int
    num_columns: int


class EmbeddingTables(nn.Module):
    """Embedding tables with their optimizer inside: the backward of a look-up updates the rows.

    Weights and optimizer states are no parameters or buffers of the module: no dense optimizer,
    `state_dict` or `.to()` sees them. They are reached through `state()`.
    """

    def __init__(self, layout: Layout, settings: SparseSettings, device: torch.device) -> None:
        super().__init__()
        self.layout = layout
        self.settings = settings
        self._keys = list(layout.feature_order)
        self._order = list(layout.engine_order)
        self._order_F = torch.tensor(self._order, dtype=torch.int32, device=device)
        self._to_output, self._to_engine = _column_orders(layout, device)
        self._scale_row_E = _scale_rows(layout, device)

    @property
    def output_width(self) -> int:
        return sum(self.layout.widths)

    def forward(self, kjt: KeyedJaggedTensor) -> Tensor:
        """Pooled embeddings, [B, E] float32, widths side by side in the order of the features.

        Args: kjt: keys in `feature_order`, int64 ids in [0, num_rows) of the feature's table;
        with weights, the pooled sum is weighted. An empty bag gives zeros.
        """
        assert kjt.keys() == self._keys, f"keys {kjt.keys()} are not {self._keys}"
        if torch.is_inference_mode_enabled():
            # FBGEMM's operators exist behind autograd only, which inference mode leaves out
            with torch.inference_mode(False), torch.no_grad():
                return self._pool(kjt)
        return self._pool(kjt)

    def _pool(self, kjt: KeyedJaggedTensor) -> Tensor:
        lengths_FB = kjt.lengths().view(len(self._keys), -1)
        if self.layout.is_permuted:
            kjt = kjt.permute(self._order, self._order_F)
        pooled_BE = self._look_up(kjt.values(), kjt.offsets(), kjt.weights_or_none())
        if self.layout.is_permuted:
            pooled_BE = PermuteColumns.apply(pooled_BE, self._to_output, self._to_engine)
        return self._apply_mean_pooling(pooled_BE, lengths_FB)

    def _apply_mean_pooling(self, pooled_BE: Tensor, lengths_FB: Tensor) -> Tensor:
        """Sums become means where the table says so."""
        if self._scale_row_E is None:
            return pooled_BE
        return pooled_BE * _mean_scale(lengths_FB, self._scale_row_E)

    def set_lr_and_step(self, lr: float, step: int) -> None:
        """Rate and number (from 1) of the coming update. Call it before the look-up.

        FBGEMM's kernels take both when they look up, not when they update; so do all tables here.
        """
        raise NotImplementedError

    def state(self) -> dict[str, Tensor]:
        """Live tensors: `<table>/weight`, and the optimizer's, such as `<table>/exp_avg`."""
        raise NotImplementedError

    def placement(self) -> list[Placement]:
        """Which rank has which piece of which table; empty: this process has all of them."""
        return []

    def torchrec_modules(self) -> list[nn.Module]:
        """TorchRec's sharded modules under these tables, in the order in which they look up."""
        return []

    def torchrec_inputs(self, kjt: KeyedJaggedTensor) -> list[KeyedJaggedTensor]:
        """Collective. What each of `torchrec_modules` is called with where these get `kjt`."""
        return []

    def _look_up(self, values_V: Tensor, offsets: Tensor, weights_V: Tensor | None) -> Tensor:
        """Sum pooling in the engine's order of features; offsets are feature-major, F x B + 1."""
        raise NotImplementedError


class PermuteColumns(torch.autograd.Function):
    """Columns in another order. Both ways are gathers; index_select's own backward scatters."""

    @staticmethod
    def forward(ctx: Any, x_BE: Tensor, order_E: Tensor, inverse_E: Tensor) -> Tensor:
        ctx.inverse_E = inverse_E
        return x_BE.index_select(1, order_E)

    @staticmethod
    def backward(ctx: Any, grad_BE: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        return grad_BE.index_select(1, ctx.inverse_E), None, None


def _column_orders(layout: Layout, device: torch.device) -> tuple[Tensor, Tensor]:
    """Column numbers (engine -> output, output -> engine)."""
    widths = layout.widths
    starts = [sum(widths[:i]) for i in range(len(widths))]
    place = {f: i for i, f in enumerate(layout.engine_order)}
    columns = [starts[place[f]] + d for f in range(len(widths)) for d in range(widths[place[f]])]
    to_output = torch.tensor(columns, device=device)
    return to_output, torch.argsort(to_output)


def _scale_rows(layout: Layout, device: torch.device) -> Tensor | None:
    """[E]: the feature of each output column, or F where pooling is a sum; None if all are."""
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
    """[B, E]: one over the number of ids in mean-pooled columns, 1 elsewhere."""
    scale_FB = lengths_FB.clamp(min=1).to(torch.float32).reciprocal()
    ones_1B = scale_FB.new_ones(1, lengths_FB.shape[1])
    return torch.cat([scale_FB, ones_1B]).t().index_select(1, scale_row_E)
