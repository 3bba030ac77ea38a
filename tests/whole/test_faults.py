"""A few cases of each fault of run directories; `tests.whole.faults` runs all of them."""

from __future__ import annotations

import pytest

from tests.fault_table import check_row, run_fault_script, run_selected_faults

MODULE = "tests.whole.faults"


@pytest.fixture(scope="module")
def table(request: pytest.FixtureRequest) -> dict[str, dict]:
    return run_selected_faults(request, MODULE)


@pytest.mark.long
@pytest.mark.parametrize(("fault", "least"), [("edits", 10), ("callables", 2000)])
def test_a_hostile_directory_is_refused_or_does_no_harm(table, fault, least) -> None:
    check_row(table[fault], least)


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "least"),
    [
        ("clock_jumps", 2),
        ("moved_directories", 3),
        ("full_disk_of_a_run", 3),
        ("out_of_memory", 2),
        ("two_in_one_folder", 2),
    ],
)
def test_a_run_goes_on_as_if_nothing_had_happened(table, fault, least) -> None:
    check_row(table[fault], least)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("fault", "least"),
    [
        ("edits", 200),
        ("callables", 45_000),
        ("clock_jumps", 20),
        ("moved_directories", 20),
        ("full_disk_of_a_run", 20),
        ("out_of_memory", 9),
        ("two_in_one_folder", 20),
    ],
)
def test_all_of_them(runner, fault, least) -> None:
    check_row(run_fault_script(runner, MODULE, fault)[fault], least)
