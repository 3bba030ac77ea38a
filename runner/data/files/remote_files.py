"""Remote files: in object stores through Arrow, on web servers, and at other URLs through fsspec.

Stores and web servers serve ranges of bytes; reads are repeated when a server or connection fails.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable, Sequence
from typing import IO, Protocol

from runner.data.core.source_files import path_setting
from runner.data.files.http_files import open_url
from runner.errors import DataError, nearest_hint
from runner.object_store import (
    StoreError,
    check_bucket,
    etag_of,
    is_store_url,
    open_store,
    store_errors,
)

EXTRAS = {"http": "http", "https": "http"}  # scheme -> extra of this package for listing
_GLOB = re.compile(r"[*?\[]")


class RemoteFiles(Protocol):
    """A source of files that are not on this machine."""

    # whether its ETags identify the content, and not a copy on one of several servers
    etag_is_content: bool = False

    def find(self, url: str, suffixes: Sequence[str]) -> list[str]:
        """Return the files that a URL denotes: itself, or those of a folder or a glob."""

    def open(self, path: str) -> tuple[IO[bytes], str]:
        """Open a file, which is read in ranges, and return its ETag, empty if it has none."""

    def size(self, path: str) -> int:
        """Return the number of a file's bytes."""

    def nearest(self, url: str) -> str:
        """Return a hint at the file nearest to a URL without a file; empty if there is none."""
        return ""


class StoreFiles(RemoteFiles):
    """Objects of a store. Their listed sizes are cached."""

    etag_is_content = True

    def __init__(self, url: str) -> None:
        self._scheme = url.partition("://")[0]
        self._files = open_store(url)[0]
        self._sizes: dict[str, int] = {}

    def find(self, url: str, suffixes: Sequence[str]) -> list[str]:
        from fsspec.utils import glob_translate

        path = open_store(url)[1]
        with store_errors(url):
            if glob := _GLOB.search(path):
                pattern = re.compile(glob_translate(path))
                names = self._list(posixpath.dirname(path[: glob.start()]))
                return [name for name in names if pattern.fullmatch(name)]
            info = self._files.get_file_info(path)
            if info.is_file:
                self._sizes[path] = info.size
                return [path]
            return _select_data(self._list(path), path, suffixes)

    def nearest(self, url: str) -> str:
        """Return a hint at the file nearest to a URL without a file.

        Raises:
            StoreError: if its bucket does not exist.
        """
        path = open_store(url)[1]
        check_bucket(url)
        folder = posixpath.dirname(path[: glob.start()] if (glob := _GLOB.search(path)) else path)
        with store_errors(url):
            names = [posixpath.basename(name) for name in self._list(folder)]
        return nearest_hint(posixpath.basename(path), names)

    def _list(self, folder: str) -> list[str]:
        from pyarrow import fs

        selector = fs.FileSelector(folder, recursive=True, allow_not_found=True)
        infos = [info for info in self._files.get_file_info(selector) if info.is_file]
        self._sizes |= {info.path: info.size for info in infos}
        return [info.path for info in infos]

    def open(self, path: str) -> tuple[IO[bytes], str]:
        with store_errors(f"{self._scheme}://{path}"):
            handle = self._files.open_input_file(path)
            return handle, etag_of(handle)

    def size(self, path: str) -> int:
        return self._sizes[path]


class HttpFiles(RemoteFiles):
    """Files of a web server. Folders and globs are found by the links on its pages."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}

    def find(self, url: str, suffixes: Sequence[str]) -> list[str]:
        if any(c in url for c in "*[") or not url.lower().endswith(tuple(suffixes)):
            return FsspecFiles(url).find(url, suffixes)
        try:
            self.open(url)[0].close()
        except FileNotFoundError:
            return []
        return [url]

    def open(self, path: str) -> tuple[IO[bytes], str]:
        handle, etag = open_url(path)
        self._sizes[path] = handle.seek(0, os.SEEK_END)
        handle.seek(0)
        return handle, etag

    def size(self, path: str) -> int:
        if path not in self._sizes:
            self.open(path)[0].close()
        return self._sizes[path]


class FsspecFiles(RemoteFiles):
    """Files at any other URL that fsspec supports, such as memory:// or abfs://."""

    def __init__(self, url: str) -> None:
        import fsspec

        self._files = fsspec.core.url_to_fs(url)[0]

    def find(self, url: str, suffixes: Sequence[str]) -> list[str]:
        files, path = self._files, self._files._strip_protocol(url)
        if any(c in path for c in "*?["):
            return [str(name) for name in files.glob(path)]
        if files.isdir(path):
            return _select_data(map(str, files.find(path)), path.rstrip("/"), suffixes)
        return [path] if files.exists(path) else []

    def open(self, path: str) -> tuple[IO[bytes], str]:
        return self._files.open(path, "rb"), ""

    def size(self, path: str) -> int:
        return int(self._files.size(path))


def _select_data(names: Iterable[str], folder: str, suffixes: Sequence[str]) -> list[str]:
    """Return files of a folder by their endings, without hidden ones and markers of writers."""
    return [
        name
        for name in names
        if name.lower().endswith(tuple(suffixes))
        and not re.search(r"/[._]", name.removeprefix(folder))
    ]


def _open_files(url: str) -> RemoteFiles:
    if is_store_url(url):
        return StoreFiles(url)
    return HttpFiles() if url.startswith(("http://", "https://")) else FsspecFiles(url)


def find_remote(url: str, suffixes: Sequence[str], key: str) -> tuple[RemoteFiles, list[str]]:
    """Find the files of a URL, and the source that reads them.

    Args:
        url: of a file, a folder or a glob.
        suffixes: endings of the files that are taken from a folder.
        key: the setting's name, for messages; empty: the URL was given without a setting.

    Raises:
        DataError: if nothing is there, or it cannot be read.
    """
    import fsspec

    scheme, where = url.partition("://")[0], path_setting(key, url)
    try:
        files = _open_files(url)
        names = files.find(url, suffixes)
        near = "" if names else files.nearest(url)
    except StoreError as error:
        raise DataError(path_setting(key, error)) from error
    except ValueError as error:
        known = [p for p in fsspec.available_protocols() if isinstance(p, str)]
        raise DataError(f"{where}: {error}{nearest_hint(scheme, known)}") from error
    except ImportError as error:
        extra = EXTRAS.get(scheme)
        install = f": pip install 'runner[{extra}]'" if extra else ""
        raise DataError(
            f"{where}: needs a package that is not installed ({error}){install}"
        ) from error
    except OSError as error:
        raise DataError(f"{where}: cannot be read: {system_reason(error)}") from error
    if not names:
        raise DataError(f"{where}: no such path, or no file matches{near}")
    return files, names


def system_reason(error: BaseException) -> str:
    """Return the system's message of an error, or else its text, or else its class."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
