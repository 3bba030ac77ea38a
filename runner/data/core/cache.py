"""Prepared data: made once, whole or not at all, by one process at a time, beside no source."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runner.errors import DataError

PREPARED_FILE = "prepared.json"
_AFTER_LENGTH = {".parquet": 4, ".arrow": 6}  # bytes of the magic word behind a footer's length


def cache_root() -> Path:
    """`$RUNNER_CACHE`, else `runner/` in the user's cache folder."""
    if given := os.environ.get("RUNNER_CACHE"):
        return Path(given).expanduser()
    user = os.environ.get("XDG_CACHE_HOME")
    return (Path(user) if user else Path.home() / ".cache") / "runner"


def get_or_prepare(name: str, key: str, make: Callable[[Path], Mapping[str, Any]]) -> Path:
    """The folder `name`-`key` of the cache, made by `make(folder)` if it is not there.

    `make` writes files and returns what `contents` gives back. Of several processes that
    ask at once, one makes it and the others wait. Nothing is left of a maker that failed.
    Raises: DataError when the cache cannot be written.
    """
    root = cache_root()
    folder = root / f"{name}-{key}"
    if is_complete(folder):
        return folder
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _locked(root / f"{name}-{key}.lock", f"{name} data"):
            if not is_complete(folder):  # another process may just have made it
                _make(folder, make)
    except OSError as error:
        raise DataError(
            f"cannot prepare {name} data in {root}: {error.strerror or error}; "
            "RUNNER_CACHE names another folder for prepared data"
        ) from error
    return folder


def read_contents(folder: Path) -> dict[str, Any]:
    """What `make` returned, read back."""
    return json.loads((folder / PREPARED_FILE).read_text())["contents"]


def is_complete(folder: Path) -> bool:
    """All files are there, as they were written: their sizes, and the hash of what no checksum in
    them covers."""
    try:
        made = json.loads((folder / PREPARED_FILE).read_text(encoding="utf-8"))
        if made.pop("sha256") != _hash_of(made):
            return False
        paths = {name: folder / name for name in made["sizes"]}
        return all(
            path.stat().st_size == made["sizes"][name] and _seal(path) == made["seals"][name]
            for name, path in paths.items()
        )
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _seal(path: Path) -> str:
    """Hash of the footer of a file whose contents have checksums of their own; of others, whole.

    Raises: ValueError for a file that should have a footer and has none.
    """
    with path.open("rb") as file:
        if path.suffix in _AFTER_LENGTH:
            after = _AFTER_LENGTH[path.suffix]
            file.seek(-4 - after, os.SEEK_END)
            length = int.from_bytes(file.read(4), "little") + 4 + after
            if length > path.stat().st_size:
                raise ValueError(f"{path}: no footer")
            file.seek(-length, os.SEEK_END)
        return hashlib.file_digest(file, "sha256").hexdigest()


def _hash_of(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _make(folder: Path, make: Callable[[Path], Mapping[str, Any]]) -> None:
    temporary = folder.with_name(f"{folder.name}.tmp")  # under the lock: one writer
    shutil.rmtree(temporary, ignore_errors=True)  # of a maker that was killed
    temporary.mkdir()
    try:
        made = make(temporary)
        files = [path for path in sorted(temporary.rglob("*")) if path.is_file()]
        names = {str(path.relative_to(temporary)): path for path in files}
        sizes = {name: path.stat().st_size for name, path in names.items()}
        seals = {name: _seal(path) for name, path in names.items()}
        # as it is read back, so that tuples and numbers as keys do not change the hash
        listed = json.loads(json.dumps({"contents": made, "sizes": sizes, "seals": seals}))
        text = json.dumps({**listed, "sha256": _hash_of(listed)}, indent=1)
        (temporary / PREPARED_FILE).write_text(text + "\n", encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)  # a damaged one
        temporary.rename(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


@contextmanager
def _locked(path: Path, what: str) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another job prepares the {what}; waiting for it", file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield  # closing the file gives the lock back, also when the process dies
