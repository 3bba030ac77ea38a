"""A small model, its context and random batches, made by hand for tests of the core."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from runner.batch import Batch, DataPosition, Schema, SparseFeature, TaskSpec
from runner.embeddings.factory import build_tables
from runner.models.dlrm import DLRM
from runner.models.layers.embedding import TableLookup
from runner.models.layers.recommender import Recommender
from runner.models.losses import BCE, Loss
from runner.optim.settings import parse_sparse
from runner.training.update.context import Context
from runner.training.update.parameters import dense_parameters
from runner.training.update.task import StepOutput, Supervised

SCHEMA = Schema(
    dense=("d0", "d1"),
    sparse=(SparseFeature("a", 50), SparseFeature("b", 20), SparseFeature("m", 30)),
    tasks=(TaskSpec("click"),),
)
CPU = torch.device("cpu")


def random_batch(size: int, seed: int = 0, num_tasks: int = 1) -> Batch:
    """Two single-valued features and one with 0 to 3 ids a row."""
    g = torch.Generator().manual_seed(seed)
    lengths = torch.cat(
        (torch.ones(2 * size, dtype=torch.int64), torch.randint(0, 4, (size,), generator=g))
    )
    counts = [size, size, int(lengths[2 * size :].sum())]
    ids = [torch.randint(0, f.num_rows, (n,), generator=g) for f, n in zip(SCHEMA.sparse, counts)]
    return Batch(
        dense_BD=torch.randn(size, 2, generator=g),
        sparse=KeyedJaggedTensor(
            keys=[f.name for f in SCHEMA.sparse], values=torch.cat(ids), lengths=lengths
        ),
        sequences=None,
        labels_BT=(torch.rand(size, num_tasks, generator=g) < 0.4).float(),
        weights_B=torch.rand(size, generator=g) + 0.5,
        rows_B=torch.arange(size),
        groups_BG=torch.empty(size, 0, dtype=torch.int64),
        cursor=DataPosition(0, size),
    )


def make_context(
    kind: str = "sgd",
    *,
    lr: float = 0.1,
    micro_batch_size: int = 1 << 20,
    amp: bool = False,
    model: Recommender | None = None,
    loss: Loss | None = None,
    device: torch.device = CPU,
    **sparse: object,
) -> Context:
    """A context around a model of SCHEMA or any other; by default a DLRM with cross-entropy. Its
    initial weights are the same on any device."""
    torch.manual_seed(0)
    if model is None:
        model = DLRM(SCHEMA, embedding_dim=4, bottom=[8], top=[8])
    loss = loss or BCE(SCHEMA)
    [lookup] = [m for m in model.modules() if isinstance(m, TableLookup)]
    settings = parse_sparse({"kind": kind, "lr": lr, **sparse})
    lookup.attach_tables(
        build_tables(lookup.specs, lookup.features, settings, seed=0, device=device)
    )
    model.to(device)
    assert lookup.tables is not None
    lookup.tables.set_lr_and_step(lr, 1)
    return Context(
        model=model,
        loss=loss,
        tables=lookup.tables,
        dense_optimizer=torch.optim.SGD(list(dense_parameters(model, loss).values()), lr=lr),
        device=device,
        micro_batch_size=micro_batch_size,
        amp_dtype=torch.bfloat16 if amp else None,
        l2_lookups=settings.l2_lookups,
    )


def train(context: Context, batches: Iterable[Batch], lr: float = 0.1) -> list[StepOutput]:
    """Make an update with each batch."""
    outputs = []
    for step, batch in enumerate(batches, start=1):
        context.tables.set_lr_and_step(lr, step)
        outputs.append(Supervised().train_step(context, iter([batch.to(context.device)])))
    return outputs


def snapshot(context: Context) -> dict[str, torch.Tensor]:
    """Copies of every weight and table state."""
    state = {f"tables/{n}": t.clone() for n, t in context.tables.state().items()}
    dense = {
        n: p.detach().clone()
        for n, p in context.model.named_parameters()
        if not n.startswith("embedding.")
    }
    return state | dense
