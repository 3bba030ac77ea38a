"""A recipe sets keys of several groups at once, below experiments and the command line."""

import pytest

from runner.config.compose import compose
from runner.config.composed_checks import check_composed
from runner.config.part_arguments import read_arguments
from runner.config.signature import compute_signature
from runner.config.targets import ALLOWED_PACKAGES
from runner.errors import ConfigError

NETS = ("autoint", "dcn", "deepfm", "din", "dlrm", "finalmlp", "masknet", "mlp", "mmoe", "ple")


def write_experiment(folder, text):
    (folder / "experiments").mkdir()
    (folder / "experiments" / "mine.yaml").write_text(f"# @package _global_\n{text}")
    return [str(folder)]


def test_the_default_recipe_changes_nothing():
    plain = compose([])
    assert plain.choices["recipe"] == "default"
    named = compose(["recipe=default"])
    assert named.config == plain.config == compose(["~recipe"]).config
    assert compute_signature(named.config, "data") == compute_signature(plain.config, "data")


@pytest.mark.long
@pytest.mark.parametrize(
    "model",
    [
        *NETS,
        "bert4rec",
        "bst",
        "dien",
        "gru4rec",
        "hstu",
        "sasrec",
        "two_tower",
        "wide_and_deep",
        "xdeepfm",
    ],
)
@pytest.mark.parity("N13")
def test_every_model_takes_the_recipe_without_a_mistake(model):
    composed = compose(["recipe=bars", f"model={model}"])
    check_composed(composed, ALLOWED_PACKAGES)
    net = composed.config["model"]["net"]
    takes = read_arguments(net["_target_"]).declared
    assert set(net) - {"_target_"} <= set(takes)
    said = "".join(composed.notes)
    for name, value in {"norm": "batch", "dropout": 0.2, "deep": [400] * 3}.items():
        if name in takes:
            assert net[name] == value
        else:
            assert f"no {name}" in said or (name == "deep" and net["top"] == value)
    if "deep" in takes or "top" in takes:
        assert "no top" not in said and "no deep" not in said


def test_the_command_line_wins_over_the_recipe_by_options_and_by_keys():
    words = ["recipe=bars", "model=deepfm", "optimizer=adagrad", "model.net.dropout=0.5"]
    composed = compose([*words, "trainer.max_steps=10"])
    check_composed(composed, ALLOWED_PACKAGES)
    config = composed.config
    assert config["optimizer"]["sparse"]["kind"] == "adagrad"
    assert config["optimizer"]["sparse"]["l2_tables"] == 1e-5
    assert config["model"]["net"]["dropout"] == 0.5
    assert (config["trainer"]["max_steps"], config["trainer"]["max_epochs"]) == (10, None)
    assert any("displaces trainer.max_epochs=100" in note for note in composed.notes)


def test_an_experiment_wins_over_the_recipe_and_may_choose_one(tmp_path):
    text = "defaults:\n  - override /recipe: bars\n  - override /model: dcn\n"
    text += "model: {net: {dropout: 0.4}}\ntrainer: {max_epochs: 3}\n"
    dirs = write_experiment(tmp_path, text)
    config = compose(["experiments=mine"], config_dirs=dirs).config
    assert config["optimizer"]["sparse"]["every_row"] is True
    assert config["optimizer"]["sparse"]["kind"] == "adam"
    assert config["model"]["net"]["dropout"] == 0.4
    assert config["trainer"]["max_epochs"] == 3
    assert "top" not in config["model"]["net"]  # DCN has none
    plain = compose(["experiments=mine", "recipe=default"], config_dirs=dirs).config
    assert "every_row" not in plain["optimizer"]["sparse"]


@pytest.mark.long
def test_a_net_of_ones_own_gets_what_its_option_names_and_the_rest_is_said(tmp_path):
    text = "model: {net: {_target_: mynets.Net, dropout: 0.1, width: 8}, loss: {_target_: a.L}}\n"
    text = "defaults:\n  - override /model: own\n" + text
    composed = compose(
        ["experiments=mine", "recipe=bars"], config_dirs=write_experiment(tmp_path, text)
    )
    assert composed.config["model"]["net"] == {"_target_": "mynets.Net", "dropout": 0.1, "width": 8}
    expected = "no deep, no top, no norm, no init, no embedding_init: left out"
    assert composed.notes == (f"recipe=bars: mynets.Net takes {expected}",)


def test_a_recipe_that_does_not_exist_is_told_with_the_nearest():
    with pytest.raises(ConfigError, match=r"recipe=bar: no such option.*bars"):
        check_composed(compose(["recipe=bar"]), ALLOWED_PACKAGES)
