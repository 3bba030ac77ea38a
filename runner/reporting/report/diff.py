"""Compares two runs: tables of differences, and whether their results are the same."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from runner.errors import system_errors
from runner.reporting.console.format import format_duration, format_number
from runner.reporting.report.records import RunRecord, checkpoint_steps, format_setting, read_run
from runner.reporting.report.terminal import make_console, make_table
from runner.rundir.json_files import read_json, read_jsonl
from runner.rundir.readers import read_optional_json
from runner.rundir.regular_files import MAX_LOG_BYTES, read_bytes

Change = tuple[str, Any, Any]
Row = Mapping[str, Any]


@dataclass(frozen=True)
class RunComparison:
    """Whether two runs have the same results."""

    same: tuple[str, ...]  # what is equal, in words
    different: tuple[str, ...]

    @property
    def is_identical(self) -> bool:
        return bool(self.same) and not self.different


def show_diff(folders: tuple[Path, Path], changes: Mapping[str, Sequence[Change]]) -> None:
    """Print what differs between two runs.

    Args:
        changes: heading -> keys that differ, with both values.
    """
    out = make_console(is_asked=True)
    names = [f.resolve().name for f in folders]
    if names[0] == names[1]:
        names = [str(f) for f in folders]
    if folders[0].resolve() == folders[1].resolve():
        out.print(Text("both are the same folder"))
    for heading, differences in changes.items():
        if differences:
            rows = [(key, format_setting(a), format_setting(b)) for key, a, b in differences]
            out.print(make_table(heading, ["", *names], rows))
        else:
            out.print(Text(f"{heading}: the same"))
    one, two = (read_run(f, str(f)) for f in folders)
    show_metric_differences(out, one, two, names)


def show_metric_differences(
    out: Console, one: RunRecord, two: RunRecord, names: Sequence[str]
) -> None:
    """Print every metric of either run, with the difference."""
    count = "{:,}".format
    facts = [
        ("status", one.status, two.status, ""),
        ("step", _known(one.step, count), _known(two.step, count), ""),
        ("best step", _known(one.best_step, count), _known(two.best_step, count), ""),
        ("time", _known(one.seconds, format_duration), _known(two.seconds, format_duration), ""),
        ("error", one.error or "", two.error or "", ""),
    ]
    rows = [f for f in facts if f[1] or f[2]]
    for name in dict.fromkeys([*one.metrics, *two.metrics]):
        a, b = one.metrics.get(name), two.metrics.get(name)
        change = ""
        if a is not None and b is not None:
            change = "=" if a == b or (a != a and b != b) else f"{b - a:+.3g}"
        rows.append((name, _known(a, format_number), _known(b, format_number), change))
    columns = [*names, "difference"]
    out.print(make_table("results", ["", *columns], rows, right=columns))


def compare_runs(one: Path, two: Path) -> RunComparison:
    """Compare the results of two runs of the same settings, bit for bit.

    These are the log of metrics, and the weights and states of the newest checkpoint that both
    still have. Speeds and times may differ. If a resume has made a run longer, rows written at its
    first end are not compared, nor are means over updates that begin there.
    """
    same: list[str] = []
    different: list[str] = []
    logs = [one / "metrics.jsonl", two / "metrics.jsonl"]
    results: list[Row] = [read_optional_json(folder / "result.json") for folder in (one, two)]
    if _digest(logs[0]) == _digest(logs[1]):
        if num_rows := len(read_jsonl(logs[0])):
            same.append(f"metrics.jsonl: all {num_rows:,} rows")
    elif not (_was_changed(one) or _was_changed(two)):
        different.append(f"metrics.jsonl: {_first_difference(*map(read_jsonl, logs))}")
    else:
        rows = _rows_of_both(*map(read_jsonl, logs))
        if rows.difference:
            different.append(f"metrics.jsonl: {rows.difference}")
        else:
            same.append(f"metrics.jsonl: {rows.text}")
        if rows.last_window_differs:  # the result repeats the last row of a training
            results = [_without_train_metrics(result) for result in results]
    for key in ("status", "step", "examples", "metrics", "best"):
        a, b = (r.get(key) for r in results)
        if a != b:
            different.append(f"result.json: {key}{_largest_difference(a, b)}")
    steps = sorted(set(checkpoint_steps(one)) & set(checkpoint_steps(two)))
    if steps:
        a, b = (_tensor_files(folder / f"checkpoints/step-{steps[-1]}") for folder in (one, two))
        what = f"weights, optimizer states and random states at step {steps[-1]:,}"
        (same if a == b else different).append(
            what + (f" (sha256 {_short(a)})" if a == b else ": their sha256 differ")
        )
    elif checkpoint_steps(one) or checkpoint_steps(two):
        different.append("checkpoints: none of the same step is left in both")
    if not (same or different):
        different.append("neither has a row of metrics or a checkpoint that could be compared")
    return RunComparison(tuple(same), tuple(different))


def _largest_difference(a: Any, b: Any) -> str:
    """Return a text about the metric with the largest difference."""
    if not isinstance(a, dict) or not isinstance(b, dict):
        return f" {a} and {b}"
    if a.keys() != b.keys():
        return f": one has {', '.join(sorted(a.keys() ^ b.keys())[:3])}, the other does not"
    differences = {
        k: abs(a[k] - b[k])
        for k in a
        if isinstance(a[k], int | float) and isinstance(b[k], int | float) and a[k] != b[k]
    }
    if not differences:
        return ""
    name = max(differences, key=lambda k: differences[k])
    return f": {len(differences)} of {len(a)} differ, most {name}: {a[name]} and {b[name]}"


def _digest(path: Path) -> str:
    """Return the sha256 of a log; empty if there is none.

    Raises:
        UserError: if it exists and cannot be read.
    """
    if not path.exists():
        return ""
    with system_errors(f"{path}: cannot be read"):
        return hashlib.sha256(read_bytes(path, MAX_LOG_BYTES)).hexdigest()


def _first_difference(one: Sequence[Row], two: Sequence[Row]) -> str:
    for number, (a, b) in enumerate(zip(one, two), 1):
        if _place(a) != _place(b):
            rows = " and ".join(
                f"of {split} at step {step}" for split, step in (_place(a), _place(b))
            )
            return f"their rows are of other evaluations or updates from row {number:,} on: {rows}"
        if a != b:
            return _describe_difference(a, b)
    return f"{len(one):,} and {len(two):,} rows"


def _describe_difference(a: Row, b: Row) -> str:
    name = next(k for k in [*a, *b] if a.get(k) != b.get(k))
    values = f"{a.get(name)} and {b.get(name)}"
    return f"differs first at step {a.get('step')} ({a.get('split')}/{name}: {values})"


def _place(row: Row) -> tuple[str, str]:
    return str(row.get("split")), str(row.get("step"))


def _was_changed(run: Path) -> bool:
    """Return whether a resume has changed settings of a run, such as its length."""
    resumes = read_optional_json(run / "meta.json").get("resumes") or ()
    return any(note.get("changed") and "refused" not in note for note in resumes)


@dataclass(frozen=True)
class _SharedRows:
    text: str  # what was compared
    difference: str  # between rows of the same split and step; empty if there is none
    last_window_differs: bool  # the last train rows are means over other updates


def _rows_of_both(one: Sequence[Row], two: Sequence[Row]) -> _SharedRows:
    """Compare the rows of two logs with the same split and step.

    A row of train metrics covers the updates since the previous row, so it is compared only if the
    previous rows have the same step in both.
    """
    by_place = [_rows_by_place(rows) for rows in (one, two)]
    begins = [_window_begins(rows) for rows in (one, two)]
    shared = [place for place in by_place[0] if place in by_place[1]]
    compared = [p for p in shared if begins[0].get(p) == begins[1].get(p)]
    differing = [p for p in compared if by_place[0][p] != by_place[1][p]]
    left_out = len(one) + len(two) - 2 * len(compared)
    text = (
        f"{len(compared):,} rows of the same split, step and updates; {left_out:,} others were "
        "left out, since a resume has changed settings"
    )
    difference = "" if compared else "no row of the same split and step is in both"
    if differing:
        difference = _describe_difference(*(rows[differing[0]] for rows in by_place))
    last = [next(reversed(steps), None) for steps in begins]
    same_end = last[0] == last[1] and last[0] in (None, *compared)
    return _SharedRows(text, difference, not same_end)


def _rows_by_place(rows: Sequence[Row]) -> dict[tuple[str, str], Row]:
    """Return all numbers of a split and step; callbacks may have written rows of their own."""
    by_place: dict[tuple[str, str], Row] = {}
    for row in rows:
        by_place[_place(row)] = {**by_place.get(_place(row), {}), **row}
    return by_place


def _window_begins(rows: Sequence[Row]) -> dict[tuple[str, str], str | None]:
    """Return (split, step) of each train row -> the step of the previous train row."""
    places = [*dict.fromkeys(_place(row) for row in rows if row.get("split") == "train")]
    return dict(zip(places, [None, *(step for _, step in places)]))


def _without_train_metrics(result: Row) -> Row:
    metrics = result.get("metrics")
    if not isinstance(metrics, dict):
        return result
    kept = {name: value for name, value in metrics.items() if not name.startswith("train/")}
    return {**result, "metrics": kept}


def _tensor_files(checkpoint: Path) -> dict[str, str]:
    """Return the sha256 of each file of tensors, as the manifest has it."""
    files = read_json(checkpoint / "manifest.json").get("files") or {}
    return {n: f["sha256"] for n, f in files.items() if n.endswith(".safetensors")}


def _short(files: Mapping[str, str]) -> str:
    text = "".join(f"{n}{sha}" for n, sha in sorted(files.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _known(value: Any, form: Callable[[Any], str]) -> str:
    return "" if value is None else form(value)
