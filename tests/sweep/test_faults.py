"""A small sweep under all troubles; `tests.sweep.faults` runs the large ones."""

from __future__ import annotations

import pytest

from tests.fault_table import check_row, run_fault_script

MODULE = "tests.sweep.faults"


@pytest.mark.long
def test_a_sweep_under_kills_signals_and_a_full_disk_ends_as_if_undisturbed(runner) -> None:
    check_row(run_fault_script(runner, MODULE, "week", "--short")["week"], 1)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_two_thousand_jobs_under_twenty_troubles(runner) -> None:
    check_row(run_fault_script(runner, MODULE, "week")["week"], 1)
