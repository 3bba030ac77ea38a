"""Each model in an update: micro-batches, autocast, memorising one batch, refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import yaml
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from runner.batch import SparseFeature, TaskSpec
from runner.models.layers.embedding import count_equal_columns
from runner.models.layers.linear import FirstOrder
from runner.models.losses import BCE, ByKind
from runner.models.wide_and_deep import WideAndDeep
from tests.models.scene import (
    CONF,
    MODELS,
    SCHEMAS,
    SMALL,
    TWO_TASKS,
    batch_of,
    from_yaml,
    make_model,
)
from tests.tiny import SCHEMA, make_context, snapshot, train


@pytest.mark.parametrize("name", SMALL)
def test_micro_batches_equal_one_batch(name):
    states = []
    for micro in (64, 13):
        context = make_context(
            "rowwise_adagrad",
            lr=0.05,
            micro_batch_size=micro,
            model=make_model(name, TWO_TASKS),
            loss=ByKind(TWO_TASKS),
        )
        train(context, [batch_of(TWO_TASKS, 64, seed) for seed in range(3)], lr=0.05)
        states.append(snapshot(context))
    whole, parts = states
    for key, value in whole.items():
        torch.testing.assert_close(parts[key], value, rtol=0, atol=1e-5, msg=key)


@pytest.mark.parametrize("name", SMALL)
def test_bf16_autocast_returns_float32_close_to_full_precision(name):
    batch, logits = batch_of(SCHEMA, 64), []
    for amp in (False, True):
        context = make_context(amp=amp, model=make_model(name))
        products = []
        for module in context.model.modules():
            if isinstance(module, torch.nn.Linear):
                module.register_forward_hook(lambda m, i, o, seen=products: seen.append(o.dtype))
        [output] = train(context, [batch])
        assert output.applied
        assert torch.bfloat16 in products if amp else torch.bfloat16 not in products
        logits.append(output.predictions[0].logits_BT)
    assert logits[1].dtype == torch.float32
    assert 0 < (logits[0] - logits[1]).abs().max() < 0.1


LEARNERS = {name: (name, {}) for name in MODELS} | {
    "dcn stacked": ("dcn", {"structure": "stacked"}),
    "dcn mixture": ("dcn", {"rank": 8}),
    "autoint deep": ("autoint", {"deep": [32]}),
    "finalnet one block": ("finalnet", {"second": [], "residual": "sum"}),
    "fwfm by id": ("fwfm", {"first_order": "id"}),
    "gdcn stacked": ("gdcn", {"structure": "stacked"}),
    "fibinet all": ("fibinet", {"bilinear": "all"}),
    "edcn product": ("edcn", {"bridge": "hadamard_product"}),
    "edcn without norm": ("edcn", {"inner_norm": None}),
    "afn alone": ("afn", {"deep": []}),
    "masknet serial": ("masknet", {"structure": "serial", "top": []}),
    "finalmlp contexts": ("finalmlp", {"contexts": [["a"], ["b"]]}),
}


@pytest.mark.long
@pytest.mark.parametrize(("name", "settings"), LEARNERS.values(), ids=LEARNERS)
def test_one_batch_is_memorised(name, settings):
    context = make_context("adam", model=from_yaml(name, **settings))
    context.dense_optimizer = torch.optim.Adam(context.dense_parameters, lr=0.01)
    outputs = train(context, [batch_of(SCHEMA, 32)] * 60, lr=0.01)
    losses = [float(output.losses[0]["click"].mean()) for output in outputs]
    assert losses[-1] < 0.05 < 0.5 < losses[0]


@pytest.mark.parametrize("name", MODELS)
def test_dropped_embeddings_change_training_and_nothing_else(name):
    rowwise = {"norm": None, "dropout": 0.0}
    # inner norms, by which training would differ from evaluation anyway
    more = {
        "autoint": {"deep": [8]},
        "autoint_plus": rowwise,
        "finalnet": rowwise,
        "afn": {"inner_norm": None},
        "edcn": {"inner_norm": None},
    }.get(name, {})
    model = make_context(model=from_yaml(name, embedding_dropout=0.5, **more)).model
    plain = make_context(model=from_yaml(name, embedding_dropout=0.0, **more)).model
    batch = batch_of(SCHEMA)
    first, second = (model(batch).logits_BT for _ in range(2))
    assert not torch.equal(first, second)
    expected = plain(batch).logits_BT
    assert torch.equal(expected, plain(batch).logits_BT)
    assert torch.equal(model.eval()(batch).logits_BT, expected)


# without AFN, whose exponentials overflow where no batch norm follows them
@pytest.mark.parametrize("name", sorted({*MODELS} - {"afn"}))
def test_micro_batches_drop_what_the_whole_batch_drops(name):
    keys = yaml.safe_load((CONF / f"{name}.yaml").read_text())["net"]
    settings = {key: 0.3 for key in ("dropout", "embedding_dropout") if key in keys}
    # batch norms take all rows of an update at once
    settings |= {key: None for key in ("norm", "inner_norm") if key in keys}
    results = []
    for size in (40, 13):
        model = from_yaml(name, **settings)
        context = make_context("rowwise_adagrad", model=model, micro_batch_size=size)
        outputs = train(context, [batch_of(SCHEMA, 40)] * 2, lr=0.05)
        losses = [part["click"] for output in outputs for part in output.losses]
        results.append({"losses": torch.cat(losses), **snapshot(context)})
    for key, value in results[0].items():
        torch.testing.assert_close(results[1][key], value, rtol=0, atol=1e-5, msg=key)


@pytest.mark.parametrize("name", ["deepfm", "wide_and_deep", "xdeepfm", "fwfm by id", "fibinet"])
def test_the_columns_of_a_first_order_weight_stay_equal_and_learn(name):
    context = make_context("rowwise_adagrad", model=make_model(name))
    train(context, [batch_of(SCHEMA, 64, seed) for seed in range(3)])
    for table, state in context.tables.state().items():
        if table.endswith(":linear/weight"):
            assert torch.equal(state, state[:, :1].expand(-1, count_equal_columns(1)))
            assert state.abs().max() > 0.01


@pytest.mark.parametrize("name", ["deepfm", "wide_and_deep", "xdeepfm", "fwfm by id", "fibinet"])
def test_only_linear_weights_of_its_own_learn_what_a_task_of_the_other_sign_says(name):
    """The second label is the first one turned round, and only the first-order weights learn."""

    def spread(linear_weights):
        model = make_model(name, TWO_TASKS, linear_weights=linear_weights)
        context = make_context("sgd", model=model, loss=BCE(TWO_TASKS))
        for parameter in model.parameters():
            parameter.data.zero_()
            parameter.requires_grad_(False)
        batch = batch_of(TWO_TASKS, 64)
        first_B1 = batch.labels_BT[:, :1]
        train(context, [replace(batch, labels_BT=torch.cat([first_B1, 1 - first_B1], dim=1))] * 3)
        with torch.no_grad():
            linear_BE = model.embed(batch).pooled_BE.split(model.embedding.widths, dim=1)[1]
            module = next(m for m in model.modules() if isinstance(m, FirstOrder))
            return module(linear_BE, batch.dense_BD)

    own_BT, shared_B1 = spread(None), spread("shared")
    assert own_BT.shape[1] == 2 and shared_B1.shape[1] == 1
    torch.testing.assert_close(own_BT[:, 0], -own_BT[:, 1])
    assert own_BT.abs().max() > 0.01 > 1000 * shared_B1.abs().max()  # but for rounding


def test_a_model_whose_configuration_says_nothing_shares_linear_weights_as_older_runs_do():
    net = WideAndDeep(TWO_TASKS, embedding_dim=4, deep=[8])
    assert net.wide.dense.weight.shape == (1, 2) and net.embedding.widths == [12, 12]
    with pytest.raises(ValueError, match="linear_weights=mean: must be one of own, shared"):
        WideAndDeep(TWO_TASKS, embedding_dim=4, deep=[8], linear_weights="mean")


ONE = replace(SCHEMA, dense=(), sparse=(SparseFeature("a", 50),))
REFUSED = {
    "no ids at all": (
        MODELS,
        replace(SCHEMA, sparse=()),
        {},
        "one sparse feature.*encode: bucketise",
    ),
    "nothing to join": (
        ["deepfm", "xdeepfm", "autoint", "fwfm", "fibinet"],
        ONE,
        {},
        "at least 2 features.*has a$",
    ),
    "nothing to interact with": (["dlrm"], ONE, {}, "second sparse one.*a only"),
    "no width": (MODELS, SCHEMA, {"embedding_dim": 0}, "embedding_dim=0"),
    "negative start": (MODELS, SCHEMA, {"embedding_init": -1.0}, "embedding_init=-1.0"),
    "a layer of nothing": (
        ["dcn", "deepfm", "wide_and_deep"],
        SCHEMA,
        {"deep": [8, 0]},
        r"\[1\]=0: must be at",
    ),
    "no cross": (["dcn", "gdcn", "edcn"], SCHEMA, {"num_layers": 0}, "num_layers=0"),
    "no rank": (["dcn"], SCHEMA, {"rank": 0}, "rank=0"),
    "no neuron": (["afn"], SCHEMA, {"num_neurons": 0}, "num_neurons=0"),
    "no weights of fields": (["fibinet"], SCHEMA, {"reduction": 0}, "reduction=0"),
    "unknown pairs": (["fibinet"], SCHEMA, {"bilinear": "some"}, "bilinear=some: must be one of"),
    "unknown bridge": (["edcn"], SCHEMA, {"bridge": "sum"}, "bridge=sum: must be one of"),
    "no temperature": (["edcn"], SCHEMA, {"temperature": 0.0}, "temperature=0.0"),
    "unknown inner norm": (["afn", "edcn"], SCHEMA, {"inner_norm": "layer"}, "inner_norm=layer: "),
    "a dropout too few": (["afn"], SCHEMA, {"dropout": [0.1] * 3}, "each of the 4 hidden layers"),
    "unknown structure": (
        ["dcn", "gdcn", "masknet"],
        SCHEMA,
        {"structure": "odd"},
        "structure=odd: ",
    ),
    "no layer of FMs": (["wukong"], SCHEMA, {"num_layers": 0}, "num_layers=0"),
    "no map of numbers": (["wukong"], SCHEMA, {"bottom": []}, r"bottom=\[\]"),
    "no maps": (["xdeepfm"], SCHEMA, {"cin": []}, r"cin=\[\]"),
    "heads of attention": (["autoint"], SCHEMA, {"num_heads": 5}, "attention_dim=32.*num_heads=5"),
    "a top that is ignored": (["masknet"], SCHEMA, {"structure": "serial"}, r"top=\[64\]"),
    "no block": (["masknet"], SCHEMA, {"blocks": []}, r"blocks=\[\]"),
    "no mask": (["masknet"], SCHEMA, {"reduction": 0.0}, "reduction=0.0"),
    "heads of fusion": (["finalmlp"], SCHEMA, {"num_heads": 5}, "64 and 64.*num_heads=5"),
    "three streams": (["finalmlp"], SCHEMA, {"streams": [[8], [8], [8]]}, r"\]\]: needs 2 it"),
    "a stream of nothing": (["finalmlp"], SCHEMA, {"streams": [[8], []]}, r"s\[1\]=\[\]: needs at"),
    "a context it lacks": (
        ["finalmlp"],
        replace(SCHEMA, sparse=(SparseFeature("user", 5), SparseFeature("item", 5))),
        {"contexts": [["usr"], []]},
        "no sparse feature 'usr'; nearest: 'user'",
    ),
    "no first block": (["finalnet"], SCHEMA, {"first": []}, r"first=\[\]"),
    "half a unit": (["finalnet"], SCHEMA, {"second": [4, 5]}, r"second=\[4, 5\]: must be even"),
    "unknown residual": (["finalnet"], SCHEMA, {"residual": "summ"}, "residual=summ: .*'sum'"),
    "no order": (["eulernet"], SCHEMA, {"orders": []}, r"orders=\[\]: needs"),
    "an order of nothing": (["eulernet"], SCHEMA, {"orders": [3, 0]}, r"orders\[1\]=0: must be at"),
    "unknown first order": (["fwfm"], SCHEMA, {"first_order": "ids"}, "first_order=ids: .*'id'"),
    "experts of nothing": (["mmoe", "ple"], SCHEMA, {"experts": []}, r"experts=\[\]"),
    "no expert": (["mmoe"], SCHEMA, {"num_experts": 0}, "num_experts=0"),
    "no level": (["ple"], SCHEMA, {"num_levels": 0}, "num_levels=0"),
    "a step of no funnel": (
        ["esmm"],
        replace(SCHEMA, tasks=(TaskSpec("click"), TaskSpec("paid", "regression"))),
        {},
        r"needs labels of two values, .* there are paid \(regression\)",
    ),
}


@pytest.mark.parametrize(
    ("name", "schema", "settings", "message"),
    [(n, schema, s, m) for names, schema, s, m in REFUSED.values() for n in names],
    ids=[f"{what}-{n}" for what, (names, *_) in REFUSED.items() for n in names],
)
def test_what_is_missing_or_does_not_fit_is_refused_while_building(name, schema, settings, message):
    with pytest.raises(ValueError, match=message):
        from_yaml(name, schema, **settings)


@pytest.mark.parametrize("name", ["gdcn", "edcn", "afn", "dcn", "masknet", "wukong"])
def test_one_feature_is_enough_where_nothing_is_joined(name):
    context = make_context(model=from_yaml(name, ONE))
    [output] = train(context, [one_feature(batch_of(SCHEMA))])
    assert output.applied and output.predictions[0].logits_BT.isfinite().all()


def one_feature(batch):
    first = batch.sparse.to_dict()["a"]
    sparse = KeyedJaggedTensor(["a"], first.values(), lengths=first.lengths())
    return replace(batch, sparse=sparse, dense_BD=batch.dense_BD[:, :0])


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
@pytest.mark.parametrize("name", MODELS)
def test_the_defaults_of_the_yaml_build_on_every_schema(name, schema):
    context = make_context(model=from_yaml(name, schema), loss=ByKind(schema))
    [output] = train(context, [batch_of(schema)])
    assert output.predictions[0].logits_BT.shape == (24, len(schema.tasks))
