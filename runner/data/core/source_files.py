"""Paths that a user gives: checks with helpful messages, and fingerprints of their content."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from runner.data.core.file_hashes import hash_file
from runner.errors import DataError, nearest_hint

EDGE_BYTES = 1 << 20  # as much of a file's head and of its tail is hashed
_SWEEP_FILES = ("leaderboard.csv", "study.db")


def path_setting(key: str, path: object) -> str:
    """Return `key=path` for a message, or the path alone, if it was given without a key."""
    return f"{key}={path}" if key else str(path)


def fingerprint_path(path: Path) -> list[Any]:
    """Return a file's name, its size and a hash of its content; of a folder, those of its files.

    Files in subfolders are named by their relative path, and hidden ones are left out.

    Raises:
        DataError: naming what is missing or cannot be read.
    """
    try:
        if path.is_dir():
            files = [Path(file) for file in files_below(path) if os.path.exists(file)]
            below = sorted((file.relative_to(path), file) for file in files)
            return [[str(name), *fingerprint_path(file)[1:]] for name, file in below]
        return [path.name, path.stat().st_size, hash_file(path)]
    except FileNotFoundError:
        raise DataError(f"dataset.path={path}: no such path{nearest_path(path)}") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def files_below(
    folder: str | os.PathLike[str], above: frozenset[str] = frozenset()
) -> Iterator[str]:
    """Yield the files of a folder and its subfolders, without hidden ones.

    Run directories and sweeps in it are left out: a command that is started in the folder of the
    data writes them there, and none of their files contain rows.

    Links are followed, as by a glob. A broken link is yielded, too, since its rows would otherwise
    be missing silently: the error is raised when it is opened.

    Args:
        above: the real paths of the folders that led here; a link to one of them is left out.

    Raises:
        OSError: for a folder that cannot be read.
    """
    real_path = os.path.realpath(folder)
    if real_path in above:
        return
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if name.startswith("."):
            continue
        if os.path.isdir(path):
            if not is_run_directory(path) and not _has_files(path, _SWEEP_FILES):
                yield from files_below(path, above | {real_path})
        elif is_file_or_broken_link(path):
            yield path


def is_run_directory(folder: str) -> bool:
    """Return whether a folder is a run directory."""
    return _has_files(folder, ("config.yaml", "meta.json"))


def _has_files(folder: str, names: Sequence[str]) -> bool:
    return all(os.path.isfile(os.path.join(folder, name)) for name in names)


def is_file_or_broken_link(path: str) -> bool:
    """Return whether a path is a file or a broken link, not a folder, pipe or device."""
    return os.path.isfile(path) or not os.path.exists(path)


def hash_ends(file: IO[bytes], size: int) -> str:
    """Return the SHA-256 of both ends of an open file on a server."""
    hasher = hashlib.sha256(file.read(EDGE_BYTES))
    file.seek(max(size - EDGE_BYTES, 0))
    hasher.update(file.read(EDGE_BYTES))
    return hasher.hexdigest()


def check_path(path: str | None, *, example: str, files: Sequence[str], download_hint: str) -> Path:
    """Return the path after checking that the data exist.

    Args:
        path: as the user gave it; None or empty if it is not set.
        example: a path for the message if it is not set.
        files: that the folder must contain; without any, the path must be a file.

    Raises:
        DataError: with what is missing, the nearest existing path, and `download_hint`.
    """
    if not path:
        raise DataError(
            f"dataset.path is not set, for example dataset.path={example}; {download_hint}"
        )
    location = Path(os.path.expanduser(path))
    start = f"dataset.path={path}"
    if not location.exists():
        raise DataError(f"{start}: no such path{nearest_path(location)}; {download_hint}")
    if not files:
        if location.is_dir():
            listing = _describe_contents(location)
            raise DataError(f"{start} is a folder; it must be a file{listing}; {download_hint}")
        return location
    if not location.is_dir():
        raise DataError(f"{start} is a file; it must be the folder with it; {download_hint}")
    for name in files:
        if not (location / name).is_file():
            hint = _describe_contents(location, name)
            raise DataError(f"{start} has no {name}{hint}; {download_hint}")
    return location


def nearest_path(path: Path) -> str:
    """Return a hint with the deepest folder of a path that exists, and the nearest name in it.

    For a broken link the hint is its target.
    """
    parent, name = path.parent, path.name
    while not parent.is_dir() and parent != parent.parent:
        parent, name = parent.parent, parent.name
    if (link := parent / name).is_symlink():
        return f" ({link} is a link to {os.readlink(link)}, which leads to no file)"
    names = [p.name for p in parent.iterdir()] if parent.is_dir() else []
    alike = [n for n in names if Path(n).suffix == Path(name).suffix]
    close = nearest_hint(name, alike) or nearest_hint(name, names)
    return f" ({parent} is there{close})"


def _describe_contents(folder: Path, name: str = "") -> str:
    """Return a hint with the file nearest to a name or, without one, with the first few files."""
    names = sorted(p.name for p in folder.iterdir())
    close = nearest_hint(name, names) if name else ""
    return close or f" (there are: {', '.join(names[:5]) or 'no files'})"
