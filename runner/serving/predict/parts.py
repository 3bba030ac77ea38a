"""The folder of a prediction: its manifest, its parts, and whether it is complete. No torch here.

A part that exists is complete: it is written under another name, synced, and renamed. So a killed
prediction continues with the missing parts.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from runner.data.files.bad_rows import MAX_EXAMPLES
from runner.data.files.file_list import DataFile
from runner.errors import DataError, UserError
from runner.rundir.diff import diff_settings, format_changes
from runner.rundir.json_files import dumps, read_json, sync_path, write_json
from runner.rundir.lock import LOCK_FILE, FolderLock, LockedError, describe_holder
from runner.serving.artifact.folder import hash_file

FORMAT = 1
OPENING_S = 600  # within which all ranks of a launcher must have started
# readers of a folder of Parquet files ignore names that begin with an underscore
MANIFEST_FILE, SUMMARY_FILE = "_manifest.json", "_result.json"
BAD_ROWS_KEY = b"bad_rows"  # in the metadata of a part: their number and the first of them


def part_path(folder: Path, number: int) -> Path:
    """Return the path of a part, which need not exist."""
    return folder / f"part-{number:06d}.parquet"


def input_fingerprint(files: Sequence[DataFile], partitions: Mapping[str, Any]) -> str:
    """Return the hash of the names, sizes and contents of the files, in their order.

    Args:
        partitions: values read from the names of their folders, if any are.
    """
    text = json.dumps([*(file.fingerprint() for file in files), *([partitions] * bool(partitions))])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def manifest_hash(manifest: Mapping[str, Any]) -> str:
    """Return a hash of eight digits that identifies a prediction."""
    return hashlib.sha256(dumps(manifest).encode()).hexdigest()[:8]


def check_output(folder: Path, manifest: Mapping[str, Any]) -> bool:
    """Return whether a folder holds this prediction; if not, it is free for it.

    Raises:
        UserError: if it holds another prediction, or anything else.
    """
    path = folder / MANIFEST_FILE
    if path.exists():
        recorded = _read_own(path, "another --out starts anew")
        changes = diff_settings(recorded, json.loads(dumps(manifest)))
        if changes and any(folder.glob("part-*.parquet")):
            raise UserError(
                f"--out {folder}: holds another prediction; nothing was changed. It differs in\n"
                f"{format_changes(changes)}\nAnother --out starts a new one"
            )
        if not changes:
            return True
    own_names = (".", MANIFEST_FILE)  # of a prediction that had not begun
    foreign = sorted(p.name for p in folder.glob("*") if not p.name.startswith(own_names))
    if foreign:
        raise UserError(
            f"--out {folder}: is not empty and holds no prediction "
            f"({', '.join(foreign[:5])}); nothing was changed. Name another folder"
        )
    return False


def open_output(folder: Path, manifest: Mapping[str, Any]) -> FolderLock:
    """Make and lock the folder of a prediction, or lock the existing one.

    Raises:
        UserError: if another process writes there, and as `check_output`; nothing was changed then.
    """
    check_output(folder, manifest)  # before a lock is put into a folder with other content
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FolderLock(folder)
        try:
            # once more: another prediction may have run before this one had the lock
            if not check_output(folder, manifest):
                write_json(folder / MANIFEST_FILE, manifest)
        except BaseException:
            lock.release()
            raise
        return lock
    except LockedError as error:
        raise UserError(
            f"--out {folder}: another prediction is writing here: {describe_holder(folder)}; wait "
            "for its end, or name another --out"
        ) from error
    except OSError as error:
        raise UserError(f"--out {folder}: cannot be written: {error.strerror}") from error


def remove_unbegun(folder: Path, *, with_folder: bool) -> None:
    """Undo `open_output`, if no part has been written since.

    Args:
        folder: of a prediction that was refused, still locked.
    """
    own_names = (MANIFEST_FILE, LOCK_FILE)
    if any(path.name not in own_names for path in folder.iterdir()):
        return
    for name in own_names:
        (folder / name).unlink(missing_ok=True)
    if with_folder:
        folder.rmdir()


def await_output(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Wait until rank 0 has opened the folder of a prediction.

    Raises:
        UserError: if it is not opened in time, and as `check_output`.
    """
    deadline = time.monotonic() + OPENING_S
    while not check_output(folder, manifest):
        if time.monotonic() > deadline:
            raise UserError(f"--out {folder}: rank 0 has not opened it in {OPENING_S} s")
        time.sleep(0.1)


def check_writable(rows: pa.Table) -> None:
    """Check that a part can hold columns.

    Raises:
        DataError: naming a column of a type that Parquet does not have, such as an interval.
    """
    for column in rows.schema:
        try:
            pq.write_table(rows.select([column.name]), pa.BufferOutputStream())
        except pa.ArrowNotImplementedError as error:
            raise DataError(
                f"--keep {column.name}: has type {column.type}, which no Parquet file can hold"
            ) from error


def write_part(
    folder: Path, number: int, rows: pa.Table, num_bad_rows: int, messages: Sequence[str]
) -> None:
    """Write a part; its bytes depend on these arguments only.

    Raises:
        OSError: if it cannot be written, such as on a full disk; nothing of it is left then.
    """
    facts = json.dumps({"count": num_bad_rows, "examples": list(messages)})
    rows = rows.replace_schema_metadata({BAD_ROWS_KEY: facts})
    path = part_path(folder, number)
    # a part belongs to one rank, so that no other process writes under this name
    temporary = path.with_name(f".{path.name}.tmp")
    # scores and vectors hardly repeat: building dictionaries would take most of the time
    try:
        with temporary.open("wb") as file:
            pq.write_table(
                rows,
                file,
                row_group_size=rows.num_rows,
                use_dictionary=_repeating_leaves(rows.schema),
                write_page_checksum=True,
            )
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    except OSError:
        temporary.unlink(missing_ok=True)  # do not leave half a part on a full disk
        raise
    sync_path(folder)


def _repeating_leaves(columns: pa.Schema) -> list[str]:
    """Return the leaves of columns, as Parquet names them, except those of floats."""
    buffer = pa.BufferOutputStream()
    pq.write_table(columns.empty_table(), buffer)
    leaves = pq.read_metadata(pa.BufferReader(buffer.getvalue())).schema
    return [leaf.path for leaf in leaves if leaf.physical_type not in ("FLOAT", "DOUBLE")]


@dataclass
class PartsSummary:
    """The counts of rows in the existing parts."""

    num_parts: int = 0
    num_rows: int = 0
    num_bad_rows: int = 0
    bad_rows: list[str] = field(default_factory=list)  # the first of them
    columns: list[str] = field(default_factory=list)


def summarize_parts(folder: Path) -> PartsSummary:
    """Read the footers of all parts.

    Raises:
        UserError: for a part that cannot be read.
    """
    summary = PartsSummary()
    for path in sorted(folder.glob("part-*.parquet")):
        if not path.is_file():  # opening a pipe would block
            raise UserError(_not_what_was_written(path, "it is no file"))
        try:
            with pq.ParquetFile(path) as part:
                facts = json.loads((part.schema_arrow.metadata or {})[BAD_ROWS_KEY])
                summary.num_rows += part.metadata.num_rows
                summary.columns = part.schema_arrow.names
        except (pa.ArrowException, OSError, KeyError, ValueError) as error:
            raise UserError(_not_what_was_written(path, error)) from error
        summary.num_parts += 1
        summary.num_bad_rows += facts["count"]
        summary.bad_rows += facts["examples"][: MAX_EXAMPLES - len(summary.bad_rows)]
    return summary


def write_summary(folder: Path, summary: PartsSummary) -> None:
    """Write `_result.json`, which marks the prediction as complete, with the hash of each part."""
    hashes = {path.name: hash_file(path) for path in sorted(folder.glob("part-*.parquet"))}
    write_json(folder / SUMMARY_FILE, {"status": "completed", **vars(summary), "sha256": hashes})


def check_parts(folder: Path) -> None:
    """Check that the parts of a complete prediction have not changed.

    If one is missing, `_result.json` is removed, since the prediction is no longer complete.

    Raises:
        UserError: for a changed part, or a `_result.json` that is damaged.
    """
    if not (folder / SUMMARY_FILE).exists():
        return
    remedy = f"after `rm {folder / SUMMARY_FILE}` the same command writes it anew"
    hashes = _read_own(folder / SUMMARY_FILE, remedy).get("sha256")
    if not isinstance(hashes, dict):
        return  # it is of an earlier version
    parts = {folder / Path(name).name: expected for name, expected in hashes.items()}
    for path, expected in parts.items():
        if path.is_file() and hash_file(path) != expected:
            raise UserError(_not_what_was_written(path, "its hash is another"))
    if not all(path.is_file() for path in parts):
        (folder / SUMMARY_FILE).unlink()


def _read_own(path: Path, remedy: str) -> dict[str, Any]:
    try:
        content: dict[str, Any] = read_json(path)
    except UserError as error:
        raise UserError(f"{error}; {remedy}") from error
    return content


def _not_what_was_written(path: Path, problem: object) -> str:
    return (
        f"{path}: is not what was written ({problem}); after `rm {path}` the same command writes "
        "it anew"
    )
