"""Every row of what the runner must be able to do has a test that bears its name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.parity_rows import ROWS

TESTS = Path(__file__).parent


def marked_rows() -> Iterator[str]:
    """Yield the rows that the tests are marked with."""
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.parse(path.read_text()).body:
            for mark in getattr(node, "decorator_list", ()):
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.parity":
                    yield from map(ast.literal_eval, mark.args)


@pytest.mark.long
def test_every_row_has_a_test_and_no_other_has_one():
    marked = set(marked_rows())
    assert not marked - ROWS.keys(), "marks of rows that are not in the list"
    assert not ROWS.keys() - marked, "rows without a test"
