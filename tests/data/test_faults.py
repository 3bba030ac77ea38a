"""A few cases of each fault of the data; `tests.data.faults` runs all of them."""

from __future__ import annotations

import pytest

from tests.fault_table import check_row, run_fault_script, run_selected_faults

MODULE = "tests.data.faults"


@pytest.fixture(scope="module")
def table(request: pytest.FixtureRequest) -> dict[str, dict]:
    return run_selected_faults(request, MODULE)


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "least"),
    [
        ("damaged_files", 15),
        ("empty_files", 4),
        ("damaged_cache", 8),
        ("bad_values", 40),
        ("bad_ids", 40),
        ("other_columns", 4),
        ("read_only", 2),
        ("attacks", 4),
        ("every_position", 5),
        ("every_resume", 1),
        ("every_resume_of_ranks", 1),
    ],
)
def test_a_fault_is_reported_or_does_no_harm(table, fault, least) -> None:
    check_row(table[fault], least)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_all_faults_in_full(runner) -> None:
    table = run_fault_script(runner, MODULE)
    assert len(table) == 11
    for fault, row in table.items():
        assert not row["failures"], row
        assert row["skipped"] or sum(row["cases"].values()) >= 3, fault
