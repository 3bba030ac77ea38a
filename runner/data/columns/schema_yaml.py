"""Reads the YAML in which a user declares a table's columns, and writes its values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from runner.config_value import compose_yaml
from runner.data.core.source_files import nearest_path
from runner.errors import ConfigError, raise_combined

_MOST_VALUES = 10_000_000


class _Loader(yaml.SafeLoader):  # type: ignore[misc] # yaml has no types
    """Reads 1e-07 as a number, as Hydra and JSON do; YAML 1.1 reads it as a text.

    Keys, such as columns called `on` and `01`, are texts as written, not true and 1.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        self.flatten_mapping(node)  # `<<` is no key
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                key.tag = "tag:yaml.org,2002:str"
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+[eE][-+]?\d+$"), list("-+0123456789")
)


def read_schema_file(path: Path) -> Mapping[str, Any]:
    """Return the content of a schema file.

    Raises:
        ConfigError: if the file is missing or cannot be read.
    """
    if not path.is_file():
        raise ConfigError(f"dataset.schema={path}: no such file{nearest_path(path)}")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    return read_schema_yaml(text, str(path))


def read_schema_yaml(text: str, where: str) -> Mapping[str, Any]:
    """Return the content of a schema file.

    Args:
        where: the file's name, for messages.

    Raises:
        ConfigError: if it is not YAML, repeats a key, is not a mapping, or is a few lines whose
            aliases multiply without end.
    """
    root = compose_yaml(text, where, most_values=_MOST_VALUES)
    raise_combined(_find_repeated_keys(root, where, set()))
    try:
        loaded = yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{where}: not a YAML file: {' '.join(str(error).split())}") from error
    if not isinstance(loaded, Mapping):
        raise ConfigError(f"{where}: expected a mapping with `labels:` and other columns")
    return loaded


def _find_repeated_keys(node: yaml.Node | None, where: str, seen: set[int]) -> Iterator[str]:
    if not isinstance(node, yaml.CollectionNode) or id(node) in seen:
        return
    seen.add(id(node))  # an alias refers to the same node again
    inner: list[tuple[str, yaml.Node]] = [
        (where, n) for n in node.value if isinstance(n, yaml.Node)
    ]
    if isinstance(node, yaml.MappingNode):
        lines: dict[str, int] = {}
        for key, value in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            if name in lines and name != "<<":
                yield f"{where}.{name}: is there twice, in lines {lines[name]} and {line}"
            lines.setdefault(name, line)
            inner.append((f"{where}.{name}", value))
    for key_above, value in inner:
        yield from _find_repeated_keys(value, key_above, seen)


def format_value(value: object) -> str:
    """Format a value as JSON, which is also YAML, with non-ASCII letters unescaped."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(value)
