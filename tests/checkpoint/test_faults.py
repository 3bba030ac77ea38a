"""A short tier of each fault against the checkpointer; the full count is in its script.

All run in one process that has no threads, so that its forks can be killed for real.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("checkpoint_faults")
ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str) -> dict[str, dict]:
    command = [sys.executable, "-m", "tests.checkpoint.faults", "--json", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode in (0, 1), done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode == 0) == (not any(row["failures"] for row in rows)), done.stderr
    return {row["name"]: row for row in rows}


@pytest.fixture(scope="module")
def table() -> dict[str, dict]:
    return run("--short")


def check(table: dict[str, dict], fault: str, least: int) -> None:
    row = table[fault]
    if row["skipped"]:
        pytest.skip(row["skipped"])
    assert not row["failures"], (row["fault"], row["failures"])
    assert sum(row["cases"].values()) >= least, row


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
    assert table["full_disk"]["cases"]["refused"]


def test_a_write_cut_short_is_told_and_leaves_the_old_one(table) -> None:
    check(table, "file_limit", 5)
    assert table["file_limit"]["cases"]["refused"]


def test_damage_is_always_noticed(table) -> None:
    check(table, "damage", 32)


@pytest.mark.slow
def test_all_faults_in_full() -> None:
    table = run()
    assert len(table) == 8
    for fault, row in table.items():
        assert not row["failures"], row
        assert row["skipped"] or sum(row["cases"].values()) >= 20, fault
