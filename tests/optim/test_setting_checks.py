"""Checks that all settings of optimizers and schedules share."""

from __future__ import annotations

import math

import pytest

from runner.errors import ConfigError
from runner.optim.setting_checks import check_number, check_pattern_entry


@pytest.mark.parametrize(
    ("value", "bounds", "message"),
    [
        (-1, {}, "k=-1: must be at least 0$"),
        (0, {"above_low": True}, "k=0: must be above 0$"),
        (1.0, {"high": 1.0, "below_high": True}, "k=1.0: must be at least 0 and below 1$"),
        (2, {"high": 1.0}, "k=2: must be at least 0 and at most 1$"),
        (math.inf, {}, "k=inf: must be a finite number$"),
        (False, {}, "k=False: must be a finite number$"),
        (None, {}, "k=None: must be a finite number$"),
    ],
)
def test_a_number_outside_its_bounds_is_refused_with_them(value, bounds, message):
    with pytest.raises(ConfigError, match=message):
        check_number(value, "k", **bounds)


def test_bounds_that_are_not_excluded_are_allowed():
    assert [check_number(n, "k", high=1.0) for n in (0, 1, 0.5)] == [0.0, 1.0, 0.5]


@pytest.mark.parametrize("pattern", ["", 3, None])
def test_an_entry_needs_a_pattern(pattern):
    with pytest.raises(ConfigError, match=r"k\.pattern: is missing"):
        check_pattern_entry({"pattern": pattern}, ("pattern",), "k", "a part", example="pattern: R")
