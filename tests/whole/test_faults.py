"""A few cases of fault 24; `tests.whole.faults` runs all of them."""

from __future__ import annotations

import pytest

from tests.fault_table import check_row, run_fault_script

pytestmark = pytest.mark.xdist_group("whole_faults")
MODULE = "tests.whole.faults"


@pytest.fixture(scope="module")
def table() -> dict[str, dict]:
    return run_fault_script(MODULE, "--short")


@pytest.mark.parametrize(("fault", "least"), [("clock_jumps", 2), ("moved_directories", 3)])
def test_a_run_goes_on_as_if_nothing_had_happened(table, fault, least) -> None:
    check_row(table[fault], least)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_of_them() -> None:
    table = run_fault_script(MODULE, timeout_s=1700)
    check_row(table["clock_jumps"], 20)
    check_row(table["moved_directories"], 20)
