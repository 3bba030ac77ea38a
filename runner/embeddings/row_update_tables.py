"""Tables that our own rules update in the backward of a look-up.

B batch, E width of all pooled embeddings, V values of a jagged tensor.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from runner.embeddings.interface import EmbeddingTables, Layout
from runner.embeddings.row_updates import UpdateStep
from runner.optim.settings import SparseSettings


class RowUpdateTables(EmbeddingTables):
    """Tables with one rule of `row_updates`; an engine says how it looks up and updates."""

    def __init__(self, layout: Layout, settings: SparseSettings, device: torch.device) -> None:
        super().__init__(layout, settings, device)
        # makes the output differentiable
        self._anchor = torch.zeros(0, requires_grad=True, device=device)
        self._next_update = UpdateStep(settings, settings.lr, 0)

    def set_lr_and_step(self, lr: float, step: int) -> None:
        self._next_update = UpdateStep(self.settings, lr, step)

    def _look_up(self, values_V: Tensor, offsets: Tensor, weights_V: Tensor | None) -> Tensor:
        pooled_BE: Tensor = _LookupWithUpdate.apply(  # type: ignore[no-untyped-call]
            self._anchor, self, values_V, offsets, weights_V
        )
        return pooled_BE

    def _look_up_only(self, values_V: Tensor, offsets: Tensor, weights_V: Tensor | None) -> Tensor:
        raise NotImplementedError

    def _update(
        self,
        update: UpdateStep,
        values_V: Tensor,
        offsets: Tensor,
        weights_V: Tensor | None,
        grad_BE: Tensor,
    ) -> None:
        raise NotImplementedError


class _LookupWithUpdate(torch.autograd.Function):
    """A look-up whose backward updates the tables and sends no gradient on."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        tables: RowUpdateTables,
        values_V: Tensor,
        offsets: Tensor,
        weights_V: Tensor | None,
    ) -> Tensor:
        ctx.tables = tables
        ctx.looked_up = (tables._next_update, values_V, offsets, weights_V)
        return tables._look_up_only(values_V, offsets, weights_V)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BE: Tensor) -> tuple[None, ...]:
        assert not ctx.needs_input_grad[4], "the weights of ids get no gradient from these tables"
        assert ctx.looked_up[0].step > 0, "set_lr_and_step() comes before the look-up"
        ctx.tables._update(*ctx.looked_up, grad_BE)
        return None, None, None, None, None
