"""`python -m runner.config.reference`: writes docs/reference.md, the page of every key.

It is generated from the declarations and from the YAMLs of conf/; a test compares the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from runner.config.locations import CONF, PROJECT
from runner.config.option_fields import OptionField, read_fields
from runner.config.options import Option, list_groups
from runner.config.signature import UNSIGNED_CALLBACKS, signed_as

PAGE = PROJECT / "docs" / "reference.md"
HEADER = """\
# Reference of all keys

Written by `python -m runner.config.reference` from the declarations of the settings
(`runner/config/settings/`) and the YAMLs of `conf/`; do not edit it by hand.

- **Range**: the values that are allowed besides what the type says. An *interval* is a number of
  updates, or a text such as `5000ex` (examples) or `2ep` (epochs); where a time is allowed as well,
  `30s`, `30min` or `2h`.
- **Signed**: whether the key enters the signature of a run. *when set*: only if it is neither null
  nor false nor empty. *when on*: only while the rule is on. *in global_batch*: as a factor of the
  rows of an update over all ranks. The keys of `dataset` are signed by the fingerprint of the data.
- The first option of a group is its default, where it has one. Every other option lists only the
  keys that it adds, or whose default is another one.
"""
COLUMNS = ("Key", "Type", "Default", "Range", "Unit", "Signed", "Meaning")


def render_reference() -> str:
    """Return the whole page as Markdown."""
    lines = [HEADER, "## Keys of no group", "", *_table(read_fields(CONF / "config.yaml", ""))]
    for group, options in list_groups():
        if group != "experiments":
            lines += ["", f"## {group}", *_render_group(group, options)]
    return "\n".join(lines).rstrip() + "\n"


def _render_group(group: str, options: Sequence[Option]) -> Iterator[str]:
    shown: set[OptionField] = set()
    for option in sorted(options, key=lambda o: not o.is_default):
        mark = " (default)" if option.is_default else ""
        yield from ("", f"### {group}={option.name}{mark}", "", option.description)
        all_fields = read_fields(option.path, group.replace("/", "."))
        fields = [field for field in all_fields if field not in shown]
        shown |= set(fields)
        if fields:
            yield from ("", *_table(fields))


def _table(fields: Sequence[OptionField]) -> Iterator[str]:
    yield f"| {' | '.join(COLUMNS)} |"
    yield "|---" * len(COLUMNS) + "|"
    for field in fields:
        cells = [f"`{field.key}`", field.type_name, f"`{field.default}`" if field.default else ""]
        cells += [field.range, field.declared.unit if field.declared else "", _signed(field)]
        cells = [_escape(cell) for cell in [*cells, field.description]]
        yield f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |")


def _escape(cell: str) -> str:
    return cell if cell.startswith("`") else re.sub(r"([|<*])", r"\\\1", cell)


def _signed(field: OptionField) -> str:
    if field.key.split(".")[0] == "dataset":
        return "by the data"
    return "no" if field.target.startswith(UNSIGNED_CALLBACKS) else signed_as(field.key)


def main() -> None:
    """Write the page."""
    PAGE.write_text(render_reference(), encoding="utf-8")
    print(f"wrote {Path(PAGE).relative_to(PROJECT)}")


if __name__ == "__main__":
    main()
