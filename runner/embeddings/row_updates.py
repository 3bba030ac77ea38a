"""Update rules of embedding rows: one function of gathered rows for each optimizer.

Each takes the rows of the batch, their states and their summed gradients, and writes weights and
states in place. The formulas are those of FBGEMM's CUDA kernels (fbgemm_gpu 1.8,
codegen/genscript/optimizers.py): only rows of the batch move, an id in the batch counts even if its
gradient is zero, bias correction uses the number of the update, and weight decay is decoupled.
U rows of the batch, D width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from runner.optim.settings import SparseSettings

# Names of the states in a checkpoint, in the order of FBGEMM's momentum1, momentum2.
STATE_NAMES: dict[str, tuple[str, ...]] = {
    "sgd": (),
    "lars_sgd": ("momentum_buffer",),
    "adagrad": ("sum",),
    "rowwise_adagrad": ("sum",),
    "adam": ("exp_avg", "exp_avg_sq"),
    "lamb": ("exp_avg", "exp_avg_sq"),
    "partial_rowwise_adam": ("exp_avg", "exp_avg_sq"),
    "partial_rowwise_lamb": ("exp_avg", "exp_avg_sq"),
}
# States with one number for a row, not one for each weight.
ROWWISE_STATES: dict[str, tuple[str, ...]] = {
    "rowwise_adagrad": ("sum",),
    "partial_rowwise_adam": ("exp_avg_sq",),
    "partial_rowwise_lamb": ("exp_avg_sq",),
}


def state_shape(kind: str, name: str, num_rows: int, dim: int) -> tuple[int, ...]:
    """Return the shape of a state of a table: [R], or [R, D]."""
    return (num_rows,) if name in ROWWISE_STATES.get(kind, ()) else (num_rows, dim)


@dataclass(frozen=True)
class UpdateStep:
    """The settings of an update, its rate, and its number, counted from 1."""

    settings: SparseSettings
    lr: float
    step: int


UpdateRule = Callable[[Tensor, Sequence[Tensor], Tensor, UpdateStep], None]


def sgd(weight_UD: Tensor, states: Sequence[Tensor], grad_UD: Tensor, update: UpdateStep) -> None:
    """Apply plain SGD: w -= lr g."""
    weight_UD.add_(grad_UD, alpha=-update.lr)


def lars_sgd(
    weight_UD: Tensor, states: Sequence[Tensor], grad_UD: Tensor, update: UpdateStep
) -> None:
    """Apply LARS (layer-wise adaptive rates, arXiv:1708.03888) with each row as a layer.

    r = lr eta |w| / (|g| + wd |w|); m = momentum m + r (g + wd w); w -= m.
    A row without gradient and decay gets r = 0. The CUDA kernel divides by zero there, see
    `zero_gradient_rows`.
    """
    (momentum_UD,) = states
    settings, decay = update.settings, update.settings.weight_decay
    norm_U1 = torch.linalg.vector_norm(weight_UD, dim=1, keepdim=True)
    divisor_U1 = torch.linalg.vector_norm(grad_UD, dim=1, keepdim=True).add_(norm_U1, alpha=decay)
    rate_U1 = _ratio(norm_U1, divisor_U1).mul_(update.lr * settings.eta)
    direction_UD = grad_UD.add(weight_UD, alpha=decay) if decay else grad_UD
    momentum_UD.mul_(settings.momentum).addcmul_(direction_UD, rate_U1)
    weight_UD.sub_(momentum_UD)


def adagrad(
    weight_UD: Tensor, states: Sequence[Tensor], grad_UD: Tensor, update: UpdateStep
) -> None:
    """Apply Adagrad (Duchi et al. 2011): s += g^2; w -= lr g / (sqrt(s) + eps)."""
    (sum_UD,) = states
    sum_UD.addcmul_(grad_UD, grad_UD)
    weight_UD.addcdiv_(grad_UD, sum_UD.sqrt().add_(update.settings.eps), value=-update.lr)


def rowwise_adagrad(
    weight_UD: Tensor, states: Sequence[Tensor], grad_UD: Tensor, update: UpdateStep
) -> None:
    """Apply Adagrad with one accumulator a row: s += mean(g^2); w -= lr g / (sqrt(s) + eps).

    On CPU the numbers are those of FBGEMM's kernel to the last bit, for which products are rounded
    before they are added.
    """
    (sum_U,) = states
    sum_U.add_(_mean_square_of_lanes(grad_UD))
    rate_U = torch.full_like(sum_U, -update.lr).div_(_square_root(sum_U).add_(update.settings.eps))
    weight_UD.add_(grad_UD.mul_(rate_U[:, None]))


def adam(weight_UD: Tensor, states: Sequence[Tensor], grad_UD: Tensor, update: UpdateStep) -> None:
    """Apply Adam (arXiv:1412.6980) with decoupled decay: w -= lr (m' / (sqrt(v') + eps) + wd w)."""
    average_UD, square_UD = states
    settings = update.settings
    # the kernel behind torch.optim.AdamW(fused=True), which passes over the rows once
    torch._fused_adamw_(
        [weight_UD],
        [grad_UD],
        [average_UD],
        [square_UD],
        [],
        [torch.tensor(float(update.step), device=weight_UD.device)],
        lr=update.lr,
        beta1=settings.betas[0],
        beta2=settings.betas[1],
        weight_decay=settings.weight_decay,
        eps=settings.eps,
        amsgrad=False,
        maximize=False,
    )


def partial_rowwise_adam(
    weight_UD: Tensor, states: Sequence[Tensor], grad_UD: Tensor, update: UpdateStep
) -> None:
    """Apply Adam with one second moment a row, of mean(g^2)."""
    average_UD, square_U = states
    settings, lr = update.settings, update.lr
    divisor_U = _update_rowwise_moments(average_UD, square_U, grad_UD, update)
    if settings.weight_decay:
        weight_UD.mul_(1 - lr * settings.weight_decay)
    correction = 1 - settings.betas[0] ** update.step
    weight_UD.addcdiv_(average_UD, divisor_U[:, None], value=-lr / correction)


def lamb(weight_UD: Tensor, states: Sequence[Tensor], grad_UD: Tensor, update: UpdateStep) -> None:
    """Apply LAMB (arXiv:1904.00962) with each row as a layer: w -= lr |w|/|d| d, d as in Adam."""
    average_UD, square_UD = states
    (beta1, beta2), step = update.settings.betas, update.step
    average_UD.lerp_(grad_UD, 1 - beta1)
    square_UD.mul_(beta2).addcmul_(grad_UD, grad_UD, value=1 - beta2)
    divisor_UD = square_UD.sqrt().div_(math.sqrt(1 - beta2**step)).add_(update.settings.eps)
    direction_UD = average_UD.div(divisor_UD).mul_(1 / (1 - beta1**step))
    _apply_trust_ratio(weight_UD, direction_UD, update)


def partial_rowwise_lamb(
    weight_UD: Tensor, states: Sequence[Tensor], grad_UD: Tensor, update: UpdateStep
) -> None:
    """Apply LAMB with one second moment a row, of mean(g^2)."""
    average_UD, square_U = states
    divisor_U = _update_rowwise_moments(average_UD, square_U, grad_UD, update)
    correction = 1 - update.settings.betas[0] ** update.step
    direction_UD = average_UD.div(divisor_U[:, None]).mul_(1 / correction)
    _apply_trust_ratio(weight_UD, direction_UD, update)


UPDATE_RULES: dict[str, UpdateRule] = {
    "sgd": sgd,
    "lars_sgd": lars_sgd,
    "adagrad": adagrad,
    "rowwise_adagrad": rowwise_adagrad,
    "adam": adam,
    "lamb": lamb,
    "partial_rowwise_adam": partial_rowwise_adam,
    "partial_rowwise_lamb": partial_rowwise_lamb,
}


def _mean_square(grad_UD: Tensor) -> Tensor:
    return torch.einsum("ud,ud->u", grad_UD, grad_UD).div_(grad_UD.shape[1])


def _mean_square_of_lanes(grad_UD: Tensor) -> Tensor:
    """Return the mean square of each row in the order of FBGEMM's CPU kernel.

    Each of its eight lanes adds every eighth square; then they are added two by two.
    """
    square_UD = grad_UD.square()
    if missing := -square_UD.shape[1] % 8:
        square_UD = pad(square_UD, (0, missing))
    lanes_U8, *others = torch.split(square_UD, 8, dim=1)
    for square_U8 in others:
        lanes_U8 = lanes_U8 + square_U8
    sums = lanes_U8.reshape(-1)
    while len(sums) > len(grad_UD):
        sums = sums[0::2] + sums[1::2]
    return sums.div_(grad_UD.shape[1])


def _square_root(x: Tensor) -> Tensor:
    """Return square roots, each rounded correctly; those of torch on CPU are MKL's and are not."""
    return torch.from_numpy(np.sqrt(x.numpy())) if x.device.type == "cpu" else x.sqrt()


def _ratio(dividend: Tensor, divisor: Tensor) -> Tensor:
    """Divide, with 0 as result where the divisor is 0."""
    return torch.where(divisor > 0, dividend / divisor, 0.0)


def _update_rowwise_moments(
    average_UD: Tensor, square_U: Tensor, grad_UD: Tensor, update: UpdateStep
) -> Tensor:
    """Update both moments and return the root of the corrected second one plus eps, [U]."""
    beta1, beta2 = update.settings.betas
    average_UD.lerp_(grad_UD, 1 - beta1)
    square_U.mul_(beta2).add_(_mean_square(grad_UD), alpha=1 - beta2)
    return square_U.sqrt().div_(math.sqrt(1 - beta2**update.step)).add_(update.settings.eps)


def _apply_trust_ratio(weight_UD: Tensor, direction_UD: Tensor, update: UpdateStep) -> None:
    """Apply w -= lr |w| / |d| d, where d includes decay; a row with d = 0 does not move."""
    if update.settings.weight_decay:
        direction_UD.add_(weight_UD, alpha=update.settings.weight_decay)
    norm_U1 = torch.linalg.vector_norm(weight_UD, dim=1, keepdim=True)
    ratio_U1 = _ratio(norm_U1, torch.linalg.vector_norm(direction_UD, dim=1, keepdim=True))
    weight_UD.addcmul_(direction_UD, ratio_U1, value=-update.lr)
