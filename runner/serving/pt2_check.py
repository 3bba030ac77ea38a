"""What a `.pt2` may hold, so that loading one from a stranger runs nothing but its graph.

`torch.export.load` unpickles weights and constants that ask for it, unpickles example inputs,
evaluates the expressions of dynamic sizes as Python, and imports modules that the kinds of nested
inputs name. All of that is refused here, before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.errors import UserError, first_line

if TYPE_CHECKING:
    from torch._C import PyTorchFileReader

# the graph as JSON, raw tensors, and the tables of contents of these
_ALLOWED_FILES = re.compile(
    r"(models/\w+\.json|data/(weights|constants)/((weight|tensor)_\d+|\w+_config\.json)"
    r"|archive_format|archive_version|byteorder|version|\.format_version|\.data/\w+)"
)
# these two read and write files, whose names a graph may choose
_OPERATOR = re.compile(
    r"(torch\.ops\.aten\.(?!(from_file|save)\b)\w+(\.\w+)*|_operator\.\w+|torch\.sym_\w+)"
)
_SYMBOL = re.compile(r"Symbol\('[su]\d+'(, \w+=(True|False))*\)")
_FUNCTIONS = frozenset(
    ("Add", "Mul", "Integer", "Max", "Min", "Mod", "PythonMod", "FloorDiv", "CleanDiv", "CeilDiv")
)
# Names become code when a graph is loaded: arguments, parameters, placeholders.
_NAME = re.compile(r"[\w.:]*|[A-Za-z]+(,[A-Za-z]+)*->[A-Za-z]*")  # or an equation of einsum
# what is only data: notes on where a node came from; guards are code, which `load_graph` leaves out
_NOT_NAMES = frozenset(("metadata", "guards_code", "torch_version"))
_TREE_TYPES = (None, "builtins.tuple", "builtins.list", "builtins.dict")


def check_pt2(path: Path) -> None:
    """Check that a `.pt2` holds nothing but a graph of torch's own operators and plain tensors.

    Raises:
        UserError: naming the file and what it holds besides.
    """
    from torch._C import PyTorchFileReader

    try:
        # by the reader of `torch.export.load`: a zip may have a second table of contents, which
        # another reader finds in place of the one that is loaded
        problem = next(_find_problems(PyTorchFileReader(str(path))), None)
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: not a readable .pt2: {first_line(error)}") from error
    if problem:
        raise UserError(f"{path}: not loaded: {problem}")


def _find_problems(archive: PyTorchFileReader) -> Iterator[str]:
    for name in archive.get_all_records():
        if name.startswith("data/sample_inputs/"):
            if archive.get_record(name):
                yield f"{name}: example inputs would be unpickled"
        elif not _ALLOWED_FILES.fullmatch(name):
            yield f"{name}: no part of an exported graph"
        elif name.endswith("_config.json"):
            config = json.loads(archive.get_record(name))["config"]
            yield from (f"{key} is pickled" for key, v in config.items() if v["use_pickle"])
        elif name.endswith(".json"):
            yield from _find_in_graph(json.loads(archive.get_record(name)))


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
        if key in ("in_spec", "out_spec"):
            if not _is_plain_tree(json.loads(value)[1]):
                yield f"{key} {value!r} is no tuple, list or dict"
        elif key == "target":
            if not _OPERATOR.fullmatch(value):
                yield f"{value!r} is no operator of torch that only computes"
        elif key == "expr_str":
            if not _is_plain_expression(value):
                yield f"{value!r} is no plain expression of sizes"
        elif not _NAME.fullmatch(value):
            yield f"{key} {value!r} is no name"


def _is_plain_expression(text: str) -> bool:
    text = _SYMBOL.sub("0", text)
    if not re.fullmatch(r"[\w\s+\-*/(),]*", text):
        return False
    return all(word in _FUNCTIONS for word in re.findall(r"[A-Za-z_]\w*", text))


def _is_plain_tree(tree: Mapping[str, Any]) -> bool:
    """Return whether nested inputs are tuples, lists and dicts: others import what they name."""
    context = json.loads(tree["context"] or "null")
    is_plain = context is None or (type(context) is list and all(type(k) is str for k in context))
    return (
        is_plain and tree["type"] in _TREE_TYPES and all(map(_is_plain_tree, tree["children_spec"]))
    )
