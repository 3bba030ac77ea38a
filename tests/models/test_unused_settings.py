"""Settings that change nothing are told where a user sets them, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from runner.config.compose import compose
from runner.models.unused_settings import (
    LAYERS_OF,
    check_loss_correction,
    find_unused_settings,
)
from tests.golden.record import commands
from tests.models import scene, sequence_models, sequence_scene
from tests.tiny import make_context, random_batch, snapshot, train

# option and the lists of widths that are empty, of every net with hidden layers
NETS = [
    *((name, ("deep",)) for name in ("dcn", "deepfm", "wide_and_deep", "mlp", "xdeepfm")),
    *((name, ("deep",)) for name in ("autoint", "autoint_plus", "gdcn", "fibinet", "afn")),
    ("afn", ("top", "deep")),
    ("edcn", ()),
    ("finalmlp", ()),
    ("finalnet", ("second",)),
    ("masknet", ("top",)),
    ("masknet serial", ("top",)),
    ("esmm", ("deep",)),
    *((name, ("tower",)) for name in ("mmoe", "ple")),
    *((name, ("top",)) for name in ("dlrm", "wukong", "bst", "dien", "din")),
    ("din", ("attention",)),
    ("din", ("top", "attention")),
    ("two_tower", ("user_tower", "item_tower")),
    ("two_tower", ("item_tower",)),
]
SET = {"dropout": 0.5, "norm": "layer", "activation": "tanh", "attention_activation": "gelu"}


def unused(*words):
    composed = compose([*words])
    found = find_unused_settings(composed.config, composed.default_config)
    return [sentence.split("=")[0] for sentence in found]


def corrected(*words, from_run=False):
    return [*check_loss_correction(compose([*words]).config, from_run=from_run)]


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        (("model=dcn", "model.net.num_experts=2"), ["model.net.num_experts"]),
        (("model=dcn", "model.net.num_experts=2", "model.net.rank=4"), []),
        (("model=finalmlp", "model.net.gate=[5]", "model.net.contexts=[[a],[]]"), []),
        (("model=autoint", "model.net.dropout=0.1", "model.net.deep=[8]"), []),
        (("model=afn", "model.net.dropout=0.1", "model.net.deep=[]"), []),
        (
            ("model=afn", "model.net.dropout=0.1", "model.net.deep=[]", "model.net.top=[]"),
            ["model.net.dropout"],
        ),
        (("model.net.norm=layer", "model.net.norm_place=after_activation"), []),
        (("model.net.norm=layer", "model.net.norm_scope=update"), ["model.net.norm_scope"]),
        (("model.net.activation=dice", "model.net.norm_scope=update"), []),
    ],
)
def test_a_setting_is_told_only_where_it_changes_nothing(words, keys):
    assert unused(*words) == keys


def weights_after(name, **net):
    """Return all weights after three updates of a small net."""
    if name in sequence_models.SMALL and name != "mlp":
        context = sequence_models.make(name, **net)
        batches = [sequence_scene.batch_of(seed=seed) for seed in range(3)]
    else:
        context = make_context(model=scene.make_model(name, **net))
        batches = [random_batch(24, seed) for seed in range(3)]
    train(context, batches)
    return snapshot(context)


@pytest.mark.long
@pytest.mark.parametrize(("name", "empty"), NETS, ids=str)
def test_a_setting_is_told_if_and_only_if_the_weights_are_the_same_without_it(name, empty):
    lists = {key: [] for key in empty}
    stem, *structure = name.split()
    words = [f"model={stem}", *(f"model.net.structure={s}" for s in structure)]
    words += [f"model.net.{key}=[]" for key in empty]
    without, known = weights_after(name, **lists), compose(words).config["model"]["net"]
    for key, value in SET.items():
        if key not in known:
            continue
        found = weights_after(name, **lists, **{key: value})
        is_same = found.keys() == without.keys() and all(
            torch.equal(found[path], without[path]) for path in found
        )
        assert unused(*words, f"model.net.{key}={value}") == [f"model.net.{key}"] * is_same, key


@pytest.mark.long
def test_every_net_with_hidden_layers_is_compared():
    options = Path(scene.CONF).glob("*.yaml")
    nets = {p.stem: compose([f"model={p.stem}"]).config["model"]["net"] for p in options}
    hidden = {name for name, net in nets.items() if "activation" in net}
    assert {name.split()[0] for name, _ in NETS} == hidden
    lists = {key for lists in LAYERS_OF.values() for key in lists}
    assert all(any(key in net for net in nets.values()) for key in lists)


def test_shared_linear_weights_are_told_where_no_id_has_a_weight():
    assert unused("model=fwfm", "model.net.linear_weights=shared") == ["model.net.linear_weights"]
    words = ("model=fwfm", "model.net.linear_weights=shared", "model.net.first_order=id")
    assert unused(*words) == []
    shared, own = (
        snapshot(make_context(model=scene.make_model("fwfm", scene.TWO_TASKS, linear_weights=w)))
        for w in ("shared", "own")
    )
    assert {n: t.shape for n, t in shared.items()} == {n: t.shape for n, t in own.items()}


def test_each_setting_is_told_once_with_its_reason():
    words = ["model=autoint", "model.net.norm_place=after_activation", "model.net.dropout=0.1"]
    composed = compose([*words, "model.net.norm=batch", "model.net.activation=gelu"])
    assert [*find_unused_settings(composed.config, composed.default_config)] == [
        f"model.net.{setting} has no effect with model.net.deep=[]; "
        "model.net.deep=[128,64] adds two hidden layers"
        for setting in (
            "dropout=0.1",
            "norm=batch",
            "norm_place=after_activation",
            "activation=gelu",
        )
    ]
    words = ["model=afn", "model.net.deep=[]", "model.net.top=[]", "model.net.norm=batch"]
    composed = compose(words)
    assert [*find_unused_settings(composed.config, composed.default_config)] == [
        "model.net.norm=batch has no effect with model.net.deep=[] and model.net.top=[]; "
        "model.net.deep=[128,64] adds two hidden layers"
    ]


def test_a_batch_norm_that_no_layer_has_takes_no_rows():
    words = ["model=masknet", "model.net.structure=serial", "model.net.top=[]"]
    composed = compose([*words, "model.net.norm=batch", "model.net.norm_scope=update"])
    assert [*find_unused_settings(composed.config, composed.default_config)] == [
        "model.net.norm=batch has no effect with model.net.top=[]; "
        "model.net.structure=parallel takes hidden layers there",
        "model.net.norm_scope=update has no effect without batch statistics, which norm=batch and "
        "activation=dice take",
    ]


def test_a_correction_of_what_is_left_out_is_refused_but_in_a_run_that_has_it():
    words = ("model=sasrec", "model.loss.corrected=true")
    assert corrected(*words) == []
    [message] = corrected(*words, "model.net.every=true")
    assert message.startswith("model.loss.corrected=true: has no effect")
    assert corrected(*words, "model.net.every=true", from_run=True) == []


@pytest.mark.long
@pytest.mark.parametrize("command", [c for c in commands() if c[:6] in ("model=", "experi")])
def test_what_an_option_or_an_experiment_says_by_itself_is_not_told(command):
    assert unused(command) == []
