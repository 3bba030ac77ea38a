"""Update rules of embedding rows: pure functions of gathered rows, one for each optimizer.

Each takes the rows of the batch, their states and their summed gradients, and writes weights and
states in place. Formulas are those of FBGEMM's CUDA kernels (fbgemm_gpu 1.8,
codegen/genscript/optimizers.py): only rows of the batch move, an id in the batch counts even when
its gradient is zero, bias correction is by the number of the update, weight decay is decoupled.
U rows of the batch, D width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

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
# States that hold one number a row, not one a weight.
ROWWISE_STATES: dict[str, tuple[str, ...]] = {
    "rowwise_adagrad": ("sum",),
    "partial_rowwise_adam": ("exp_avg_sq",),
    "partial_rowwise_lamb": ("exp_avg_sq",),
}

UpdateRule = Callable[[Tensor, Sequence[Tensor], Tensor, SparseSettings, float, int], None]


def sgd(
    weight_UD: Tensor,
    states: Sequence[Tensor],
    grad_UD: Tensor,
    settings: SparseSettings,
    lr: float,
    step: int,
) -> None:
    """w -= lr g."""
    weight_UD.add_(grad_UD, alpha=-lr)


def lars_sgd(
    weight_UD: Tensor,
    states: Sequence[Tensor],
    grad_UD: Tensor,
    settings: SparseSettings,
    lr: float,
    step: int,
) -> None:
    """Layer-wise adaptive rates (arXiv:1708.03888), a row taken as a layer.

    r = lr eta |w| / (|g| + wd |w|); m = momentum m + r (g + wd w); w -= m.
    A row without gradient and decay gets r = 0; the CUDA kernel alone divides by zero there, see
    still_rows.
    """
    (momentum_UD,) = states
    decay = settings.weight_decay
    norm_U1 = torch.linalg.vector_norm(weight_UD, dim=1, keepdim=True)
    below_U1 = torch.linalg.vector_norm(grad_UD, dim=1, keepdim=True).add_(norm_U1, alpha=decay)
    rate_U1 = _ratio(norm_U1, below_U1).mul_(lr * settings.eta)
    direction_UD = grad_UD.add(weight_UD, alpha=decay) if decay else grad_UD
    momentum_UD.mul_(settings.momentum).addcmul_(direction_UD, rate_U1)
    weight_UD.sub_(momentum_UD)


def adagrad(
    weight_UD: Tensor,
    states: Sequence[Tensor],
    grad_UD: Tensor,
    settings: SparseSettings,
    lr: float,
    step: int,
) -> None:
    """Adagrad (Duchi et al. 2011): s += g^2; w -= lr g / (sqrt(s) + eps)."""
    (sum_UD,) = states
    sum_UD.addcmul_(grad_UD, grad_UD)
    weight_UD.addcdiv_(grad_UD, sum_UD.sqrt().add_(settings.eps), value=-lr)


def rowwise_adagrad(
    weight_UD: Tensor,
    states: Sequence[Tensor],
    grad_UD: Tensor,
    settings: SparseSettings,
    lr: float,
    step: int,
) -> None:
    """Adagrad with one accumulator a row: s += mean(g^2); w -= lr g / (sqrt(s) + eps)."""
    (sum_U,) = states
    sum_U.add_(_mean_square(grad_UD))
    rate_U = sum_U.sqrt().add_(settings.eps).reciprocal_().mul_(-lr)
    weight_UD.addcmul_(grad_UD, rate_U[:, None])


def adam(
    weight_UD: Tensor,
    states: Sequence[Tensor],
    grad_UD: Tensor,
    settings: SparseSettings,
    lr: float,
    step: int,
) -> None:
    """Adam (arXiv:1412.6980) with decoupled decay: w -= lr (m' / (sqrt(v') + eps) + wd w)."""
    average_UD, square_UD = states
    # one pass over the rows: the kernel behind torch.optim.AdamW(fused=True)
    torch._fused_adamw_(
        [weight_UD],
        [grad_UD],
        [average_UD],
        [square_UD],
        [],
        [torch.tensor(float(step))],
        lr=lr,
        beta1=settings.betas[0],
        beta2=settings.betas[1],
        weight_decay=settings.weight_decay,
        eps=settings.eps,
        amsgrad=False,
        maximize=False,
    )


def partial_rowwise_adam(
    weight_UD: Tensor,
    states: Sequence[Tensor],
    grad_UD: Tensor,
    settings: SparseSettings,
    lr: float,
    step: int,
) -> None:
    """Adam with one second moment a row, of mean(g^2)."""
    average_UD, square_U = states
    below_U = _rowwise_moments(average_UD, square_U, grad_UD, settings, step)
    if settings.weight_decay:
        weight_UD.mul_(1 - lr * settings.weight_decay)
    weight_UD.addcdiv_(average_UD, below_U[:, None], value=-lr / (1 - settings.betas[0] ** step))


def lamb(
    weight_UD: Tensor,
    states: Sequence[Tensor],
    grad_UD: Tensor,
    settings: SparseSettings,
    lr: float,
    step: int,
) -> None:
    """LAMB (arXiv:1904.00962), a row taken as a layer: w -= lr |w|/|d| d, d Adam's direction."""
    average_UD, square_UD = states
    beta1, beta2 = settings.betas
    average_UD.lerp_(grad_UD, 1 - beta1)
    square_UD.mul_(beta2).addcmul_(grad_UD, grad_UD, value=1 - beta2)
    below_UD = square_UD.sqrt().div_(math.sqrt(1 - beta2**step)).add_(settings.eps)
    direction_UD = average_UD.div(below_UD).mul_(1 / (1 - beta1**step))
    _step_by_trust(weight_UD, direction_UD, settings, lr)


def partial_rowwise_lamb(
    weight_UD: Tensor,
    states: Sequence[Tensor],
    grad_UD: Tensor,
    settings: SparseSettings,
    lr: float,
    step: int,
) -> None:
    """LAMB with one second moment a row, of mean(g^2)."""
    average_UD, square_U = states
    below_U = _rowwise_moments(average_UD, square_U, grad_UD, settings, step)
    direction_UD = average_UD.div(below_U[:, None]).mul_(1 / (1 - settings.betas[0] ** step))
    _step_by_trust(weight_UD, direction_UD, settings, lr)


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


def _ratio(above: Tensor, below: Tensor) -> Tensor:
    """above / below, and 0 where below is 0."""
    return torch.where(below > 0, above / below, 0.0)


def _rowwise_moments(
    average_UD: Tensor, square_U: Tensor, grad_UD: Tensor, settings: SparseSettings, step: int
) -> Tensor:
    """Moves both moments; returns sqrt of the corrected second one plus eps, [U]."""
    beta1, beta2 = settings.betas
    average_UD.lerp_(grad_UD, 1 - beta1)
    square_U.mul_(beta2).add_(_mean_square(grad_UD), alpha=1 - beta2)
    return square_U.sqrt().div_(math.sqrt(1 - beta2**step)).add_(settings.eps)


def _step_by_trust(
    weight_UD: Tensor, direction_UD: Tensor, settings: SparseSettings, lr: float
) -> None:
    """w -= lr |w| / |d| d, d with decay, and nothing where d is 0; see still_rows."""
    if settings.weight_decay:
        direction_UD.add_(weight_UD, alpha=settings.weight_decay)
    norm_U1 = torch.linalg.vector_norm(weight_UD, dim=1, keepdim=True)
    ratio_U1 = _ratio(norm_U1, torch.linalg.vector_norm(direction_UD, dim=1, keepdim=True))
    weight_UD.addcmul_(direction_UD, ratio_U1, value=-lr)
