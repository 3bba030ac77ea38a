"""Checks what is installed, and imports it in little time."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import FrameType, ModuleType

from runner.errors import UserError

FX_LOGGER = "torch.fx._symbolic_trace"


def quiet_fx() -> None:
    """Silence a deprecation notice of torch that TorchRec causes and users cannot act on."""
    logging.getLogger(FX_LOGGER).setLevel(logging.ERROR)


def is_installed(module: str) -> bool:
    """Return whether a module could be imported, without importing it."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of its package
        return False


def missing_extra(what: str, extra: str, *modules: str) -> Iterator[str]:
    """Yield a message if modules that an extra of this package installs are missing.

    Args:
        what: the feature that needs them, as the user has written it.
        extra: the extra that installs them.
        modules: the required modules.
    """
    missing = [module for module in modules if not is_installed(module)]
    if missing:
        yield f"{what}: needs {', '.join(missing)}: pip install 'runner[{extra}]'"


def import_alone(name: str) -> None:
    """Import a module without the `__init__` of its package, which may import much more.

    A later import of the package runs it as usual. Does nothing if it has been imported.
    """
    package = name.partition(".")[0]
    spec = None if package in sys.modules else find_spec(package)
    if spec is None:  # the next import of the module reports this
        return
    sys.modules[package] = module_from_spec(spec)
    try:
        import_module(name)
    finally:
        del sys.modules[package]
    sys.meta_path.insert(0, _FinderOfRest(package))


def import_fbgemm() -> None:
    """Import FBGEMM, which provides operators for jagged tensors.

    Its messages about versions are left to `doctor`; FBGEMM 1.6 does not even know its own.

    Raises:
        UserError: if a library that it needs is missing.
    """
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        import_module("fbgemm_gpu")
    except OSError as error:
        raise UserError(
            f"FBGEMM does not load: {error.__cause__ or error}; its build for GPUs, fbgemm-gpu, "
            "needs NVIDIA's driver, and fbgemm-gpu-cpu takes its place where there is none"
        ) from error
    finally:
        logging.disable(disabled)


class _FinderOfRest(MetaPathFinder):
    """Finds a package some modules of which have been imported already, and attaches these."""

    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path) if fullname == self._package else None
        if spec is not None and spec.loader is not None:
            spec.loader = _LoaderOfRest(spec.loader, self)
        return spec


class _LoaderOfRest(Loader):
    def __init__(self, loader: Loader, finder: MetaPathFinder) -> None:
        self._loader, self._finder = loader, finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        sys.meta_path.remove(self._finder)
        assert module.__spec__ is not None
        module.__loader__ = module.__spec__.loader = self._loader
        for name, imported in list(sys.modules.items()):
            parent, _, child = name.rpartition(".")
            if parent == module.__name__:
                setattr(module, child, imported)
        self._loader.exec_module(module)


@contextmanager
def exit_at_signals(*numbers: int) -> Iterator[None]:
    """Exit at once with 128 and the number of a signal, until the block ends or handles it itself.

    An exception, such as KeyboardInterrupt, may be suppressed by the library that is imported.
    """

    def end(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            os.write(2, b"interrupted\n")
        os._exit(128 + number)

    heard = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
    handlers = {number: signal.signal(number, end) for number in heard}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def shadowed_modules_hint() -> str:
    """Return the remedy for user's files that were imported in place of other modules; "" for none.

    `python -m` searches the current folder first, so that libraries import a `queue.py` there
    instead of Python's own. Called after any error, which need not name the file.
    """
    folders = [path for path in sys.path if os.path.isabs(path)]  # without import hooks
    if sys.flags.safe_path or not folders or folders[0] != sys.path[0]:
        return ""
    folder = os.path.realpath(folders[0])
    others = [path for path in folders if os.path.realpath(path) != folder]
    package = __name__.partition(".")[0]  # a checkout may have it next to an installed one
    names = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not file or "." in name or name in (package, "__main__"):
            continue
        path = Path(file).parent if Path(file).stem == "__init__" else Path(file)
        is_here = os.path.realpath(path.parent) == folder
        if is_here and (name in sys.stdlib_module_names or PathFinder.find_spec(name, others)):
            names.append(path.name)
    if not names:
        return ""
    return (
        f"; imported from {folder} in place of Python's or a library's: {', '.join(names)}; rename "
        "it, or start with `python -P -m runner`, which imports nothing from the current folder"
    )


def child_import_path() -> str:
    """Return the PYTHONPATH with which a new process imports this package."""
    root = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])


# collections of the middle generation until all objects are collected
_USUAL, _POSTPONED = gc.get_threshold()[2], 1_000_000


def postpone_full_collections() -> None:
    """Let Python's garbage collector skip the oldest objects until `end_imports`.

    For a process of our own, at its start. Imports of torch and others make 400,000 objects that
    live as long as the process, and meanwhile the collector would visit all existing objects six
    times: 0.6 of the 3.5 seconds to the first update. Young objects are collected as before.
    """
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _POSTPONED)


def end_imports() -> None:
    """Exclude imported objects from later collections, and collect all others again.

    Otherwise each full collection stops all threads for a quarter of a second. Does nothing if
    collections were not postponed: in a process that the user started.
    """
    young, middle, old = gc.get_threshold()
    if old == _POSTPONED:
        gc.freeze()
        gc.set_threshold(young, middle, _USUAL)
