"""Prints the proposal of `schema` for a table: one line per column, and notes."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Sequence

from runner.data.proposal.format_schema import on_one_line
from runner.data.proposal.schema import SchemaProposal
from runner.reporting.console.surfaces import ignore_closed_stream


def print_proposal(proposal: SchemaProposal, *, to_stderr: bool) -> None:
    """Print a table of the columns, and all notes."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("column", "type", "values", "missing", "range or examples", "proposed as"):
        right = name in ("values", "missing")
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for column, role in proposal.columns:
        settings = {**role.settings, **proposal.more_ids.get(column.name, {})}
        shown = [str(k) if v is True else f"{k}={v}" for k, v in settings.items()]
        why = f" ({role.reason})" if role.reason else ""
        span = column.describe_range(" .. ") or ", ".join(column.examples[:3])
        missing = f"{column.missing_share:.1%}" if column.missing_share else ""
        proposed = " ".join([role.name or "-", *shown]) + why
        cells = (column.name, str(column.type), f"{column.num_distinct:,}", missing, span[:40])
        table.add_row(*(escape(on_one_line(cell)) for cell in (*cells, proposed)))
    columns = {column.name for column, _ in proposal.columns}
    more_columns = {"numeric": proposal.more_numbers, "categorical": proposal.more_ids}
    for role_name, more in more_columns.items():
        for name in [name for name in more if name not in columns]:
            parts = " ".join(f"{key}={value}" for key, value in more[name].items())
            row = (name, "", "", "", "", f"{role_name} {parts}")
            table.add_row(*(escape(on_one_line(cell)) for cell in row))
    width = None if sys.stdout.isatty() else shutil.get_terminal_size((140, 24)).columns
    console = Console(stderr=to_stderr, width=width, highlight=False)
    rows = f"{proposal.num_rows:,} rows, " if proposal.num_rows else ""
    split = proposal.places.get("split")
    splits = f"split: {split}" if split else "each split has its own files"
    with console.capture() as printed:  # at a closed pipe rich would end the process with code 1
        console.print(table)
        console.print(f"{rows}{len(proposal.columns)} columns; {splits}", markup=False)
        for note in (*proposal.notes, *_whole_number_notes(proposal)):
            console.print(on_one_line(note), markup=False, soft_wrap=True)
    stream = sys.stderr if to_stderr else sys.stdout
    text = printed.get()
    ignore_closed_stream(stream, lambda: print(text, end="", file=stream), may_be_full=False)


def _whole_number_notes(proposal: SchemaProposal) -> list[str]:
    """Return a line on the integers that are proposed as ids, and one on the others."""
    notes = []
    for role, as_what, flag, other in (
        ("categorical", ("ids", "an id"), "--numeric", ("them into numbers", "it into a number")),
        (
            "numeric",
            ("quantities", "a quantity"),
            "--categorical",
            ("them into ids", "it into an id"),
        ),
    ):
        names = [
            f.name
            for f, chosen in proposal.with_role(role)
            if f.low is not None and f.is_whole and not (f.separator or "list" in chosen.settings)
            if not chosen.reason.startswith("--")
        ]
        if names:
            is_one = len(names) == 1
            count = "1 whole-number column" if is_one else f"{len(names)} whole-number columns"
            listed = shlex.quote(",".join(_join_families(names)))  # a shell expands braces
            notes.append(
                f"{count} taken as {as_what[is_one]}; {flag} {listed} turns {other[is_one]}"
            )
    return notes


def _join_families(names: Sequence[str]) -> list[str]:
    """Write C1, C2 and C3 as C{1..3}, the syntax of flags."""
    joined: list[tuple[str, int, int]] = []
    for name in names:
        match = re.fullmatch(r"(.*?)(0|[1-9]\d*)", name)
        head, number = (match[1], int(match[2])) if match else (name, -1)
        if joined and number > 0 and joined[-1][0] == head and joined[-1][2] == number - 1:
            joined[-1] = (head, joined[-1][1], number)
        else:
            joined.append((head, number, number))
    texts = []
    for head, first, last in joined:
        if last - first > 1:
            texts.append(f"{head}{{{first}..{last}}}")
        else:
            texts += [head if n < 0 else f"{head}{n}" for n in range(first, last + 1)]
    return texts
