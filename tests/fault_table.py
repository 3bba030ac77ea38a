"""Counting faults: every case ends in an outcome or in a failure told in words; a table at the end.

A script of faults has functions `fault(table, top, *, short)`, `top` being an empty folder.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from runner.errors import UserError


@dataclass
class Table:
    """Counts of one fault; a case that fails is kept in words."""

    fault: str
    cases: Counter = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    skipped: str = ""

    def judge(self, case: str, outcome: Callable[[], str]) -> None:
        try:
            self.cases[outcome()] += 1
        except (AssertionError, UserError, OSError) as error:
            self.failures.append(f"{self.fault}, {case}: {type(error).__name__}: {error}")


def count_faults(
    faults: Mapping[str, Callable[..., None]],
    description: str | None,
    arguments: list[str] | None = None,
    around: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> int:
    """Runs those that the command line names, or all; 0 if every case passed."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("faults", nargs="*", default=list(faults))
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--json", action="store_true", help="one object a fault, for the tests")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    failed = 0
    in_memory = "/dev/shm" if options.short and Path("/dev/shm").is_dir() else None
    if not options.json:
        print(f"{'fault':34} {'cases':>6} {'failed':>7} {'s':>6}  outcomes")
    for name in options.faults:
        table, started = Table(name), time.perf_counter()
        with tempfile.TemporaryDirectory(dir=in_memory) as top, around():
            faults[name](table, Path(top), short=options.short)
        failed += len(table.failures)
        if options.json:
            print(json.dumps({"name": name, **vars(table)}))
            continue
        count = sum(table.cases.values()) + len(table.failures)
        told = ", ".join(f"{what}: {n}" for what, n in sorted(table.cases.items()))
        told = f"skipped: {table.skipped}" if table.skipped else told
        seconds = time.perf_counter() - started
        print(f"{table.fault:34} {count:6} {len(table.failures):7} {seconds:6.1f}  {told}")
        print("".join(f"  FAILED {f}\n" for f in table.failures), end="")
        sys.stdout.flush()
    return int(failed > 0)


def check_row(row: Mapping[str, Any], least: int) -> None:
    """Of `--json`: no failure, and at least so many cases; skips the test that asks if need be."""
    import pytest

    if row["skipped"]:
        pytest.skip(row["skipped"])
    assert not row["failures"], (row["fault"], row["failures"])
    assert sum(row["cases"].values()) >= least, row


def run_fault_script(
    module: str, *arguments: str, timeout_s: float = 590
) -> dict[str, dict[str, Any]]:
    """Fault -> row of a script, run as a process of its own."""
    import subprocess

    root = Path(__file__).resolve().parent.parent
    command = [sys.executable, "-m", module, "--json", *arguments]
    env = {"GOMP_SPINCOUNT": "0", **os.environ}  # threads that spin slow each other down
    done = subprocess.run(
        command, cwd=root, env=env, capture_output=True, text=True, timeout=timeout_s
    )
    assert done.returncode in (0, 1), done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode == 0) == (not any(row["failures"] for row in rows)), done.stderr
    return {row["name"]: row for row in rows}
