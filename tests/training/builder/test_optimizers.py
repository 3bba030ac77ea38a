"""Groups of `optimizer.parts`: each parameter has one owner, which decides how it is trained."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from runner.batch import Embeddings
from runner.config.settings import LrScalingSettings
from runner.embeddings.sharding_settings import ShardingSettings
from runner.errors import ConfigError
from runner.models.deepfm import DeepFM
from runner.models.dlrm import DLRM
from runner.models.layers.embedding import TableLookup
from runner.models.losses import BCE
from runner.optim.param_groups import parse_parameter_groups
from runner.optim.settings import parse_sparse
from runner.training.builder.optimizers import (
    assign_parameters,
    base_learning_rates,
    build_dense_optimizers,
    check_sparse_adam,
    group_schedules,
)
from runner.training.builder.tables import build_table_groups, check_start, make_table_builder
from runner.training.job import LearningRates
from runner.training.state import TrainState
from runner.training.steps import learning_rates_at, set_learning_rates
from runner.training.update.context import Context
from runner.training.update.parameters import dense_parameters
from runner.training.update.task import Supervised
from tests.tiny import CPU, SCHEMA, make_context, random_batch, snapshot
from tests.tiny_job import make_job

DENSE = {"_target_": "torch.optim.SGD", "lr": 0.1}
SPARSE = {"kind": "sgd", "lr": 0.1}


def optimizer_class(target: str) -> type:
    return getattr(torch.optim, target.rpartition(".")[2])


def build(parts, *, model=None, sparse=SPARSE):
    """A tiny model whose parameters are owned as `optimizer.parts` says, and its full rates."""
    torch.manual_seed(0)
    model = model or DLRM(SCHEMA, embedding_dim=4, bottom=[8], top=[8])
    loss, lookup = BCE(SCHEMA), model.embedding
    assert isinstance(lookup, TableLookup)
    node = {"dense": DENSE, "sparse": sparse, "parts": parts}
    parameters = dense_parameters(model, loss)
    parameter_groups = assign_parameters(
        parse_parameter_groups(node), list(parameters), [s.name for s in lookup.specs]
    )
    sparse = parse_sparse(sparse)
    make = make_table_builder(
        ShardingSettings(), None, parameter_groups, sparse, seed=0, device=CPU, batch_size=64
    )
    built = build_table_groups(
        lookup.specs, lookup.features, sparse, parameter_groups, make, device=CPU
    )
    lookup.attach_tables(built.tables)
    optimizers = build_dense_optimizers(DENSE, parameters, parameter_groups, optimizer_class)
    context = Context(
        model=model,
        loss=loss,
        tables=built.tables,
        dense_optimizer=optimizers.pop("dense"),
        part_optimizers=optimizers,
        trained_tables=built.trained,
        device=CPU,
        micro_batch_size=1 << 20,
    )
    lrs = base_learning_rates(context, built.base_lrs, LrScalingSettings())
    return context, parameter_groups, lrs


def train(context: Context, lrs: dict[str, float], num_updates: int) -> None:
    job = make_job(context, rates=LearningRates(lrs, lambda k: 1.0))
    context.micro_batch_size = 1 << 20
    for step in range(num_updates):
        set_learning_rates(job, TrainState(step=step))
        Supervised().train_step(context, iter([random_batch(64, step)]))


NAMES = [*dense_parameters(DLRM(SCHEMA, embedding_dim=4, bottom=[8], top=[8]), BCE(SCHEMA))]
fragments = st.sampled_from(
    ["bottom", "top", r"\.0", r"\.", "weight", "bias", ".*", "^", "$", "tables", "a", "m", "b"]
)
patterns = st.lists(fragments, min_size=1, max_size=3).map("".join)


@settings(max_examples=60)
@given(st.lists(st.tuples(patterns, st.booleans()), max_size=4))
@pytest.mark.parity("E3")
def test_every_parameter_and_table_has_exactly_one_owner_whatever_the_patterns(entries):
    parts = [{"pattern": p, "frozen": frozen} for p, frozen in entries]
    try:
        context, _, lrs = build(parts)
    except ConfigError as error:
        message = str(error)
        if any(word in message for word in ("matches no", "owns nothing", "everything is frozen")):
            return
        raise
    owned = [
        id(p)
        for optimizer in context.optimizers().values()
        for group in optimizer.param_groups
        for p in group["params"]
    ]
    assert len(owned) == len(set(owned))
    all_dense = {
        n: p for n, p in context.model.named_parameters() if not n.startswith("embedding.")
    }
    assert {id(p) for p in all_dense.values() if p.requires_grad} == set(owned)
    in_groups = [t.name for g in context.table_groups.values() for t in g.layout.tables]
    assert len(in_groups) == len(set(in_groups))
    before = snapshot(context)
    train(context, lrs, 1)
    after = snapshot(context)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    trained = {n for n, p in all_dense.items() if p.requires_grad}
    trained |= {f"tables/{name}/weight" for name in in_groups}
    assert moved == trained


def test_parts_equal_optimizers_made_by_hand():
    parts = [
        {"pattern": r"^top\.0", "frozen": True},
        {"pattern": "bias$", "name": "biases", "dense": {"_target_": "torch.optim.Adam"}},
        {"pattern": "^top", "dense": {"lr": 0.5}},
        {"pattern": "tables.a", "sparse": {"kind": "adam", "lr": 0.2}},
        {"pattern": "tables.m", "frozen": True},
    ]
    context, _, lrs = build(parts)
    twin = make_context("sgd")
    named = dict(twin.model.named_parameters())
    by_hand = [
        torch.optim.Adam([named["bottom.0.bias"], named["bottom.2.bias"], named["top.2.bias"]]),
        torch.optim.SGD([named["top.2.weight"]], lr=0.5),
        torch.optim.SGD([named["bottom.0.weight"], named["bottom.2.weight"]], lr=0.1),
    ]
    bags = {
        n: nn.EmbeddingBag.from_pretrained(t.clone(), mode="sum", freeze=n == "m")
        for n, t in ((n, twin.tables.state()[f"{n}/weight"]) for n in ("a", "b", "m"))
    }
    rows = {n: torch.optim.SGD([bags["b"].weight], lr=0.1) for n in "b"}
    moments = [torch.zeros_like(bags["a"].weight) for _ in range(2)]
    train(context, lrs, 3)
    for step in range(3):
        batch = random_batch(64, step)
        ids = batch.sparse.to_dict()
        pooled = torch.cat(
            [bag(ids[n].values(), ids[n].offsets()[:-1]) for n, bag in bags.items()], dim=1
        )
        prediction = twin.model.dense(Embeddings(pooled), batch)
        loss_B = twin.loss(prediction)["click"]
        for optimizer in (*by_hand, rows["b"]):
            optimizer.zero_grad()
        bags["a"].weight.grad = None
        (torch.dot(loss_B, batch.weights_B) / batch.weights_B.sum()).backward()
        for optimizer in (*by_hand, rows["b"]):
            optimizer.step()
        adam_on_rows(bags["a"].weight, moments, ids["a"].values().unique(), step + 1)
    ours = snapshot(context)
    for name, parameter in named.items():
        if not name.startswith("embedding."):
            torch.testing.assert_close(ours[name], parameter.detach(), rtol=0, atol=1e-6, msg=name)
    for name, bag in bags.items():
        weight = ours[f"tables/{name}/weight"]
        torch.testing.assert_close(weight, bag.weight.detach(), rtol=0, atol=2e-6, msg=name)
    assert "tables/m/exp_avg" not in ours and "tables/a/exp_avg" in ours


def adam_on_rows(weight, moments, rows, step: int, lr: float = 0.2) -> None:
    """Adam that moves only the rows of the batch, with the global step in its correction."""
    average, square = moments
    grad = weight.grad[rows]
    average[rows] = 0.9 * average[rows] + 0.1 * grad
    square[rows] = 0.999 * square[rows] + 0.001 * grad * grad
    direction = average[rows] / (1 - 0.9**step)
    with torch.no_grad():
        weight[rows] -= lr * direction / ((square[rows] / (1 - 0.999**step)).sqrt() + 1e-8)


@pytest.mark.parity("E4")
def test_each_group_follows_its_own_schedule():
    parts = [
        {"pattern": "^top", "name": "top", "schedule": {"kind": "linear"}},
        {"pattern": "(bottom|tables.a)", "name": "both"},
    ]
    _, parameter_groups, lrs = build(parts)
    found = group_schedules({"dense": {"kind": "cosine"}, "sparse": None}, parameter_groups)
    assert found == {
        "top": ({"kind": "linear"}, "optimizer.parts[0].schedule"),
        "both/dense": ({"kind": "cosine"}, "optimizer.schedules.dense"),
    }
    assert set(lrs) == {"dense", "top", "both/dense", "both/sparse", "sparse"}
    rates = LearningRates(lrs, lambda k: 1.0, {"top": lambda k: 1 / k})
    assert learning_rates_at(rates, 4) == pytest.approx(
        {"dense": 0.1, "top": 0.025, "both/dense": 0.1, "both/sparse": 0.1, "sparse": 0.1}
    )


def test_the_rates_of_tables_are_those_of_the_configuration():
    """Each once, under the name of its group; frozen tables have none."""
    parts = [
        {"pattern": "tables.a", "name": "first", "sparse": {"kind": "adam", "lr": 0.2}},
        {"pattern": "tables.m", "frozen": True},
        {"pattern": "^top", "name": "top", "dense": {"lr": 0.5}},
    ]
    context, _, lrs = build(parts)
    assert lrs == {"dense": 0.1, "top": 0.5, "sparse": 0.1, "first": 0.2}
    scaled = base_learning_rates(context, {"sparse": 0.3}, LrScalingSettings("linear", 4))
    assert scaled == pytest.approx({"dense": 0.4, "top": 2.0, "sparse": 1.2})


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([{"pattern": "tables.x"}], "matches no parameter; nearest: 'tables"),
        ([{"pattern": ".", "frozen": True}], "everything is frozen"),
        ([{"pattern": "^top", "sparse": {"lr": 1.0}}], r"parts\[0\].sparse: '\^top' owns no table"),
        ([{"pattern": "tables", "dense": {"lr": 1.0}}], r"dense: 'tables' owns tables only"),
        (
            [{"pattern": "^top", "dense": {"lrr": 1.0}}],
            r"parts\[0\].dense.lrr is not a setting .* 'lr'",
        ),
        (
            [{"pattern": "^top", "frozn": True}],
            r"parts\[0\].frozn is not a setting of a part.* 'frozen'",
        ),
        ([{"pattern": "a", "frozen": True, "schedule": {}}], "no optimizer and no schedule"),
        ([{"pattern": "tables", "sparse": {"momentum": 1}}], "would ignore it"),
        ([{"pattern": "top", "name": "dense"}], "is taken"),
        (
            [{"pattern": "top", "schedule": {"kind": "lin"}}],
            r"parts\[0\].schedule.kind=lin: must be one of",
        ),
        (["top"], "write {pattern: REGEX"),
        ([{"name": "top"}], "pattern: is missing"),
    ],
)
def test_mistakes_are_reported_with_their_key(parts, message):
    with pytest.raises(ConfigError, match=message):
        build(parts)


@pytest.mark.parametrize("kind", ["lars_sgd", "lamb", "partial_rowwise_lamb"])
def test_first_order_weights_are_not_left_at_zero_by_a_rule_that_scales_by_their_norm(kind):
    sparse = {"kind": kind, "lr": 0.1}
    model = DeepFM(SCHEMA, embedding_dim=4, deep=[8])
    context, *_ = build([], model=model, sparse=sparse)
    with pytest.raises(ConfigError, match=rf"sparse.kind={kind}: .* a:linear and 2 more; "):
        check_start(context.table_groups)
    other = [{"pattern": ":linear$", "sparse": {"kind": "adam", "lr": 0.001}}]
    context, _, lrs = build(other, model=DeepFM(SCHEMA, embedding_dim=4, deep=[8]), sparse=sparse)
    check_start(context.table_groups)
    train(context, lrs, 2)
    for name in ("a:linear", "a"):
        assert context.tables.state()[f"{name}/weight"].abs().sum() > 0


def test_sparse_adam_is_refused_for_what_has_dense_gradients():
    model = nn.ModuleDict({"own": nn.Embedding(5, 2, sparse=True), "top": nn.Linear(2, 1)})
    own, everything = (torch.optim.SparseAdam(list(m.parameters())) for m in (model["own"], model))
    check_sparse_adam([own, torch.optim.Adam(model["top"].parameters())], model)
    with pytest.raises(ConfigError, match="SparseAdam takes sparse gradients alone"):
        check_sparse_adam([everything], model)
    model["top"](model["own"](torch.tensor([1]))).sum().backward()
    own.step()
    with pytest.raises(RuntimeError, match="does not support dense gradients"):
        everything.step()
