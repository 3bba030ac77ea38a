"""Brings a mirror up to the present state of a run directory."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from runner.errors import UserError
from runner.object_store import StoreError, open_store, store_errors
from runner.rundir.checkpoint.files import CHUNK_BYTES, FileDigest
from runner.rundir.checkpoint.folder import saved_steps, step_folders
from runner.rundir.checkpoint.manifest import MANIFEST_FILE, read_manifest
from runner.rundir.mirror.index import (
    INDEX_FILE,
    MIRRORED_FILES,
    OBJECTS,
    Index,
    object_path,
    read_index,
)
from runner.rundir.readers import read_optional_json
from runner.rundir.regular_files import open_regular

_TRIES = 100  # tries to open all files before one of them is replaced or removed


@dataclass(frozen=True)
class _OpenFile:
    """An open file, whose content up to `size` stays even if it is renamed or removed."""

    name: str
    path: Path
    file: IO[bytes]
    size: int
    sha256: str | None  # the digest of a checkpoint's file, from its manifest

    def chunks(self) -> Iterator[bytes]:
        """Yield its first `size` bytes; a log may have more by now."""
        left = self.size
        self.file.seek(0)
        while left and (chunk := self.file.read(min(left, CHUNK_BYTES))):
            left -= len(chunk)
            yield chunk

    def is_current(self) -> bool:
        return os.fstat(self.file.fileno()).st_ino == self.path.stat().st_ino


class MirrorWriter:
    """The only writer of a mirror: the process that has the lock of the run directory."""

    def __init__(self, folder: Path, url: str) -> None:
        """Read what the mirror holds.

        Raises:
            UserError: as `check_mirror`.
        """
        self.folder, self.url = folder, url
        self._written = check_mirror(folder, url)
        # after a failed request it is unknown whether the store has executed it
        self._attempted = self._written
        self._is_tidy = False  # a writer that was killed may have left objects
        # name -> inode, time and size of a file, and the digest that it had then
        self._digests: dict[str, tuple[tuple[int, ...], FileDigest]] = {}

    def push(self) -> None:
        """Upload what is new, then `run.json`, then remove what it no longer names.

        Raises:
            StoreError: if the store refuses it, or has been written by another process.
        """
        current = read_index(self.url)
        if current == self._attempted:
            self._written = current
        elif current != self._written:
            raise StoreError(
                f"{self.url}: another process has written there; this one stops. Give each run a "
                "checkpoint.mirror of its own"
            )
        files, root = open_store(self.url)
        with ExitStack() as stack, store_errors(self.url):
            opened = self._open_all(stack)
            uploaded = set(self._written.files.values()) if self._written else set()
            run_id = read_optional_json(self.folder / "meta.json").get("run_id")
            index = Index(run_id, _newest_step(opened), self._upload(opened, uploaded))
            if index != self._written:
                self._attempted = index
                with files.open_output_stream(f"{root}/{INDEX_FILE}") as file:
                    file.write(index.encode())
                self._written, self._is_tidy = index, False
            if not self._is_tidy:
                self._remove_others(files, root, index)
                self._is_tidy = True

    def _open_all(self, stack: ExitStack) -> list[_OpenFile]:
        """Open all files of the run as they are at one instant.

        Raises:
            StoreError: if they never are.
        """
        for _ in range(_TRIES):
            attempt = ExitStack()
            try:
                opened = []
                for entry in self._open_each():
                    attempt.enter_context(entry.file)
                    opened.append(entry)
                if all(o.is_current() for o in opened):
                    stack.push(attempt)
                    return opened
            except FileNotFoundError:  # an old checkpoint was removed meanwhile
                pass
            attempt.close()
        raise StoreError(f"{self.folder}: its files change too fast to be mirrored")

    def _open_each(self) -> Iterator[_OpenFile]:
        # checkpoints first, so that logs have at least the rows that they have seen
        for step in saved_steps(self.folder / "checkpoints"):
            folder = step_folders(self.folder / "checkpoints")[step]
            for name, digest in read_manifest(folder).files.items():
                yield _open(f"checkpoints/step-{step}/{name}", folder / name, digest.sha256)
            yield _open(f"checkpoints/step-{step}/{MANIFEST_FILE}", folder / MANIFEST_FILE)
        data = self.folder / "data"
        names = [f"data/{p.name}" for p in sorted(data.iterdir())] if data.is_dir() else []
        for name in (*names, *MIRRORED_FILES):
            if (self.folder / name).exists() and not Path(name).name.startswith("."):
                yield _open(name, self.folder / name)

    def _upload(self, opened: list[_OpenFile], uploaded: set[FileDigest]) -> dict[str, FileDigest]:
        """Upload each content that the mirror does not have, and return the digests by name."""
        digests = {}
        for entry in opened:
            digest = digests[entry.name] = self._digest(entry)
            if digest not in uploaded:
                self._upload_one(entry, digest)
                uploaded.add(digest)
        return digests

    def _upload_one(self, entry: _OpenFile, digest: FileDigest) -> None:
        files, root = open_store(self.url)
        hashed = hashlib.sha256()
        with files.open_output_stream(object_path(root, digest)) as target:
            for chunk in entry.chunks():
                hashed.update(chunk)
                target.write(chunk)
        if hashed.hexdigest() != digest.sha256:  # harmless: no run.json names the object
            raise StoreError(f"{entry.path}: is damaged: its sha256 is not the one of its manifest")

    def _digest(self, entry: _OpenFile) -> FileDigest:
        if entry.sha256 is not None:
            return FileDigest(entry.size, entry.sha256)
        status = os.fstat(entry.file.fileno())
        key = (status.st_ino, status.st_mtime_ns, entry.size)
        if self._digests.get(entry.name, ((), None))[0] != key:
            hashed = hashlib.sha256()
            for chunk in entry.chunks():
                hashed.update(chunk)
            self._digests[entry.name] = key, FileDigest(entry.size, hashed.hexdigest())
        return self._digests[entry.name][1]

    def _remove_others(self, files: Any, root: str, index: Index) -> None:
        """Remove objects that the index does not name, those of a killed writer too."""
        from pyarrow import fs

        indexed = {object_path(root, digest) for digest in index.files.values()}
        selector = fs.FileSelector(f"{root}/{OBJECTS}", allow_not_found=True)
        for info in files.get_file_info(selector):
            if info.is_file and info.path not in indexed:
                files.delete_file(info.path)


def check_mirror(folder: Path, url: str) -> Index | None:
    """Check that a mirror is of the run in a folder, and not ahead of it.

    Args:
        folder: the run directory; one without a `meta.json` is that of a new run.

    Returns:
        What the mirror holds.

    Raises:
        UserError: if it has another run or a later state, or cannot be read.
    """
    index = read_index(url)
    if index is None or index.step < 0:  # a run without a checkpoint has nothing to lose
        return index
    if read_optional_json(folder / "meta.json").get("run_id") != index.run_id:
        raise UserError(
            f"checkpoint.mirror={url}: holds another run (step {index.step:,}); "
            f"`python -m runner resume {url}` continues that one; this one needs another place"
        )
    newest = max(saved_steps(folder / "checkpoints"), default=-1)
    if newest < index.step:
        raise UserError(
            f"checkpoint.mirror={url}: has step {index.step:,}, which is later than step "
            f"{max(newest, 0):,} of {folder}; `python -m runner resume {url}` continues from there"
        )
    return index


def _open(name: str, path: Path, sha256: str | None = None) -> _OpenFile:
    file = os.fdopen(open_regular(path), "rb")
    return _OpenFile(name, path, file, os.fstat(file.fileno()).st_size, sha256)


def _newest_step(opened: list[_OpenFile]) -> int:
    names = [o.name.split("/") for o in opened if o.name.endswith(f"/{MANIFEST_FILE}")]
    return max((int(folder.removeprefix("step-")) for _, folder, _ in names), default=-1)
