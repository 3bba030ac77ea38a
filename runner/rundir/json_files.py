"""JSON on disk: logs that only grow, and files that are replaced atomically."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from runner.errors import UserError
from runner.rundir.regular_files import (
    MAX_JSON_BYTES,
    MAX_LOG_BYTES,
    open_regular,
    read_bytes,
    replacing,
    unshare,
)
from runner.rundir.secrets import mask_secrets, mask_values

_CHUNK_BYTES = 1 << 20


def stringify_non_finite(value: Any) -> Any:
    """Replace NaN and infinity by strings, so that every JSON reader accepts the value."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(k): stringify_non_finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [stringify_non_finite(v) for v in value]
    return value


def dumps(value: Any, *, indent: int | None = None) -> str:
    """Write standard JSON, with NaN and infinity as strings."""
    return json.dumps(
        stringify_non_finite(value),
        indent=indent,
        allow_nan=False,
        ensure_ascii=False,
        default=lambda other: mask_secrets(str(other), everything=False),
    )


def write_json(path: Path, value: Any) -> None:
    """Replace a file atomically: readers, also after a crash, see the old or the new one.

    Secrets whose names say so are masked; other values of the environment stay as they are.
    """
    write_text(path, dumps(mask_values(value, everything=False), indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Replace a file atomically, as `write_json` does.

    Raises:
        OSError: if it cannot be written; the old file then stays.
    """
    with replacing(path) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    sync_path(path.parent)


def sync_path(path: Path) -> None:
    """Sync the content of a file, or the renames in a folder, to survive a power cut."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        UserError: if it is missing or damaged, with its name.
    """
    try:
        return json.loads(read_bytes(path).decode())
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error


class JsonlFile:
    """A `.jsonl` file whose rows are each written to the system at once, so that a kill loses none.

    The file is opened at the first append, so that a reader of a run directory creates no file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: Any = None
        self._written: tuple[int, Any] | None = None  # bytes and their running sha256

    def append(self, row: Mapping[str, Any]) -> None:
        """Write a row, with secrets masked."""
        if self._file is None:
            unshare(self.path)
            self._drop_torn_row()  # a process that was killed may have left half a line
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
            self._file = open(open_regular(self.path, flags), "ab", buffering=0)  # noqa: SIM115
        rest = memoryview(f"{dumps(mask_values(row))}\n".encode())
        while rest:  # on a nearly full disk only a part is written, and the next attempt raises
            count = self._file.write(rest)
            if self._written is not None:
                self._written[1].update(rest[:count])
                self._written = self._written[0] + count, self._written[1]
            rest = rest[count:]

    def size(self) -> int:
        """Return the bytes in the file."""
        return self.path.stat().st_size if self.path.exists() else 0

    def position(self) -> tuple[int, str]:
        """Return the bytes so far and their sha256, which a checkpoint keeps.

        The file is read at the first call only.
        """
        if self._written is None:
            size = self.size()
            self._written = size, self._hash(size)
        return self._written[0], self._written[1].hexdigest()

    def find_damage(self, num_bytes: int, sha256: str | None) -> str | None:
        """Return how the first rows differ from those that a checkpoint saw; None if equal.

        Args:
            num_bytes: of these rows.
            sha256: of these rows; None if the checkpoint does not know it.
        """
        if self.size() < num_bytes:
            what = f"has {self.size():,} of" if self.path.exists() else "is gone, with"
            return f"{self.path} {what} the {num_bytes:,} bytes that it had at the checkpoint"
        if sha256 is None or not num_bytes or self._hash(num_bytes).hexdigest() == sha256:
            return None
        with open(open_regular(self.path), "rb") as file:
            lines = file.read(num_bytes).split(b"\n")
        torn = [number for number, line in enumerate(lines[:-1], 1) if parse_row(line) is None]
        row = f": row {torn[0]:,} is no row" if torn else ""
        return f"{self.path} was changed in its first {num_bytes:,} bytes{row}"

    def _hash(self, num_bytes: int) -> Any:
        digest = hashlib.sha256()
        if num_bytes:
            with open(open_regular(self.path), "rb") as file:
                while num_bytes and (chunk := file.read(min(num_bytes, _CHUNK_BYTES))):
                    digest.update(chunk)
                    num_bytes -= len(chunk)
        return digest

    def sync(self) -> None:
        """Write the rows to the disk, before a checkpoint that relies on them is complete."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def truncate(self, num_bytes: int) -> None:
        """Cut the file back to its size at a checkpoint; a shorter file is not changed."""
        self._written = None
        size = self.size()
        if size:
            unshare(self.path)
        if size > num_bytes:
            os.truncate(self.path, num_bytes)
        self._drop_torn_row()

    def _drop_torn_row(self) -> None:
        size = end = self.size()
        if size == 0:
            return
        with open(open_regular(self.path), "rb") as file:
            at = -1  # of the last line break
            while end and at < 0:
                start = max(0, end - _CHUNK_BYTES)
                file.seek(start)
                at = file.read(end - start).rfind(b"\n")
                end = start + at + 1
        if end < size:
            self._written = None
            os.truncate(self.path, end)

    def close(self) -> None:
        """Close the file; a later append opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None


def parse_row(line: str | bytes) -> dict[str, Any] | None:
    """Return the row in a line; None if it is no JSON object."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Read the complete rows of a `.jsonl` file; incomplete and damaged rows are left out."""
    return list(iterate_jsonl(path))


def iterate_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the complete rows of a `.jsonl` file, of which only one is in memory at a time.

    Incomplete and damaged rows are left out, and so is a file that cannot be read, or that is
    larger than a log can be.
    """
    try:
        descriptor = open_regular(path)
    except OSError:
        return
    with open(descriptor, "rb") as file:
        if os.fstat(descriptor).st_size > MAX_LOG_BYTES:
            return
        while line := file.readline(MAX_JSON_BYTES):
            # without its line break a row may not be whole
            if line.endswith(b"\n") and (row := parse_row(line)) is not None:
                yield row
