"""The two tiers of parametrized tests: a few cases run with the fast tests, the others with all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def fast(*chosen: Any, of: Iterable[Any]) -> list[Any]:
    """Return the cases as parameters, all but the chosen ones marked as slow.

    Raises:
        ValueError: for a chosen case that is not there.
    """
    cases = list(of)
    if missing := [case for case in chosen if case not in cases]:
        raise ValueError(f"no such case: {missing}")
    slow = pytest.mark.slow
    return [
        case
        if case in chosen
        else pytest.param(*case, marks=slow)
        if isinstance(case, tuple)
        else pytest.param(case, marks=slow)
        for case in cases
    ]
