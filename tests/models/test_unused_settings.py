"""Settings that change nothing are told where a user sets them, and nowhere else."""

from __future__ import annotations

import pytest

from runner.config.compose import compose
from runner.models.unused_settings import check_loss_correction, find_unused_settings
from tests.golden.record import commands


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


def test_each_setting_is_told_once_with_its_reason():
    words = ["model=autoint", "model.net.norm_place=after_activation", "model.net.dropout=0.1"]
    composed = compose([*words, "model.net.norm=batch", "model.net.activation=gelu"])
    assert [*find_unused_settings(composed.config, composed.default_config)] == [
        f"model.net.{setting} has no effect without a hidden layer; "
        "model.net.deep=[128,64] adds two"
        for setting in (
            "dropout=0.1",
            "norm=batch",
            "norm_place=after_activation",
            "activation=gelu",
        )
    ]


def test_a_correction_of_what_is_left_out_is_refused_but_in_a_run_that_has_it():
    words = ("model=sasrec", "model.loss.corrected=true")
    assert corrected(*words) == []
    [message] = corrected(*words, "model.net.every=true")
    assert message.startswith("model.loss.corrected=true: has no effect")
    assert corrected(*words, "model.net.every=true", from_run=True) == []


@pytest.mark.parametrize("command", [c for c in commands() if c[:6] in ("model=", "experi")])
def test_what_an_option_or_an_experiment_says_by_itself_is_not_told(command):
    assert unused(command) == []
