"""Tables in pieces over ranks, by TorchRec: its planner, DistributedModelParallel, fused kernels.

B batch of this rank, F features, E width of all pooled embeddings, R rows, D width.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode
from torch import Tensor, nn
from torch.nn import functional
from torchrec.distributed.comm_ops import set_gradient_division
from torchrec.distributed.embedding_types import EmbeddingComputeKernel, ShardingType
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import ParameterConstraints, PlannerError
from torchrec.distributed.train_pipeline.runtime_forwards import BaseForward
from torchrec.distributed.types import ShardingEnv, ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from runner.dist.pieces import Piece, Pieces
from runner.dist.ranks import Ranks
from runner.errors import ConfigError
from runner.optim.fused import KERNELS, number_look_up
from runner.optim.layout import Columns, Layout, Placement, Tables, TableSpec
from runner.optim.rows import ROWWISE, STATES
from runner.optim.settings import SparseSettings
from runner.optim.sharding import ShardingSettings

_GB = 10**9
_AUTO = (ShardingType.TABLE_WISE.value, ShardingType.ROW_WISE.value)
# Their sums are put together by a reduce-scatter, which wants batches of one size.
_BY_ROWS = (ShardingType.ROW_WISE.value, ShardingType.TABLE_ROW_WISE.value)


class _Sharder(EmbeddingBagCollectionSharder):
    """TorchRec's, which on CPU offers no row-wise sharding although that works on gloo."""

    def sharding_types(self, compute_device_type: str) -> list[str]:
        return [t.value for t in ShardingType if t is not ShardingType.DATA_PARALLEL]

    def compute_kernels(self, sharding_type: str, compute_device_type: str) -> list[str]:
        return [EmbeddingComputeKernel.FUSED.value]


class ShardedTables(Tables):
    """TorchRec's sharded collection of embedding bags behind the interface of `Tables`.

    Collective: making it, every look-up and its backward. The gradients of all ranks are summed.

    Args: free_bytes: of each device, for these tables. batch_size: rows a rank looks up at once.
    Raises: ConfigError if the tables do not fit, or if no plan obeys the settings.
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
        super().__init__(layout, settings, device)
        self._ranks = ranks
        # the loss of a rank is divided by the weight of all, so gradients add up to their mean
        set_gradient_division(False)
        collection = _collection(layout)
        sharder = _Sharder(fused_params=_fused_params(settings, device))
        topology = _topology(sharding, ranks, device, free_bytes)
        plan = _plan(collection, sharder, layout, sharding, topology, batch_size)
        # the kernels draw initial weights, of which we make no use: no generator may notice
        devices = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            parallel = DistributedModelParallel(
                collection,
                env=ShardingEnv.from_process_group(_world()),
                device=device,
                plan=plan,
                sharders=[sharder],  # type: ignore[list-item]
                init_data_parallel=False,
            )
        self._parallel = [parallel]  # in a list: hidden from nn.Module
        self._placement = _placement(plan)
        plans = {p.plan for p in self._placement}
        self._pads = ranks.several and not plans.isdisjoint(_BY_ROWS)
        self._counts_steps = device.type != "cpu"
        self._step = 1
        self._device = device
        self._column_orders: tuple[Tensor, Tensor] | None = None

    def set_rate(self, lr: float, step: int) -> None:
        self._step = step
        for kernel, _ in self._kernels():
            kernel.learning_rate_tensor.fill_(lr)

    def state(self) -> dict[str, Tensor]:
        names = STATES[self.settings.kind]
        found: dict[str, list[Piece]] = {}
        for kernel, shards in self._kernels():
            weights = kernel.split_embedding_weights()
            states = kernel.split_optimizer_states() or [[] for _ in weights]
            for shard, weight, moments in zip(shards, weights, states, strict=True):
                first_row, first_column = shard.local_metadata.shard_offsets
                for name, tensor in zip(("weight", *names), (weight, *moments), strict=True):
                    offset = (first_row, first_column)[: tensor.dim()]
                    key = f"{shard.name}/{name}"
                    found.setdefault(key, []).append(Piece(tensor.detach(), offset))
        tensors: dict[str, Tensor] = {}
        for spec in self.layout.tables:
            for name in ("weight", *names):
                rowwise = name in ROWWISE.get(self.settings.kind, ())
                shape = (spec.num_rows,) if rowwise else (spec.num_rows, spec.dim)
                key = f"{spec.name}/{name}"
                tensors[key] = Pieces(shape, found.get(key, []), torch.float32, self._device)
        return tensors

    def placement(self) -> list[Placement]:
        return self._placement

    def _kernels(self) -> Iterator[tuple[Any, list[Any]]]:
        """FBGEMM's modules of this rank, each with TorchRec's descriptions of its tables."""
        for lookup in self._parallel[0].module._lookups:
            for module in lookup._emb_modules:
                yield module.emb_module, module.config.embedding_tables

    def torchrec_modules(self) -> list[nn.Module]:
        return [self._parallel[0].module]

    def torchrec_ids(self, kjt: KeyedJaggedTensor) -> list[KeyedJaggedTensor]:
        if not self._pads:
            return [kjt]
        return [_padded(kjt, int(self._ranks.largest(kjt.stride())))]

    def _pool(self, kjt: KeyedJaggedTensor) -> Tensor:
        size = kjt.stride()
        lengths_FB = kjt.lengths().view(len(self._keys), size)
        module = self._parallel[0].module
        for kernel, _ in self._kernels() if self._counts_steps else ():
            number_look_up(kernel, self._step)
        # TorchRec's pipeline has the ids already, and its forward takes no notice of what it gets
        pooled = module(kjt if _ahead(module) else self.torchrec_ids(kjt)[0])
        if self._column_orders is None:
            self._column_orders = self._orders(pooled.keys(), pooled.length_per_key())
        pooled_BE = Columns.apply(pooled.values()[:size], *self._column_orders)
        return self._averaged(pooled_BE, lengths_FB)

    def _orders(self, keys: Sequence[str], widths: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Columns come in the order of the plan: (plan -> features, features -> plan)."""
        ends = torch.tensor(widths).cumsum(0).tolist()
        columns = {k: range(end - width, end) for k, end, width in zip(keys, ends, widths)}
        order = torch.tensor([c for k in self._keys for c in columns[k]], device=self._device)
        return order, torch.argsort(order)


def _ahead(module: nn.Module) -> bool:
    return isinstance(module.forward, BaseForward)


def _world() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None, "sharded tables live in a process group"
    return group


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


def _fused_params(settings: SparseSettings, device: torch.device) -> dict[str, Any]:
    on_cpu = device.type == "cpu"
    return {
        "optimizer": KERNELS[settings.kind],
        "learning_rate": settings.lr,
        "eps": settings.eps,
        "beta1": settings.betas[0],
        "beta2": settings.betas[1],
        "weight_decay": settings.weight_decay,
        "momentum": settings.momentum,
        "eta": settings.eta,
        "stochastic_rounding": False,
        "bounds_check_mode": BoundsCheckMode.NONE if on_cpu else BoundsCheckMode.FATAL,
    }


def _plan(
    collection: EmbeddingBagCollection,
    sharder: _Sharder,
    layout: Layout,
    sharding: ShardingSettings,
    topology: Topology,
    batch_size: int,
) -> ShardingPlan:
    """Collective. TorchRec's plan within the settings. Raises: ConfigError with its reason."""
    planner = EmbeddingShardingPlanner(
        topology=topology,
        batch_size=batch_size,
        # TorchRec's own leaves the memory of a CPU out; the topology has the reserve taken off
        storage_reservation=FixedPercentageStorageReservation(0.0),
        constraints={s.name: _constraint(s, sharding, topology.world_size) for s in layout.tables},
        debug=False,
    )
    try:
        return planner.collective_plan(collection, [sharder], _world())  # type: ignore[list-item]
    except PlannerError as error:
        first = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"sharding.plan={sharding.plan}: TorchRec's planner finds no way to place the tables "
            f"on {topology.world_size} ranks: {first}"
        ) from error


def _constraint(
    spec: TableSpec, sharding: ShardingSettings, world_size: int
) -> ParameterConstraints:
    plan = sharding.plan_of(spec.name)
    kinds = list(_AUTO) if plan == "auto" else [plan]
    block = -(-spec.num_rows // world_size)
    if block * (world_size - 1) >= spec.num_rows:
        # the last rank would get no row, which FBGEMM's kernels on CPU cannot have: it stays whole
        kinds = [ShardingType.TABLE_WISE.value if k in _BY_ROWS else k for k in kinds]
    return ParameterConstraints(
        sharding_types=list(dict.fromkeys(kinds)),
        compute_kernels=[EmbeddingComputeKernel.FUSED.value],
        min_partition=min(sharding.min_columns, spec.dim) if plan == "column_wise" else None,
        pooling_factors=list(spec.mean_lengths) or [1.0] * len(spec.features),
    )


def _topology(
    sharding: ShardingSettings, ranks: Ranks, device: torch.device, free_bytes: int
) -> Topology:
    logging.getLogger("torchrec.distributed").setLevel(logging.ERROR)  # it is chatty about it
    memory = {"hbm_cap" if device.type == "cuda" else "ddr_cap": free_bytes}
    speeds = {"intra_host_bw": sharding.intra_host_gb_per_s}
    speeds |= {"inter_host_bw": sharding.inter_host_gb_per_s}
    bytes_per_ms = _GB / 1000
    return Topology(
        world_size=ranks.world_size,
        local_world_size=ranks.local_world_size,
        compute_device=device.type,
        **memory,
        **{name: speed * bytes_per_ms for name, speed in speeds.items() if speed is not None},
    )


def _placement(plan: ShardingPlan) -> list[Placement]:
    found = []
    for module in plan.plan.values():
        for table, parameter in module.items():  # type: ignore[attr-defined]
            assert parameter.sharding_spec is not None
            for shard in parameter.sharding_spec.shards:
                (row, column), (rows, columns) = shard.shard_offsets, shard.shard_sizes
                rank = shard.placement.rank()
                found.append(
                    Placement(table, parameter.sharding_type, rank, row, rows, column, columns)
                )
    return found


def _padded(kjt: KeyedJaggedTensor, size: int) -> KeyedJaggedTensor:
    """The same with empty bags behind each feature's own, up to `size` of them."""
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
        length_per_key=kjt.length_per_key_or_none(),  # on the host: a GPU would be waited for
    )
