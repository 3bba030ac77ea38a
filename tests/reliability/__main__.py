"""The matrix of all faults: `python -m tests.reliability --full` runs it and writes the page.

Results are kept case by case in a file of JSON lines, so that a matrix which was killed goes on
with `--resume`, also with a larger share. Exit codes: 0 all that ran passed, 1 something failed,
2 wrong words, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.conftest import ROOT
from tests.reliability.cases import Assignment, read_results, write_result
from tests.reliability.page import count_part, count_row, write_page
from tests.reliability.rows import ROWS, Part, Row

RESULTS, PAGE = ROOT / "outputs" / "reliability.jsonl", ROOT / "docs" / "reliability.md"


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.reliability", description=__doc__)
    how_much = parser.add_mutually_exclusive_group(required=True)
    how_much.add_argument("--full", action="store_const", dest="share", const=1.0, help="all cases")
    how_much.add_argument("--share", type=share_of, help="of each part's cases: above 0, up to 1")
    how_much.add_argument("--count", type=positive, help="about so many cases of each part")
    how_much.add_argument("--page", action="store_true", help="only write the page anew")
    parser.add_argument("--rows", type=rows_of, default=ROWS, help="such as 3,7 or 1-6; else all")
    parser.add_argument("--resume", action="store_true", help="keep what has been run")
    parser.add_argument("--seed", type=int, default=0, help="of random instants")
    parser.add_argument("--results", type=Path, default=RESULTS, help="JSON lines")
    parser.add_argument("--to", type=Path, default=PAGE, help="the page")
    return parser.parse_args(words)


def share_of(text: str) -> float:
    share = float(text)
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and up to 1")
    return share


def positive(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return int(text)


def rows_of(text: str) -> tuple[Row, ...]:
    """Return the rows of a list of numbers and ranges."""
    wanted: set[int] = set()
    for word in text.split(","):
        first, _, last = word.partition("-")
        wanted |= set(range(int(first), int(last or first) + 1))
    if unknown := sorted(wanted - {row.number for row in ROWS}):
        raise argparse.ArgumentTypeError(f"there is no row {unknown[0]}; rows: 1 to {len(ROWS)}")
    return tuple(row for row in ROWS if row.number in wanted)


def commit() -> str:
    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--", ".", f":!{PAGE.relative_to(ROOT)}")
    return git("rev-parse", "--short", "HEAD") + (" with changes" if changed else "")


def run_part(row: Row, part: Part, options: argparse.Namespace, place: Path) -> None:
    """Run a part in a process of its own, unless this much of it has been run."""
    share = options.share or min(1.0, options.count / part.full)
    before = lines_of(options.results, row, part)
    if any(line.get("share", 0) >= share for line in before):
        return
    name = part.name.partition("[")[0]
    print(f"row {row.number}: {name}, {share:.1%} of the cases", file=sys.stderr, flush=True)
    assignment = Assignment(
        str(options.results), row.number, part.name, share, options.seed, commit(), os.getpid(),
        part.repetitions,
    )  # fmt: skip
    env = {**os.environ, "GOMP_SPINCOUNT": "0", "PYTHONPATH": str(ROOT), "TMPDIR": str(place)}
    env |= {"RUNNER_CACHE": str(place / "cache"), **assignment.as_environment()}
    done = subprocess.run(
        part.command(), cwd=ROOT, env=env, text=True, errors="replace",
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    new = lines_of(options.results, row, part)[len(before) :]
    if not new or "share" not in new[-1]:
        told = f"exit code {done.returncode}: {' '.join(done.stdout[-600:].split())}"
        write_result(options.results, {"row": row.number, "part": part.name, "broken": told})
    count = count_part(row, part, read_results(options.results))
    print(f"    {count.run} run, {len(count.failures)} failed", file=sys.stderr, flush=True)


def lines_of(results: Path, row: Row, part: Part) -> list[dict]:
    return [x for x in read_results(results) if (x["row"], x["part"]) == (row.number, part.name)]


def forget(results: Path, rows: Sequence[Row]) -> None:
    """Take the results of these rows out of the file, and keep the file as it was beside it."""
    numbers = {row.number for row in rows}
    lines = read_results(results)
    if results.exists():
        results.replace(results.with_suffix(".old"))
    for line in lines:
        if line["row"] not in numbers:
            write_result(results, line)


def run_rows(options: argparse.Namespace) -> int:
    """Run the rows. Returns 0, 130 after Ctrl-C, or 2 if another matrix writes these results."""
    with open(f"{options.results}.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            print(f"error: another matrix writes {options.results}", file=sys.stderr)
            return 2
        if not options.resume:
            forget(options.results, options.rows)
        try:
            for row in options.rows:
                for part in row.parts:
                    # what was killed leaves files behind
                    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
                        run_part(row, part, options, Path(place))
        except KeyboardInterrupt:
            print("interrupted; --resume goes on", file=sys.stderr)
            return 130
    return 0


def main(words: Sequence[str]) -> int:
    options = parse(words)
    options.results = options.results.absolute()
    options.results.parent.mkdir(parents=True, exist_ok=True)
    code = 0 if options.page else run_rows(options)
    if code == 2:
        return code
    results = read_results(options.results)
    seeds = f"Each case has a seed of its own, random instants have {options.seed} and those after."
    write_page(options.to, results, seeds)
    counts = {row.number: count_row(row, results) for row in options.rows}
    for number, count in counts.items():
        print(f"{number:3} {count.run:7,} of {count.full:7,}  {count.result}")
    return code or int(any(count.failures for count in counts.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
