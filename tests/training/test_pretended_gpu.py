"""Runs an update on torch's `meta` device, which knows shapes, types and devices but no values.

It takes the place of a GPU: it refuses operations on tensors of two devices, but for indices, and
everything that would make the host wait for a number. In an update only the check of finiteness
may wait.
"""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from runner.batch import Batch, Schema
from runner.data.read.packed_batch import BatchLayout, PackedBatch
from runner.embeddings.interface import EmbeddingTables, make_layout
from runner.metrics import MetricSet
from runner.metrics.settings import MetricSettings
from runner.models.layers.batch_norm import has_batch_statistics
from runner.models.layers.recommender import Recommender
from runner.models.losses import BCE
from runner.optim.penalties import resolve_penalties
from runner.optim.penalty_settings import parse_penalties
from runner.optim.settings import ClipSettings, parse_sparse
from runner.training.update import context as context_module
from runner.training.update.context import Context
from runner.training.update.ema import MovingAverage
from runner.training.update.parameters import dense_parameters
from runner.training.update.task import Supervised
from tests.models.scene import SCHEMAS, SMALL, batch_of, make_model
from tests.tiny import SCHEMA

PRETENDED = torch.device("meta")
SGD = parse_sparse({"kind": "sgd", "lr": 0.1})


class NoTables(EmbeddingTables):
    """Tables that return look-ups of the right shape, from counts that the host knows."""

    def _look_up(self, values_V: Tensor, offsets: Tensor, weights_V: Tensor | None) -> Tensor:
        batch_size = (len(offsets) - 1) // len(self._keys)
        width = self.output_width
        return torch.zeros(batch_size, width, device=PRETENDED, requires_grad=True) * 1.0


def to_pretended_gpu(batch: Batch) -> Batch:
    """Move a batch as one of a dataset goes to a GPU: the host keeps the counts of its ids."""
    for field in fields(batch):
        kjt = getattr(batch, field.name)
        if isinstance(kjt, KeyedJaggedTensor):
            kjt.length_per_key(), kjt.offsets()
    return batch.to(PRETENDED)


def make_full_context(model: Recommender, schema: Schema) -> Context:
    """A context whose update does everything: clipping, norms, penalties, averages."""
    lookup = model.embedding
    layout = make_layout(lookup.specs, lookup.features, by_dim=False)
    lookup.attach_tables(NoTables(layout, SGD, PRETENDED))
    model.to(PRETENDED)
    loss = BCE(schema)
    named = dense_parameters(model, loss)
    context = Context(
        model=model,
        loss=loss,
        tables=lookup.tables,
        dense_optimizer=torch.optim.SGD(list(named.values()), lr=0.1),
        device=PRETENDED,
        schema=schema,
        micro_batch_size=7,
        clip=ClipSettings(global_norm=1.0, parameter_norm=1.0, value=1.0),
        log_gradients="parameters",
        penalties=resolve_penalties(
            parse_penalties([{"pattern": ".", "l1": 0.1, "l2": 0.1}]), named, []
        ),
    )
    context.ema = MovingAverage(named, decay=0.9, warmup=True, use_in_evaluation=True)
    context.parameter_names = {id(p): name for name, p in named.items()}
    return context


@pytest.fixture
def checks(monkeypatch) -> list[int]:
    """The number of tensors in each check of finiteness, which is the only thing that may wait."""
    counts: list[int] = []
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: False)  # not known for `meta`
    monkeypatch.setattr(context_module, "all_finite", lambda ts: counts.append(len(ts)) or True)
    return counts


def update(context: Context, batch: Batch) -> None:
    """One update, with the metrics and the average that come after it."""
    for root in context.root_modules():
        root.train()
    output = Supervised().train_step(context, iter([to_pretended_gpu(batch)]))
    # statistics over the update take all its micro-batches at once
    at_once = has_batch_statistics(context.model)
    assert output.applied
    assert len(output.predictions) == (1 if at_once else -(-batch.size // 7))
    assert context.ema is not None
    context.ema.update(1)
    settings = MetricSettings(eval=["auc", "log_loss"], train=["log_loss", "normalized_entropy"])
    assert context.schema is not None
    for exact in (False, True):
        metrics = MetricSet(context.schema.tasks, exact=exact, device=PRETENDED, settings=settings)
        for prediction, losses in zip(output.predictions, output.losses):
            metrics.update(prediction, losses)
        assert all(t.device.type in ("meta", "cpu") for t in metrics.state().values())


@pytest.mark.parametrize("schema", sorted(SCHEMAS))
@pytest.mark.parametrize("name", sorted(SMALL))
def test_an_update_of_a_model_stays_on_its_device_and_waits_for_nothing(name, schema, checks):
    shape = SCHEMAS[schema]
    context = make_full_context(make_model(name, shape), shape)
    update(context, batch_of(shape))
    assert len(checks) == 1


def test_a_batch_in_one_piece_is_decoded_there(checks):
    """As a process sends it: ids in 32 bits, and without the offsets of single ids."""
    plain, context = batch_of(SCHEMA, 24), make_full_context(make_model("dlrm"), SCHEMA)
    plain.sparse.offsets()
    layout = BatchLayout.of(plain, num_singles=2)
    places = layout.places
    assert places["sparse.values"].stored == places["sparse.offsets"].stored == torch.int32
    assert places["sparse.offsets"].num_counted == 49 and "sparse.lengths" not in places
    assert layout.num_bytes < 0.6 * sum(t.nbytes for t in layout.tensors_of(plain).values())
    moved = PackedBatch.of(layout, torch.zeros(layout.num_bytes, dtype=torch.uint8)).to(PRETENDED)
    for name, tensor in layout.tensors_of(plain).items():
        there = layout.tensors_of(moved)[name]
        assert there.device == PRETENDED and there.dtype == tensor.dtype, name
        assert there.shape == tensor.shape, name
    update(context, moved)
    assert len(checks) == 1


def test_the_pretended_gpu_refuses_tensors_of_the_host_and_reading_values():
    on_gpu, on_host = torch.zeros(3, device=PRETENDED), torch.zeros(3)
    for wrong in (
        lambda: on_gpu + on_host,
        lambda: torch.cat((on_gpu, on_host)),
        lambda: float(on_gpu.sum()),
        lambda: on_gpu[on_gpu > 0],
        lambda: bool(torch.isfinite(on_gpu).all()),
    ):
        with pytest.raises((RuntimeError, NotImplementedError)):
            wrong()
