"""What one update does: exact accumulation, weights of rows, and updates that are skipped whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from runner.batch import Prediction
from runner.config.settings import TrainerSettings
from runner.errors import UserError
from runner.models.dlrm import DLRM
from runner.models.losses import BCE
from runner.training.state import TrainState
from runner.training.steps import steps
from runner.training.update.gradients import all_finite
from runner.training.update.loss_scale import LossScale
from runner.training.update.task import Supervised
from tests.devices import DEVICES, tolerance
from tests.tiny import SCHEMA, make_context, random_batch, snapshot, train
from tests.tiny_job import Rows, make_job

KINDS = ("sgd", "adagrad", "rowwise_adagrad", "adam")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("micro", [1, 7, 16, 32, 63])
@pytest.mark.parity("T4", "N7")
def test_micro_batches_equal_one_batch(kind, micro, device):
    whole, parts = (make_context(kind, micro_batch_size=m, device=device) for m in (64, micro))
    batches = [random_batch(64, seed) for seed in range(4)]
    train(whole, batches)
    train(parts, batches)
    ours, theirs = snapshot(parts), snapshot(whole)
    assert ours.keys() == theirs.keys()
    near = tolerance(device, 2e-6, 2e-5)
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=near, msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_accumulation_equals_one_large_batch_over_epochs_with_a_short_last_window(kind):
    whole, parts = (
        make_job(
            make_context(kind),
            dataset=Rows(150),  # 32 rows an update, and 22 at the end of an epoch
            trainer=TrainerSettings(batch_size=32 // number, accumulate=number, max_epochs=2),
        )
        for number in (1, 4)
    )
    for ours, theirs in zip(steps(parts, TrainState()), steps(whole, TrainState()), strict=True):
        assert ours.cursor == theirs.cursor
        assert [len(p.weights_B) for p in ours.predictions] == (
            [8, 8, 6] if len(theirs.rows_B) == 22 else [8, 8, 8, 8]
        )
    a, b = snapshot(parts.context), snapshot(whole.context)
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=0, atol=2e-6, msg=name)


def test_an_update_equals_plain_pytorch_with_one_embedding_a_table():
    context = make_context("sgd")
    start, batch = snapshot(context), random_batch(64)
    bags = {n: start[f"tables/{n}/weight"].clone().requires_grad_() for n in ("a", "b", "m")}
    dense = {n: p.clone().requires_grad_() for n, p in start.items() if not n.startswith("tables")}
    ids = batch.sparse.to_dict()
    pooled = [
        functional.embedding_bag(ids[n].values(), w, ids[n].offsets()[:-1], mode="sum")
        for n, w in bags.items()
    ]

    def linear(x, name):
        return functional.linear(x, dense[f"{name}.weight"], dense[f"{name}.bias"])

    hidden = linear(torch.relu(linear(batch.dense_BD, "bottom.0")), "bottom.2").relu()
    vectors = torch.stack([hidden, *pooled], dim=1)
    products = vectors @ vectors.transpose(1, 2)
    pairs = torch.stack([products[:, i, j] for i in range(4) for j in range(i)], dim=1)
    top = linear(torch.cat((hidden, pairs), dim=1), "top.0").relu()
    logits = linear(top, "top.2")[:, 0]
    loss = functional.binary_cross_entropy_with_logits(
        logits, batch.labels_BT[:, 0], weight=batch.weights_B, reduction="sum"
    )
    (loss / batch.weights_B.sum()).backward()
    train(context, [batch])
    after = snapshot(context)
    twins = {f"tables/{n}/weight": w for n, w in bags.items()} | dense
    for name, twin in twins.items():
        expected = (twin - 0.1 * twin.grad).detach()
        torch.testing.assert_close(after[name], expected, rtol=0, atol=1e-6, msg=name)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_changes_nothing_at_all(kind, bad, device):
    context = make_context(kind, micro_batch_size=16, device=device)
    train(context, [random_batch(64, 1)])
    before = snapshot(context)
    poisoned = random_batch(64, 2)
    poisoned.dense_BD[40, 1] = bad
    [output] = train(context, [poisoned])
    assert not output.applied
    after = snapshot(context)
    assert all(torch.equal(after[n], before[n]) for n in before)
    assert all(p.grad is None for p in context.dense_parameters)
    [output] = train(context, [random_batch(64, 3)])
    assert output.applied


@pytest.mark.parity("E17")
def test_a_row_of_weight_zero_has_no_influence():
    batch = random_batch(64)
    weights = batch.weights_B.clone()
    weights[10:20] = 0
    other_labels = batch.labels_BT.clone()
    other_labels[10:20] = 1 - other_labels[10:20]
    one, two = make_context(), make_context()
    train(one, [replace(batch, weights_B=weights)])
    train(two, [replace(batch, weights_B=weights, labels_BT=other_labels)])
    a, b = snapshot(one), snapshot(two)
    assert all(torch.equal(a[n], b[n]) for n in a)


@pytest.mark.parametrize("l2_lookups", [0.0, 5.0])
@pytest.mark.parametrize("scales", [False, True])
def test_a_batch_whose_rows_all_weigh_nothing_changes_nothing(scales, l2_lookups):
    """Its gradient of 0 is no overflow, at which a loss scale would fall."""
    context = make_context(l2_lookups=l2_lookups)
    context.loss_scale = LossScale(context.device) if scales else None
    before = snapshot(context)
    batch = random_batch(8)
    [output] = train(context, [replace(batch, weights_B=torch.zeros(8))])
    assert output.applied
    after = snapshot(context)
    assert all(torch.equal(after[n], before[n]) for n in before)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parity("T5")
def test_bf16_autocast_runs_the_dense_half_low_and_returns_float32(device):
    context = make_context(amp=True, device=device)
    seen = []
    context.model.top[0].register_forward_hook(lambda m, i, o: seen.append(o.dtype))
    [output] = train(context, [random_batch(64)])
    assert seen == [torch.bfloat16]
    assert output.predictions[0].logits_BT.dtype == torch.float32
    full = make_context(device=device)
    [reference] = train(full, [random_batch(64)])
    difference = output.predictions[0].logits_BT - reference.predictions[0].logits_BT
    assert 0 < difference.abs().max() < 0.05


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bad", [None, float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("others", [1.0, 3e38])
def test_finite_values_are_finite_also_where_their_sum_overflows(bad, others, device):
    tensors = [torch.full((100,), others), torch.empty(0), torch.full((3, 4), -others)]
    tensors = [t.to(device) for t in tensors]
    assert all_finite(tensors)  # also where the sums overflow
    if bad is not None:
        tensors[2][1, 2] = bad
        assert not all_finite(tensors)
    both = torch.tensor([float("inf"), float("-inf"), 1.0], device=device)
    assert not all_finite([both])
    assert all_finite([])


class Other(DLRM):
    """A model whose dense half returns what it is told to."""

    def dense(self, embeddings, batch):
        return self.change(super().dense(embeddings, batch), batch)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda p, batch: p.logits_BT,
            "model.net: dense of Other returned Tensor; it must return a runner.Prediction",
        ),
        (
            lambda p, batch: Prediction.of(p.logits_BT.squeeze(1), batch),
            r"model.net: dense of Other returned logits of \[8\]; they must be \[8, 1\]",
        ),
    ],
)
def test_what_a_model_may_not_return_is_told_in_training_and_evaluation(change, said):
    model = Other(SCHEMA, embedding_dim=4, bottom=[4], top=[4])
    model.change = change
    context = make_context(model=model)
    with pytest.raises(UserError, match=said):
        train(context, [random_batch(8)])
    with pytest.raises(UserError, match=said):
        Supervised().eval_step(context, random_batch(8))


def test_a_batch_whose_tensors_differ_in_rows_is_told_and_not_the_model():
    batch = random_batch(8)
    batch = replace(batch, labels_BT=batch.labels_BT[:-1])
    said = "^dataset: the rows of a batch differ in number: labels_BT 7, dense_BD 8, weights_B 8, "
    with pytest.raises(UserError, match=said):
        Supervised().eval_step(make_context(), batch)


def test_a_model_whose_look_up_returns_something_else_is_told():
    class Pooled(DLRM):
        def embed(self, batch):
            return super().embed(batch).pooled_BE

    model = Pooled(SCHEMA, embedding_dim=4, bottom=[4], top=[4])
    with pytest.raises(UserError, match=r"embed of Pooled returned Tensor; it must return the run"):
        train(make_context(model=model), [random_batch(8)])


def test_a_loss_without_a_gradient_is_told():
    class Cut(BCE):
        def forward(self, prediction):
            return super().forward(prediction.detached())

    with pytest.raises(UserError, match=r"model.loss: no gradient leads from Cut to the model"):
        train(make_context(loss=Cut(SCHEMA)), [random_batch(8)])


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        (lambda loss: loss["click"], "Tensor"),
        (lambda loss: {}, "{}"),
        (lambda loss: {"click": loss["click"].mean().item()}, r"'click' of \[\]"),
        (lambda loss: {"click": loss["click"].mean()}, r"'click' of \[\]"),
        (lambda loss: {"click": loss["click"][:, None]}, r"'click' of \[8, 1\]"),
    ],
)
def test_what_a_loss_may_not_return_is_told(losses, said):
    class Own(BCE):
        def forward(self, prediction):
            return losses(super().forward(prediction))

    said = rf"model.loss: Own returned {said}; it must return tensors of \[8\], the loss of each"
    with pytest.raises(UserError, match=said):
        train(make_context(loss=Own(SCHEMA)), [random_batch(8)])


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
def test_a_loss_of_another_type_than_the_weights_of_rows_is_told(kind):
    class Own(BCE):
        def forward(self, prediction):
            return {name: loss.to(kind) for name, loss in super().forward(prediction).items()}

    name = str(kind).removeprefix("torch.")
    said = rf"model.loss: Own returned losses in {name}; it must return the loss .* in float32"
    with pytest.raises(UserError, match=said):
        train(make_context(loss=Own(SCHEMA)), [random_batch(8)])
