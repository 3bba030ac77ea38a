"""Leaves out of a start what libraries import for parts of theirs that a process does not use.

Importing any module of TorchRec runs the package's own `__init__`, which imports all others, and
with them tensordict and torch's compiler: a third of the time to the first update.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

LAZY_PACKAGE = "torchrec"


class LazyPackageFinder(MetaPathFinder):
    """Finds TorchRec, whose `__init__` runs when a name is first asked for that is no module."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != LAZY_PACKAGE:
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _LazyLoader(spec.loader)
        return spec


class _LazyLoader(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__getattr__"] = partial(_run_and_get, module, self._loader)


def _run_and_get(module: ModuleType, loader: Loader, name: str) -> Any:
    """Return a name of a package after running its `__init__`.

    Raises:
        AttributeError: if it has no such name.
    """
    # what tools ask of every module, such as __wrapped__, runs nothing
    is_wanted = not name.startswith("__") or name in ("__all__", "__version__")
    if is_wanted and vars(module).pop("__getattr__", None) is not None:
        loader.exec_module(module)
        return getattr(module, name)
    raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")


def import_lazily() -> None:
    """Import TorchRec's modules one by one from now on, unless all are imported already."""
    if LAZY_PACKAGE not in sys.modules:
        sys.meta_path.insert(0, LazyPackageFinder())
