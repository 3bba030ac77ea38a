"""Dot products of all pairs of vectors, DLRM's interaction (arXiv:1906.00091, figure 1).

B batch, N vectors, D their width, P = N (N - 1) / 2 pairs, C rows at a time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from runner.models.layers.numpy_products import (
    has_avx512_openblas,
    multiply_by_numpy,
    transpose_copy,
)
from runner.models.layers.small_products import multiply, numbers_at_a_time, takes_numpy

ALIGNED = 4  # vectors, for MKL's code for AVX2


class DotInteraction(nn.Module):
    """The strict lower triangle of X X^T: [B, N, D] to [B, N (N - 1) / 2].

    Under autocast vectors and results are of low precision. A CPU multiplies in float32:
    the products are small, and torch selects pairs of 16-bit numbers in four times the time.
    """

    lower_P: Tensor
    padded_lower_P: Tensor
    both_NN: Tensor

    def __init__(self, num_vectors: int) -> None:
        super().__init__()
        row_P, column_P = torch.tril_indices(num_vectors, num_vectors, offset=-1)
        # indices of a flat index_select, since x[:, i, j] costs several times as much on CPU
        self.register_buffer("lower_P", row_P * num_vectors + column_P, persistent=False)
        # of a padded matrix: MKL's products of 28 vectors are faster than those of 27
        self.num_padded = -(-num_vectors // ALIGNED) * ALIGNED
        padded_P = row_P * self.num_padded + column_P
        self.register_buffer("padded_lower_P", padded_P, persistent=False)
        # index of the pair of every element of the whole matrix; on the diagonal P, that of a zero
        both_NN = torch.full((num_vectors, num_vectors), len(row_P))
        both_NN[row_P, column_P] = both_NN[column_P, row_P] = torch.arange(len(row_P))
        self.register_buffer("both_NN", both_NN.flatten(), persistent=False)

    def forward(self, x_BND: Tensor) -> Tensor:
        kind = x_BND.device.type
        if not torch.is_autocast_enabled(kind):
            return self._pairs(x_BND)
        # a product into a given buffer is not cast by torch
        low_BND = x_BND.to(torch.get_autocast_dtype(kind))
        if kind != "cpu":
            return self._pairs(low_BND)
        return self._pairs(low_BND.float()).to(low_BND.dtype)

    def _pairs(self, x_BND: Tensor) -> Tensor:
        if torch.compiler.is_exporting():  # exports may only contain operators of torch
            pairs_BNN = torch.bmm(x_BND, x_BND.transpose(1, 2))
            return pairs_BNN.flatten(1).index_select(1, self.lower_P)
        lower_P, num_padded, by_numpy = self.lower_P, x_BND.shape[1], False
        if torch.compiler.is_compiling():
            # one operator: the compiler's own loops make an update of DLRM 1.4 times as long
            compiled_BP: Tensor = _compiled_dot(x_BND, lower_P, self.both_NN, num_padded)
            return compiled_BP
        if torch.is_grad_enabled() and takes_numpy(x_BND, x_BND):  # not in evaluation
            by_numpy = has_avx512_openblas()
            if not by_numpy:
                lower_P, num_padded = self.padded_lower_P, self.num_padded
        pairs_BP: Tensor = _Dot.apply(  # type: ignore[no-untyped-call]
            x_BND, lower_P, self.both_NN, num_padded, by_numpy
        )
        return pairs_BP


class _Dot(torch.autograd.Function):
    """Dot products whose backward costs one product instead of two.

    With G symmetric, the gradient of X X^T is G X, with each pair's gradient on both sides of the
    diagonal. This gathers where autograd would scatter.
    """

    @staticmethod
    def forward(
        ctx: Any, x_BND: Tensor, lower_P: Tensor, both_NN: Tensor, num_padded: int, by_numpy: bool
    ) -> Tensor:
        ctx.save_for_backward(x_BND, both_NN)
        return _products(x_BND, lower_P, both_NN, num_padded, by_numpy=by_numpy)

    @staticmethod
    def backward(ctx: Any, grad_BP: Tensor) -> tuple[Tensor | None, ...]:
        x_BND, both_NN = ctx.saved_tensors
        if torch.is_grad_enabled():  # gradients of gradients are requested
            return torch.bmm(_both_sides(grad_BP, both_NN), x_BND), *[None] * 4
        return _gradient(grad_BP, x_BND, both_NN), *[None] * 4


def _products(
    x_BND: Tensor, lower_P: Tensor, _: Tensor, num_padded: int, *, by_numpy: bool = False
) -> Tensor:
    """Return the products of all pairs, [B, P], whose indices are `lower_P`.

    They are computed in a matrix of `num_padded` vectors, the last of which are zeros.
    """
    products_CNN, out_BP = _buffer(x_BND, num_padded), x_BND.new_empty(len(x_BND), len(lower_P))
    padded_CND = None
    if num_padded != x_BND.shape[1]:
        padded_CND = x_BND.new_zeros(len(products_CNN), num_padded, x_BND.shape[2])
    for rows in _chunks(x_BND, products_CNN):
        part_CND = x_BND[rows]
        part_CNN = products_CNN[: len(part_CND)]
        if padded_CND is not None:
            padded_CND[: len(part_CND), : x_BND.shape[1]] = part_CND
            part_CND = padded_CND[: len(part_CND)]
        if by_numpy:
            multiply_by_numpy(part_CND, transpose_copy(part_CND), part_CNN)
        else:
            torch.bmm(part_CND, part_CND.transpose(1, 2), out=part_CNN)
        torch.index_select(part_CNN.flatten(1), 1, lower_P, out=out_BP[rows])
    return out_BP


def _gradient(grad_BP: Tensor, x_BND: Tensor, both_NN: Tensor) -> Tensor:
    """Return the gradient of the vectors, [B, N, D]."""
    grad_x, grads_CNN = torch.empty_like(x_BND), _buffer(x_BND, x_BND.shape[1])
    padded_CP = grad_BP.new_zeros(len(grads_CNN), grad_BP.shape[1] + 1)
    for rows in _chunks(x_BND, grads_CNN):
        count = len(x_BND[rows])
        padded_CP[:count, :-1] = grad_BP[rows]
        part_CNN = grads_CNN[:count]
        torch.index_select(padded_CP[:count], 1, both_NN, out=part_CNN.flatten(1))
        multiply(part_CNN, x_BND[rows], grad_x[rows])
    return grad_x


def _register() -> Any:
    """Return `_Dot` as one operator of a compiled graph, which the compiler does not trace."""
    op = torch.library.custom_op
    forward = op(
        "runner::dot",
        _products,
        mutates_args=(),
        schema="(Tensor x, Tensor lower, Tensor both, int padded) -> Tensor",
    )
    backward = op(
        "runner::dot_gradient",
        _gradient,
        mutates_args=(),
        schema="(Tensor grad, Tensor x, Tensor both) -> Tensor",
    )
    forward.register_fake(  # len() would fix the number of rows
        lambda x_BND, lower_P, _, __: x_BND.new_empty(x_BND.shape[0], lower_P.shape[0])
    )
    backward.register_fake(lambda _, x_BND, both_NN: torch.empty_like(x_BND))
    forward.register_autograd(
        lambda ctx, grad_BP: (backward(grad_BP, *ctx.saved_tensors), None, None, None),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0], inputs[2]),
    )
    return forward


_compiled_dot = _register()


def _both_sides(grad_BP: Tensor, both_NN: Tensor) -> Tensor:
    """Return [B, N, N], symmetric with zeros on the diagonal."""
    size = round(len(both_NN) ** 0.5)
    padded = nn.functional.pad(grad_BP, (0, 1))
    return torch.unflatten(padded.index_select(1, both_NN), 1, (size, size))


def _buffer(x_BND: Tensor, num_vectors: int) -> Tensor:
    """Return an empty [C, N, N]."""
    num_rows = min(len(x_BND), max(1, numbers_at_a_time(x_BND.device) // num_vectors**2))
    return x_BND.new_empty(num_rows, num_vectors, num_vectors)


def _chunks(x_BND: Tensor, buffer_CNN: Tensor) -> list[slice]:
    step = max(1, len(buffer_CNN))
    return [slice(start, start + step) for start in range(0, len(x_BND), step)]
