"""The page of the matrix: what was run, where, and what came of it."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.reliability.rows import ROWS, Part, Row

NUM_OUTCOMES = 5  # that a row of the page names
HEAD = """# Reliability

These are the faults that a run has to survive, and how often each was tried. Faults are real ones:
signals from outside, small file systems, errors that strace injects, memory limits. Two runs are
the same if the tensors of their checkpoints, their metrics, their results and the examples of every
update are the same.

`python -m tests.reliability --full` runs all cases and writes this page. `--rows 3,7` runs some
rows, `--share 0.05` a share of the cases of each row, and `--count 20` about so many cases.
`--resume` continues after an end or a kill, also with a larger share. `outputs/reliability.jsonl`
keeps the results. A few cases of each row run with the fast tests. A run of some rows replaces this
page, too, and leaves the other rows empty: add `--to FILE` to write its page elsewhere.

"""
FOOT = """
"Asked" is the least number of cases that the row needs. "Full" counts all of its cases, some of
which are several kills, and "run" those that were run. Column "s" has the seconds of the cases.
"""
COLUMNS = ("#", "fault", "asked", "full", "run", "failed", "s", "result", "outcomes", "commit")


@dataclass
class Count:
    """What the results say of a part or a row."""

    full: int = 0
    run: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    outcomes: Counter = field(default_factory=Counter)

    def add(self, other: Count) -> None:
        self.full += other.full
        self.run += other.run
        self.seconds += other.seconds
        self.failures += other.failures
        self.skipped += other.skipped
        self.outcomes += other.outcomes

    @property
    def result(self) -> str:
        if self.failures:
            return f"**{len(self.failures)} failed**"
        if not self.run:
            return "not run"
        return "passed" if self.run >= self.full else "passed, below full"


def count_part(row: Row, part: Part, results: Iterable[Mapping[str, Any]]) -> Count:
    """Count a part's cases. Of those that consist of many equal ones, the largest counts."""
    mine = [line for line in results if (line["row"], line["part"]) == (row.number, part.name)]
    judged = [line for line in mine if "case" in line and not line.get("skipped")]
    single = [line["weight"] for line in judged if line["weight"] == 1]
    largest = max((line["weight"] for line in judged if line["weight"] > 1), default=0)
    count = Count(part.full, len(single) + largest, sum(line["s"] for line in judged))
    count.outcomes.update(line["outcome"] for line in judged if not line["failure"])
    count.failures += [f"{line['case']}: {line['failure']}" for line in judged if line["failure"]]
    count.skipped += [line["skipped"] for line in mine if line.get("skipped")]
    ends = [line for line in mine if "case" not in line]  # of the processes that ran it
    if ends:
        count.full = max(count.full, ends[-1].get("offered", 0))
    if ends and (told := ends[-1].get("broken")):
        count.failures.append(f"{part.name} came to no end: {told}")
    elif ends and ends[-1]["share"] == 1 and count.run < part.full and not count.skipped:
        count.failures.append(f"{part.name} has {count.run} cases, not {part.full}")
    return count


def count_row(row: Row, results: Sequence[Mapping[str, Any]]) -> Count:
    total = Count()
    for part in row.parts:
        total.add(count_part(row, part, results))
    return total


def write_page(page: Path, results: Sequence[Mapping[str, Any]], seeds: str) -> None:
    cases = [line for line in results if "case" in line]
    days = sorted({line["day"] for line in cases}) or ["no day yet"]
    when = " to ".join(dict.fromkeys((days[0], days[-1])))
    lines = [f"Run on {when}: {machine()}. {seeds}", ""]
    lines += [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    failures = []
    for row in ROWS:
        count = count_row(row, results)
        commits = (f"`{line['commit']}`" for line in cases if line["row"] == row.number)
        numbers = (
            f"{count.full:,}",
            f"{count.run:,}",
            len(count.failures),
            f"{count.seconds:,.0f}",
        )
        told = (count.result, shown_outcomes(count), ", ".join(dict.fromkeys(commits)))
        fields = (row.number, row.fault, row.asked, *numbers, *told)
        lines.append(f"| {' | '.join(map(str, fields))} |")
        failures += [f"- Row {row.number}, {one_line(failure)}" for failure in count.failures]
    told_failures = ["", "## What failed", "", *failures] if failures else []
    page.write_text(HEAD + "\n".join(lines) + "\n" + FOOT + "\n".join([*told_failures, ""]))


def shown_outcomes(count: Count) -> str:
    most = count.outcomes.most_common()
    told = [f"{what}: {number:,}" for what, number in most[:NUM_OUTCOMES]]
    if len(most) > NUM_OUTCOMES:
        rest = sum(number for _, number in most[NUM_OUTCOMES:])
        told.append(f"{len(most) - NUM_OUTCOMES} others: {rest:,}")
    told += [f"not run: {why}" for why in dict.fromkeys(count.skipped)]
    return one_line("; ".join(told))


def one_line(text: str, width: int = 300) -> str:
    """Return a text that fits a table, without the folders of this machine."""
    text = re.sub(r"/(?:tmp|dev/shm|root|home)/[\w./-]*/", "", " ".join(text.split()))
    text = text.replace("|", "/")
    return text if len(text) <= width else f"{text[:width]} ..."


def machine() -> str:
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = re.search(r"^model name\s*: (.*)$", info, re.M)
    cores = len(os.sched_getaffinity(0))
    return f"{model.group(1) if model else 'unknown processor'}, {cores} cores"
