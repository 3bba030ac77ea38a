"""`schema PATH`: reads a table and proposes the YAML that declares its columns."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from runner.data.tabular.propose_schema import SchemaProposal, format_schema_yaml, propose_schema
from runner.errors import UserError, nearest_hint

FLAGS = ("--validation", "--test", "--out")
# The default loss and the default metric of checkpoint.monitor are for labels of 0 and 1.
REGRESSION_OVERRIDES = (
    ' model/loss=by_kind "checkpoint.monitor={metric: validation/loss, direction: min}"'
)
USAGE = "schema PATH [--validation PATH] [--test PATH] [--out FILE]"


def schema(words: Sequence[str], allow: Sequence[str]) -> int:
    """Print a table of the columns, and write the proposal to FILE or print it.

    Raises:
        UserError: for flags that do not exist, and for files that cannot be read or differ.
    """
    path, flags = _parse(words)
    proposal = propose_schema(path, flags.get("--validation"), flags.get("--test"))
    text = format_schema_yaml(proposal, " ".join(["schema", *words]))
    out = flags.get("--out")
    _print_proposal(proposal, to_stderr=out is None)
    if out is None:
        print(text, end="")
        return 0
    _write(Path(out), text)
    kinds = [settings.get("type", "binary") for _, settings in proposal.columns_with_role("labels")]
    more = REGRESSION_OVERRIDES if "regression" in kinds else ""
    command = f"python -m runner dataset={proposal.format} dataset.schema={out}{more}"
    print(f"wrote {out}; next: {command}")
    return 0


def _parse(words: Sequence[str]) -> tuple[str, dict[str, str]]:
    flags: dict[str, str] = {}
    paths: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if not name.startswith("--"):
            paths.append(word)
        elif name not in FLAGS:
            raise UserError(f"schema: {name}: no such flag{nearest_hint(name, FLAGS)}; {USAGE}")
        elif not equals and not rest:
            raise UserError(f"schema: {name} needs a path; {USAGE}")
        else:
            flags[name] = value if equals else rest.pop(0)
    if len(paths) != 1:
        raise UserError(f"schema: name one path, not {len(paths)}; {USAGE}")
    return paths[0], flags


def _write(path: Path, text: str) -> None:
    """Write a new file. A file that exists may have been written by hand, and so is kept.

    Raises:
        UserError: if the file exists or cannot be written.
    """
    if path.exists():
        raise UserError(f"--out {path}: exists already; nothing was written")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--out {path}: cannot be written: {error.strerror or error}") from error


def _print_proposal(proposal: SchemaProposal, *, to_stderr: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("column", "type", "values", "missing", "range or examples", "proposed as"):
        right = name in ("values", "missing")
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for column, role, why, settings in proposal.columns:
        shown = [str(k) if v is True else f"{k}={v}" for k, v in settings.items()]
        proposed = " ".join([role or "-", *shown]) + (f" ({why})" if why else "")
        low, high = column.low, column.high
        span = ", ".join(column.examples) if low is None else f"{low:g} .. {high:g}"
        missing = f"{column.missing_share:.1%}" if column.missing_share else ""
        distinct = f"{column.num_distinct:,}"
        cells = (column.name, str(column.type), distinct, missing, span[:40], proposed)
        table.add_row(*(_plain(cell) for cell in cells))
    width = None if sys.stdout.isatty() else int(os.environ.get("COLUMNS", "140"))
    console = Console(stderr=to_stderr, width=width, highlight=False)
    console.print(table)
    rows = f"{proposal.num_rows:,} rows, " if proposal.num_rows else ""
    split = proposal.places.get("split")
    splits = f"split: {split}" if split else "all splits have their paths"
    console.print(f"{rows}{len(proposal.columns)} columns; {splits}", markup=False)


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)
