"""`ls [GROUP[=OPTION]]`: groups, options with the first comment of their YAML, and their fields."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence

from runner.cli.verb_parser import VerbParser
from runner.config.locations import CONF
from runner.config.option_fields import OptionField, read_fields
from runner.config.options import Option, list_groups
from runner.errors import UserError, nearest_hint

_PIPE_WIDTH = 100  # columns of text, where no terminal limits them


def ls(words: Sequence[str], allow: Sequence[str]) -> int:
    """List all groups, one group, or one option.

    Raises:
        UserError: for an unknown group or option, naming the nearest.
    """
    args = make_parser().parse(words)
    words = args.group
    groups = dict(list_groups(args.config_dir))
    if len(words) > 1:
        raise UserError("ls: name one group at most, as in ls optimizer")
    group, equals, option = words[0].partition("=") if words else ("", "", "")
    if words and group not in groups:
        raise UserError(
            f"ls {group}: no such group{nearest_hint(group, groups)}. Groups: {', '.join(groups)}"
        )
    names = [o.name for o in groups.get(group, ())]
    if equals and option not in names:
        near = nearest_hint(option, names)
        raise UserError(f"ls {words[0]}: no such option{near}. Options: {', '.join(names)}")
    shown = {group: groups[group]} if words else groups
    if equals:
        shown = {group: [o for o in shown[group] if o.name == option]}
    if sys.stdout.isatty():
        _print_table(shown)
    else:
        _print_plain(shown)
    if not words:
        _print_fields("keys of no group", read_fields(CONF / "config.yaml", ""))
        print("\nls GROUP shows its fields; ls GROUP=OPTION those of an option")
    else:
        options = shown[group]  # the only option, or the default
        only = options[0] if len(options) == 1 else None
        chosen = next((o for o in options if o.is_default), only)
        if chosen is not None:
            fields = read_fields(chosen.path, group.replace("/", "."))
            _print_fields(f"fields of {group}={chosen.name}", fields)
    return 0


def make_parser() -> VerbParser:
    """Return the parser of the words after `ls`."""
    parser = VerbParser(
        "ls",
        "List the groups of the configuration, their options, and the fields of an option.",
        examples=("ls", "ls trainer", "ls optimizer=adam"),
    )
    parser.add_words("group", "GROUP[=OPTION]", "default: all groups")
    parser.add_config_dirs()
    return parser


def _print_fields(heading: str, fields: Sequence[OptionField]) -> None:
    """Print key, default and type in one line, and the description below it.

    In columns, the description would get one word per line on a narrow terminal.
    """
    if not fields:
        return
    print(f"\n{heading}")
    indent = " " * 6
    has_width = sys.stdout.isatty() or "COLUMNS" in os.environ
    width = shutil.get_terminal_size().columns if has_width else _PIPE_WIDTH
    for field in fields:
        kind = _type_and_range(field)
        line = f"  {field.key} = {field.default}" if field.default else f"  {field.key}"
        line += f"  ({kind})" if kind else ""
        for text in (line, f"{indent}{field.description}"):
            if text.strip():
                print(textwrap.fill(text, width, subsequent_indent=indent, break_on_hyphens=False))


def _type_and_range(field: OptionField) -> str:
    if field.declared is None or not field.range or field.declared.interval:
        return field.type_name
    return f"{field.type_name}{':' if field.declared.choices else ','} {field.range}"


def _print_table(groups: dict[str, list[Option]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for group, options in groups.items():
        table.add_row(f"[cyan]{group}[/cyan]", "")
        for option in options:
            mark = "*" if option.is_default else " "
            table.add_row(f" {mark} {group}={option.name}", option.description)
    Console().print(table)
    print("* the default")


def _print_plain(groups: dict[str, list[Option]]) -> None:
    for group, options in groups.items():
        print(group)
        for option in options:
            mark = "*" if option.is_default else " "
            print(f" {mark} {group}={option.name}  {option.description}".rstrip())
