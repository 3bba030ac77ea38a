"""Reads the jobs of a sweep from its `leaderboard.csv`, which has the best first."""

from __future__ import annotations

import csv
import io
from itertools import groupby
from pathlib import Path

from runner.errors import UserError, shell_path
from runner.rundir.readers import parse_number
from runner.rundir.regular_files import read_bytes

LEADERBOARD_FILE = "leaderboard.csv"
SWEEP_MARKS = {"study.db", LEADERBOARD_FILE}  # files of which a sweep has at least one
_NAMED = 3  # jobs that a message names


def is_sweep(folder: Path) -> bool:
    """Whether a folder is the directory of a sweep."""
    return not (folder / "meta.json").exists() and any(
        (folder / name).exists() for name in SWEEP_MARKS
    )


def find_best_job(folder: Path) -> tuple[Path, str]:
    """Return the best existing job of a sweep, and a sentence that says why it is the best.

    Raises:
        UserError: if no job has a value of the metric that the sweep ranks by.
    """
    rows, metric = read_leaderboard(folder), read_sweep_metric(folder)
    jobs = {p.parent.name: p.parent for p in sorted(folder.glob("*/meta.json"))}
    for name, row in rows.items():
        value = parse_number(row.get(metric or ""))
        if name in jobs and value is not None:
            status = "" if row.get("status") == "completed" else f", though {row.get('status')}"
            return jobs[name], (
                f"{folder}: a sweep of {len(rows):,} jobs, of which the best is taken: "
                f"{jobs[name]}{status}, {metric} {value:.5g}; to take another, name its folder"
            )
    job_names = ", ".join(str(job) for job in list(jobs.values())[:_NAMED])
    more = f" and {len(jobs) - _NAMED:,} more" if len(jobs) > _NAMED else ""
    other = f"; to take the run of one job, name its folder: {job_names}{more}" if job_names else ""
    quoted = shell_path(folder)
    if not rows and any((job / "result.json").exists() for job in jobs.values()):
        raise UserError(
            f"{folder}: a sweep whose {LEADERBOARD_FILE} is gone, or cannot be read; "
            f"`python -m runner resume {quoted}` writes it anew and runs what is missing{other}"
        )
    raise UserError(
        f"{folder}: a sweep of which no job has a result yet; "
        f"`python -m runner resume {quoted}` goes on with it{other}"
    )


def read_leaderboard(folder: Path) -> dict[str, dict[str, str]]:
    """Return the rows of a sweep's `leaderboard.csv` by the name of the job's folder."""
    try:
        rows = csv.DictReader(_read_lines(folder))
        return {row["folder"]: row for row in rows if row.get("folder")}
    except (OSError, csv.Error, UnicodeDecodeError):
        return {}


def read_sweep_metric(folder: Path) -> str | None:
    """Return the metric by which a sweep's `leaderboard.csv` ranks its jobs."""
    try:
        columns = next(csv.reader(_read_lines(folder)), [])
    except (OSError, csv.Error, UnicodeDecodeError):
        return None
    after = columns.index("status") + 1 if "status" in columns else len(columns)
    return columns[after] if after < len(columns) else None


def read_secondary_objectives(folder: Path) -> list[str]:
    """Return the further objectives of a search; none for other sweeps."""
    row = next(iter(read_leaderboard(folder).values()), {})
    columns = [*row][: [*row].index("front")] if "front" in row else []
    return columns[columns.index("status") + 2 :] if "status" in columns else []


def read_sweep_direction(folder: Path, metric: str) -> str | None:
    """Return max or min, by the order of the rows of a sweep's `leaderboard.csv`.

    Rows of one status, on the Pareto front or off it, have the best first.

    Args:
        metric: by which it ranks its jobs.

    Returns:
        None if no two such rows have different values.
    """
    rows = read_leaderboard(folder).values()
    for _, alike in groupby(rows, key=lambda row: (row.get("status"), row.get("front"))):
        values = [v for row in alike if (v := parse_number(row.get(metric))) is not None]
        if values and values[0] != values[-1]:
            return "max" if values[0] > values[-1] else "min"
    return None


def _read_lines(folder: Path) -> io.StringIO:
    return io.StringIO(read_bytes(folder / LEADERBOARD_FILE).decode(), newline="")
