"""Tables of any width on engines whose kernels store multiples of 4.

The rest of a stored row is padding: 0, with a gradient of 0, so every rule leaves it 0 and norms of
rows do not change. It appears in no look-up, checkpoint or placement.

A mean over the stored row would differ, though. Where a rule keeps the mean of squared gradients of
a row, the gradient is multiplied by k = sqrt(stored width / width), so that this state is the mean
over the true width; and the rate is divided by k, or the decay multiplied where the step is made of
both, so that the step stays the same. The first moment of such a rule is kept k times as large.
B batch, E width of all pooled embeddings, F features, D width of one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from runner.distributed.shards import LocalShard, LocalShards
from runner.embeddings.composite_tables import join_tables, read_features
from runner.embeddings.interface import (
    EmbeddingTables,
    Layout,
    Placement,
    TableSpec,
    WrappedTables,
    make_layout,
)
from runner.embeddings.row_updates import ROWWISE_STATES
from runner.optim.settings import SparseSettings

STORED_MULTIPLE = 4  # of the widths that FBGEMM's kernels take

# Builds tables from specifications, the order of the features and the settings of one rule
BuildTables = Callable[[Sequence[TableSpec], Sequence[str], SparseSettings], EmbeddingTables]


def build_any_width(
    specs: Sequence[TableSpec],
    feature_order: Sequence[str],
    settings: SparseSettings,
    build: BuildTables,
    *,
    device: torch.device,
) -> EmbeddingTables:
    """Build tables of any width with a function for widths that are multiples of 4.

    Collective where `build` is. Tables whose widths need no padding are built as they are.

    Args:
        feature_order: the features in the order of the batches' keys and of the output.
        build: makes the tables of one rule.
    """
    by_scale: dict[float, list[TableSpec]] = {}
    for spec in specs:
        by_scale.setdefault(_gradient_scale(spec, settings.kind), []).append(spec)
    members: list[EmbeddingTables] = []
    for scale, group in by_scale.items():
        order = read_features(group, feature_order)
        stored = [_stored_spec(spec) for spec in group]
        if stored == group:
            members.append(build(group, order, settings))
            continue
        engine = build(stored, order, _scaled_settings(settings, scale))
        layout = make_layout(group, order, by_dim=False)
        members.append(PaddedTables(layout, settings, engine, scale, device=device))
    return join_tables(members, specs, feature_order, settings, device=device)


class PaddedTables(WrappedTables):
    """The tables of another engine without their padding."""

    def __init__(
        self,
        layout: Layout,
        settings: SparseSettings,
        engine: EmbeddingTables,
        scale: float,
        *,
        device: torch.device,
    ) -> None:
        """Wrap tables that are wider by their padding.

        Args:
            layout: with the true widths.
            engine: has the stored widths, and settings for gradients times `scale`.
        """
        super().__init__(engine, layout, settings, device=device)
        self._scale = scale
        self._rate_scale = 1.0 if settings.kind == "partial_rowwise_lamb" else 1 / scale
        self._widths = {spec.name: spec.dim for spec in layout.tables}
        dims = set(layout.widths)
        self._only_width = dims.pop() if len(dims) == 1 else None
        widths = {name: spec.dim for spec in layout.tables for name in spec.features}
        columns: list[int] = []
        column = 0
        for name in layout.feature_order:
            columns += range(column, column + widths[name])
            column += _stored_width(widths[name])
        self._kept_E = torch.tensor(columns, device=device)

    def set_lr_and_step(self, lr: float, step: int) -> None:
        self._engine.set_lr_and_step(lr * self._rate_scale, step)

    def state(self) -> dict[str, Tensor]:
        return {
            key: _without_padding(tensor, self._widths[key.rpartition("/")[0]])
            for key, tensor in self._engine.state().items()
        }

    def placement(self) -> list[Placement]:
        shards = []
        for shard in self._engine.placement():
            columns = min(shard.num_columns, self._widths[shard.table] - shard.first_column)
            if columns > 0:
                shards.append(replace(shard, num_columns=columns))
        return shards

    def _pool(self, kjt: KeyedJaggedTensor) -> Tensor:
        stored_BE = self._engine._pool(kjt)
        if self._only_width is None:
            pooled_BE: Tensor = _DropPadding.apply(  # type: ignore[no-untyped-call]
                stored_BE, self._kept_E, self._scale
            )
            return pooled_BE
        # whole vectors are copied faster than single columns
        pooled_BFD: Tensor = _DropVectorPadding.apply(  # type: ignore[no-untyped-call]
            torch.unflatten(stored_BE, 1, (-1, _stored_width(self._only_width))),
            self._only_width,
            self._scale,
        )
        return pooled_BFD.flatten(1)


class _DropPadding(torch.autograd.Function):
    """The true columns; backward, the padding gets a gradient of 0, the others theirs, scaled."""

    @staticmethod
    def forward(ctx: Any, stored_BE: Tensor, kept_E: Tensor, scale: float) -> Tensor:
        ctx.kept_E, ctx.scale, ctx.shape = kept_E, scale, stored_BE.shape
        return stored_BE.index_select(1, kept_E)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BE: Tensor) -> tuple[Tensor, None, None]:
        if ctx.scale != 1:
            grad_BE = grad_BE * ctx.scale
        return grad_BE.new_zeros(ctx.shape).index_copy_(1, ctx.kept_E, grad_BE), None, None


class _DropVectorPadding(torch.autograd.Function):
    """The same for [B, F, D] vectors of one width."""

    @staticmethod
    def forward(ctx: Any, stored_BFD: Tensor, width: int, scale: float) -> Tensor:
        ctx.width, ctx.scale, ctx.shape = width, scale, stored_BFD.shape
        return stored_BFD[:, :, :width].contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BFD: Tensor) -> tuple[Tensor, None, None]:
        padded_BFD = grad_BFD.new_zeros(ctx.shape)
        torch.mul(grad_BFD, ctx.scale, out=padded_BFD[:, :, : ctx.width])
        return padded_BFD, None, None


def _stored_width(width: int) -> int:
    return -(-width // STORED_MULTIPLE) * STORED_MULTIPLE


def _stored_spec(spec: TableSpec) -> TableSpec:
    width = _stored_width(spec.dim)
    return spec if width == spec.dim else replace(spec, dim=width, padding=width - spec.dim)


def _gradient_scale(spec: TableSpec, kind: str) -> float:
    return math.sqrt(_stored_width(spec.dim) / spec.dim) if kind in ROWWISE_STATES else 1.0


def _scaled_settings(settings: SparseSettings, scale: float) -> SparseSettings:
    """Return settings with the same decay and penalty under scaled gradients and rate."""
    return replace(
        settings, weight_decay=settings.weight_decay * scale, l2_tables=settings.l2_tables * scale
    )


def _without_padding(tensor: Tensor, width: int) -> Tensor:
    """Return the view of the true columns; a state of one number a row has no padding."""
    if tensor.dim() == 1:
        return tensor
    if not isinstance(tensor, LocalShards):
        return tensor[:, :width]
    shards = [
        LocalShard(shard.tensor[:, : max(0, width - shard.offset[1])], shard.offset)
        for shard in tensor.shards
    ]
    return LocalShards((tensor.shape[0], width), shards, tensor.dtype, tensor.device)
