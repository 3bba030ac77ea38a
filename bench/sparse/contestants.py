"""One update of a DLRM, as others write it and as the runner does it.

Each contestant is made by a function of a scene and gives a function of a prepared batch. The dense
half of all but ours is TorchRec's own, so that the tables make the difference among them.
B batch, F features, D embedding width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torchrec.models.dlrm as torchrec_dlrm
from torch import Tensor, nn
from torch.nn import functional
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
from torchrec.models.dlrm import DenseArch, InteractionArch, OverArch
from torchrec.modules.fused_embedding_modules import fuse_embedding_optimizer
from torchrec.optim import RowWiseAdagrad

from bench.sparse.scenes import NUM_DENSE, TOP, Prepared, Scene
from runner.embeddings.factory import build_tables
from runner.models.dlrm import DLRM
from runner.models.layers.embedding import TableLookup
from runner.models.losses import BCE
from runner.optim.dense import build_dense_optimizer
from runner.optim.settings import parse_sparse
from runner.training.update.context import Context
from runner.training.update.parameters import dense_parameters
from runner.training.update.task import Supervised

CPU = torch.device("cpu")
RATE = 0.001
Update = Callable[[Prepared], None]


class _Dense(nn.Module):
    """TorchRec's dense half on pooled embeddings."""

    def __init__(self, scene: Scene) -> None:
        super().__init__()
        num_pairs = scene.num_tables * (scene.num_tables + 1) // 2
        self.bottom = DenseArch(NUM_DENSE, [64, scene.dim])
        self.interaction = InteractionArch(scene.num_tables)
        self.top = OverArch(scene.dim + num_pairs, [*TOP, 1])

    def forward(self, dense_BD: Tensor, pooled_BFD: Tensor) -> Tensor:
        return self.top(self.interaction(self.bottom(dense_BD), pooled_BFD))


class _Bags(nn.Module):
    """One nn.EmbeddingBag for each table, as many write it."""

    def __init__(self, scene: Scene, *, sparse: bool) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(scene.num_rows, scene.dim, mode="sum", sparse=sparse)
            for _ in range(scene.num_tables)
        )
        self.dense = _Dense(scene)

    def forward(self, given: Prepared) -> Tensor:
        pooled = [t(ids, given.starts_B) for t, ids in zip(self.tables, given.ids_F)]
        return self.dense(given.batch.dense_BD, torch.stack(pooled, dim=1))


class _BigTable(nn.Module):
    """One table for all features, their ids moved by offsets."""

    def __init__(self, scene: Scene) -> None:
        super().__init__()
        rows = scene.num_tables * scene.num_rows
        self.tables = nn.EmbeddingBag(rows, scene.dim, mode="sum", sparse=True)
        self.dense = _Dense(scene)

    def forward(self, given: Prepared) -> Tensor:
        pooled = self.tables(given.all_ids, given.all_starts)
        size = given.batch.size
        return self.dense(given.batch.dense_BD, pooled.view(size, -1, pooled.shape[1]))


def _updating(model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> Update:
    model.train()

    def update(given: Prepared) -> None:
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = functional.binary_cross_entropy_with_logits(model(given), given.batch.labels_BT)
        loss.backward()  # fused tables step in here
        for optimizer in optimizers:
            optimizer.step()

    return update


def bags_adam(scene: Scene) -> Update:
    model = _Bags(scene, sparse=False)
    return _updating(model, [torch.optim.Adam(model.parameters(), RATE)])


def bags_sparse_adam(scene: Scene) -> Update:
    model = _Bags(scene, sparse=True)
    tables = torch.optim.SparseAdam(list(model.tables.parameters()), RATE)
    return _updating(model, [tables, torch.optim.Adam(model.dense.parameters(), RATE)])


def big_table_sparse_adam(scene: Scene) -> Update:
    model = _BigTable(scene)
    tables = torch.optim.SparseAdam(list(model.tables.parameters()), RATE)
    return _updating(model, [tables, torch.optim.Adam(model.dense.parameters(), RATE)])


def _collection(scene: Scene, device: str) -> EmbeddingBagCollection:
    return EmbeddingBagCollection(
        tables=[
            EmbeddingBagConfig(
                name=f.name,
                embedding_dim=scene.dim,
                num_embeddings=f.num_rows,
                feature_names=[f.name],
            )
            for f in scene.schema.sparse
        ],
        device=torch.device(device),
    )


class _TorchRec(nn.Module):
    def __init__(self, scene: Scene, tables: nn.Module) -> None:
        super().__init__()
        self.net = torchrec_dlrm.DLRM(
            tables,  # type: ignore[arg-type]
            dense_in_features=NUM_DENSE,
            dense_arch_layer_sizes=[64, scene.dim],
            over_arch_layer_sizes=[*TOP, 1],
        )

    def forward(self, given: Prepared) -> Tensor:
        return self.net(given.batch.dense_BD, given.batch.sparse)


def torchrec_unfused(scene: Scene) -> Update:
    model = _TorchRec(scene, _collection(scene, "cpu"))
    return _updating(model, [torch.optim.Adam(model.parameters(), RATE)])


def torchrec_fused(scene: Scene) -> Update:
    """Build TorchRec's fused tables as its examples do."""
    fused = fuse_embedding_optimizer(
        _collection(scene, "meta"),
        optimizer_type=RowWiseAdagrad,
        optimizer_kwargs={"lr": RATE, "eps": 1e-8},
        device=CPU,
    )
    model = _TorchRec(scene, fused)
    dense = [p for n, p in model.named_parameters() if ".sparse_arch." not in n]
    return _updating(model, [torch.optim.Adam(dense, RATE)])


def our_context(scene: Scene, kind: str) -> Context:
    """Build model, tables and optimizers as the runner does."""
    schema = scene.schema
    model = DLRM(schema, embedding_dim=scene.dim, bottom=[64], top=list(TOP))
    [lookup] = [m for m in model.modules() if isinstance(m, TableLookup)]
    settings = parse_sparse({"kind": kind, "lr": RATE})
    tables = build_tables(lookup.specs, lookup.features, settings, seed=0, device=CPU)
    lookup.attach_tables(tables)
    tables.set_lr_and_step(RATE, 1)
    loss = BCE(schema)
    parameters = dense_parameters(model, loss)
    return Context(
        model=model.train(),
        loss=loss,
        tables=tables,
        dense_optimizer=build_dense_optimizer(torch.optim.Adam, {"lr": RATE}, parameters),
        device=CPU,
        micro_batch_size=1 << 30,
    )


def our_update(context: Context) -> Update:
    task, steps = Supervised(), [0]

    def update(given: Prepared) -> None:
        steps[0] += 1
        context.tables.set_lr_and_step(RATE, steps[0])
        task.train_step(context, iter([given.batch]))

    return update


def uncut_update(context: Context) -> Update:
    """Update the same model by one backward: no cut, no checks, tables step inside it."""

    def update(given: Prepared) -> None:
        context.dense_optimizer.zero_grad()
        logits_BT = context.model(given.batch).logits_BT
        functional.binary_cross_entropy_with_logits(logits_BT, given.batch.labels_BT).backward()
        context.dense_optimizer.step()

    return update


def ours_rowwise_adagrad(scene: Scene) -> Update:
    return our_update(our_context(scene, "rowwise_adagrad"))


def ours_adam(scene: Scene) -> Update:
    return our_update(our_context(scene, "adam"))


@dataclass(frozen=True)
class Contestant:
    name: str
    make: Callable[[Scene], Update]
    memory: float  # at its peak, in sizes of the weights: gradients and states beside them


OURS = "ours, row-wise Adagrad"
CONTESTANTS = (
    Contestant("nn.EmbeddingBag, Adam", bags_adam, 4.5),
    Contestant("nn.EmbeddingBag, SparseAdam", bags_sparse_adam, 3.2),
    Contestant("one big table, SparseAdam", big_table_sparse_adam, 3.2),
    Contestant("TorchRec unfused, Adam", torchrec_unfused, 4.5),
    Contestant("TorchRec fused, row-wise Adagrad", torchrec_fused, 2.2),
    Contestant("ours, Adam", ours_adam, 3.2),
    Contestant(OURS, ours_rowwise_adagrad, 1.2),
)
