"""A few cases of each fault of hostile directories; `tests.whole.faults` runs all of them."""

from __future__ import annotations

import pytest

from tests.fault_table import check_row, run_fault_script

pytestmark = pytest.mark.xdist_group("hostile_directories")
MODULE = "tests.whole.faults"


@pytest.fixture(scope="module")
def table() -> dict[str, dict]:
    return run_fault_script(MODULE, "--short")


@pytest.mark.parametrize(("fault", "least"), [("edits", 20), ("callables", 2000)])
def test_a_hostile_directory_is_refused_or_does_no_harm(table, fault, least) -> None:
    check_row(table[fault], least)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("fault", "least"), [("edits", 200), ("callables", 45_000)])
def test_all_hostile_directories_in_full(fault, least) -> None:
    check_row(run_fault_script(MODULE, fault, timeout_s=7000)[fault], least)
