"""Tables on FBGEMM's fused kernels: one call looks up all tables, and its backward updates them."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import (
    BoundsCheckMode,
    EmbeddingLocation,
    PoolingMode,
)
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
    WeightDecayMode,
)
from torch import Tensor

from runner.embeddings.interface import EmbeddingTables, Layout
from runner.embeddings.row_updates import STATE_NAMES
from runner.embeddings.sharding_settings import FBGEMM_CPU_KINDS
from runner.optim.settings import SparseSettings

# Its kernels for GPUs log how they were built: that Adam's is not tuned, and what a B200 would have
for said in (r"\s*\S*\s*\[FBGEMM_GPU\] NOTE: The training optimizer", "TBE B200 optimization"):
    warnings.filterwarnings("ignore", said, UserWarning)

FBGEMM_OPTIMIZERS = {
    "sgd": EmbOptimType.EXACT_SGD,
    "lars_sgd": EmbOptimType.LARS_SGD,
    "adagrad": EmbOptimType.EXACT_ADAGRAD,
    "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
    "adam": EmbOptimType.ADAM,
    "lamb": EmbOptimType.LAMB,
    "partial_rowwise_adam": EmbOptimType.PARTIAL_ROWWISE_ADAM,
    "partial_rowwise_lamb": EmbOptimType.PARTIAL_ROWWISE_LAMB,
}


class FbgemmTables(EmbeddingTables):
    """All tables in one FBGEMM table-batched embedding."""

    def __init__(self, layout: Layout, settings: SparseSettings, device: torch.device) -> None:
        """Build tables whose weights are not yet set, of a kind with a kernel on the device."""
        super().__init__(layout, settings, device)
        assert device.type != "cpu" or settings.kind in FBGEMM_CPU_KINDS, settings.kind
        self._tbe = [_kernel(layout, settings, device)]  # in a list: hidden from nn.Module
        self._counts_steps = device.type != "cpu"
        self._kernel_lr = math.nan  # NaN: not known
        self._step = 1

    def set_lr_and_step(self, lr: float, step: int) -> None:
        (tbe,) = self._tbe
        if lr != self._kernel_lr:
            tbe.learning_rate_tensor.fill_(lr)
            self._kernel_lr = lr
        self._step = step

    def state(self) -> dict[str, Tensor]:
        (tbe,) = self._tbe
        tensors = {}
        weights = tbe.split_embedding_weights()
        states = tbe.split_optimizer_states() or [[] for _ in weights]
        for spec, weight, moments in zip(self.layout.tables, weights, states, strict=True):
            tensors[f"{spec.name}/weight"] = weight.detach()
            for name, moment in zip(STATE_NAMES[self.settings.kind], moments, strict=True):
                tensors[f"{spec.name}/{name}"] = moment.detach()
        return tensors

    def _look_up(self, values_V: Tensor, offsets: Tensor, weights_V: Tensor | None) -> Tensor:
        (tbe,) = self._tbe
        if self._counts_steps:
            set_kernel_step(tbe, self._step)
        pooled_BE: Tensor = tbe(values_V, offsets, per_sample_weights=weights_V)
        return pooled_BE


def set_kernel_step(tbe: SplitTableBatchedEmbeddingBagsCodegen, step: int) -> None:
    """Tell a kernel that its next look-up belongs to update `step`, counted from 1.

    Call it before each look-up: the kernel adds 1 at every look-up, even if an update has several,
    such as one for a score before it.
    """
    tbe.iter_cpu.fill_(step - 1)
    tbe.iter.fill_(step - 1)


def _kernel(
    layout: Layout, settings: SparseSettings, device: torch.device
) -> SplitTableBatchedEmbeddingBagsCodegen:
    on_cpu = device.type == "cpu"
    location = EmbeddingLocation.HOST if on_cpu else EmbeddingLocation.DEVICE
    compute = ComputeDevice.CPU if on_cpu else ComputeDevice.CUDA
    return SplitTableBatchedEmbeddingBagsCodegen(
        embedding_specs=[(t.num_rows, t.dim, location, compute) for t in layout.tables],
        feature_table_map=list(layout.table_of),
        weight_decay_mode=WeightDecayMode.NONE,  # only row-wise Adagrad reads it
        weights_precision=SparseType(settings.dtype),
        output_dtype=SparseType.FP32,
        pooling_mode=PoolingMode.SUM,
        device=device,
        **kernel_options(settings, device),
    )


def kernel_options(settings: SparseSettings, device: torch.device) -> dict[str, Any]:
    """Return the options of a kernel that TorchRec passes on to it, too."""
    on_cpu = device.type == "cpu"
    return {
        "optimizer": FBGEMM_OPTIMIZERS[settings.kind],
        "learning_rate": settings.lr,
        "eps": settings.eps,
        "beta1": settings.betas[0],
        "beta2": settings.betas[1],
        "weight_decay": settings.weight_decay,
        "momentum": settings.momentum,
        "eta": settings.eta,
        "stochastic_rounding": False,  # `CpuTables` rounds 16-bit rows, by the update's number
        # on CPU the look-up refuses an id outside its table; on CUDA it would read out of bounds
        "bounds_check_mode": BoundsCheckMode.NONE if on_cpu else BoundsCheckMode.FATAL,
    }
