"""Tables that our own rules update in the backward of a look-up.

B batch, E width of all pooled embeddings, V values of a jagged tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from runner.embeddings.interface import EmbeddingTables, Layout
from runner.embeddings.row_updates import UpdateStep
from runner.optim.settings import SparseSettings

RowUpdate = Callable[[UpdateStep, Tensor], None]  # the tensor is the gradient, [B, E]


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
        if not torch.is_grad_enabled():
            return self._look_up_only(values_V, offsets, weights_V)
        pooled_BE: Tensor = _LookupWithUpdate.apply(  # type: ignore[no-untyped-call]
            self._anchor, self, values_V, offsets, weights_V
        )
        return pooled_BE

    def _look_up_only(self, values_V: Tensor, offsets: Tensor, weights_V: Tensor | None) -> Tensor:
        raise NotImplementedError

    def _look_up_to_update(
        self, values_V: Tensor, offsets: Tensor, weights_V: Tensor | None
    ) -> tuple[Tensor, RowUpdate]:
        """Return the pooled embeddings, and what updates the rows that were looked up."""
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
        pooled_BE, update = tables._look_up_to_update(values_V, offsets, weights_V)
        ctx.update, ctx.step = update, tables._next_update
        return pooled_BE

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BE: Tensor) -> tuple[None, ...]:
        assert not ctx.needs_input_grad[4], "the weights of ids get no gradient from these tables"
        assert ctx.step.step > 0, "set_lr_and_step() comes before the look-up"
        ctx.update(ctx.step, grad_BE)
        return None, None, None, None, None
