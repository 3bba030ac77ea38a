"""Members, networks that share their matrices and have losses of their own; waves of numbers."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from runner.batch import TaskSpec, class_columns, log_columns
from runner.errors import UserError
from runner.models import WideAndDeep
from runner.models.layers.members import MEMBERS
from runner.models.layers.periodic import PeriodicNumbers
from runner.models.losses import BCE, ByKind
from runner.training.update.task import row_losses
from tests.models.scene import TWO_TASKS, batch_of, make_model
from tests.tiny import SCHEMA, make_context, train

ALL_KINDS = replace(
    SCHEMA,
    tasks=(
        *(TaskSpec(f"colour.{n}", one_of="colour") for n in "rgb"),
        TaskSpec("click"),
        TaskSpec("grade", kind="regression"),
        TaskSpec("price", kind="regression", link="log", scale=3.0),
    ),
)


def make_members(schema=SCHEMA, **more):
    model = make_model("wide_and_deep members", schema, **more)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5, generator=torch.Generator().manual_seed(1))
    return model


def test_the_loss_of_a_training_is_the_mean_of_those_of_the_members():
    context = make_context(model=make_members(TWO_TASKS), loss=BCE(TWO_TASKS))
    batch = batch_of(TWO_TASKS)
    prediction = context.model(batch)
    logits_BKT = prediction.aux[MEMBERS]
    assert logits_BKT.shape == (24, 3, 2)
    torch.testing.assert_close(prediction.logits_BT, logits_BKT.mean(1))
    bce = functional.binary_cross_entropy_with_logits
    labels_BKT = batch.labels_BT[:, None].expand_as(logits_BKT)
    expected_BT = bce(logits_BKT, labels_BKT, reduction="none").mean(1)
    found = row_losses(context, prediction, batch)
    torch.testing.assert_close(torch.stack(tuple(found.values()), dim=1), expected_BT)
    assert (expected_BT > bce(prediction.logits_BT, batch.labels_BT, reduction="none")).all()

    context.model.eval()
    prediction = context.model(batch)
    expected_BT = bce(prediction.logits_BT, batch.labels_BT, reduction="none")
    assert not prediction.aux
    found = row_losses(context, prediction, batch)
    torch.testing.assert_close(torch.stack(tuple(found.values()), dim=1), expected_BT)


def test_each_member_has_the_loss_of_its_classes_and_of_its_log_link():
    model = make_members(ALL_KINDS)
    model.class_columns = tuple(class_columns(ALL_KINDS.tasks).values())
    model.log_columns = log_columns(ALL_KINDS.tasks)
    context = make_context(model=model, loss=ByKind(ALL_KINDS))
    batch = batch_of(ALL_KINDS)
    labels_BT = batch.labels_BT.clone()
    labels_BT[:, :3] = functional.one_hot(torch.arange(24) % 3, 3).float()
    batch = replace(batch, labels_BT=labels_BT)
    raw_BKT = model.dense(model.embed(batch), batch).aux[MEMBERS]
    found = row_losses(context, model(batch), batch)
    y_BT, sums = labels_BT, {}
    for raw_BT in raw_BKT.unbind(1):
        root_B = (3 * raw_BT[:, 5].exp()).sqrt()  # of the prediction, in Tweedie's deviance
        own = {
            "colour": functional.cross_entropy(raw_BT[:, :3], y_BT[:, :3], reduction="none"),
            "grade": (raw_BT[:, 4] - y_BT[:, 4]) ** 2,
            "price": 4 * (root_B + y_BT[:, 5] / root_B) - 8 * y_BT[:, 5].sqrt(),
        }
        sums = {name: sums.get(name, 0) + loss_B for name, loss_B in own.items()}
    for name, sum_B in sums.items():
        torch.testing.assert_close(found[name], sum_B / 3, rtol=1e-4, atol=1e-5)


def test_the_step_of_ones_own_of_the_docs_has_the_mean_of_the_losses_of_the_members():
    page = Path("docs/own_model.md").read_text()
    names = {"__name__": "shifted"}
    exec(page[page.index("import torch\n\nfrom runner import Emb") :].partition("```")[0], names)
    batch, model = batch_of(SCHEMA), make_members()
    context = make_context(model=model)
    expected = row_losses(context, model(batch), batch)
    output = names["Shifted"](distance=0.1).train_step(context, iter([batch]))
    torch.testing.assert_close(output.losses[0]["click"], expected["click"].detach())


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        ({"click": 0.5}, r"returned 'click' of \[\]; it must return tensors of \[24\]"),
        ({"click": [0.5] * 24}, r"returned 'click' of \[\]; it must return tensors of \[24\]"),
        ({"click": torch.zeros(24, dtype=torch.int64)}, "returned losses in int64"),
    ],
)
def test_an_unfit_loss_of_ones_own_is_refused_by_its_name_with_members_as_without(losses, message):
    for model in (make_members(), make_model("wide_and_deep")):
        context = make_context(model=model, loss=lambda prediction: losses)
        with pytest.raises(UserError, match=message):
            train(context, [batch_of(SCHEMA)])


def test_micro_batches_equal_one_batch():
    batches = [batch_of(SCHEMA, seed=seed) for seed in range(3)]
    weights = []
    for micro_batch_size in (24, 5):
        context = make_context(model=make_members(), micro_batch_size=micro_batch_size)
        train(context, batches)
        weights.append(dict(context.model.named_parameters()) | context.tables.state())
    for name, whole in weights[0].items():
        torch.testing.assert_close(weights[1][name], whole, rtol=1e-5, atol=1e-6)


def test_members_differ_from_the_first_update_on():
    model = make_model("wide_and_deep members", deep=[32])
    last = model.deep[-1]
    with torch.no_grad():
        last.weight.zero_()
        last.bias.zero_()
    train(make_context(model=model), [batch_of(SCHEMA)])
    assert not torch.equal(last.weight[0], last.weight[1])


@pytest.mark.parametrize(("norm", "shape"), [("batch", (24,)), ("layer", (3, 8))])
def test_norms_are_of_each_member(norm, shape):
    model = make_members(norm=norm, deep=[8])
    [weight] = [w for n, w in model.deep.named_parameters() if n.startswith("1.") and "weight" in n]
    assert weight.shape == shape
    [output] = train(make_context(model=model), [batch_of(SCHEMA)])
    assert output.applied


@pytest.mark.parametrize("name", ["xavier_normal", "kaiming_uniform", "normal"])
def test_the_maps_of_members_are_initialised_each_for_itself(name):
    model = make_model("wide_and_deep members", deep=[300], init=name)
    first, last = model.deep[0], model.deep[-1]
    assert (first.bias == 0).all() and (last.bias == 0).all()
    deviation = {
        "xavier_normal": math.sqrt(2 / 301),
        "kaiming_uniform": math.sqrt(2 / 300),
        "normal": 1e-4,
    }[name]
    for weight_CT in last.weight:
        assert float(weight_CT.detach().std()) == pytest.approx(deviation, rel=0.15)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"deep": []}, "members=3: they share hidden layers, and there are none; set members=null"),
        ({"members": 1}, "members=1: must be"),
        ({"members": 65}, "members=65: must be"),
    ],
)
def test_members_that_could_not_be_are_refused(settings, message):
    arguments = {"embedding_dim": 4, "deep": [8], "members": 3} | settings
    with pytest.raises(ValueError, match=message):
        WideAndDeep(SCHEMA, **arguments)


def test_periodic_embeddings_are_those_of_the_paper():
    torch.manual_seed(0)
    numbers = PeriodicNumbers(2)
    x_BD = torch.tensor([[0.0, 1.0], [-2.0, 100.0], [0.3, -1e30]])
    frequencies_DF, phases_DF = numbers.frequencies.detach(), numbers.phases.detach()
    weight, bias = numbers.weight.detach(), numbers.bias.detach()
    found_BDW = numbers(x_BD).unflatten(1, (2, 4)).double()
    for row, column in ((r, c) for r in range(3) for c in range(2)):
        x = float(x_BD[row, column])
        x = x / math.sqrt(1 + (x / 3) ** 2)
        waves = [
            math.cos(2 * math.pi * w * x + b)
            for w, b in zip(frequencies_DF[column].tolist(), phases_DF[column].tolist())
        ]
        expected = [
            sum(wave * float(v) for wave, v in zip(waves, weight[column, :, n]))
            + float(bias[column, n])
            for n in range(3)
        ]
        assert found_BDW[row, column].tolist() == pytest.approx([x, *expected], abs=1e-5)


def test_a_model_learns_a_wave_of_a_number_which_it_sees_in_waves():
    losses = []
    for periodic in (False, True):
        torch.manual_seed(0)
        model = WideAndDeep(SCHEMA, embedding_dim=4, deep=[8], periodic=periodic)
        context = make_context(model=model, lr=0.1)
        for seed in range(300):
            batch = batch_of(SCHEMA, size=64, seed=seed)
            labels_B1 = (torch.sin(6 * batch.dense_BD[:, :1]) > 0).float()
            [output] = train(context, [replace(batch, labels_BT=labels_B1)])
        losses.append(float(output.losses[0]["click"].mean()))
    assert losses[1] < losses[0] - 0.1, losses


def test_waves_of_no_number_are_refused():
    message = "periodic=true: the dataset has no numbers of which waves .*; set periodic=false"
    with pytest.raises(ValueError, match=message):
        WideAndDeep(replace(SCHEMA, dense=()), embedding_dim=4, deep=[8], periodic=True)
