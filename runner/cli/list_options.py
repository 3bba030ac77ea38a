"""`ls [GROUP[=OPTION]]`: groups and options with what the first comment of their YAML says, and the
fields of an option."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.cli.option_fields import OptionField, read_fields
from runner.config.locations import CONF, PROJECT
from runner.errors import UserError, nearest_hint


@dataclass(frozen=True)
class Option:
    name: str  # `base/small` for one in a folder of its group
    description: str
    is_default: bool  # by conf/config.yaml
    path: Path = PROJECT


def ls(words: Sequence[str], allow: Sequence[str]) -> int:
    folders, words = _extract_config_dirs(words)
    groups = dict(list_groups(folders))
    if len(words) > 1:
        raise UserError("ls: one group at most: ls [GROUP]")
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
        _show_option(group, shown[group])
    return 0


def _show_option(group: str, options: Sequence[Option]) -> None:
    """Fields of the only option, or of the default."""
    one = next((o for o in options if o.is_default), options[0] if len(options) == 1 else None)
    if one is not None:
        found = read_fields(one.path, group.replace("/", "."))
        _print_fields(f"fields of {group}={one.name}", found)


def _print_fields(heading: str, found: Sequence[OptionField]) -> None:
    """Key, default, type and comment; as a table whose comments fold on a terminal."""
    if not found:
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("  key", no_wrap=True)
    for name in ("default", "type", ""):
        table.add_column(name, overflow="fold")
    for one in found:
        cells = (f"  {one.key}", one.default, one.type_name, one.description)
        table.add_row(*(Text(cell) for cell in cells))
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 160
    print(f"\n{heading}")
    Console(highlight=False, width=width).print(table)


def list_groups(config_dirs: Sequence[str] = ()) -> Iterator[tuple[str, list[Option]]]:
    """Every group of conf/, the user's folders, and `experiments`, with its options by name."""
    chosen = _read_defaults(CONF / "config.yaml")
    sources = [CONF, *map(Path, config_dirs)]
    names = {p.name for s in sources for p in s.iterdir() if p.is_dir() and p.name != "hydra"}
    in_order = [g for g in chosen if g in names and g != "experiments"]
    for group in [*in_order, *sorted(names - set(chosen))]:
        yield from _options(sources, group, chosen.get(group))
    yield from _options([PROJECT, *sources[1:]], "experiments", None)


def _options(
    sources: Sequence[Path], group: str, chosen: str | None
) -> Iterator[tuple[str, list[Option]]]:
    """A group, then those inside it: folders that the defaults list of an option chooses from."""
    folders = [s / group for s in sources]
    files = {
        str(path.relative_to(folder).with_suffix("")): path
        for folder in reversed(folders)
        for path in sorted(folder.rglob("*.yaml"))
    }
    inner: dict[str, str | None] = {}
    for name, path in files.items():
        for folder_name, preset in _read_defaults(path).items():
            if any((f / folder_name).is_dir() for f in folders):
                inner[folder_name] = preset if name == chosen else inner.get(folder_name)
    names = [n for n in sorted(files) if not n.startswith(tuple(f"{i}/" for i in inner))]
    yield group, [Option(n, read_first_comment(files[n]), n == chosen, files[n]) for n in names]
    for folder_name, option in sorted(inner.items()):
        yield from _options(sources, f"{group}/{folder_name}", option)


def read_first_comment(path: Path) -> str:
    """The leading comment lines of a YAML, Hydra's `# @package` lines left out, as one text."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        text = line.lstrip("#").strip()
        if not text.startswith("@"):
            lines.append(text)
    return " ".join(lines).strip()


def _read_defaults(path: Path) -> dict[str, str]:
    """Group -> option of a defaults list. Read by lines: YAML's parser costs more than all else."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.split("#")[0].strip()
        if text.startswith("- ") and ": " in text and "override " not in text:
            group, _, option = text[2:].partition(": ")
            found[group.strip()] = option.strip()
    return found


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


def _extract_config_dirs(words: Sequence[str]) -> tuple[list[str], list[str]]:
    from runner.cli.flags import extract_config_dirs

    return extract_config_dirs(words)
