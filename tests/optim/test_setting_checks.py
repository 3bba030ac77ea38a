"""Checks that all settings of optimizers and schedules share."""

from __future__ import annotations

import pytest

from runner.errors import ConfigError
from runner.optim.setting_checks import check_pattern_entry


@pytest.mark.parametrize("pattern", ["", 3, None])
def test_an_entry_needs_a_pattern(pattern):
    with pytest.raises(ConfigError, match=r"k\.pattern: is missing"):
        check_pattern_entry({"pattern": pattern}, ("pattern",), "k", "a part", example="pattern: R")
