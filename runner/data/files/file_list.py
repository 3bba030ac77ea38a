"""The files of a table, found by a path, a folder, a glob, a list, or a URL."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote

from runner.data.core.file_hashes import hash_file
from runner.data.core.source_files import (
    files_below,
    hash_ends,
    is_file_or_broken_link,
    is_run_directory,
    nearest_path,
    path_setting,
)
from runner.data.files.remote_files import RemoteFiles, find_remote, system_reason
from runner.errors import DataError
from runner.object_store import StoreError

_PACKED = ("", ".gz", ".bz2", ".zst")
SUFFIXES = {
    "parquet": (".parquet", ".pq", ".parq"),
    "csv": tuple(ending + packed for ending in (".csv", ".txt") for packed in _PACKED),
    "tsv": tuple(ending + packed for ending in (".tsv", ".txt") for packed in _PACKED),
    "jsonl": tuple(
        ending + packed for ending in (".jsonl", ".ndjson", ".json") for packed in _PACKED
    ),
    "arrow": (".arrow", ".feather", ".ipc", ".arrows"),
    "orc": (".orc",),
    "avro": (".avro",),
}
# such as clicks_2026-01-31.csv, 20260131.parquet
_DAY_OF_NAME = re.compile(
    r"(?<!\d)((?:19|20)\d\d)[-_]?(0[1-9]|1[0-2])[-_]?(0[1-9]|[12]\d|3[01])(?!\d)"
)
MISSING_PARTITION = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class DataFile:
    """One file; `remote` is None for a local one."""

    path: str
    remote: RemoteFiles | None = field(default=None, compare=False, repr=False)
    protocol: str = ""
    # of folders such as `dt=2026-01-01`: name -> value; None: it is missing
    partitions: Mapping[str, str | None] = field(default_factory=dict, compare=False, repr=False)
    # the ETag at the first opening
    _etags: list[str] = field(default_factory=list, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.protocol}{self.path}"

    @property
    def name(self) -> str:
        return self.path.rstrip("/").rpartition("/")[2]

    def open(self) -> IO[bytes]:
        """Open the file for reading.

        Raises:
            DataError: naming the file, if it cannot be opened, or is on a server and its ETag has
                changed since the first opening.
        """
        try:
            if self.remote is None:
                return open(self.path, "rb")
            handle, etag = self.remote.open(self.path)
        except StoreError as error:
            raise DataError(str(error)) from error
        except (OSError, ValueError) as error:
            raise DataError(f"{self}: cannot be read: {system_reason(error)}") from error
        self._etags[1:] = [etag]
        if self._etags[0] != etag:
            handle.close()
            raise DataError(
                f"{self}: was changed while it was read (its ETag was {self._etags[0]} and is "
                f"{etag}); start again"
            )
        return handle

    def check_unchanged(self) -> None:
        """Check that a file on a server is the same as at its first opening.

        Raises:
            DataError: if it has changed, or is missing.
        """
        if self.remote is not None:
            self.open().close()

    def size(self) -> int:
        if self.remote is None:
            return os.stat(self.path).st_size
        return self.remote.size(self.path)

    def fingerprint(self) -> list[Any]:
        """Return the file's part of the data's fingerprint: name, size and the hash of the content.

        Of a file on a server both ends are hashed; for an object in a store its ETag replaces the
        hash, so that nothing is read.
        """
        with self.open() as file:
            size = self.size()
            if self.remote is None:
                return [self.name, size, hash_file(Path(self.path))]
            if self._etags and self._etags[0] and self.remote.etag_is_content:
                return [self.name, size, f"etag {self._etags[0]}"]
            return [self.name, size, hash_ends(file, size)]


def find_files(paths: str | Sequence[str], format_: str, *, key: str) -> list[DataFile]:
    """Find the files of a setting, each once, sorted by name.

    Args:
        paths: a path, a folder, a glob or a URL, or several of them.
        format_: a key of `SUFFIXES`; in a folder only files with its endings are found.
        key: the setting's name, for messages; empty: the path was given without a setting.

    Raises:
        DataError: for a path that does not exist, and a folder or glob without such files.
    """
    by_path: dict[str, DataFile] = {}
    for path in [paths] if isinstance(paths, str) else paths:
        is_remote = "://" in path
        root = path.partition("://")[2] if is_remote else os.path.abspath(os.path.expanduser(path))
        for file in (_find_remote if is_remote else _find_local)(path, format_, key):
            by_path[str(file)] = replace(file, partitions=_parse_partitions(file.path, root))
    files = _without_links_to_others(list(by_path.values()))
    return sorted(files, key=lambda file: (file.name, str(file)))


def _without_links_to_others(files: Sequence[DataFile]) -> list[DataFile]:
    """Drop links such as `latest` to other files of the list, whose rows would count twice.

    Several links to one file elsewhere all stay: content-addressed stores link equal files so.
    """
    by_target: dict[str, list[DataFile]] = {}
    for file in files:
        target = str(file) if file.remote else os.path.realpath(file.path)
        by_target.setdefault(target, []).append(file)
    targets = []
    for same in by_target.values():
        num_links = [_count_links(Path(file.path)) if len(same) > 1 else 0 for file in same]
        targets += [file for file, num in zip(same, num_links) if num == min(num_links)]
    return targets


def _count_links(path: Path) -> int:
    """Return how many links lead to an existing file."""
    for part in (*reversed(path.parents), path):
        if part.is_symlink():
            target = part.parent / os.readlink(part) / path.relative_to(part)
            return 1 + _count_links(Path(os.path.normpath(target)))
    return 0


def _parse_partitions(path: str, root: str) -> dict[str, str | None]:
    """Return the values of folders `NAME=VALUE`, written as Hive does.

    Below a given folder its subfolders count; of a file or a glob the whole path, as in Arrow.
    """
    folder = f"/{root.partition('/')[2]}".rstrip("/") + "/"  # the host of a URL may be left out
    below = path.partition(folder)[2] or path
    partitions = {}
    for part in below.split("/")[:-1]:
        name, equals, value = part.partition("=")
        if name and equals:
            partitions[unquote(name)] = None if value == MISSING_PARTITION else unquote(value)
    return partitions


def is_rather_note(name: str) -> bool:
    """Return whether a text or JSON file in a folder may well be a note on the data next to it."""
    return name.lower().endswith((".txt", ".json"))


def describe_days_of_names(files: Sequence[DataFile]) -> list[str]:
    """Return a note if each file of a table without a time column is named after a day."""
    matches = [_DAY_OF_NAME.search(os.path.basename(file.path)) for file in files]
    days = ["-".join(match.groups()) for match in matches if match]
    if len(days) < len(files) or len({*days}) < 2:
        return []
    return [
        f"the files are named by days, from {min(days)} to {max(days)}, but no column has the day: "
        f"in folders such as dt={min(days)}/ it becomes a column, by which rows are split"
    ]


def describe_other_formats(path: str, format_: str) -> list[str]:
    """Return a sentence on files in the folder that have rows in another format, if any."""
    path = os.path.expanduser(path)
    if not os.path.isdir(path):
        return []
    endings = {e for endings in SUFFIXES.values() for e in endings}
    other_endings = {e for e in endings - {*SUFFIXES[format_]} if not is_rather_note(e)}
    unread = [name for name in names_in(path) if name.lower().endswith(tuple(other_endings))]
    if not unread:
        return []
    count = "a file" if len(unread) == 1 else f"{len(unread):,} files"
    return [
        f"{count} of another format than {format_} in {path}, such as "
        f"{os.path.relpath(min(unread), path)}, {'is' if len(unread) == 1 else 'are'} not read"
    ]


def _find_local(path: str, format_: str, key: str) -> list[DataFile]:
    path = os.path.expanduser(path)
    if os.path.isfile(path):
        return [DataFile(os.path.abspath(path))]
    if os.path.isdir(path):
        return _select_format(names_in(path), format_, path_setting(key, path))
    if any(c in path for c in "*?["):
        names = [name for name in glob.glob(path, recursive=True) if is_file_or_broken_link(name)]
        if not names:
            raise DataError(f"{path_setting(key, path)}: no file matches{nearest_path(Path(path))}")
        return _check_links(names, path_setting(key, path))
    if os.path.exists(path):
        raise DataError(
            f"{path_setting(key, path)}: is a pipe or a device, and rows are read more than once; "
            "write them to a file first, whose ending says its format"
        )
    raise DataError(f"{path_setting(key, path)}: no such path{nearest_path(Path(path))}")


def names_in(folder: str) -> list[str]:
    """Return the files of a folder, without `_SUCCESS` and similar marker files of writers.

    Raises:
        DataError: if it is a run directory, whose files have no rows.
    """
    if is_run_directory(folder):
        raise DataError(f"{folder}: is a run directory, no data; name the files or their folder")
    return [name for name in files_below(folder) if "/_" not in name[len(folder.rstrip("/")) :]]


def _select_format(names: Sequence[str], format_: str, where: str) -> list[DataFile]:
    selected = [name for name in names if name.lower().endswith(SUFFIXES[format_])]
    if not selected:
        listed = ", ".join(sorted(os.path.basename(name) for name in names)[:5]) or "no files"
        endings = ", ".join(SUFFIXES[format_])
        raise DataError(
            f"{where}: has no file that ends in {endings} (there are: {listed}); "
            "`python -m runner ls dataset` lists the other formats"
        )
    return _check_links(selected, where)


def _check_links(names: Sequence[str], where: str) -> list[DataFile]:
    """Return local files.

    Raises:
        DataError: for a broken link, since its rows would be missing.
    """
    for name in names:
        if not os.path.exists(os.path.realpath(name)):  # a glob may follow circular links
            raise DataError(f"{where}: {name}: cannot be read{nearest_path(Path(name))}")
    return [DataFile(os.path.abspath(name)) for name in names]


def _find_remote(url: str, format_: str, key: str) -> list[DataFile]:
    remote, names = find_remote(url, SUFFIXES[format_], key)
    scheme = url.partition("://")[0]
    return [DataFile(n, remote, "" if "://" in n else f"{scheme}://") for n in names]


def check_apart(files: Mapping[str, Sequence[DataFile]]) -> None:
    """Refuse to train on rows that another split evaluates: its results would be meaningless.

    If all files of both are the same, this is intended, such as for an evaluation.

    Raises:
        DataError: naming the splits, the number of files that they share, and the first of them.
    """
    train = {os.path.realpath(str(file)) for file in files["train"]}
    for split in files.keys() - {"train"}:
        split_files = {os.path.realpath(str(file)) for file in files[split]}
        if (shared := sorted(train & split_files)) and train != split_files:
            count = "a file" if len(shared) == 1 else f"{len(shared):,} files"
            raise DataError(
                f"dataset.path and dataset.{split}_path share {count}, such as {shared[0]}: the "
                f"model would be measured on rows it has learnt from; leave the files of {split} "
                "out of dataset.path"
            )
