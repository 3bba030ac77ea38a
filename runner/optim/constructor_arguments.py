"""The settings that a class of torch.optim takes, read from its source without importing torch."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

PACKAGE = "torch.optim"


def accepted_arguments(target: str) -> list[str] | None:
    """Return the names of a class's settings, without its parameters.

    Returns:
        None if the class is not one of torch.optim, or if its source does not list them all.
    """
    package, _, name = target.rpartition(".")
    spec = importlib.util.find_spec("torch")  # does not import it
    if not f"{package}.".startswith(f"{PACKAGE}.") or spec is None:
        return None
    for folder in spec.submodule_search_locations or []:
        files = Path(folder, "optim").glob("*.py")
        for path in sorted(files, key=lambda p: (p.stem != name.lower(), p)):  # quick for most
            text = path.read_text()
            if f"class {name}(" in text:
                return _settings(ast.parse(text), name)
    return None


def _settings(module: ast.Module, name: str) -> list[str] | None:
    for node in module.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            for function in node.body:
                if isinstance(function, ast.FunctionDef) and function.name == "__init__":
                    args = function.args
                    if args.kwarg is not None:
                        return None
                    names = [a.arg for a in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
                    return [n for n in names if n not in ("self", "params")]
    return None
