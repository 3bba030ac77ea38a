"""Settings that change nothing are refused where a user sets them, and nowhere else."""

from __future__ import annotations

import pytest

from runner.config.compose import compose
from runner.models.unused_settings import check_unused_settings
from tests.golden.record import commands


def unused(*words, from_run=False):
    composed = compose([*words])
    found = check_unused_settings(composed.config, composed.default_config, from_run=from_run)
    return [message.split(":")[0] for message in found]


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
        (("model=sasrec", "model.loss.corrected=true"), []),
        (
            ("model=sasrec", "model.loss.corrected=true", "model.net.every=true"),
            ["model.loss.corrected=true"],
        ),
    ],
)
def test_a_setting_is_refused_only_where_it_changes_nothing(words, keys):
    assert unused(*words) == keys


def test_a_run_that_has_such_settings_is_still_resumed_and_evaluated():
    assert unused("model=dcn", "model.net.num_experts=2", from_run=True) == []


@pytest.mark.parametrize("command", [c for c in commands() if c[:6] in ("model=", "experi")])
def test_what_an_option_or_an_experiment_says_by_itself_is_not_refused(command):
    assert unused(command) == []
