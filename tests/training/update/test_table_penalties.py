"""The L2 penalties of tables in whole updates: micro-batches, ranks, and plain PyTorch twins."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn

from runner.batch import Embeddings
from runner.errors import ConfigError
from runner.models.dlrm import DLRM
from runner.optim.penalties import add_lookup_gradients
from runner.training.update.loss_scale import LossScale
from runner.training.update.task import Supervised
from tests.tiny import CPU, SCHEMA, make_context, random_batch, snapshot

FORMS = {
    "lookups": {"l2_lookups": 0.5},
    "tables": {"l2_tables": 0.1, "every_row": True},
    "tables caught up": {"l2_tables": 0.1},
    "both": {"l2_lookups": 0.5, "l2_tables": 0.1, "every_row": True},
}


def train(context, steps=3):
    for step in range(1, steps + 1):
        context.tables.set_lr_and_step(0.1, step)
        Supervised().train_step(context, iter([random_batch(24, step)]))
    return snapshot(context)


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        *(
            (k, f)
            for k in ("sgd", "adagrad", "rowwise_adagrad", "adam")
            for f in ("lookups", "tables", "both")
        ),
        ("sgd", "tables caught up"),
    ],
)
def test_four_micro_batches_equal_one_batch(kind, form):
    one = train(make_context(kind, **FORMS[form]))
    four = train(make_context(kind, micro_batch_size=6, **FORMS[form]))
    plain = train(make_context(kind))
    for name, tensor in one.items():
        torch.testing.assert_close(four[name], tensor, rtol=2e-5, atol=2e-6, msg=name)
    assert any(not torch.allclose(plain[name], one[name]) for name in one)


def test_the_penalty_on_look_ups_is_recboles_emb_loss_over_the_rows_of_the_batch():
    """EmbLoss(norm=2) with require_pow: sum of norm(e, 2) ** 2 over the look-ups / (2 batch)."""
    torch.manual_seed(0)
    vectors = [torch.randn(6, 4, requires_grad=True) for _ in range(3)]
    emb_loss = sum(torch.norm(v, p=2) ** 2 for v in vectors) / 6 / 2
    (0.3 * emb_loss).backward()
    ours = Embeddings(torch.cat(vectors[:2], 1), (vectors[2].view(6, 2, 2),)).detached()
    add_lookup_gradients(ours, torch.full((6,), 0.3 / 6))
    torch.testing.assert_close(ours.pooled_BE.grad, torch.cat([v.grad for v in vectors[:2]], 1))
    torch.testing.assert_close(ours.sequences_BLD[0].grad.view(6, 4), vectors[2].grad)


def test_candidates_count_with_their_mean_in_every_row():
    shared_CD = torch.tensor([[1.0, 0.0], [2.0, 1.0]])
    ours = Embeddings(torch.zeros(3, 4), shared_CD=(shared_CD,)).detached()
    strength_B = torch.tensor([1.0, 2.0, 3.0])
    add_lookup_gradients(ours, strength_B)
    twin = shared_CD.clone().requires_grad_()
    (strength_B / 2 * twin.square().sum(1).mean()).sum().backward()
    torch.testing.assert_close(ours.shared_CD[0].grad, twin.grad)


def test_one_update_of_sgd_equals_autograd_of_the_penalised_loss():
    """The gradient of a row is that of its bags plus lambda / W times every look-up of it."""
    context = make_context("sgd", l2_lookups=0.5)
    batch = random_batch(16, 1)
    tables = context.tables
    before = {name: t.clone().requires_grad_() for name, t in tables.state().items()}
    twins = []
    for name in ("a", "b", "m"):
        jt = batch.sparse[name]
        bag = torch.nn.functional.embedding_bag(
            jt.values(),
            before[f"{name}/weight"],
            jt.offsets(),
            mode="sum",
            include_last_offset=True,
        )
        twins.append(bag)
    pooled_BE = torch.cat(twins, 1)
    prediction = context.model.dense(Embeddings(pooled_BE), batch)
    [loss_B] = context.loss(prediction).values()
    penalty_B = 0.5 / 2 * pooled_BE.square().sum(1)
    loss = ((loss_B + penalty_B) * batch.weights_B).sum() / batch.weights_B.sum()
    gradients = torch.autograd.grad(loss, list(before.values()))
    Supervised().train_step(context, iter([batch]))
    for (name, start), gradient in zip(before.items(), gradients):
        expected = start.detach() - 0.1 * gradient
        torch.testing.assert_close(tables.state()[name], expected, rtol=1e-5, atol=1e-6)


def test_four_updates_of_a_model_equal_plain_pytorch_with_adam_and_fuxictrs_regularizer():
    """Accumulation over four micro-batches; tables and dense half under one torch.optim.Adam."""
    l2, width = 0.05, 10
    model = DLRM(SCHEMA, embedding_dim=width, bottom=[8], top=[8])
    settings = {"every_row": True, "l2_tables": l2}
    context = make_context("adam", lr=0.01, model=model, micro_batch_size=6, **settings)
    context.dense_optimizer = torch.optim.Adam(context.dense_parameters, lr=0.01)
    bags = nn.ModuleDict()
    for feature in SCHEMA.sparse:
        bag = nn.EmbeddingBag(feature.num_rows, width, mode="sum", include_last_offset=True)
        bag.weight.data.copy_(context.tables.state()[f"{feature.name}/weight"])
        bags[feature.name] = bag
    twin, tables = deepcopy(model), context.tables
    dense = [p for name, p in twin.named_parameters() if not name.startswith("embedding.")]
    optimizer = torch.optim.Adam([*bags.parameters(), *dense], lr=0.01)
    for step in range(1, 5):
        batch = random_batch(24, step)
        tables.set_lr_and_step(0.01, step)
        Supervised().train_step(context, iter([batch]))
        jagged = [batch.sparse[name] for name in bags]
        pooled = [bag(jt.values(), jt.offsets()) for bag, jt in zip(bags.values(), jagged)]
        prediction = twin.dense(Embeddings(torch.cat(pooled, 1)), batch)
        [loss_B] = context.loss(prediction).values()
        loss = (loss_B * batch.weights_B).sum() / batch.weights_B.sum()
        loss = loss + sum(l2 / 2 * torch.norm(bag.weight, 2) ** 2 for bag in bags.values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for name, bag in bags.items():
        ours = tables.state()[f"{name}/weight"]
        torch.testing.assert_close(ours, bag.weight.detach(), rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(context.dense_parameters, dense):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_loss_scale_leaves_the_penalty_as_it_is():
    plain, scaled = (make_context("sgd", l2_lookups=0.5) for _ in range(2))
    scaled.loss_scale = LossScale(CPU)
    expected = train(plain)
    for name, tensor in train(scaled).items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-5, atol=1e-6)


def test_a_task_that_leaves_the_penalty_out_is_refused_at_its_first_update():
    class Own(Supervised):
        def forward_backward(self, ctx, batch, embeddings, total_weight, capture):
            capture.boundaries.append(embeddings.detached())

    context = make_context("sgd", l2_lookups=0.5)
    with pytest.raises(ConfigError, match=r"optimizer\.sparse\.l2_lookups=0\.5.*has not added it"):
        Own().train_step(context, iter([random_batch(8)]))
