"""Every row of what the runner must be able to do has a test that bears its name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.parity_rows import NOT_BUILT_YET, ROWS

TESTS = Path(__file__).parent


def marked_rows() -> Iterator[tuple[str, str]]:
    """Yield the row and the name of every test with a mark."""
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.parse(path.read_text()).body:
            for mark in getattr(node, "decorator_list", ()):
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.parity":
                    for row in mark.args:
                        yield ast.literal_eval(row), f"{path.name}::{node.name}"  # type: ignore[attr-defined]


@pytest.mark.long
def test_every_row_that_is_built_has_a_test_and_no_other_has_one():
    tests_by_row: dict[str, list[str]] = {}
    for row, test in marked_rows():
        tests_by_row.setdefault(row, []).append(test)
    assert not tests_by_row.keys() - ROWS.keys(), "marks of rows that are not in the list"
    assert not ROWS.keys() - tests_by_row.keys() - set(NOT_BUILT_YET), "rows without a test"
    begun = {row: tests_by_row[row] for row in NOT_BUILT_YET if row in tests_by_row}
    assert not begun, "rows with a test leave NOT_BUILT_YET"
    assert set(NOT_BUILT_YET) <= ROWS.keys()
