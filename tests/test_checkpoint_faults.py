"""A short tier of each fault against the checkpointer; the full count is in its script.

All run in one process that has no threads, so that its forks can be killed for real.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("checkpoint_faults")
ROOT = Path(__file__).resolve().parent.parent


def run(*arguments: str) -> dict[str, tuple[int, str]]:
    """Number of cases and the rest of its lines, by fault."""
    command = [sys.executable, "-m", "tests.checkpoint_faults", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.stdout, done.stderr
    rows = re.split(r"\n(?=\w)", done.stdout)[1:]
    return {
        row.split()[0]: (int(re.findall(r"\) +(\d+)|^\w+ +(\d+)", row)[0][-1] or 0), row)
        for row in rows
    }


@pytest.fixture(scope="module")
def table() -> dict[str, tuple[int, str]]:
    return run("--short")


def check(table: dict[str, tuple[int, str]], fault: str, least: int) -> None:
    cases, row = table[fault]
    if "skipped: " in row:
        pytest.skip(row.partition("skipped: ")[2])
    assert "FAILED" not in row, row
    assert cases >= least, row


def test_a_kill_at_any_call_of_a_save_leaves_the_old_or_the_new_one(table) -> None:
    check(table, "kills", 60)


def test_a_kill_from_outside_at_a_system_call_leaves_the_old_or_the_new_one(table) -> None:
    check(table, "strace_kills", 10)


def test_kills_at_random_instants_never_go_back(table) -> None:
    check(table, "random_kills", 8)


def test_an_io_error_is_told_and_leaves_the_old_one(table) -> None:
    check(table, "io_errors", 8)


def test_a_checkpoint_that_cannot_be_read_is_passed_over(table) -> None:
    check(table, "read_errors", 5)


def test_a_full_disk_is_told_and_leaves_the_old_one(table) -> None:
    check(table, "full_disk", 5)
    assert "refused" in table["full_disk"][1]


def test_a_write_cut_short_is_told_and_leaves_the_old_one(table) -> None:
    check(table, "file_limit", 5)
    assert "refused" in table["file_limit"][1]


def test_damage_is_always_noticed(table) -> None:
    check(table, "damage", 32)


@pytest.mark.slow
def test_all_faults_in_full() -> None:
    for cases, row in run().values():
        assert "FAILED" not in row, row
        assert cases or "skipped: " in row, row
