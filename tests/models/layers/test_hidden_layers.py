"""Hidden layers by name: against plain PyTorch in float64, and what is refused."""

from __future__ import annotations

import math
from copy import deepcopy

import pytest
import torch
from torch import nn

from runner.models.argument_types import ACTIVATIONS, INITS
from runner.models.fibinet import BilinearPairs
from runner.models.finalmlp import BilinearFusion
from runner.models.layers.batch_norm import BatchNorm
from runner.models.layers.cross import MixtureCrossLayer
from runner.models.layers.dropout import Dropout
from runner.models.layers.experts import Experts
from runner.models.layers.mlp import HiddenLayers, init_linear_layers, mlp
from tests.models.scene import MODELS, SCHEMA, SMALL, batch_of, from_yaml, make_model
from tests.models.sequence_scene import SCHEMA as HISTORIES
from tests.models.sequence_scene import batch_of as batch_of_histories
from tests.tiny import make_context

TORCHS = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "prelu": lambda: nn.PReLU(5),
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
}
NORMS = {"batch": lambda: nn.BatchNorm1d(5), "layer": lambda: nn.LayerNorm(5)}


def rows(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("place", ["before_activation", "after_activation"])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("activation", TORCHS)
def test_an_mlp_is_that_of_plain_pytorch(activation, norm, place):
    hidden = HiddenLayers(norm=norm, norm_place=place, activation=activation)
    ours = mlp(4, [5, 5, 2], hidden, last="linear").double()
    layers, has_bias = [], (norm, place) != ("batch", "before_activation")
    for width in (4, 5):
        after = [NORMS[norm](), TORCHS[activation]()]
        after = after if place == "before_activation" else after[::-1]
        layers += [nn.Linear(width, 5, bias=has_bias), *after]
    twin = nn.Sequential(*layers, nn.Linear(5, 2)).double()
    for mine, theirs in zip(ours.parameters(), twin.parameters(), strict=True):
        mine.data.copy_(rows(*mine.shape, seed=mine.numel()))
        theirs.data.copy_(mine.data)
    x = rows(9, 4)
    for net in (ours, twin):
        net(x).square().sum().backward()
    torch.testing.assert_close(ours(x), twin(x))
    for (name, mine), theirs in zip(ours.named_parameters(), twin.parameters()):
        torch.testing.assert_close(mine.grad, theirs.grad, msg=name)


def test_every_activation_has_a_twin():
    assert {*TORCHS, "dice"} == set(ACTIVATIONS)  # Dice's is in test_batch_norm.py


@pytest.mark.parametrize("norm", [None, "batch", "layer"])
@pytest.mark.parametrize("activation", ["prelu", "dice", "relu"])
def test_experts_computed_as_one_are_mlps(norm, activation):
    hidden = HiddenLayers(norm=norm, activation=activation)
    experts = Experts(3, 4, [6, 5], hidden).double()
    for parameter in experts.parameters():
        parameter.data.copy_(rows(*parameter.shape, seed=parameter.numel()))
    x = rows(9, 4)
    found = experts(x)

    def own(parameter, expert, width):  # of [3 x width], or [3, width]
        return parameter.view(3, width)[expert]

    for expert in range(3):
        twin = mlp(4, [6, 5], hidden).double()
        twin[0].weight.data.copy_(experts.first.weight.view(3, 6, 4)[expert])
        second = next(m for m in list(twin)[1:] if isinstance(m, nn.Linear))
        second.weight.data.copy_(experts.weights[0][expert].T)
        if norm != "batch":  # which subtracts a bias again
            twin[0].bias.data.copy_(own(experts.first.bias, expert, 6))
            second.bias.data.copy_(experts.biases[0][expert, 0])
        after = [m for m in twin if not isinstance(m, nn.Linear)]
        for i, width in enumerate((6, 5)):
            per_layer = len(after) // 2
            theirs = [p for m in after[i * per_layer : (i + 1) * per_layer] for p in m.parameters()]
            for mine, other in zip(experts.after[i].parameters(), theirs, strict=True):
                other.data.copy_(own(mine, expert, width))
        torch.testing.assert_close(found[:, expert], twin(x))


BATCH_NORMS = {  # in the small models of tests/models/scene.py, by hand
    "dlrm": 1 + 1,
    "dcn": 2,
    "dcn stacked": 2,
    "dcn mixture": 1,
    "deepfm": 2,
    "wide_and_deep": 2,
    "wide_and_deep pairs": 2,
    "wide_and_deep members": 2,
    "mlp": 2,
    "xdeepfm": 1,
    "autoint": 0,
    "autoint deep": 1,
    "autoint_plus": 2,
    "masknet": 1,
    "masknet serial": 0,
    "wukong": 1 + 2 * 1 + 1,
    "wukong one layer": 1 + 2,
    "finalmlp": 3,
    "finalmlp contexts": 2,
    "finalnet": 2 + 1,
    "finalnet one block": 2,
    "esmm": 2,
    "mmoe": 2 + 1,
    "ple": 2 * 2 + 2 * 2 + 1,  # own and shared experts of two levels, two layers each; the tower
    "ple one level": 1 + 1 + 1,
    "gdcn": 2,
    "gdcn stacked": 1,
    "fibinet": 1,
    "fibinet each": 1,
    "fibinet all": 1,
    "edcn": 3 * (1 + 2),  # a deep layer, and the two inputs of both networks' layers
    "edcn addition": 2 * (1 + 2),
    "edcn concatenation": 2 * (1 + 2),
    "edcn attention": 2 * (1 + 2),
    "afn": 1 + 2,  # logarithms and exponentials
    "afn deep": 3 + 2,
}


def test_every_model_with_hidden_layers_is_listed():
    assert {name for name in SMALL if not name.startswith(("eulernet", "fwfm"))} == {*BATCH_NORMS}


@pytest.mark.parametrize("name", BATCH_NORMS)
def test_every_hidden_layer_of_every_model_has_the_norm_of_torch(name):
    batch = batch_of(SCHEMA)
    weights_B = batch.weights_B.clone()
    model = make_context(model=make_model(name, norm="batch")).model
    norms = {n: m for n, m in model.named_modules() if isinstance(m, BatchNorm)}
    assert len(norms) == BATCH_NORMS[name]
    twin = deepcopy(model)
    for path, norm in norms.items():
        theirs = nn.BatchNorm1d(len(norm.running_mean))
        theirs.load_state_dict(norm.state_dict(), strict=False)
        parent, _, place = path.rpartition(".")
        twin.get_submodule(parent)[int(place)] = theirs
    embeddings = model.embed(batch)
    logits = []
    for each in (model, twin):
        logits.append(each.dense(embeddings, batch).logits_BT)
        (logits[-1][:, 0] * weights_B).sum().backward(retain_graph=True)
    torch.testing.assert_close(logits[0], logits[1])
    for (path, mine), theirs in zip(model.named_parameters(), twin.parameters(), strict=True):
        if mine.grad is not None:
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-4, msg=path)


def test_dropout_is_one_number_or_one_for_each_layer():
    layers = mlp(4, [5, 6, 1], HiddenLayers(dropout=[0.1, 0.3]), last="linear")
    assert [m.p for m in layers if isinstance(m, nn.Dropout)] == [0.1, 0.3]
    with pytest.raises(ValueError, match=r"dropout=\[0.1\]: needs one number, or one for each of"):
        mlp(4, [5, 6, 1], HiddenLayers(dropout=[0.1]), last="linear")
    masknet = make_model("masknet", dropout=[0.1, 0.2, 0.3])
    assert [m.p for m in masknet.drops] == [0.1, 0.2]
    assert [m.p for m in masknet.top if isinstance(m, nn.Dropout)] == [0.3]


# standard deviation of a weight of [300, 200]
STD = {
    "xavier_normal": math.sqrt(2 / 500),
    "xavier_uniform": math.sqrt(6 / 500) / math.sqrt(3),
    "kaiming_normal": math.sqrt(2 / 200),
    "kaiming_uniform": math.sqrt(6 / 200) / math.sqrt(3),
    "normal": 1e-4,
}


@pytest.mark.parametrize("name", INITS)
def test_an_initialisation_has_the_spread_of_its_formula(name):
    torch.manual_seed(0)
    layer, experts = nn.Linear(200, 300), Experts(2, 200, [300, 300])
    for module in (layer, experts):
        init_linear_layers(module, name)
    weights = [layer.weight, *experts.first.weight.chunk(2)]
    spreads = [float(w.detach().std()) for w in weights]
    assert spreads == pytest.approx([STD[name]] * 3, rel=0.02)
    inner = {  # in = out = 300
        "xavier_normal": math.sqrt(1 / 300),
        "xavier_uniform": math.sqrt(1 / 300),
        "kaiming_normal": math.sqrt(2 / 300),
        "kaiming_uniform": math.sqrt(2 / 300),
        "normal": 1e-4,
    }
    assert float(experts.weights[0].detach().std()) == pytest.approx(inner[name], rel=0.02)
    assert not any(b.any() for b in (layer.bias, experts.first.bias, experts.biases[0]))


@pytest.mark.parametrize("name", INITS)
def test_each_map_of_a_low_rank_cross_and_of_a_fusion_is_drawn_for_itself(name):
    torch.manual_seed(0)
    cross = MixtureCrossLayer(300, 200, num_experts=2)
    fusion = BilinearFusion(2 * 200, 2 * 300, 3, 2)  # two heads and three tasks: 200 -> 300
    for module in (cross, fusion):
        init_linear_layers(module, name)
    up_K = cross.up.weight.chunk(2, dim=1)  # each 200 -> 300
    weights = [*up_K, *fusion.bilinear_KSP]
    spreads = [float(w.detach().std()) for w in weights]
    assert spreads == pytest.approx([STD[name]] * 4, rel=0.02)
    square = STD[name] * (math.sqrt(500 / 400) if name.startswith("xavier") else 1)  # 200 -> 200
    spreads = [float(w.detach().std()) for w in cross.inner_KRR]
    assert spreads == pytest.approx([square] * 2, rel=0.02)
    shares = {"xavier": 1, "kaiming": math.sqrt(200 / 300), "normal": 1}  # 300 -> 200
    down = STD[name] * shares[name.partition("_")[0]]
    assert float(cross.down.weight.detach().std()) == pytest.approx(down, rel=0.02)


@pytest.mark.parametrize("name", MODELS)
def test_without_a_name_weights_start_as_they_always_did(name):
    """And with one, all linear maps start anew, and nothing but these."""
    plain, named = from_yaml(name), from_yaml(name, init="normal")
    for (path, mine), other in zip(plain.named_parameters(), named.parameters(), strict=True):
        parent = plain.get_submodule(path.rpartition(".")[0])
        is_bias = path.endswith("bias")
        if isinstance(parent, nn.Linear | BilinearPairs | BilinearFusion):
            assert float(other.detach().abs().max()) < (1e-9 if is_bias else 1e-3), path
        elif not path.startswith(("experts", "levels")):
            assert torch.equal(mine, other), path


REFUSED = {
    "norm": ({"norm": "bach"}, "norm=bach: must be one of batch, layer; nearest: 'batch'"),
    "place": ({"norm_place": "behind"}, "norm_place=behind: must be one of before_activation"),
    "scope": ({"norm_scope": "rank"}, "norm_scope=rank: must be one of update, micro_batch"),
    "activation": ({"activation": "rela"}, "activation=rela.*nearest: 'relu'"),
    "kind": ({"activation": 3}, "activation=3: expected text or null, got whole number 3"),
    "init": ({"init": "xavier"}, "init=xavier: must be one of xavier_normal"),
    "dropout": ({"dropout": 1.5}, "dropout=1.5: must be at least 0 and at most 1"),
    "no dropout": ({"dropout": None}, "dropout=null: expected number or list of number, got null"),
    "dropouts": ({"dropout": [0.1]}, "needs one number, or one for each of the 2 hidden layers"),
}


@pytest.mark.parametrize(("settings", "message"), REFUSED.values(), ids=REFUSED)
def test_an_unknown_name_is_refused_with_the_nearest(settings, message):
    with pytest.raises(ValueError, match=message):
        from_yaml("deepfm", **settings)


def test_a_list_of_dropouts_is_for_the_towers_that_have_hidden_layers():
    model = from_yaml("two_tower", HISTORIES, user_tower=[8, 8], item_tower=[], dropout=[0.1, 0.2])
    rates = [m.p for m in model.user if isinstance(m, Dropout)]
    assert rates == [0.1, 0.2] and not any(isinstance(m, Dropout) for m in model.thing)


@pytest.mark.parametrize("settings", [{"norm": "batch"}, {"activation": "dice"}])
def test_two_towers_have_batch_statistics_only_where_no_item_is_drawn(settings):
    context = make_context(model=from_yaml("two_tower", HISTORIES, item_tower=[8], **settings))
    logits = context.model(batch_of_histories()).logits_BT
    assert logits.isfinite().all() and len(context.batch_norms) == 2
    with pytest.raises(ValueError, match=r"uniform=5: drawn items.* in_batch=true uniform=0 draws"):
        from_yaml("two_tower", HISTORIES, item_tower=[8], uniform=5, **settings)
    from_yaml("two_tower", HISTORIES, item_tower=[8], uniform=5, norm="layer")
