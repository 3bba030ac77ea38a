"""Checks a `.pt2` from an unknown source, so that loading it runs nothing but its graph.

`load_pt2` of torch unpickles weights and constants that ask for it, unpickles example inputs,
evaluates the expressions of dynamic sizes as Python, imports modules that the kinds of nested
inputs name, and makes code of the names of inputs. All of that is refused here before loading.
Where `load_pt2` fails, `torch.export.load` would fall back to the reader of an older format.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.errors import UserError, first_line

if TYPE_CHECKING:
    from torch._C import PyTorchFileReader
    from torch.export import ExportedProgram

# the graph as JSON, raw tensors, and the indexes of these
_ALLOWED_FILES = re.compile(
    r"(models/model\.json"
    r"|data/(weights|constants)/((weight|tensor)_\d+|model_(weights|constants)_config\.json)"
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
        UserError: naming the file and what else it holds.
    """
    from torch._C import PyTorchFileReader

    try:
        # read as `load_pt2` does: a zip may have a second table of contents, which another
        # reader finds in place of the one that is loaded
        problem = next(_find_problems(PyTorchFileReader(str(path))), None)
    except (RuntimeError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: not a readable .pt2: {first_line(error)}") from error
    if problem:
        raise UserError(f"{path}: not loaded: {problem}")


def load_program(path: Path) -> ExportedProgram:
    """Load the graph of a `.pt2`, checked by `check_pt2`.

    Raises:
        UserError: as in `check_pt2`.
    """
    from torch.export.pt2_archive._package import load_pt2

    check_pt2(path)
    with warnings.catch_warnings():  # torch 2.11 leaves tensors in the buffer of the file
        warnings.filterwarnings("ignore", "The given buffer is not writable", UserWarning)
        program: ExportedProgram = load_pt2(str(path)).exported_programs["model"]
    return program


def _find_problems(archive: PyTorchFileReader) -> Iterator[str]:
    if "models/model.json" not in archive.get_all_records():
        yield "it holds no models/model.json"
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
            if not (name in _NOT_NAMES and _is_text(inner)):
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


def _is_text(note: Any) -> bool:
    """Return whether a note is text, not a tensor or a size with the name of a note."""
    texts = note.values() if isinstance(note, dict) else note
    return isinstance(note, str) or all(isinstance(text, str) for text in texts)


def _is_plain_expression(text: str) -> bool:
    text = _SYMBOL.sub("0", text)
    if not re.fullmatch(r"[\w\s+\-*/(),]*", text):
        return False
    words = re.findall(r"[A-Za-z_]\w*", text)
    return "**" not in text and all(word in _FUNCTIONS for word in words)


def _is_plain_tree(tree: Mapping[str, Any]) -> bool:
    """Return whether nested inputs are tuples, lists and dicts; other kinds import modules."""
    context = json.loads(tree["context"] or "null")
    is_plain = context is None or (
        type(context) is list and all(type(k) is str and k.isidentifier() for k in context)
    )
    return (
        is_plain and tree["type"] in _TREE_TYPES and all(map(_is_plain_tree, tree["children_spec"]))
    )
