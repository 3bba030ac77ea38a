"""Fields of an option: key, type, default and what its comment says, from the YAML and the code.

Read without composing: nothing is imported of what a `_target_` names, its annotations are read
from its source.
"""

from __future__ import annotations

import ast
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from runner.config.locations import SOURCE_ROOT
from runner.config.settings import SETTINGS_BY_NODE, SETTINGS_BY_TARGET
from runner.config.typecheck import type_name

_WORDS = (  # Python's words for types, as errors call them
    (r"Sequence\[|list\[|tuple\[", "list of "),
    (r"Mapping\[.*|dict\[.*|Mapping|dict", "group of keys"),
    (r", \.\.\.|\]", ""),
    (r"\bint\b", "whole number"),
    (r"\bfloat\b", "number"),
    (r"\bstr\b", "text"),
    (r"\bbool\b", "true or false"),
    (r"\bNone\b", "null"),
    (r" \| ", " or "),
)

_TAGS = {"str": "text", "int": "whole number", "float": "number", "bool": "true or false"}
_FLOAT = re.compile(r"[+-]?\d+(\.\d*)?e[+-]?\d+", re.IGNORECASE)


@dataclass(frozen=True)
class OptionField:
    """A key that a command line may set."""

    key: str  # dotted, from the top
    type_name: str  # in words; "" where only the code knows
    default: str  # as the YAML has it
    description: str


def read_fields(path: Path, prefix: str) -> list[OptionField]:
    """The fields of an option's YAML.

    Args: prefix: the node that the option becomes, such as `model.loss`; a YAML that says
    `# @package _global_` counts from the top instead.
    """
    text = path.read_text(encoding="utf-8")
    root = yaml.compose(text, Loader=yaml.CSafeLoader)
    if not isinstance(root, yaml.MappingNode):
        return []
    is_global = re.match(r"# @package _global_", text) is not None
    return list(_fields(root, "" if is_global else prefix, text.splitlines(), {}))


def _fields(
    node: yaml.MappingNode, prefix: str, lines: Sequence[str], hints: Mapping[str, str]
) -> Iterator[OptionField]:
    hints = {**hints, **_type_hints(node, prefix)}
    for name, value in ((k.value, v) for k, v in node.value):
        if name in ("_target_", "defaults", "hydra"):
            continue
        key = f"{prefix}.{name}".lstrip(".")
        about = _comment(lines, node, name, value)
        if isinstance(value, yaml.MappingNode) and value.value:
            if about:
                yield OptionField(key, "group of keys", "", about)
            yield from _fields(value, key, lines, {})
        else:
            yield OptionField(
                key, hints.get(name) or _kind(value), _source_text(value, lines), about
            )


def _type_hints(node: yaml.MappingNode, prefix: str) -> dict[str, str]:
    """Types of a node's keys: of its settings record, or of the arguments of its `_target_`."""
    target = next((v.value for k, v in node.value if k.value == "_target_"), None)
    schema = SETTINGS_BY_NODE.get(prefix) or SETTINGS_BY_TARGET.get(str(target))
    if schema is not None:
        return {name: type_name(hint) for name, hint in typing.get_type_hints(schema).items()}
    return read_annotations(target) if target else {}


def read_annotations(target: str) -> dict[str, str]:
    """Types of the arguments of one of our own classes or functions, in words."""
    module, _, name = target.rpartition(".")
    path = SOURCE_ROOT / (module.replace(".", "/") + ".py")
    if not path.exists():
        return {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return _arguments(node)
        if isinstance(node, ast.ClassDef) and node.name == name:
            made = [n for n in node.body if isinstance(n, ast.FunctionDef)]
            init = next((n for n in made if n.name == "__init__"), None)
            if init is not None:
                return _arguments(init)
            own = [n for n in node.body if isinstance(n, ast.AnnAssign)]
            return {
                ast.unparse(n.target): describe_annotation(ast.unparse(n.annotation)) for n in own
            }
    return {}


def _arguments(function: ast.FunctionDef) -> dict[str, str]:
    return {
        a.arg: describe_annotation(ast.unparse(a.annotation))
        for a in [*function.args.args, *function.args.kwonlyargs]
        if a.annotation is not None
    }


def describe_annotation(annotation: str) -> str:
    """`int | None` as `whole number or null`; "" for what has no plain word."""
    for pattern, word in _WORDS:
        annotation = re.sub(pattern, word, annotation)
    return annotation if re.fullmatch(r"[a-z ]+", annotation) else ""


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
    """The value as it is written, in one line."""
    start, end = value.start_mark, value.end_mark
    if start.line == end.line:
        return lines[start.line][start.column : end.column].strip()
    parts = [lines[start.line][start.column :], *lines[start.line + 1 : end.line]]
    parts.append(lines[end.line][: end.column] if end.line < len(lines) else "")
    return " ".join(p.split(" #")[0].strip() for p in parts).strip()


def _comment(lines: Sequence[str], node: yaml.MappingNode, name: str, value: yaml.Node) -> str:
    """What stands above a key and behind its value."""
    line = next(k.start_mark.line for k, v in node.value if v is value and k.value == name)
    if node.flow_style:
        return ""  # on one line with others: the comment is the parent's
    above: list[str] = []
    for text in reversed(lines[:line]):
        if not text.strip().startswith("#"):
            break
        above.insert(0, text.strip().lstrip("#").strip())
    if line - len(above) <= 0:  # the first comment of the file is the option's own
        above = []
    is_block = isinstance(value, yaml.CollectionNode) and not value.flow_style
    last, column = (line, 0) if is_block else (value.end_mark.line, value.end_mark.column)
    behind = lines[last][column:].partition("#")[2].strip() if last < len(lines) else ""
    return " ".join([*above, behind]).strip()
