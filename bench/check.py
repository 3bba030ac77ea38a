"""Whether a ratio of the benchmarks has changed since it was last recorded.

    python -m bench.check [--record] [--only norms,overhead] [--history bench/history.jsonl]

Runs short forms of the benchmarks one after the other, and compares each ratio with the newest one
that was recorded on a machine of the same kind. A ratio has changed where both 95% intervals have
nothing in common. `--record` adds what was measured, with the commit, to the history, a file of the
repository. Ratios of two things measured in turns are compared, no times, so that a busy machine
widens the intervals but moves them little.

The exit code is 1 if a ratio has become worse.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from bench.paired import NOTES, machine, table
from runner.config.locations import PROJECT

COMMANDS = {  # name -> the words of a short form, of about a minute on a quiet machine
    "overhead": ("overhead", "--pairs", "6", "--batch-sizes", "4096", "--rows", "409600"),
    "norms": ("norms", "--pairs", "10"),
    "predict": ("predict", "--rows", "200000", "--pairs", "6"),
    "evaluation": ("evaluation", "--pairs", "10", "--rows", "204800"),
    "data": ("data", "--rows", "300000", "--pairs", "6", "--only", "columns,lists,sequences"),
    "sparse": ("sparse", "--only", "boundary", "--batch-sizes", "4096", "--seconds", "80"),
}
HISTORY = PROJECT / "bench" / "history.jsonl"


def measure(words: Sequence[str]) -> list[dict[str, Any]]:
    """Run one benchmark in a process of its own; return the ratios that it noted.

    Raises:
        RuntimeError: if it fails in another way than by missing a target.
    """
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder) / "notes.jsonl"
        done = subprocess.run(
            [sys.executable, "-m", f"bench.{words[0]}", *words[1:]],
            env={**os.environ, NOTES: str(notes)},
            cwd=PROJECT,
            capture_output=True,
            text=True,
        )
        if done.returncode not in (0, 1) or not notes.exists():
            raise RuntimeError(f"{' '.join(words)}\n{(done.stderr or done.stdout)[-2000:]}")
        return [json.loads(line) for line in notes.read_text().splitlines()]


def verdict(new: Mapping[str, Any], old: Mapping[str, Any] | None) -> str:
    """Say whether the intervals exclude that nothing has changed."""
    if old is None:
        return "first of its kind"
    if new["low"] <= old["high"] and old["low"] <= new["high"]:
        return "no change is seen"
    return "worse" if (new["median"] > old["median"]) == new["is_cost"] else "better"


def as_row(new: Mapping[str, Any], old: Mapping[str, Any] | None) -> list[str]:
    now, before = (
        f"{one['median']:.3f} [{one['low']:.3f}, {one['high']:.3f}]" if one else ""
        for one in (new, old)
    )
    since = f"{old['commit']}, {old['date']}" if old else ""
    return [new["name"], now, before, since, verdict(new, old)]


def main(argv: Sequence[str] | None = None) -> int:
    words = argparse.ArgumentParser(
        prog="python -m bench.check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    words.add_argument("--record", action="store_true", help="add the ratios to the history")
    words.add_argument("--only", default=",".join(COMMANDS), help="names, with commas between them")
    words.add_argument("--history", type=Path, default=HISTORY)
    given = words.parse_args(argv)
    processor = machine(1).split(",")[0]
    print(machine(1), flush=True)
    lines = given.history.read_text().splitlines() if given.history.exists() else []
    newest = {
        one["name"]: one for one in map(json.loads, lines) if one["machine"] == processor
    }  # later lines win
    found = [one for name in given.only.split(",") for one in measure(COMMANDS[name])]
    rows = [as_row(one, newest.get(one["name"])) for one in found]
    print(table(("ratio", "now [95% interval]", "before", "of", ""), rows))
    if given.record:
        head = ["git", "rev-parse", "--short", "HEAD"]
        commit = subprocess.check_output(head, cwd=PROJECT, text=True).strip()
        about = {"date": str(date.today()), "commit": commit, "machine": processor}
        with given.history.open("a") as file:
            file.writelines(json.dumps({**one, **about}) + "\n" for one in found)
    return int(any(row[-1] == "worse" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
