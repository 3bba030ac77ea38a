"""Ownership of parameters by regular expressions."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.errors import ConfigError
from runner.optim.param_groups import match_patterns

NAMES = ["bottom.0.weight", "bottom.0.bias", "over.0.weight", "over.0.bias", "head.weight"]


def test_the_first_match_wins_and_the_rest_have_no_owner():
    assert match_patterns(NAMES, [r"bias$", r"^bottom\."]) == {
        "bottom.0.weight": 1,
        "bottom.0.bias": 0,
        "over.0.weight": None,
        "over.0.bias": 0,
        "head.weight": None,
    }


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        ([r"botom\.0\.weight"], r"parts\[0\]\.pattern .* matches no parameter; nearest: 'bottom"),
        ([r"bias", r"over.*bias"], r"parts\[1\]\.pattern .* owns nothing: .*'over\.0\.bias'"),
        ([r"(bias"], r"parts\[0\]\.pattern '\(bias' is not a regular expression"),
    ],
)
def test_mistakes_are_named(patterns, message):
    with pytest.raises(ConfigError, match=message):
        match_patterns(NAMES, patterns)


fragments = st.sampled_from(
    ["bottom", "over", "head", r"\.", "weight", "bias", ".*", "^", "$", "[0-9]"]
)
expressions = st.lists(fragments, min_size=1, max_size=3).map("".join)


@given(st.lists(expressions, max_size=4), st.lists(st.sampled_from(NAMES), unique=True))
def test_every_parameter_has_at_most_one_owner_and_every_pattern_owns_one(patterns, names):
    matches = {n: [i for i, p in enumerate(patterns) if re.search(p, n)] for n in names}
    owned = {n: numbers[0] for n, numbers in matches.items() if numbers}
    try:
        result = match_patterns(names, patterns)
    except ConfigError:
        assert set(owned.values()) != set(range(len(patterns)))
        return
    assert set(result) == set(names)
    assert {n: i for n, i in result.items() if i is not None} == owned
    assert set(owned.values()) == set(range(len(patterns)))
