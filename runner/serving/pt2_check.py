"""What a `.pt2` may hold, so that loading one from a stranger runs nothing but its graph.

`torch.export.load` unpickles weights and constants that ask for it, unpickles example inputs, and
evaluates the expressions of dynamic sizes as Python. All of that is refused here, before.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runner.errors import UserError

# the graph as JSON, raw tensors, and the tables of contents of these
_ALLOWED_FILES = re.compile(
    r"(models/\w+\.json|data/(weights|constants)/((weight|tensor)_\d+|\w+_config\.json)"
    r"|archive_format|archive_version|byteorder|version|\.format_version|\.data/\w+)$"
)
_OPERATOR = re.compile(r"(torch\.ops\.aten\.\w+(\.\w+)*|_operator\.\w+|torch\.sym_\w+)$")
_SYMBOL = re.compile(r"Symbol\('[su]\d+'(, \w+=(True|False))*\)")
_FUNCTIONS = frozenset(
    ("Add", "Mul", "Integer", "Max", "Min", "Mod", "PythonMod", "FloorDiv", "CleanDiv", "CeilDiv")
)
# Names become code when a graph is loaded: arguments, parameters, placeholders.
_NAME = re.compile(r"[\w.:]*$|[A-Za-z]+(,[A-Za-z]+)*->[A-Za-z]*$")  # or an equation of einsum
# what is only data: notes on where a node came from, and JSON of nested inputs; guards are code,
# which `load_graph` leaves out
_NOT_NAMES = frozenset(("metadata", "in_spec", "out_spec", "guards_code", "torch_version"))


def check_pt2(path: Path) -> None:
    """Check that a `.pt2` holds nothing but a graph of torch's own operators and plain tensors.

    Raises:
        UserError: naming the file and what it holds besides.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            problem = next(_find_problems(archive), None)
    except (zipfile.BadZipFile, ValueError, KeyError, TypeError, OSError) as error:
        raise UserError(f"{path}: not a readable .pt2: {error!r}") from error
    if problem:
        raise UserError(f"{path}: not loaded: {problem}")


def _find_problems(archive: zipfile.ZipFile) -> Iterator[str]:
    for entry in archive.infolist():
        name = entry.filename.partition("/")[2] or entry.filename
        if name.startswith("data/sample_inputs/"):
            if entry.file_size:
                yield f"{name}: example inputs would be unpickled"
        elif not _ALLOWED_FILES.match(name):
            yield f"{name}: no part of an exported graph"
        elif name.endswith("_config.json"):
            config = json.loads(archive.read(entry))["config"]
            yield from (f"{key} is pickled" for key, v in config.items() if v["use_pickle"])
        elif name.endswith(".json"):
            yield from _find_in_graph(json.loads(archive.read(entry)))


def _find_in_graph(value: Any, key: str = "") -> Iterator[str]:
    """Yield what is neither an operator of torch, nor a plain expression of sizes, nor a name."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name not in _NOT_NAMES:
                yield from _find_in_graph(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from _find_in_graph(inner, key)
    elif isinstance(value, str):
        if key == "target":
            if not _OPERATOR.match(value):
                yield f"{value!r} is no operator of torch"
        elif key == "expr_str":
            if not _is_plain_expression(value):
                yield f"{value!r} is no plain expression of sizes"
        elif not _NAME.match(value):
            yield f"{key} {value!r} is no name"


def _is_plain_expression(text: str) -> bool:
    text = _SYMBOL.sub("0", text)
    if not re.fullmatch(r"[\w\s+\-*/(),]*", text):
        return False
    return all(word in _FUNCTIONS for word in re.findall(r"[A-Za-z_]\w*", text))
