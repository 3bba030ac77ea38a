"""Checks YAML that a run directory holds: plain values, without aliases, tags or endless depth."""

from __future__ import annotations

from pathlib import Path

import yaml

from runner.errors import UserError
from runner.rundir.regular_files import read_bytes

MAX_YAML_BYTES = 1 << 20
_MAX_DEPTH = 100
_TOO_DEEP = f"is nested deeper than {_MAX_DEPTH} levels"


def read_plain_yaml(path: Path) -> str:
    """Return the text of a YAML file whose parsing is harmless.

    Raises:
        UserError: if it cannot be read, is no YAML, has more than 1 MiB, or has an alias or a tag.
    """
    try:
        text = read_bytes(path, MAX_YAML_BYTES).decode()
        _check_plain(text, path)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    except yaml.scanner.ScannerError as error:
        if "nesting depth" not in error.problem:  # a limit of libyaml from 0.2.6 on
            raise UserError(f"{path}: damaged: {error}") from error
        line = error.problem_mark.line + 1
        raise UserError(f"{path}: refused: line {line} {_TOO_DEEP}") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{path}: damaged: {error}") from error
    return text


def _check_plain(text: str, path: Path) -> None:
    """Refuse aliases, tags and deep nesting, which make large values or objects of small files.

    Raises:
        UserError: with the line.
    """
    depth = 0
    for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            problem = "has an alias or an anchor"
        elif getattr(event, "tag", None) is not None:
            problem = f"has the tag {event.tag}"
        elif depth > _MAX_DEPTH:
            problem = _TOO_DEEP
        else:
            continue
        raise UserError(f"{path}: refused: line {event.start_mark.line + 1} {problem}")
