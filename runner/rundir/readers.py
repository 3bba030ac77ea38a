"""Readers of the files of a run that may be unfinished, damaged or in use. They write nothing."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.errors import UserError
from runner.rundir.json_files import parse_row, read_json
from runner.rundir.regular_files import open_regular

_TAIL = 1 << 16  # bytes at the end of a file that are searched for its last line
_NAMES = {dict: "a mapping", list: "a list", str: "a text", int: "a whole number"}
_META_SHAPES = {
    **dict.fromkeys(("identity", "choices", "git", "own_code", "versions", "source"), dict),
    **dict.fromkeys(("overrides", "resumes", "command"), list),
    **dict.fromkeys(("kind", "name", "created", "host", "platform", "python"), str),
    **dict.fromkeys(("run_id", "fitted_sha256", "schema_sha256"), str),
    **dict.fromkeys(("seed", "cpus"), int),
}
_TERMINAL_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def read_signed_meta(folder: Path) -> dict[str, Any]:
    """Return the `meta.json` of a run.

    Raises:
        UserError: if it is absent, damaged or without a signature.
    """
    path = folder / "meta.json"
    meta = read_json(path)
    if not isinstance(meta, dict) or not isinstance(meta.get("signature"), str):
        raise UserError(f"{path}: damaged: it holds no signature")
    check_shapes(path, meta, _META_SHAPES)
    for i, note in enumerate(meta.get("resumes") or ()):
        check_shapes(path, {f"resumes[{i}]": note}, {f"resumes[{i}]": dict})
        check_shapes(path, note, {"overrides": list, "changed": list, "code_changed": list})
    return meta


def check_shapes(path: Path, content: Mapping[str, Any], shapes: Mapping[str, type]) -> None:
    """Check that values of a JSON file from an unknown source are null or of their type.

    Raises:
        UserError: with the first key whose value is something else.
    """
    for key, shape in shapes.items():
        value = content.get(key)
        if value is not None and (not isinstance(value, shape) or isinstance(value, bool)):
            raise UserError(
                f"{path}: damaged: {key} is {type(value).__name__}, not {_NAMES[shape]}"
            )


def read_optional_json(path: Path) -> dict[str, Any]:
    """Return the mapping in a JSON file; {} if the file is absent, damaged or no mapping."""
    try:
        content = read_json(path)
    except UserError:
        return {}
    return content if isinstance(content, dict) else {}


def last_row(path: Path) -> dict[str, Any]:
    """Return the last whole row of a `.jsonl` file, reading only its end; {} if there is none."""
    rows = map(parse_row, reversed(read_tail(path).split("\n")))
    return next((row for row in rows if row is not None), {})


def last_line(path: Path, start: int = 0) -> str | None:
    """Return the last line with text in a log, as a terminal would show it.

    Args:
        start: the byte from which on the log is read.

    Returns:
        The line without colours and without a leading `error: `; None if there is none.
    """
    return last_line_of(read_tail(path, start))


def last_line_of(text: str) -> str | None:
    """Return the last line with text, as `last_line` does for a file."""
    line = next((line.strip() for line in reversed(text_lines(text))), None)
    return line.removeprefix("error: ") if line else None


def text_lines(text: str) -> list[str]:
    """Return the lines with text, as a terminal would show them, without colours."""
    return [x for x in re.split(r"[\r\n]+", _TERMINAL_ESCAPE.sub("", text)) if x.strip()]


def read_tail(path: Path, start: int = 0) -> str:
    """Return the last 64 KB of a file as text; an empty text if it cannot be read.

    Args:
        start: the byte from which on it is read.
    """
    try:
        with open(open_regular(path), "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(start, size - _TAIL))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def as_number(value: Any) -> float | None:
    """Return a JSON number, or NaN or infinity written as text; None for other values."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number or value in ("NaN", "Infinity", "-Infinity") else None


def parse_number(value: Any) -> float | None:
    """Return a finite number, also one written as text; None for other values."""
    if isinstance(value, bool):
        return None
    try:
        return finite_or_none(float(value))
    except (TypeError, ValueError):
        return None


def numeric_values(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the entries that are numbers (`as_number`)."""
    return {k: number for k, v in values.items() if (number := as_number(v)) is not None}


def finite_or_none(value: float | None) -> float | None:
    """Return the value; None for NaN and infinity."""
    return value if value is not None and math.isfinite(value) else None
