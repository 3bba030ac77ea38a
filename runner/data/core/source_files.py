"""Files that a user names: what is there, what is nearest to a name, and what their content is."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runner.errors import DataError, nearest_hint

EDGE_BYTES = 1 << 20  # of the head and of the tail of a file that are hashed


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
