"""Tables sharded over ranks by TorchRec: its planner, DistributedModelParallel, fused kernels.

B batch of this rank, F features, E width of all pooled embeddings, R rows, D width.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchrec.distributed.comm_ops import set_gradient_division
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.train_pipeline.runtime_forwards import BaseForward
from torchrec.distributed.types import ShardingEnv
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from runner.distributed.ranks import Ranks, default_group
from runner.distributed.shards import LocalShard, LocalShards
from runner.embeddings.fbgemm_tables import kernel_options, set_kernel_step
from runner.embeddings.interface import (
    EmbeddingTables,
    Layout,
    Placement,
    column_orders,
    permute_columns,
)
from runner.embeddings.planner import (
    ROW_SHARDING_TYPES,
    FusedSharder,
    make_sharding_plan,
    make_topology,
    placements_of_plan,
)
from runner.embeddings.row_updates import STATE_NAMES, state_shape
from runner.embeddings.sharding_settings import ShardingSettings
from runner.optim.settings import SparseSettings


class TorchRecTables(EmbeddingTables):
    """TorchRec's sharded collection of embedding bags behind the interface `EmbeddingTables`.

    Collective: the constructor, every look-up and its backward. The gradients of all ranks are
    summed.
    """

    def __init__(
        self,
        layout: Layout,
        settings: SparseSettings,
        sharding: ShardingSettings,
        ranks: Ranks,
        *,
        device: torch.device,
        free_bytes: int,
        batch_size: int,
    ) -> None:
        """Plan the tables and build the shards of this rank, with their weights not yet set.

        Args:
            free_bytes: bytes of each device for these tables.
            batch_size: rows that a rank looks up at once, for the planner.

        Raises:
            ConfigError: if the tables do not fit, or if no plan obeys the settings.
        """
        super().__init__(layout, settings, device)
        self._ranks = ranks
        # the loss of a rank is divided by the weight of all ranks, so gradients sum to their mean
        set_gradient_division(False)
        collection = _collection(layout)
        sharder = FusedSharder(fused_params=kernel_options(settings, device))
        topology = make_topology(sharding, ranks, device, free_bytes)
        plan = make_sharding_plan(collection, sharder, layout, sharding, topology, batch_size)
        # the kernels draw initial weights that we overwrite; no generator's state may change
        devices = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            parallel = DistributedModelParallel(
                collection,
                env=ShardingEnv.from_process_group(default_group()),
                device=device,
                plan=plan,
                sharders=[sharder],
                init_data_parallel=False,
            )
        self._parallel = [parallel]  # in a list: hidden from nn.Module
        self._placement = placements_of_plan(plan)
        plans = {p.plan for p in self._placement}
        self._pads = ranks.is_distributed and not plans.isdisjoint(ROW_SHARDING_TYPES)
        self._counts_steps = device.type != "cpu"
        self._step = 1
        self._device = device
        self._column_orders: tuple[Tensor, Tensor] | None = None

    def set_lr_and_step(self, lr: float, step: int) -> None:
        self._step = step
        for kernel, _ in self._kernels():
            kernel.learning_rate_tensor.fill_(lr)

    def state(self) -> dict[str, Tensor]:
        names = STATE_NAMES[self.settings.kind]
        local: dict[str, list[LocalShard]] = {}
        for kernel, shards in self._kernels():
            weights = kernel.split_embedding_weights()
            states = kernel.split_optimizer_states() or [[] for _ in weights]
            for shard, weight, moments in zip(shards, weights, states, strict=True):
                first_row, first_column = shard.local_metadata.shard_offsets
                for name, tensor in zip(("weight", *names), (weight, *moments), strict=True):
                    offset = (first_row, first_column)[: tensor.dim()]
                    key = f"{shard.name}/{name}"
                    local.setdefault(key, []).append(LocalShard(tensor.detach(), offset))
        tensors: dict[str, Tensor] = {}
        for spec in self.layout.tables:
            for name in ("weight", *names):
                shape = state_shape(self.settings.kind, name, spec.num_rows, spec.dim)
                key = f"{spec.name}/{name}"
                tensors[key] = LocalShards(shape, local.get(key, []), torch.float32, self._device)
        return tensors

    def placement(self) -> list[Placement]:
        return self._placement

    def _kernels(self) -> Iterator[tuple[Any, list[Any]]]:
        """Yield FBGEMM's modules of this rank, each with TorchRec's descriptions of its tables."""
        for lookup in self._parallel[0].module._lookups:
            for module in lookup._emb_modules:
                yield module.emb_module, module.config.embedding_tables

    def torchrec_modules(self) -> list[nn.Module]:
        return [self._parallel[0].module]

    def torchrec_inputs(self, kjt: KeyedJaggedTensor) -> list[KeyedJaggedTensor]:
        if not self._pads:
            return [kjt]
        return [_padded(kjt, int(self._ranks.all_reduce_max(kjt.stride())))]

    def _pool(self, kjt: KeyedJaggedTensor) -> Tensor:
        size = kjt.stride()
        module = self._parallel[0].module
        for kernel, _ in self._kernels() if self._counts_steps else ():
            set_kernel_step(kernel, self._step)
        # TorchRec's pipeline has the ids already, and its forward ignores the input
        is_pipelined = isinstance(module.forward, BaseForward)
        pooled = module(kjt if is_pipelined else self.torchrec_inputs(kjt)[0])
        if self._column_orders is None:
            # TorchRec returns the columns in the order of its plan
            self._column_orders = column_orders(
                pooled.keys(), pooled.length_per_key(), self._keys, self._device
            )
        pooled_BE = permute_columns(pooled.values()[:size], *self._column_orders)
        return self._apply_mean_pooling(pooled_BE, kjt)


def _collection(layout: Layout) -> EmbeddingBagCollection:
    return EmbeddingBagCollection(
        tables=[
            EmbeddingBagConfig(
                name=spec.name,
                num_embeddings=spec.num_rows,
                embedding_dim=spec.dim,
                feature_names=list(spec.features),
            )
            for spec in layout.tables
        ],
        is_weighted=any(spec.weighted for spec in layout.tables),
        device=torch.device("meta"),
    )


def _padded(kjt: KeyedJaggedTensor, size: int) -> KeyedJaggedTensor:
    """Append empty bags to each feature, up to `size` of them."""
    missing = size - kjt.stride()
    if missing == 0:
        return kjt
    lengths_FB = kjt.lengths().view(len(kjt.keys()), -1)
    return KeyedJaggedTensor(
        keys=kjt.keys(),
        values=kjt.values(),
        weights=kjt.weights_or_none(),
        lengths=functional.pad(lengths_FB, (0, missing)).flatten(),
        stride=size,
        length_per_key=kjt.length_per_key_or_none(),  # on the host: no wait for a GPU
    )
