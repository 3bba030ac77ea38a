"""Counting faults: every case ends in an outcome or in a failure told in words; a table at the end.

A script of faults has functions `fault(table, top, *, short)`, `top` being an empty folder.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from subprocess import TimeoutExpired
from tempfile import TemporaryDirectory
from typing import Any

import torch

from runner.errors import UserError
from tests import zygote
from tests.conftest import Zygote
from tests.reliability.cases import Cases

SHOWN = ("fault", "cases", "failures", "skipped")  # of a table, as JSON


@dataclass
class Table:
    """Counts of one fault; a case that fails is kept in words."""

    fault: str
    runner: Callable[[], Zygote]  # one for all faults of a script
    cases: Counter = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    skipped: str = ""
    chosen: Cases | None = None  # what the matrix of all rows wants; otherwise all cases are run

    def judge(self, case: str, outcome: Callable[[], str], *, weight: int = 1) -> None:
        """Judge a case, which counts as `weight` cases, if it is to be run."""
        key = self.chosen.next(case) if self.chosen else case
        if not key:
            return
        told, failure, started = "", "", time.perf_counter()
        try:
            told = outcome()
            self.cases[told] += 1
        except (AssertionError, UserError, OSError, TimeoutExpired) as error:
            failure = f"{type(error).__name__}: {error}"
            self.failures.append(f"{self.fault}, {case}: {failure}")
        if self.chosen:
            seconds = time.perf_counter() - started
            self.chosen.keep(key, told, failure=failure, weight=weight, s=round(seconds, 2))

    def size(self, full: int) -> int:
        """Return how large a case is that consists of so many equal ones, of which a share runs."""
        return max(1, round(full * self.chosen.of.share)) if self.chosen else full


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
    failed, chosen = 0, Cases.from_environment()
    in_memory = "/dev/shm" if options.short and Path("/dev/shm").is_dir() else None
    if not options.json:
        print(f"{'fault':34} {'cases':>6} {'failed':>7} {'s':>6}  outcomes")
    with one_runner(in_memory) as runner:
        for name in options.faults:
            table, started = Table(name, runner, chosen=chosen), time.perf_counter()
            with TemporaryDirectory(dir=in_memory) as top, around():
                faults[name](table, Path(top), short=options.short)
            failed += len(table.failures)
            if chosen:
                chosen.end(table.skipped)
            if options.json:
                print(json.dumps({"name": name, **{key: getattr(table, key) for key in SHOWN}}))
            else:
                print_row(table, time.perf_counter() - started)
    return int(failed > 0)


@contextmanager
def one_runner(outputs_in: str | None) -> Iterator[Callable[[], Zygote]]:
    """Give a function that returns one zygote, which is started when it is first asked for."""
    with TemporaryDirectory(dir=outputs_in) as outputs:
        start = cache(lambda: Zygote(Path(outputs)))
        if zygote.is_warm:
            start()  # a fork, made before anything is computed here
        yield start
        if start.cache_info().currsize:
            start().close()


def print_row(table: Table, seconds: float) -> None:
    count = sum(table.cases.values()) + len(table.failures)
    told = ", ".join(f"{what}: {n}" for what, n in sorted(table.cases.items()))
    told = f"skipped: {table.skipped}" if table.skipped else told
    print(f"{table.fault:34} {count:6} {len(table.failures):7} {seconds:6.1f}  {told}")
    print("".join(f"  FAILED {f}\n" for f in table.failures), end="", flush=True)


def check_row(row: Mapping[str, Any], least: int) -> None:
    """Of `--json`: no failure, and at least so many cases; skips the test that asks if need be."""
    import pytest

    if row["skipped"]:
        pytest.skip(row["skipped"])
    assert not row["failures"], (row["fault"], row["failures"])
    assert sum(row["cases"].values()) >= least, row


def run_fault_script(runner: Zygote, module: str, *arguments: str) -> dict[str, dict[str, Any]]:
    """Fault -> row of a script, run as a process of its own."""
    done = runner.run(module, "--json", *arguments, entry="tests.zygote:run_module")
    assert done.code in (0, 1), done.text
    rows = [json.loads(line) for line in done.text.splitlines() if line.startswith("{")]
    assert (done.code == 0) == (not any(row["failures"] for row in rows)), done.text
    return {row["name"]: row for row in rows}


def run_selected_faults(request: Any, module: str) -> dict[str, dict[str, Any]]:
    """Fault -> row of the short form of a script, of those that the session's tests ask for.

    Args:
        request: of the fixture; the tests that use it have a parameter `fault`.
        module: the script.
    """
    asked = (item for item in request.session.items if item.module is request.module)
    faults = [item.callspec.params["fault"] for item in asked if "table" in item.fixturenames]
    runner = request.getfixturevalue("runner")
    return run_fault_script(runner, module, "--short", *dict.fromkeys(faults))
