"""Writes a proposed schema as YAML, with a comment on every column."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.data.columns.schema_file import PATTERN
from runner.data.columns.schema_yaml import format_value
from runner.data.proposal.columns.column_statistics import ColumnStatistics
from runner.data.proposal.schema import SchemaProposal


def format_schema_yaml(proposal: SchemaProposal, command: str) -> str:
    """Format a proposal as a schema file, whose first line has the command that proposed it."""
    lines = [f"# Proposed by `{on_one_line(command)}`. Check every line: these are guesses."]
    lines += [f"{key}: {format_value(value)}" for key, value in proposal.places.items()]
    if proposal.interactions is not None:
        flow = ", ".join(f"{k}: {format_value(v)}" for k, v in proposal.interactions.items())
        lines += ["", f"interactions: {{{flow}}}"]
        lines += ["# min_count: {user: 5, item: 5} leaves out users and items with fewer events"]
    elif not proposal.with_role("labels"):
        lines += ["", "# labels: {NAME: {}}  # no column looks like the label: write its name here"]
    for role in ("labels", "numeric", "categorical"):
        columns = proposal.with_role(role)
        more = {"numeric": proposal.more_numbers, "categorical": proposal.more_ids}.get(role, {})
        if columns or more:
            lines += ["", f"{role}:"]
        for f, assigned in columns:
            reason = f"; {on_one_line(assigned.reason)}" if assigned.reason else ""
            declared = _declare(f.name, assigned.settings)
            lines.append(f"{declared}  # {_describe_column(f)}{reason}")
        lines += [_declare(name, settings) for name, settings in more.items()]
    if groups := proposal.groups:
        lines += ["", f"groups: {format_value(groups)}  # for grouped metrics"]
    if carried := [f.name for f, _ in proposal.with_role("carried")]:
        lines += ["", f"carried: {format_value(carried)}  # stays with the rows, is no feature"]
    if weights := proposal.with_role("weight"):
        lines += ["", f"weight: {format_value(weights[0][0].name)}"]
    if left_out := [
        (f.name, assigned.reason) for f, assigned in proposal.columns if not assigned.name
    ]:
        lines += [
            "",
            "# Left out:",
            *(
                f"#   {on_one_line(f'{name}: {why}{_describe_use(proposal, name)}')}"
                for name, why in left_out
            ),
        ]
    return "\n".join(lines) + "\n"


def _declare(name: str, settings: Mapping[str, Any]) -> str:
    """Return the line of a column; a name that would be read as a pattern is renamed."""
    if PATTERN.fullmatch(name):
        name, settings = name.replace("{", "(").replace("}", ")"), {"column": name, **settings}
    flow = ", ".join(f"{k}: {format_value(v)}" for k, v in settings.items())
    return f"  {format_value(name)}: {{{flow}}}"


def on_one_line(text: str) -> str:
    """Return a text fit for a comment: names may hold line breaks and other control characters."""
    return "".join(c if c.isprintable() else " " for c in text)


def _describe_use(proposal: SchemaProposal, column: str) -> str:
    """Name the features that are made of a column that is not a feature itself."""
    more_features = {**proposal.more_numbers, **proposal.more_ids}
    names = [name for name, settings in more_features.items() if settings.get("column") == column]
    return f"; used for {', '.join(names)}" if names else ""


def _describe_column(f: ColumnStatistics) -> str:
    parts = [str(f.type), f"{f.num_distinct:,} values in {f.num_rows:,} rows"]
    if f.missing_share:
        parts.append(f"{f.missing_share:.1%} missing")
    if f.non_finite_share:
        parts.append(f"{f.non_finite_share:.1%} NaN or infinite: bad rows, see dataset.on_bad_rows")
    if span := f.describe_range(" to "):
        parts.append(span)
    return ", ".join(parts)
