"""Tables that our own rules update in the backward of a look-up.

Rows are copied through NumPy, which moves a row as one item, where torch's `index_select` and
`index_copy_` loop over its numbers: 100,000 rows of 16 numbers out of 166 MB are gathered in 0.6
and scattered in 0.6 of their time.

B batch, E width of all pooled embeddings, V values of a jagged tensor. R rows stored, U rows
copied; a tensor has one number a row, [R], or several, [R, D].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, bfloat16, from_numpy, int16, uint8
from torch.autograd.function import once_differentiable

from runner.embeddings.interface import EmbeddingTables, Layout
from runner.embeddings.row_updates import UpdateStep
from runner.optim.settings import SparseSettings

RowUpdate = Callable[[UpdateStep, Tensor], None]  # the tensor is the gradient, [B, E]


class RowUpdateTables(EmbeddingTables):
    """Tables with one rule of `row_updates`; subclasses implement look-up and update."""

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
        """Return the pooled embeddings, and the function that updates the looked-up rows."""
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


def take_rows(tensor: Tensor, rows_U: Tensor) -> Tensor:
    """Return a copy of some rows.

    Args:
        tensor: contiguous, on CPU, of any type.
        rows_U: int64, in [0, R).
    """
    values = tensor.detach()
    # NumPy knows no bf16, and copies slowly into an array that it is given
    bits = values.view(int16) if values.dtype == bfloat16 else values
    return from_numpy(bits.numpy().take(rows_U.numpy(), axis=0)).view(values.dtype)


def put_rows(tensor: Tensor, rows_U: Tensor, values: Tensor) -> None:
    """Write `values`, contiguous and of the tensor's type, into some rows of it.

    Args:
        tensor: contiguous, on CPU, of any type.
        rows_U: int64, in [0, R), each once; rows out of range are not detected.
        values: the new rows, [U] or [U, D].
    """
    np.put(_items(tensor), rows_U.numpy(), _items(values), mode="clip")


def _items(tensor: Tensor) -> np.ndarray:
    """View a tensor as a vector with one item, of no numeric type, for each row."""
    assert tensor.is_contiguous()
    item = f"V{tensor.dtype.itemsize * tensor.stride(0)}"
    items: np.ndarray = tensor.detach().view(uint8).numpy().view(item).reshape(-1)
    return items
