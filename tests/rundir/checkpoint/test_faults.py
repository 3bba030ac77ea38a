"""A few cases of each fault against the checkpointer; `faults.py` runs all of them.

They run in one process without threads, so that its forks can be killed.
"""

from __future__ import annotations

import pytest

from tests.conftest import Zygote
from tests.fault_table import check_row, run_fault_script

MODULE = "tests.rundir.checkpoint.faults"


@pytest.fixture(scope="module")
def table(runner: Zygote) -> dict[str, dict]:
    return run_fault_script(runner, MODULE, "--short")


@pytest.mark.long
def test_a_kill_at_any_call_of_a_save_leaves_the_old_or_the_new_one(table) -> None:
    check_row(table["kills"], 60)


@pytest.mark.long
def test_a_kill_from_outside_at_a_system_call_leaves_the_old_or_the_new_one(table) -> None:
    check_row(table["strace_kills"], 10)


def test_kills_at_random_instants_never_go_back(table) -> None:
    check_row(table["random_kills"], 8)


def test_an_io_error_is_reported_and_leaves_the_old_one(table) -> None:
    check_row(table["io_errors"], 8)


def test_a_checkpoint_that_cannot_be_read_is_passed_over(table) -> None:
    check_row(table["read_errors"], 5)


def test_a_full_disk_is_reported_and_leaves_the_old_one(table) -> None:
    check_row(table["full_disk"], 5)
    assert table["full_disk"]["cases"]["refused"]


def test_an_incomplete_write_is_reported_and_leaves_the_old_one(table) -> None:
    check_row(table["file_limit"], 5)
    assert table["file_limit"]["cases"]["refused"]


def test_damage_is_always_noticed(table) -> None:
    check_row(table["damage"], 32)


@pytest.mark.slow
def test_all_faults_in_full(runner) -> None:
    table = run_fault_script(runner, MODULE)
    assert len(table) == 8
    for fault, row in table.items():
        assert not row["failures"], row
        assert row["skipped"] or sum(row["cases"].values()) >= 20, fault
