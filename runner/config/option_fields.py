"""The fields of an option: key, type, default and comment, from its YAML and the code.

Nothing is composed, and no `_target_` is imported: the annotations of its arguments are read from
its source.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from runner.config.declarations import describe_range, read_declarations, settings_of
from runner.config.options import MOST_OPTION_VALUES, list_groups
from runner.config.part_arguments import read_arguments
from runner.config_key import Key
from runner.config_value import compose_yaml, split_annotation, type_name
from runner.models.argument_types import Width
from runner.models.table_widths import WIDTHS_KEY
from runner.optim.lr_shapes import SCHEDULE_KINDS
from runner.optim.settings import KEYS_OF_EVERY_KIND, SparseSettings

SPARSE_NODE = "optimizer.sparse"
_TAGS = {"str": "text", "int": "whole number", "float": "number", "bool": "true or false"}
_MOST_NAMES = 4  # of options that a message names
SIMILAR = 0.65  # minimum share of equal letters in similar names
# Options of most jobs, which a message names before others in alphabetical order
COMMON_OPTIONS = {
    "model": ("dlrm", "dcn", "deepfm", "sasrec"),
    "dataset": ("parquet", "csv", "tsv", "jsonl"),
    "search": ("quick", "tpe"),
}
_FLOAT = re.compile(r"[+-]?\d+(\.\d*)?e[+-]?\d+", re.IGNORECASE)


@dataclass(frozen=True)
class OptionField:
    """A key that a command line may set."""

    key: str  # dotted, from the top
    type_name: str  # in words; empty if only the code defines it
    default: str  # as in the YAML
    comment: str  # from the YAML
    declared: Key | None = None  # the key's declaration, if it has one
    target: str = ""  # the `_target_` of the node of the key, if there is one
    range: str = ""  # restrictions of the values besides the type
    is_written: bool = True  # whether it is in the YAML; otherwise only the code has its default

    @property
    def description(self) -> str:
        return self.comment or (self.declared.doc if self.declared is not None else "")


def read_fields(path: Path, prefix: str) -> list[OptionField]:
    """Return the fields of an option's YAML.

    Args:
        prefix: the node that the option becomes, such as `model.loss`; a YAML that says
            `# @package _global_` counts from the top instead.

    Raises:
        ConfigError: if it is not YAML, or its aliases multiply without end.
    """
    text = path.read_text(encoding="utf-8")
    root = compose_yaml(text, str(path), most_values=MOST_OPTION_VALUES)
    if not isinstance(root, yaml.MappingNode):
        return []
    is_global = re.match(r"# @package _global_", text) is not None
    fields = list(_fields(root, "" if is_global else prefix, text.splitlines()))
    return fields + _table_fields() if prefix == "optimizer" else fields


def find_similar_keys(key: str) -> list[str]:
    """Return the keys of all options that differ from a dotted key in the letters of its end.

    Keys of its group that end alike, such as tracker.wandb.project for tracker.project, are others.
    """
    node, _, last = key.rpartition(".")
    keys = {known for *_, keys in _keys_of_options(key, ()) for known in keys}
    lasts = [end for group, _, end in (known.rpartition(".") for known in keys) if group == node]
    close = get_close_matches(last, lasts, len(lasts) or 1, SIMILAR)
    return [*(f"{node}.{end}" for end in close), *(k for k in keys if k.endswith(f".{last}"))]


def _keys_of_options(key: str, config_dirs: Sequence[str]) -> Iterator[tuple[str, str, list[str]]]:
    """Yield group, name and keys of each option of the groups that may contain a dotted key."""
    for group, options in list_groups(config_dirs):
        prefix = group.replace("/", ".")
        if key.startswith(f"{prefix}."):
            for option in options:
                keys = [field.key for field in read_fields(option.path, prefix)]
                yield group, option.name, keys


def key_of_options(key: str, config_dirs: Sequence[str] = ()) -> tuple[str, str] | None:
    """Return the options that have a key, in words, with the most common as an override, or None.

    They are named by a message about a key that the chosen options lack.
    """
    matches = [
        (group, option)
        for group, option, keys in _keys_of_options(key, config_dirs)
        if any(f"{known}.".startswith(f"{key}.") for known in keys)
    ]
    if not matches:
        return None
    group, _ = matches[0]
    common, names = COMMON_OPTIONS.get(group, ()), [name for g, name in matches if g == group]
    names = [*(n for n in common if n in names), *(n for n in names if n not in common)]
    more = ", ..." if len(names) > _MOST_NAMES else ""
    return f"{group}={', '.join(names[:_MOST_NAMES])}{more}", f"{group}={names[0]}"


def _table_fields() -> list[OptionField]:
    """Return the keys of `optimizer.sparse` that every option has, but no YAML contains."""
    fields = []
    for name in KEYS_OF_EVERY_KIND:
        declared = read_declarations(SparseSettings)[name]
        key, default = f"{SPARSE_NODE}.{name}", str(declared.default).lower()
        kind, allowed = type_name(declared.hint), describe_range(declared)
        fields.append(
            OptionField(key, kind, default, "", declared.key, range=allowed, is_written=False)
        )
    return fields


def _fields(node: yaml.MappingNode, prefix: str, lines: Sequence[str]) -> Iterator[OptionField]:
    target = next((str(v.value) for k, v in node.value if k.value == "_target_"), "")
    settings = SparseSettings if prefix == SPARSE_NODE else settings_of(prefix, target)
    part = read_arguments(target) if settings is None else None
    declared = part.declared if part is not None else {}
    declared = read_declarations(settings) if settings is not None else declared
    for name, value in ((k.value, v) for k, v in node.value):
        if name in ("_target_", "defaults", "hydra"):
            continue
        key = f"{prefix}.{name}".lstrip(".")
        comment = _comment(lines, node, name, value)
        declaration = declared.get(name)
        declared_key = declaration.key if declaration is not None else None
        if isinstance(value, yaml.MappingNode) and value.value:
            field = OptionField(key, "group of keys", "", comment, declared_key, target)
            if field.description:
                yield field
            yield from _fields(value, key, lines)
            continue
        kind, allowed = _kind(value), ""
        if declaration is not None:
            kind = kind if declaration.hint is Any else type_name(declaration.hint)
            allowed = describe_range(declaration)
        if key == WIDTHS_KEY and declaration is not None:  # the model's argument is derived from it
            kind += " or group of keys" * (declaration.hint is Any)
            allowed = f"{split_annotation(Width)[1].range}; or auto"
        elif prefix == "scheduler" and name in _lengths(node):
            of_items = "list of " * isinstance(value, yaml.SequenceNode)
            word = {"warmup": ", 2ep or auto", "scale": ", 2ep or null"}.get(name, " or 2ep")
            kind = f"{of_items}updates, fraction of the run{word}"
        text = _source_text(value, lines)
        yield OptionField(key, kind, text, comment, declared_key, target, allowed)


def _lengths(node: yaml.MappingNode) -> tuple[str, ...]:
    """Return the keys of a schedule that are lengths."""
    kind = next((v.value for k, v in node.value if k.value == "kind"), None)
    return ("warmup", *SCHEDULE_KINDS[kind].lengths) if kind in SCHEDULE_KINDS else ()


def _kind(value: yaml.Node) -> str:
    if isinstance(value, yaml.SequenceNode):
        kinds = {_kind(v) for v in value.value}
        return f"list of {kinds.pop()}" if len(kinds) == 1 else "list"
    if isinstance(value, yaml.MappingNode):
        return "group of keys"
    kind = _TAGS.get(value.tag.rpartition(":")[2], "")
    if kind == "text" and value.style is None and _FLOAT.fullmatch(value.value):
        return "number"  # 1e-3: text in YAML 1.1, a number for OmegaConf
    return kind


def _source_text(value: yaml.Node, lines: Sequence[str]) -> str:
    """Return the value as written in the source, in one line."""
    start, end = value.start_mark, value.end_mark
    first: str = lines[start.line]
    if start.line == end.line:
        return first[start.column : end.column].strip()
    parts = [first[start.column :], *lines[start.line + 1 : end.line]]
    parts.append(lines[end.line][: end.column] if end.line < len(lines) else "")
    return " ".join(p.split(" #")[0].strip() for p in parts).strip()


def _comment(lines: Sequence[str], node: yaml.MappingNode, name: str, value: yaml.Node) -> str:
    """Return the comment above a key and after its value."""
    line = next(k.start_mark.line for k, v in node.value if v is value and k.value == name)
    if node.flow_style:
        return ""  # several keys share the line, whose comment belongs to their parent
    above: list[str] = []
    for text in reversed(lines[:line]):
        if not text.strip().startswith("#"):
            break
        above.insert(0, text.strip().lstrip("#").strip())
    if line - len(above) <= 0:  # the first comment of the file describes the option
        above = []
    is_block = isinstance(value, yaml.CollectionNode) and not value.flow_style
    last, column = (line, 0) if is_block else (value.end_mark.line, value.end_mark.column)
    behind = lines[last][column:].partition("#")[2].strip() if last < len(lines) else ""
    return " ".join([*above, behind]).strip()
