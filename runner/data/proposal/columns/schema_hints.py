"""Hints of the user about the columns of a table, which replace guesses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from runner.data.core.columns import is_list
from runner.data.proposal.columns.column_statistics import ColumnStatistics
from runner.data.proposal.columns.guess_roles import is_time
from runner.errors import nearest_hint


@dataclass(frozen=True)
class Hints:
    """Hints of the user about columns; everything else is guessed."""

    labels: tuple[str, ...] = ()
    positive: str | None = None  # the value of a label that means 1
    numeric: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    weight: str | None = None
    time: str | None = None  # with =FORM if the values do not show the form
    delimiter: str | None = None
    columns: tuple[str, ...] = ()  # names for text files without a header
    user: str | None = None
    item: str | None = None
    task: str | None = None  # one of TASKS; None: as the columns suggest


def _list_columns(names: Iterable[str]) -> str:
    first = list(names)
    return f"; there are {', '.join(first[:12])}{', ...' * (len(first) > 12)}"


def find_wrong_hints(hints: Hints, columns: Sequence[ColumnStatistics]) -> list[str]:
    """Return a message for each mistake in the hints."""
    by_name = {f.name: f for f in columns}
    names_by_flag = {"--label": hints.labels, "--numeric": hints.numeric, "--drop": hints.drop}
    names_by_flag["--categorical"] = hints.categorical
    names_by_flag |= {"--weight": tuple(filter(None, [hints.weight]))}
    for flag, hint in (("--time", hints.time), ("--user", hints.user), ("--item", hints.item)):
        names_by_flag[flag] = tuple(filter(None, [hint]))
    problems = [
        f"{flag} {name}: no such column{nearest_hint(name, by_name, 3) or _list_columns(by_name)}"
        for flag, names in names_by_flag.items()
        for name in names
        if name not in by_name
    ]
    roles = [f for f in names_by_flag if f not in ("--time", "--user", "--item")]
    for name in dict.fromkeys(n for flag in roles for n in names_by_flag[flag]):
        if len(both := [flag for flag in roles if name in names_by_flag[flag]]) > 1:
            problems.append(f"{name}: is named by {' and '.join(both)}; give it one role")
    for flag in ("--numeric", "--weight"):
        for f in (by_name[n] for n in names_by_flag[flag] if n in by_name):
            holds_lists = f.separator or is_list(f.type)
            if flag == "--weight" and f.amounts:
                problems.append(f"{flag} {f.name}: has texts, such as {f.examples[0]!r}")
            elif flag == "--numeric" and f.low is None and is_time(f):
                continue  # its days are numbers
            elif f.low is None or (holds_lists and not (f.vector_size and flag == "--numeric")):
                problems.append(f"{flag} {f.name}: has no numbers, but {f.type}")
    problems += [
        f"{flag} {f.name}: has a list in each row, and an event has one {flag[2:]}; with pandas, "
        f"`t.explode({f.name!r})` makes a row of each"
        for flag in ("--user", "--item")
        for f in (by_name[n] for n in names_by_flag[flag] if n in by_name)
        if is_list(f.type)
    ]
    time = by_name.get(hints.time) if hints.time else None
    if time and time.low is None and not is_time(time):
        problems.append(
            f"--time {time.name}: has no times, but {time.type}, such as {time.examples[0]!r}; "
            "pandas.to_datetime reads more forms"
        )
    if hints.positive is not None and len(hints.labels) > 1:
        problems.append(
            "--positive: goes with one --label; in the schema each label has its `positive`"
        )
    return problems
