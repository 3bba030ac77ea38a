"""What a search without further words searches, and what its jobs get."""

import pytest

from runner.cli.multirun import _split_search
from runner.config.compose import compose
from runner.config.overrides import parse_overrides
from runner.config.targets import ALLOWED_PACKAGES
from runner.errors import ConfigError


def split(*words):
    fixed, space, _ = _split_search(compose(words), parse_overrides(words), ALLOWED_PACKAGES)
    return fixed, {d.key for d in space}


@pytest.mark.parametrize("model", ["dcn", "dlrm"])
def test_the_default_space_holds_rates_regularisation_dropout_norm_width_and_depth(model):
    _, keys = split("search=tpe", f"model={model}")
    depth = "model.net.top" if model == "dlrm" else "model.net.deep"
    model_keys = {f"model.net.{k}" for k in ("embedding_dim", "embedding_dropout", "dropout")}
    rates = {"optimizer.sparse.lr", "optimizer.sparse.l2_lookups", "optimizer.dense.lr"}
    assert keys == {*rates, *model_keys, "model.net.norm", depth}


def test_the_command_line_may_drop_the_space_of_an_option_and_search_keys_of_its_own_alone():
    words = ["search=tpe", "~search.space"]
    parsed = parse_overrides([*words, "seed=choice(1,2)"])
    _, space, _ = _split_search(compose(words), parsed, ALLOWED_PACKAGES)
    assert {d.key for d in space} == {"seed"}


def test_what_a_model_lacks_is_not_searched_and_that_is_said(capsys):
    words = ["model=sasrec", "dataset=amazon_beauty", "dataset.path=/nowhere"]
    _, keys = split("search=tpe", *words)
    assert {k for k in keys if k.startswith("model")} == {
        "model.net.embedding_dim",
        "model.net.dropout",
    }
    names = ("embedding_dropout", "norm", "deep", "top")
    said = ", ".join(f"no model.net.{name}" for name in names)
    assert f"not searched, since the model has {said}" in capsys.readouterr().err
    split("search=tpe", "model=dcn")
    assert "not searched" not in capsys.readouterr().err  # DCN calls its widths deep


@pytest.mark.parametrize("model", ["dcn", "dlrm"])
def test_widths_given_as_hidden_take_the_models_own_out_of_the_space(model):
    fixed, keys = split("search=tpe", f"model={model}", "model.net.hidden=[8]")
    assert "model.net.hidden=[8]" in fixed
    assert keys.isdisjoint({"model.net.deep", "model.net.top", "model.net.hidden"})


def test_hidden_with_several_values_is_searched_under_the_models_own_name():
    words = ["search=tpe", "model=dcn"]
    parsed = parse_overrides([*words, "model.net.hidden=choice([8],[16])"])
    fixed, space, _ = _split_search(compose(words), parsed, ALLOWED_PACKAGES)
    assert fixed == words
    assert [d.choices for d in space if d.key == "model.net.deep"] == [("[8]", "[16]")]
    assert "model.net.hidden" not in {d.key for d in space}


def test_a_search_of_ones_own_may_name_hidden_widths_too():
    words = ["search=tpe", "model=dcn"]
    base = compose(words)
    base.config["search"]["space"]["model.net.hidden"] = "choice([8], [16])"
    base.config["search"]["each_job"] = {"model.net.hidden": [4]}
    _, space, settings = _split_search(base, parse_overrides(words), ALLOWED_PACKAGES)
    assert [d.choices for d in space if d.key == "model.net.deep"] == [("[8]", "[16]")]
    assert settings.each_job == {"model.net.deep": [4]}
    parsed = parse_overrides([*words, "model.net.hidden=[7]"])
    fixed, space, _ = _split_search(base, parsed, ALLOWED_PACKAGES)
    assert fixed == [*words, "model.net.hidden=[7]"]
    assert "model.net.deep" not in {d.key for d in space}


def test_both_names_of_the_hidden_widths_in_one_search_are_refused():
    words = ["search=tpe", "model=dcn", "model.net.hidden=[8]"]
    parsed = parse_overrides([*words, "model.net.deep=choice([8],[16])"])
    with pytest.raises(ConfigError, match="give one of them; both set the widths"):
        _split_search(compose(words), parsed, ALLOWED_PACKAGES)


def test_a_key_of_the_space_is_told_how_it_is_given():
    given = parse_overrides(["search.space.seed=choice(1,2)"])
    with pytest.raises(ConfigError, match=r"without search.space: seed=choice\(1,2\)"):
        _split_search(compose(["search=tpe"]), given, ALLOWED_PACKAGES)


def test_a_search_may_be_of_a_model_of_ones_own():
    words = ["model=own", "model.net._target_=mynets.Net", "model.loss._target_=mynets.Loss"]
    fixed, space, _ = _split_search(
        compose(["search=tpe", *words]), parse_overrides(words), [*ALLOWED_PACKAGES, "mynets"]
    )
    assert fixed == words
    assert [d.key.split(".")[0] for d in space] == ["optimizer"] * 3


@pytest.mark.long
def test_jobs_of_the_quick_search_are_short_unless_the_command_line_says_how_long():
    length, patience = "trainer.max_epochs=5", "trainer.early_stop.patience=1"
    rates = ['optimizer="adam"', "optimizer.sparse.every_row=true", 'scheduler="cosine"']
    every = [*rates, length, patience]
    assert split("search=quick")[0] == [*every, "search=quick"]
    assert split("search=quick", "recipe=bars")[0] == [*every, "search=quick", "recipe=bars"]
    words = ["search=quick", "trainer.max_steps=40", "trainer.eval_every=10"]
    assert split(*words)[0] == [*rates, patience, *words]
    words = ["search=quick", "trainer.early_stop.patience=2"]
    assert split(*words)[0] == [*rates, length, *words]


@pytest.mark.long
def test_rates_of_the_quick_search_fall_unless_the_command_line_has_a_schedule():
    fixed, _ = split("search=quick")
    config = compose(fixed).config
    assert (config["scheduler"]["kind"], config["optimizer"]["sparse"]["kind"]) == (
        "cosine",
        "adam",
    )
    fixed, _ = split("search=quick", "scheduler.warmup=10")
    assert compose(fixed).config["scheduler"] == {"kind": "cosine", "warmup": 10, "final": 0.0}
    fixed, _ = split("search=quick", "scheduler=step")
    assert compose(fixed).config["scheduler"]["kind"] == "step"
    fixed, _ = split("search=quick", "optimizer=adagrad")
    assert compose(fixed).config["optimizer"]["sparse"]["kind"] == "adagrad"
