"""The settings that a class of torch.optim takes, read in its source: torch is not imported."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

PACKAGE = "torch.optim"


def accepted_arguments(target: str) -> list[str] | None:
    """Names of a class's settings but for its parameters; None if the source does not say."""
    package, _, name = target.rpartition(".")
    spec = importlib.util.find_spec("torch")  # does not run it
    if not f"{package}.".startswith(f"{PACKAGE}.") or spec is None:
        return None
    for place in spec.submodule_search_locations or []:
        for path in sorted(Path(place, "optim").glob("*.py")):
            text = path.read_text()
            if f"class {name}(" in text:
                return _settings(ast.parse(text), name)
    return None


def _settings(module: ast.Module, name: str) -> list[str] | None:
    for node in module.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            for function in node.body:
                if isinstance(function, ast.FunctionDef) and function.name == "__init__":
                    given = function.args
                    if given.kwarg is not None:
                        return None
                    names = [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
                    return [n for n in names if n not in ("self", "params")]
    return None
