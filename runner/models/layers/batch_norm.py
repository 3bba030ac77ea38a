"""Batch normalisation over the rows of an update, however divided, or of each micro-batch.

B rows, C channels.
"""

from __future__ import annotations

from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from runner.distributed.ranks import SINGLE_PROCESS, Ranks, current_ranks
from runner.models.layers.part_exchange import PartExchange, current_exchange
from runner.models.layers.update_state import UpdateState
from runner.models.row_scope import MICRO_BATCH_SCOPE, UPDATE_SCOPE

MOMENTUM = 0.1  # share of an update in the running statistics, as torch's


class BatchNorm(UpdateState):
    """(x - mean) / sqrt(variance + eps) * weight + bias, for each channel.

    Ioffe and Szegedy 2015 (arXiv:1502.03167). The statistics are those of the rows that count:
    rows of weight 0, which were skipped or are padding, are normalised but not counted. With the
    scope `update` the rows of all ranks count, in one exchange forward and one backward, and the
    trainer runs all micro-batches of an update as one; with `micro_batch` only those of the call.
    If a single row counts, its variance is 0 and the output is the bias.

    Evaluations use running statistics. They change once for each update, in `end_update`, towards
    mean and unbiased variance of all its rows in both scopes, and not at all for an update that is
    skipped, or of one row.

    Args:
        width: C.
        scope: the rows over which the statistics are computed.
        eps: added to the variance.
        affine: whether there are weight and bias.
        averages_first: whether the running statistics are the mean of the first updates, ten of
            them, before they move by `MOMENTUM`. Otherwise they start at 0 and 1, of which after n
            updates 0.9^n remains: too much if variances are far from 1.
    """

    uncompiled = ("_normalise",)
    running_mean: Tensor
    running_var: Tensor
    num_updates: Tensor | None

    def __init__(
        self,
        width: int,
        *,
        scope: str = UPDATE_SCOPE,
        eps: float = 1e-5,
        affine: bool = True,
        averages_first: bool = False,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width)) if affine else None
        self.bias = nn.Parameter(torch.zeros(width)) if affine else None
        self.eps, self.scope, self.ranks = eps, scope, current_ranks()
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))
        self.register_buffer("num_updates", torch.zeros(()) if averages_first else None)
        self.seen: Moments | None = None  # of the current update

    def forward(self, x_BC: Tensor, weights_B: Tensor | None = None) -> Tensor:
        """Return [B, C] in the type of x; statistics have the type of the parameters.

        Collective in training, with the scope `update`.

        Args:
            weights_B: rows of weight 0 do not count; None: all count.
        """
        if self.training:
            normed_BC: Tensor = self._normalise(x_BC, weights_B)
            return normed_BC
        statistics = (self.running_mean, self.running_var)
        return functional.batch_norm(x_BC, *statistics, self.weight, self.bias, eps=self.eps)

    def end_update(self, *, applied: bool) -> None:
        """Move the running statistics by the statistics of the update, if it was applied.

        Collective with the scope `micro_batch`.
        """
        if applied:
            zeros = torch.zeros_like(self.running_mean)
            count, mean, m2 = self.seen or (0, zeros, zeros)
            if self.scope == MICRO_BATCH_SCOPE and self.ranks.is_distributed:
                count = torch.as_tensor(count, dtype=mean.dtype, device=mean.device)
                count, mean, m2 = _over_ranks(count, mean, m2, self.ranks)
            rate: Tensor | float
            num_free: Tensor | int
            if isinstance(count, int):
                rate, num_free = MOMENTUM * (count > 1), max(count - 1, 1)
            else:
                rate, num_free = MOMENTUM * (count > 1).to(mean.dtype), (count - 1).clamp(min=1)
            if self.num_updates is not None:
                self.num_updates += count > 1
                rate = torch.clamp((count > 1) / self.num_updates.clamp(min=1), min=rate)
            self.running_mean.lerp_(mean, rate)
            self.running_var.lerp_(m2 / num_free, rate)
        self.forget_update()

    def forget_update(self) -> None:
        """Discard the statistics of the current update."""
        self.seen = None

    def takes_local_rows(self, x_BC: Tensor, weights_B: Tensor | None) -> bool:
        """Return whether the statistics are those of several rows of this rank that all count."""
        is_local = self.scope == MICRO_BATCH_SCOPE or not self.ranks.is_distributed
        are_several = x_BC.shape[0] > 1 or current_exchange() is not None
        return is_local and are_several and all_count(weights_B)

    def is_mapped_on_cpu(self, x_BC: Tensor) -> bool:
        """Return whether local rows are normalised by the functions of this file, not torch's."""
        return x_BC.is_cpu and x_BC.dtype == self.running_mean.dtype

    def _normalise(self, x_BC: Tensor, weights_B: Tensor | None) -> Tensor:
        normed_BC: Tensor
        if self.takes_local_rows(x_BC, weights_B):
            if self.is_mapped_on_cpu(x_BC):
                normed_BC, *statistics = _NormaliseLocally.apply(  # type: ignore[no-untyped-call]
                    x_BC, self.weight, self.bias, self.eps
                )
                self.take_in(*statistics)
                return normed_BC
            mean, var = torch.zeros_like(self.running_mean), torch.ones_like(self.running_var)
            normed_BC, *_ = torch.native_batch_norm(
                x_BC, self.weight, self.bias, mean, var, True, 1.0, self.eps
            )
            self.take_in(len(x_BC), mean, var * (len(x_BC) - 1))
            return normed_BC
        ranks = SINGLE_PROCESS if self.scope == MICRO_BATCH_SCOPE else self.ranks
        normed_BC, count, mean, m2 = _Normalise.apply(  # type: ignore[no-untyped-call]
            x_BC, self.weight, self.bias, weights_B, self.eps, current_exchange() or ranks
        )
        self.take_in(count, mean, m2)
        return normed_BC

    @torch.no_grad()
    def take_in(self, count: Tensor | int, mean: Tensor, m2: Tensor) -> None:
        """Add rows to the statistics of the update.

        Args:
            count: of the rows.
            mean: of each channel.
            m2: sum of squared deviations from the mean, of each channel.
        """
        exchange = current_exchange()
        if exchange is not None and not exchange.is_first:  # all threads have the same statistics
            return
        moments = (count, mean, m2)
        self.seen = moments if self.seen is None else join_statistics(self.seen, moments)


Moments = tuple[Tensor | int, Tensor, Tensor]  # rows, mean, sum of squared deviations from it


def join_statistics(first: Moments, second: Moments) -> Moments:
    """Return the statistics of the rows of both (Chan, Golub and LeVeque 1983)."""
    (count, mean, m2), (more, mean_of_more, m2_of_more) = first, second
    total = count + more
    share = more / (total.clamp(min=1) if isinstance(total, Tensor) else max(total, 1))
    difference = mean_of_more - mean
    m2 = m2 + m2_of_more + difference.square() * (count * share)
    return total, mean + difference * share, m2


def has_batch_statistics(module: nn.Module) -> bool:
    """Return whether the output of a row depends on other rows in training."""
    return any(isinstance(m, BatchNorm) for m in module.modules())


def all_count(weights_B: Tensor | None) -> bool:
    """Return whether all rows count. On a GPU this is not checked, since the host would wait."""
    if weights_B is None:
        return True
    do_all = weights_B.is_cpu and weights_B.numel() > 0 and float(weights_B.min()) > 0
    exchange = current_exchange()
    return do_all if exchange is None else all(exchange.gather(do_all))


def _over_ranks(
    count: Tensor, mean: Tensor, m2: Tensor, ranks: Ranks | PartExchange
) -> tuple[Tensor, Tensor, Tensor]:
    """Collective. Return rows, mean and sum of squared deviations over all ranks.

    The exchanged sums of squares are in float64, since a large mean would drown the deviations.
    """
    if not ranks.is_distributed:
        return count, mean, m2
    total = mean.double() * count
    sums = torch.cat((count.double().view(1), total, m2 + total * mean))
    ranks.all_reduce_sum(sums)
    num, total, squares = torch.split(sums, [1, len(mean), len(mean)])
    common = total / num.clamp(min=1)
    deviations = (squares - total * common).clamp(min=0)
    return num[0].to(count), common.to(mean), deviations.to(m2)


class RowStatistics(NamedTuple):
    """Of n rows with mean m and r = 1 / sqrt(variance + eps): y = s x + (b - s m) with s = w r.

    Ioffe and Szegedy 2015 (arXiv:1502.03167), in as few passes over memory as torch's operations
    allow, which are the cost of a batch norm on a CPU.
    """

    num_rows: int
    mean: Tensor  # [C], like all others
    inverse: Tensor  # r
    scale: Tensor  # s
    shift: Tensor  # b - s m
    m2: Tensor  # sum of squared deviations from the mean
    exchange: PartExchange | None  # with the threads that have other rows

    @classmethod
    def of(
        cls, x_BC: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> RowStatistics:
        """Return the statistics of the rows, and of those of other threads."""
        num_rows: Tensor | int = x_BC.shape[0]
        mean, var = torch.batch_norm_update_stats(x_BC, None, None, 0.0)
        m2 = var * num_rows
        if (exchange := current_exchange()) is not None:
            num_rows, mean, m2 = reduce(join_statistics, exchange.gather((num_rows, mean, m2)))
            var = m2 / num_rows
        inverse = torch.rsqrt(var + eps)
        scale = inverse if weight is None else inverse * weight
        shift = -mean * scale if bias is None else torch.addcmul(bias, mean, scale, value=-1)
        return cls(int(num_rows), mean, inverse, scale, shift, m2, exchange)

    def normalise(self, x_BC: Tensor) -> Tensor:
        """Return y."""
        return torch.addcmul(self.shift, x_BC, self.scale)

    def gradients(self, grad_BC: Tensor, x_BC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of x, w and b for that of y, which the first overwrites.

        That of x is s g + c x + d with c = -s r sum(g x^) / n, d = -s sum(g) / n - c m and
        x^ = r (x - m): section 3 of the paper, multiplied out.
        """
        _, grad_weight, grad_bias = torch.ops.aten.native_batch_norm_backward(
            *(grad_BC, x_BC, None, None, None, self.mean, self.inverse, True, 0.0),
            [False, True, True],
        )
        sum_weight, sum_bias = grad_weight, grad_bias  # of the rows of all threads
        if self.exchange is not None:
            sums = self.exchange.all_reduce_sum(torch.stack((grad_weight, grad_bias)))
            sum_weight, sum_bias = sums.unbind()
        share = self.scale * (-1 / self.num_rows)
        slope = share * self.inverse * sum_weight
        offset = torch.addcmul(share * sum_bias, slope, self.mean, value=-1)
        torch.addcmul(offset, grad_BC, self.scale, out=grad_BC).addcmul_(x_BC, slope)
        return grad_BC, grad_weight, grad_bias


class _NormaliseLocally(torch.autograd.Function):
    """Normalises rows of this rank, all of which count."""

    @staticmethod
    def forward(
        ctx: Any, x_BC: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> tuple[Tensor, int, Tensor, Tensor]:
        statistics = RowStatistics.of(x_BC, weight, bias, eps)
        ctx.save_for_backward(x_BC)
        ctx.statistics, ctx.has_affine = statistics, weight is not None
        ctx.mark_non_differentiable(statistics.mean, statistics.m2)
        return statistics.normalise(x_BC), statistics.num_rows, statistics.mean, statistics.m2

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BC: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        (x_BC,) = ctx.saved_tensors
        grads = ctx.statistics.gradients(grad_BC.clone(), x_BC)
        return grads[0], *(grads[1:] if ctx.has_affine else (None, None)), None


class _Normalise(torch.autograd.Function):
    """Normalises like torch, but some rows may not count and further ones may be on other ranks."""

    @staticmethod
    def forward(
        ctx: Any,
        x_BC: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        weights_B: Tensor | None,
        eps: float,
        ranks: Ranks | PartExchange,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        dtype = x_BC.dtype if x_BC.dtype == torch.float64 else torch.float32
        wide_BC = x_BC.to(dtype)
        counts_B1 = None if weights_B is None else (weights_B > 0)[:, None].to(dtype)
        count = wide_BC.new_tensor(len(x_BC)) if counts_B1 is None else counts_B1.sum()
        counted_BC = wide_BC if counts_B1 is None else wide_BC.where(counts_B1 > 0, 0.0)
        mean = counted_BC.sum(0) / count.clamp(min=1)
        deviation_BC = wide_BC - mean
        if counts_B1 is not None:
            deviation_BC = deviation_BC.where(counts_B1 > 0, 0.0)
        m2 = deviation_BC.square().sum(0)
        count, mean, m2 = _over_ranks(count, mean, m2, ranks)
        scale = torch.rsqrt(m2 / count.clamp(min=1) + eps)
        normed_BC = (wide_BC - mean) * scale
        output_BC = normed_BC
        if weight is not None and bias is not None:
            output_BC = torch.addcmul(bias.to(dtype), normed_BC, weight.to(dtype))
        ctx.ranks = ranks
        ctx.save_for_backward(normed_BC, scale, count, weight, counts_B1)
        ctx.mark_non_differentiable(count, mean, m2)
        return output_BC.to(x_BC.dtype), count, mean, m2

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BC: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        """Collective, over the same ranks as the forward."""
        normed_BC, scale, count, weight, counts_B1 = ctx.saved_tensors
        wide_BC = grad_BC.to(normed_BC.dtype)
        sums = torch.cat((wide_BC.sum(0), (wide_BC * normed_BC).sum(0)))
        grad_bias, grad_weight = sums.clone().chunk(2)  # of this rank; updates add the others'
        ctx.ranks.all_reduce_sum(sums)
        total, total_normed = (sums / count.clamp(min=1)).chunk(2)
        common_BC = torch.addcmul(total, normed_BC, total_normed)
        if counts_B1 is not None:
            common_BC = common_BC * counts_B1
        if weight is not None:
            scale = scale * weight.to(scale.dtype)
        grad_x_BC = ((wide_BC - common_BC) * scale).to(grad_BC.dtype)
        if weight is None:
            return grad_x_BC, *[None] * 5
        grads = (grad_weight.to(weight.dtype), grad_bias.to(weight.dtype))
        return grad_x_BC, *grads, *[None] * 3
