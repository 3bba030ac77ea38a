"""Clipping, gradient norms and penalties against torch's own functions and plain autograd."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.utils import clip_grad_norm_
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from runner.batch import Embeddings, Schema, SequenceFeature, SparseFeature, TaskSpec
from runner.distributed.ranks import SINGLE_PROCESS
from runner.embeddings.factory import build_tables
from runner.embeddings.interface import make_layout
from runner.errors import ConfigError
from runner.models.deepfm import DeepFM
from runner.models.dlrm import DLRM
from runner.models.layers.sequences import SequenceLookup
from runner.models.losses import BCE
from runner.optim.penalties import resolve_penalties
from runner.optim.penalty_settings import parse_penalties
from runner.optim.settings import ClipSettings, parse_sparse
from runner.training.update.grad_clip import clip_gradients, gradient_norms
from runner.training.update.gradients import drop_empty_lookups
from runner.training.update.parameters import dense_parameters
from runner.training.update.task import Supervised
from tests.devices import DEVICES, tolerance
from tests.tiny import SCHEMA, make_context, random_batch, snapshot


def gradients(context, batch) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Gradients of the mean loss by plain autograd: of the dense half, and at the look-up."""
    pooled = context.model.embed(batch).pooled_BE.detach().requires_grad_()
    loss_B = context.loss(context.model.dense(Embeddings(pooled), batch))["click"]
    loss = torch.dot(loss_B, batch.weights_B) / batch.weights_B.sum()
    named = dense_parameters(context.model, context.loss)
    *dense, boundary = torch.autograd.grad(loss, [*named.values(), pooled])
    return dict(zip(named, dense)), boundary


def as_parameter(gradient: torch.Tensor) -> nn.Parameter:
    parameter = nn.Parameter(torch.zeros_like(gradient))
    parameter.grad = gradient.clone()
    return parameter


def clipped_by_torch(settings: ClipSettings, dense, boundary):
    """The rule with a parameter for every dense gradient and every table's columns."""
    tables = [as_parameter(part) for part in boundary.split(4, dim=1)] if settings.tables else []
    parameters = {name: as_parameter(g) for name, g in dense.items()}
    everyone = [*parameters.values(), *tables]
    if settings.value is not None:
        nn.utils.clip_grad_value_(everyone, settings.value)
    if settings.parameter_norm is not None:
        for parameter in everyone:
            clip_grad_norm_([parameter], settings.parameter_norm)
    if settings.global_norm is not None:
        clip_grad_norm_(everyone, settings.global_norm)
    pooled = torch.cat([t.grad for t in tables], dim=1) if tables else boundary
    return {name: p.grad for name, p in parameters.items()}, pooled


RULES = [
    ClipSettings(global_norm=0.05),
    ClipSettings(global_norm=100.0),
    ClipSettings(parameter_norm=0.02),
    ClipSettings(value=0.003),
    ClipSettings(global_norm=0.05, parameter_norm=0.02, value=0.003),
    ClipSettings(global_norm=0.05, parameter_norm=0.02, value=0.003, tables=False),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("settings", RULES, ids=str)
@pytest.mark.parametrize("micro", [64, 7])
@pytest.mark.parity("L2", "N7")
def test_an_update_is_clipped_as_torch_clips_the_gradients_of_one_batch(settings, micro, device):
    batch = random_batch(64).to(device)
    context, twin = (make_context(micro_batch_size=m, device=device) for m in (micro, 64))
    dense, boundary = clipped_by_torch(settings, *gradients(twin, batch))
    before = snapshot(twin)
    looked_up = twin.model.embed(batch).pooled_BE
    looked_up.backward(boundary)  # the tables' own SGD
    context.clip, near = settings, tolerance(device, 1e-7, 1e-6)
    context.tables.set_lr_and_step(0.1, 1)
    Supervised().train_step(context, iter([batch]))
    after = snapshot(context)
    for name, gradient in dense.items():
        expected = before[name] - 0.1 * gradient
        torch.testing.assert_close(after[name], expected, rtol=0, atol=near, msg=name)
    for name, tensor in snapshot(twin).items():
        if name.startswith("tables/"):
            torch.testing.assert_close(after[name], tensor, rtol=0, atol=near, msg=name)


@pytest.mark.parametrize("settings", RULES[-2:], ids=str)
def test_all_bounds_hold_at_the_end(settings):
    twin = make_context()
    dense, boundary = gradients(twin, random_batch(64))
    clip_gradients(settings, list(dense.values()), [boundary], twin.tables.layout, SINGLE_PROCESS)
    parts = [*dense.values(), *(boundary.split(4, dim=1) if settings.tables else [])]
    norms = [float(part.norm()) for part in parts]
    assert max(float(part.abs().max()) for part in parts) <= settings.value + 1e-8
    assert max(norms) <= settings.parameter_norm + 1e-8
    assert math.sqrt(sum(n * n for n in norms)) <= settings.global_norm + 1e-8


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("micro", [64, 7])
@pytest.mark.parity("E8")
def test_logged_norms_are_those_of_plain_autograd_before_clipping(micro, device):
    context, twin = (make_context(micro_batch_size=m, device=device) for m in (micro, 64))
    named = dense_parameters(context.model, context.loss)
    context.parameter_names = {id(p): name for name, p in named.items()}
    context.clip, context.log_gradients = ClipSettings(global_norm=0.01), "parameters"
    expected: dict[str, list[float]] = {}
    for seed in (0, 1):
        batch = random_batch(64, seed).to(device)
        with torch.no_grad():  # the twin gets our weights
            for ours, theirs in zip(context.model.parameters(), twin.model.parameters()):
                theirs.copy_(ours)
            for name, tensor in twin.tables.state().items():
                tensor.copy_(context.tables.state()[name])
        dense, boundary = gradients(twin, batch)
        parts = dense | dict(zip(("tables.a", "tables.b", "tables.m"), boundary.split(4, dim=1)))
        norms = {f"gradient_norm/{name}": float(part.norm()) for name, part in parts.items()}
        norms["gradient_norm"] = math.sqrt(sum(n * n for n in norms.values()))
        for name, norm in norms.items():
            expected.setdefault(name, []).append(norm)
        context.tables.set_lr_and_step(0.1, seed + 1)
        Supervised().train_step(context, iter([batch]))
    means = {name: sum(values) / 2 for name, values in expected.items()}
    assert context.logged_means.means(SINGLE_PROCESS) == pytest.approx(means, rel=1e-5)
    context.logged_means.reset()
    assert context.logged_means.means(SINGLE_PROCESS) == {}


def test_beside_a_sequence_each_table_of_the_pooled_columns_has_its_own_norm():
    features = (SparseFeature("a", 10), SparseFeature("b", 10))
    sequences = (SequenceFeature(name="s", num_rows=10, max_length=3, table="s"),)
    schema = Schema((), features, (TaskSpec("y"),), sequences=sequences)
    lookup = SequenceLookup(schema, 4, features=features, sequences=sequences)
    layout = make_layout(lookup.specs, lookup.features, by_dim=False)
    pooled, sequence = torch.zeros(2, 8), torch.zeros(2, 3, 4)
    pooled[0, 0], pooled[1, 4], sequence[0, 1, 2] = 3.0, 4.0, 5.0
    norms = gradient_norms({}, [pooled, sequence], layout, SINGLE_PROCESS, per_parameter=True)
    expected = {"gradient_norm": math.sqrt(50), "tables.a": 3.0, "tables.b": 4.0}
    assert {n.removeprefix("gradient_norm/"): float(norm) for n, norm in norms.items()} == expected
    alone = gradient_norms({}, [sequence], layout, SINGLE_PROCESS, per_parameter=True)
    assert {name: float(norm) for name, norm in alone.items()} == {"gradient_norm": 5.0}
    settings = ClipSettings(parameter_norm=3.5)
    clip_gradients(settings, [], [pooled, sequence], layout, SINGLE_PROCESS)
    clipped = [pooled[:, :4], pooled[:, 4:], sequence]
    assert [float(g.norm()) for g in clipped] == pytest.approx([3.0, 3.5, 3.5], rel=1e-6)


@pytest.mark.parametrize("num_tasks", [1, 2])
def test_a_first_order_weight_counts_once_in_norms_and_in_what_they_clip(num_tasks):
    """The twin has tables of a column for each task, and DeepFM's formula written out."""
    schema = replace(SCHEMA, tasks=tuple(TaskSpec(f"t{n}") for n in range(num_tasks)))
    model = DeepFM(schema, embedding_dim=4, deep=[8], linear_weights="own")
    context, batch = make_context(model=model, loss=BCE(schema)), random_batch(64, 0, num_tasks)
    pooled = model.embed(batch).pooled_BE.detach()
    vectors, first = (
        t.clone().requires_grad_() for t in (pooled[:, :12], pooled[:, 12 :: 4 // num_tasks])
    )
    fields = model.fields(vectors, batch.dense_BD)
    pairs = sum((fields[:, i] * fields[:, j]).sum(1) for i in range(5) for j in range(i))
    linear = first.unflatten(1, (3, num_tasks)).sum(1) + model.first_order.dense(batch.dense_BD)
    logits_BT = linear + pairs[:, None] + model.deep(fields.flatten(1))
    loss_BT = binary_cross_entropy_with_logits(logits_BT, batch.labels_BT, reduction="none")
    loss = torch.dot(loss_BT.sum(1), batch.weights_B) / batch.weights_B.sum()
    named = dense_parameters(model, context.loss)
    gradients = torch.autograd.grad(loss, [*named.values(), vectors, first])
    dense, by_table = (
        gradients[:-2],
        [*gradients[-2].split(4, dim=1), *gradients[-1].split(num_tasks, 1)],
    )
    total = math.sqrt(sum(float(g.square().sum()) for g in gradients))
    context.parameter_names = {id(p): name for name, p in named.items()}
    context.clip, context.log_gradients = ClipSettings(global_norm=total / 2), "parameters"
    before, tables = snapshot(context), context.tables.layout.tables
    Supervised().train_step(context, iter([batch]))
    norms = context.logged_means.means(SINGLE_PROCESS)
    names = [*named, *(f"tables.{table.name}" for table in tables)]
    expected = dict(zip(names, (float(g.norm()) for g in (*dense, *by_table)), strict=True))
    expected = {f"gradient_norm/{name}": norm for name, norm in expected.items()}
    assert norms == pytest.approx({"gradient_norm": total, **expected}, rel=1e-5)
    for name, gradient in zip(named, dense):
        moved = before[name] - snapshot(context)[name]
        torch.testing.assert_close(moved, 0.05 * gradient, rtol=1e-4, atol=1e-7, msg=name)


def test_the_global_norm_alone_is_one_number():
    norms = gradient_norms(
        {"a": torch.tensor([3.0])},
        [],
        make_context().tables.layout,
        SINGLE_PROCESS,
        per_parameter=False,
    )
    assert {name: float(norm) for name, norm in norms.items()} == {"gradient_norm": 3.0}


@pytest.mark.parametrize("micro", [64, 7])
@pytest.mark.parity("L3", "C5")
def test_penalties_are_a_part_of_the_loss_and_of_its_gradient(micro):
    entries = [{"pattern": "weight$", "l2": 0.1}, {"pattern": r"^top\.0", "l1": 0.01, "l2": 0.05}]
    context, twin = make_context(micro_batch_size=micro), make_context()
    named = dense_parameters(context.model, context.loss)
    context.penalties = resolve_penalties(parse_penalties(entries), named, ["a", "b", "m"])
    theirs = dense_parameters(twin.model, twin.loss)
    twin.dense_optimizer = torch.optim.SGD(theirs.values(), lr=0.1)
    for seed in range(3):
        batch = random_batch(64, seed)
        l1 = 0.01 * sum(theirs[n].abs().sum() for n in ("top.0.weight", "top.0.bias"))
        weights = [p for n, p in theirs.items() if n.endswith("weight")]
        l2 = 0.1 * sum(p.square().sum() for p in weights)
        l2 = l2 + 0.05 * sum(theirs[n].square().sum() for n in ("top.0.weight", "top.0.bias"))
        pooled = twin.model.embed(batch)
        loss_B = twin.loss(twin.model.dense(pooled, batch))["click"]
        twin.dense_optimizer.zero_grad()
        (torch.dot(loss_B, batch.weights_B) / batch.weights_B.sum() + l1 + l2).backward()
        twin.dense_optimizer.step()
        context.tables.set_lr_and_step(0.1, seed + 1)
        output = Supervised().train_step(context, iter([batch]))
        for losses, prediction in zip(output.losses, output.predictions):
            assert list(losses) == ["click", "l1", "l2"]
            for name, expected in (("l1", l1), ("l2", l2)):
                rows = torch.full_like(prediction.weights_B, float(expected.detach()))
                torch.testing.assert_close(losses[name], rows)
    ours = dict(context.model.named_parameters())
    for name, parameter in theirs.items():
        torch.testing.assert_close(ours[name], parameter, rtol=0, atol=1e-6, msg=name)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (
            [{"pattern": "topp.0", "l2": 1}],
            r"penalties\[0\].pattern .* no parameter; nearest: 'top",
        ),
        ([{"pattern": "top", "l2": 1}, {"pattern": "x", "l1": 1}], r"penalties\[1\].pattern 'x'"),
        ([{"pattern": "^tables", "l2": 1}], "matches the table 'tables.a': .* weight_decay"),
        ([{"pattern": "top"}], "neither l1 nor l2"),
        ([{"pattern": "top", "l3": 1}], r"penalties\[0\].l3 is not a setting of a penalty.* 'l2'"),
        ([{"pattern": "top", "l1": -1}], "l1=-1: must not be negative"),
        ([{"l1": 1}], "pattern: is missing"),
        (["top"], "write {pattern"),
    ],
)
def test_mistakes_in_penalties_are_reported(entries, message):
    context = make_context()
    named = dense_parameters(context.model, context.loss)
    with pytest.raises(ConfigError, match=message):
        resolve_penalties(parse_penalties(entries), named, ["a", "b", "m"])


@pytest.mark.parametrize("micro", [64, 7])
def test_a_list_without_ids_is_no_part_of_a_norm(micro):
    """Its look-up has a gradient, which no row of the table takes."""
    listed = replace(SCHEMA, sparse=tuple(replace(f, is_list=True) for f in SCHEMA.sparse))
    models = [DLRM(listed, embedding_dim=4, bottom=[8], top=[8]) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    context, twin = (
        make_context(model=model, loss=BCE(listed), micro_batch_size=m)
        for model, m in zip(models, (micro, 64))
    )
    batch = random_batch(64)
    dense, boundary = gradients(twin, batch)
    is_empty_B = batch.sparse.lengths().view(3, -1)[2] == 0
    assert 0 < is_empty_B.sum() < 64 and float(boundary[is_empty_B, 8:].abs().max()) > 0
    boundary[is_empty_B, 8:] = 0.0
    parts = [*dense.values(), boundary]
    norm = math.sqrt(sum(float(part.square().sum()) for part in parts))
    before = snapshot(context)
    context.clip, context.log_gradients = ClipSettings(global_norm=norm / 2), "global"
    Supervised().train_step(context, iter([batch]))
    means = context.logged_means.means(SINGLE_PROCESS)
    assert means == pytest.approx({"gradient_norm": norm}, rel=1e-5)
    for name, gradient in dense.items():
        moved = before[name] - snapshot(context)[name]
        torch.testing.assert_close(moved, 0.05 * gradient, rtol=1e-4, atol=1e-7, msg=name)


class UndefinedWithoutIds(DLRM):
    """A model whose gradient is NaN at a list without ids, as that of a length of 0 is."""

    def dense(self, embeddings, batch):
        length_B = embeddings.pooled_BE[:, 8:].square().sum(1).sqrt()
        prediction = super().dense(embeddings, batch)
        return replace(prediction, logits_BT=prediction.logits_BT + length_B[:, None])


@pytest.mark.parametrize("log_gradients", [None, "global"])
@pytest.mark.parametrize("clip", [ClipSettings(), ClipSettings(global_norm=1.0)])
def test_an_undefined_gradient_at_a_list_without_ids_skips_the_update(clip, log_gradients):
    listed = replace(SCHEMA, sparse=tuple(replace(f, is_list=True) for f in SCHEMA.sparse))
    model = UndefinedWithoutIds(listed, embedding_dim=4, bottom=[8], top=[8])
    context = make_context(model=model, loss=BCE(listed))
    context.clip, context.log_gradients = clip, log_gradients
    before = snapshot(context)
    batch = random_batch(64)
    assert not gradients(context, batch)[1].isfinite().all()
    Supervised().train_step(context, iter([batch]))
    assert all(torch.equal(before[name], weight) for name, weight in snapshot(context).items())


def test_a_place_without_an_event_is_no_part_of_a_norm():
    sequences = (SequenceFeature(name="s", num_rows=10, max_length=3, table="a"),)
    schema = Schema((), (SparseFeature("a", 10),), (TaskSpec("y"),), sequences=sequences)
    lookup = SequenceLookup(schema, 2, features=schema.sparse, sequences=sequences)
    settings = parse_sparse({"kind": "sgd", "lr": 1.0})
    lookup.attach_tables(
        build_tables(lookup.specs, lookup.features, settings, seed=0, device=torch.device("cpu"))
    )
    lookup.tables.set_lr_and_step(1.0, 1)
    batch = replace(
        random_batch(2),
        sparse=KeyedJaggedTensor(["a"], torch.tensor([1, 2]), lengths=torch.tensor([1, 1])),
        sequences=KeyedJaggedTensor(["s"], torch.tensor([4, 5]), lengths=torch.tensor([2, 0])),
    )
    embeddings = lookup(batch)
    outputs = embeddings.row_lookups()
    ones = [torch.ones_like(output) for output in outputs]
    drop_empty_lookups(embeddings, outputs, ones, lookup.tables.layout)
    assert ones[0].tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert ones[1][:, :, 0].tolist() == [[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]
    assert torch.equal(ones[1][:, :, 0], ones[1][:, :, 1])
