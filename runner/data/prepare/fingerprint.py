"""Identity of a dataset's content, before torch is imported: part of a run's signature."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from runner.data.core.setting_checks import LAST_BATCH_POLICIES, check_choice
from runner.data.prepare.recipe import Recipe, hash_json
from runner.data.read import order
from runner.errors import ConfigError, DataError, nearest_hint

OWN_PACKAGE = "runner.data."
EDGE_BYTES = 1 << 20  # of the head and of the tail of a file that are hashed
SHARED_SETTINGS = (
    "window_rows",
    "prefetch",
    "workers",
    "rest",
    "write_to",
)  # of the path that all recipes share


def fingerprint(dataset: Mapping[str, Any]) -> str:
    """16 hex digits: sources by content (never by time or place), settings, order of examples.

    `dataset` is the resolved node of the configuration. What changes no batch, such as prefetch or
    how a path is spelt, does not change it. Raises: DataError for a path that is not there, saying
    where to get the data; ConfigError for a wrong setting.
    """
    recipe = build_recipe(dataset)
    if recipe is None:  # somebody's own class: its settings, and what its path leads to
        content = fingerprint_path(Path(dataset["path"])) if dataset.get("path") else None
        rest = {k: v for k, v in dataset.items() if k not in ("path", "prefetch")}
        return hash_json({"settings": rest, "content": content})
    recipe.check()
    rest = dataset.get("rest", "short")
    check_choice("rest", rest, LAST_BATCH_POLICIES)
    return hash_json(
        {
            "source": recipe.content_fields(),
            "reading": recipe.reading_fields(),
            "order": [
                order.ORDER_VERSION,
                dataset.get("window_rows"),
                *([rest] * (rest != "short")),
            ],
        }
    )


def build_recipe(dataset: Mapping[str, Any]) -> Recipe | None:
    """The recipe of one of our own dataset options; None for a target elsewhere."""
    target = str(dataset.get("_target_", ""))
    if not target.startswith(OWN_PACKAGE):
        return None
    module, _, _ = target.rpartition(".")
    make = getattr(import_module(module), "recipe", None)
    if make is None:
        return None
    settings = {k: v for k, v in dataset.items() if k != "_target_" and k not in SHARED_SETTINGS}
    known = inspect.signature(make).parameters
    for key in settings:
        if key not in known:
            raise ConfigError(f"dataset.{key}: no such setting{nearest_hint(key, known)}")
    for key, parameter in known.items():
        if key not in settings and parameter.default is parameter.empty:
            raise ConfigError(f"dataset.{key} is not set")
    return make(**settings)


def fingerprint_path(path: Path) -> list[Any]:
    """Name, size and hash of both ends of a file, or of all files of a folder by name.

    Raises: DataError naming what is not there or cannot be read.
    """
    if path.is_dir():
        return [fingerprint_path(p) for p in sorted(path.iterdir()) if p.is_file()]
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            hashed = hashlib.sha256(file.read(EDGE_BYTES))
            file.seek(max(size - EDGE_BYTES, 0))
            hashed.update(file.read(EDGE_BYTES))
    except FileNotFoundError:
        raise DataError(f"dataset.path={path}: no such path{nearest_path(path)}") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    return [path.name, size, hashed.hexdigest()]


def check_path(path: str | None, *, example: str, files: Sequence[str], download_hint: str) -> Path:
    """The path, if it is there with these files in it (none: it is a file itself).

    Raises: DataError with what is missing, the nearest thing that is there, and `download_hint`: where to
    get the data.
    """
    if not path:
        raise DataError(
            f"dataset.path is not set, for example dataset.path={example}; {download_hint}"
        )
    found = Path(path).expanduser()
    if not found.exists():
        raise DataError(f"dataset.path={path}: no such path{nearest_path(found)}; {download_hint}")
    if not files:
        if found.is_dir():
            raise DataError(
                f"dataset.path={path} is a folder, needed is a file{_within(found)}; {download_hint}"
            )
        return found
    if not found.is_dir():
        raise DataError(
            f"dataset.path={path} is a file, needed is the folder with it; {download_hint}"
        )
    for name in files:
        if not (found / name).is_file():
            raise DataError(
                f"dataset.path={path} has no {name}{_within(found, name)}; {download_hint}"
            )
    return found


def nearest_path(path: Path) -> str:
    """The nearest name in the deepest folder of the path that exists."""
    parent, name = path.parent, path.name
    while not parent.is_dir() and parent != parent.parent:
        parent, name = parent.parent, parent.name
    close = nearest_hint(name, [p.name for p in parent.iterdir()]) if parent.is_dir() else ""
    return f" ({parent} is there{close})"


def _within(folder: Path, name: str = "") -> str:
    names = sorted(p.name for p in folder.iterdir())
    close = nearest_hint(name, names) if name else ""
    return close or f" (there are: {', '.join(names[:5]) or 'no files'})"
