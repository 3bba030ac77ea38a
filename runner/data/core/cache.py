"""The cache of prepared data: each folder is written once, by one process, in full or not at all.

It is in the user's cache folder, never next to the source.
"""

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

from runner.errors import DataError, UserError, system_errors
from runner.machine.cache_folder import cache_root

PREPARED_FILE = "prepared.json"
# Folder of parts that are complete while the whole is not: after a kill or an interrupt, the next
# call reuses them. Increase the number when the parts of earlier versions no longer fit.
PARTS_FOLDER = "parts-2"
_MAGIC_BYTES = {".parquet": 4, ".arrow": 6}  # length of the magic word that ends a file


def get_or_prepare(name: str, key: str, make: Callable[[Path], Mapping[str, Any]]) -> Path:
    """Return the cache's folder `name`-`key`, after filling it if it is not there.

    Of several processes that call this at once, one fills it and the others wait. A call of `make`
    that fails leaves nothing, and one that is killed or interrupted at most its PARTS_FOLDER, which
    the next call reuses.

    Args:
        name: of the dataset, also for messages.
        key: a hash of everything on which the files depend.
        make: writes files into the folder that it gets; returns the value of `read_contents`.

    Raises:
        DataError: if the cache cannot be written.
    """
    root = cache_root()
    folder = root / f"{name}-{key}"
    if is_complete(folder):
        return folder
    with system_errors(
        f"cannot prepare {name} data in {root}",
        "; RUNNER_CACHE names another folder for prepared data",
        DataError,
    ):
        root.mkdir(parents=True, exist_ok=True)
        with locked(root / f"{name}-{key}.lock", f"{name} data"):
            if not is_complete(folder):  # another process may have filled it meanwhile
                _fill(folder, make)
    return folder


def read_contents(folder: Path) -> dict[str, Any]:
    """Return what `make` returned when the folder was filled."""
    contents: dict[str, Any] = json.loads((folder / PREPARED_FILE).read_text())["contents"]
    return contents


def is_complete(folder: Path) -> bool:
    """Return whether all files of a folder are as they were written.

    Their sizes are compared, and the hashes of content that has no checksums inside the file.
    """
    try:
        manifest = json.loads((folder / PREPARED_FILE).read_text(encoding="utf-8"))
        if manifest.pop("sha256") != _hash_json(manifest):
            return False
        sizes, seals = manifest["sizes"], manifest["seals"]
        return all(
            (folder / name).stat().st_size == size and _seal(folder / name) == seals[name]
            for name, size in sizes.items()
        )
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return False
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


def _seal(path: Path) -> str:
    """Return the hash of a file or, if checksums inside it cover its contents, of its footer.

    Raises:
        ValueError: if a file that must have a footer has none.
    """
    with path.open("rb") as file:
        if path.suffix in _MAGIC_BYTES:
            num_magic = _MAGIC_BYTES[path.suffix]
            file.seek(-4 - num_magic, os.SEEK_END)
            length = int.from_bytes(file.read(4), "little") + 4 + num_magic
            if length > path.stat().st_size:
                raise ValueError(f"{path}: no footer")
            file.seek(-length, os.SEEK_END)
        return hashlib.file_digest(file, "sha256").hexdigest()


def _hash_json(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _fill(folder: Path, make: Callable[[Path], Mapping[str, Any]]) -> None:
    temporary = folder.with_name(f"{folder.name}.tmp")  # the lock allows one writer
    _clear(temporary)  # left by a process that was killed
    temporary.mkdir(exist_ok=True)
    try:
        contents = make(temporary)
        files = [path for path in sorted(temporary.rglob("*")) if path.is_file()]
        names = {str(path.relative_to(temporary)): path for path in files}
        sizes = {name: path.stat().st_size for name, path in names.items()}
        seals = {name: _seal(path) for name, path in names.items()}
        # Hashed as it will be read, since JSON turns tuples into lists and keys into strings.
        manifest = json.loads(json.dumps({"contents": contents, "sizes": sizes, "seals": seals}))
        text = json.dumps({**manifest, "sha256": _hash_json(manifest)}, indent=1)
        (temporary / PREPARED_FILE).write_text(text + "\n", encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)  # there is one if it is damaged
        temporary.rename(folder)
    except UserError:
        drop_parts(temporary)
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    except BaseException:
        _clear(temporary)
        raise


def drop_parts(folder: Path) -> None:
    """Remove the parts of a folder; if killed meanwhile, no half of a part counts as whole.

    Args:
        folder: the one that `make` fills.
    """
    parts = folder / PARTS_FOLDER
    if parts.is_dir():
        shutil.rmtree(parts.rename(parts.with_name("removed")), ignore_errors=True)


def _clear(folder: Path) -> None:
    """Remove a folder, or everything except its parts."""
    if not (folder / PARTS_FOLDER).is_dir():
        shutil.rmtree(folder, ignore_errors=True)
        return
    for path in folder.iterdir():
        if path.is_dir() and path.name != PARTS_FOLDER:
            shutil.rmtree(path)
        elif not path.is_dir():
            path.unlink()


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold the lock of a file; wait, with a message, while another process has it.

    Args:
        path: of the file, which is created if it is missing.
        what: the thing that is made under the lock, for the message.
    """
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another job prepares the {what}; waiting for it", file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield  # closing the file releases the lock, also when the process dies
