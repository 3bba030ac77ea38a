"""Fetches a mirrored run to this machine, where every command can use it like any other."""

from __future__ import annotations

import fcntl
import hashlib
import os
import posixpath
import secrets
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from runner.errors import UserError
from runner.object_store import StoreError, is_store_url, open_store, store_errors
from runner.rundir.checkpoint.files import FileDigest, digest_file, remove_path, write_file
from runner.rundir.checkpoint.folder import saved_steps
from runner.rundir.lock import is_locked
from runner.rundir.mirror.index import Index, object_path, require_index
from runner.rundir.readers import read_optional_json

FETCHED = Path("outputs", "mirrors")  # the folder of runs that were fetched
_TRIES = 5  # tries, since the run's process may remove an object that was just listed


def local_run(place: str | Path) -> Path:
    """Return a run directory of this machine; one that a URL names is fetched first.

    It is stored in `outputs/mirrors/`, always in the same folder, and fetched again only if the
    mirror has changed. For a link such as `outputs/latest` the result is its present target, since
    a training that begins moves the link.

    Args:
        place: a folder, or the URL of a mirror.

    Raises:
        StoreError: if there is no such mirror, or it is damaged.
        UserError: if its local folder has another run, or is being written.
    """
    if not is_store_url(place):
        folder = Path(os.path.expanduser(place))
        return folder.resolve() if folder.is_symlink() and folder.exists() else folder
    url = str(place).rstrip("/")
    name = f"{posixpath.basename(url)}-{hashlib.sha256(url.encode()).hexdigest()[:8]}"
    folder = (FETCHED / name).absolute()
    FETCHED.mkdir(parents=True, exist_ok=True)
    with open(folder.with_name(f".{name}.lock"), "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # wait until no other process fetches the same run
        for attempt in range(1, _TRIES + 1):
            index = require_index(url)
            if _is_current(folder, index, url):
                return folder
            try:
                _fetch(index, url, folder)
            except FileNotFoundError as error:
                if attempt == _TRIES:
                    raise StoreError(
                        f"{url}: is not complete: it has no {error}; name the run's own folder, or "
                        "try again once it is mirrored"
                    ) from error
    return folder


def _is_current(folder: Path, index: Index, url: str) -> bool:
    """Return whether a folder has the mirrored state, or a later one of the same run.

    Raises:
        UserError: if it has another run, or is being written.
    """
    if not (folder / "meta.json").exists():
        return False
    if read_optional_json(folder / "meta.json").get("run_id") != index.run_id:
        raise UserError(f"{folder}: has another run than {url} now; move that folder away")
    if max(saved_steps(folder / "checkpoints"), default=-1) > index.step:
        return True
    if all(_has(folder / name, digest) for name, digest in index.files.items()):
        return True
    if is_locked(folder):
        raise UserError(
            f"{folder}: a run is writing here, and {url} has another state; wait for its end"
        )
    return False


def _has(path: Path, digest: FileDigest) -> bool:
    try:
        return digest_file(path) == digest
    except OSError:
        return False


def _fetch(index: Index, url: str, folder: Path) -> None:
    """Build a new folder from local files and from the store, and rename it at the end.

    Raises:
        FileNotFoundError: for an object that was removed.
        StoreError: for one that is damaged.
    """
    size = sum(digest.size for digest in index.files.values())
    print(f"fetching {url} ({size:,} bytes) into {folder}", file=sys.stderr, flush=True)
    for stale in folder.parent.glob(f".{folder.name}.*.tmp"):  # left by a fetch that was killed
        remove_path(stale)
    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.tmp")
    try:
        for name, digest in index.files.items():
            target = temporary / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if _has(folder / name, digest):
                os.link(folder / name, target)
            elif write_file(target, _chunks(url, digest)) != digest:
                raise StoreError(f"{url}: {name} is damaged: its sha256 is not that of run.json")
        if folder.exists():
            shutil.rmtree(folder)
        os.rename(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # of a fetch that failed


def _chunks(url: str, digest: FileDigest) -> Iterator[bytes]:
    """Yield an object, cut after one byte more than the size in `run.json`."""
    files, root = open_store(url)
    left = digest.size + 1
    with store_errors(url), files.open_input_file(object_path(root, digest)) as file:
        while left and (chunk := file.read(min(left, 8 << 20))):
            left -= len(chunk)
            yield chunk
