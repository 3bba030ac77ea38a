"""Walks through folders with run directories."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_MAX_DEPTH = 5  # levels below the given folder


def walk_folders(
    folder: Path, unreadable: list[tuple[Path, str]]
) -> Iterator[tuple[Path, list[str], frozenset[str]]]:
    """Yield a folder and those below it, as `os.walk` does, but none below a run directory.

    Links and hidden folders are not entered, nor one that cannot be read.

    Args:
        unreadable: folders that cannot be read are added, each with the reason.

    Yields:
        A folder, the names in it that are entered next, of which the caller may remove some, and
        all names in it.
    """

    def note(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):  # another process may delete a folder
            unreadable.append((Path(error.filename), f"cannot be read: {error.strerror or error}"))

    for text, below, files in os.walk(folder, onerror=note):
        path, names = Path(text), frozenset((*below, *files))
        is_last = "meta.json" in names or len(path.relative_to(folder).parts) == _MAX_DEPTH
        below[:] = [] if is_last else sorted(name for name in below if not name.startswith("."))
        yield path, below, names


def runs_below(folder: Path) -> list[Path]:
    """Return the run directories below a folder, and those that links in it point to.

    The one that began last comes first.
    """
    runs, links = {}, []
    for path, below, names in walk_folders(folder, []):
        if "meta.json" in names and path != folder:
            runs[path.resolve()] = path
        links += [path / name for name in below if (path / name).is_symlink()]
    for link in links:
        if (link / "meta.json").is_file():
            runs.setdefault(link.resolve(), link)
    dated_runs = []
    for run in runs.values():
        with suppress(OSError):  # another process may delete a run
            dated_runs.append(((run / "meta.json").stat().st_mtime, run))
    return [path for _, path in sorted(dated_runs, reverse=True)]
