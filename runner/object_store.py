"""Object stores by URL, `s3://bucket/key` and `gs://bucket/key`, through Arrow's file systems.

Credentials, the region and the address come from the environment or the store's own files, as its
other tools read them: no configuration names them. Nothing is imported before a URL is used.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from runner.errors import UserError, first_line, nearest_hint

SCHEMES = ("s3", "gs")
# Waits double from 25 ms on: requests to a failing store are repeated for about 25 s.
ATTEMPTS = 10
_GS_RETRY = timedelta(seconds=25)
CONNECT_TIMEOUT_S, REQUEST_TIMEOUT_S = 5.0, 20.0
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_DENIED = re.compile(
    r"ACCESS_DENIED|INVALID_ACCESS_KEY|SIGNATURE|UNRECOGNIZED_CLIENT|EXPIRED|CREDENTIALS|"
    r"HTTP status 40[13]|Permission denied|AccessDenied"
)
_CREDENTIALS = {
    "s3": "credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or by AWS_PROFILE "
    "from ~/.aws",
    "gs": "credentials come from GOOGLE_APPLICATION_CREDENTIALS",
}


class StoreError(UserError):
    """An object store refused a request or does not answer; the message names the URL."""


def is_store_url(text: object) -> bool:
    """Return whether a text is a URL of an object store that Arrow reads and writes."""
    return isinstance(text, str) and text.startswith(tuple(f"{s}://" for s in SCHEMES))


def open_store(url: str) -> tuple[Any, str]:
    """Return Arrow's file system for a URL, and the path in it: `bucket/key`.

    A forked process gets separate connections.

    Raises:
        StoreError: for a URL without a bucket, and one with credentials in it.
    """
    scheme, _, path = url.partition("://")
    bucket = path.partition("/")[0]
    if "@" in bucket or ":" in bucket:
        raise StoreError(
            f"{scheme}://...: a URL of a store is SCHEME://BUCKET/KEY, without credentials or a "
            f"host: {_CREDENTIALS[scheme]}; AWS_ENDPOINT_URL names another address"
        )
    if not bucket:
        raise StoreError(f"{url}: has no bucket: write {scheme}://BUCKET/FOLDER")
    endpoint = next((os.environ[name] for name in _ENDPOINTS if os.environ.get(name)), None)
    return _file_system(scheme, endpoint, os.getpid()), path.rstrip("/")


@lru_cache(maxsize=8)
def _file_system(scheme: str, endpoint: str | None, pid: int) -> Any:
    from pyarrow import fs

    if scheme == "gs":
        return fs.GcsFileSystem(retry_time_limit=_GS_RETRY)
    settings: dict[str, Any] = {}
    if endpoint:
        address = urlsplit(endpoint if "//" in endpoint else f"https://{endpoint}")
        settings = {"endpoint_override": address.netloc, "scheme": address.scheme}
    return fs.S3FileSystem(
        region=os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"),
        connect_timeout=CONNECT_TIMEOUT_S,
        request_timeout=REQUEST_TIMEOUT_S,
        retry_strategy=fs.AwsDefaultS3RetryStrategy(max_attempts=ATTEMPTS),
        allow_delayed_open=True,  # small objects are written by one request
        **settings,
    )


@contextmanager
def store_errors(url: str) -> Iterator[None]:
    """Convert errors of a store to messages that name the URL and the remedy.

    Raises:
        FileNotFoundError: unchanged.
        StoreError: in place of every other error of the store.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreError(f"{url}: {_reason(url, error)}") from error


def _reason(url: str, error: OSError) -> str:
    """Return the remedy for an error of a store."""
    scheme = url.partition("://")[0]
    text = first_line(error)
    if "NO_SUCH_BUCKET" in text:
        return _no_bucket(url)
    if isinstance(error, PermissionError) or _DENIED.search(text):
        return f"access is denied; {_CREDENTIALS[scheme]} ({text})"
    if "NETWORK_CONNECTION" in text or "curlCode" in text:
        return (
            f"the store does not answer; AWS_ENDPOINT_URL and AWS_REGION say where it is ({text})"
        )
    return text


def check_bucket(url: str) -> None:
    """Check that a bucket exists, for a URL where nothing was found.

    Raises:
        StoreError: if it does not exist, with the nearest one.
    """
    files, path = open_store(url)
    bucket = path.partition("/")[0]
    with store_errors(url):
        if files.get_file_info(bucket).type.name == "NotFound":
            raise StoreError(f"{url}: {_no_bucket(url)}")


def _no_bucket(url: str) -> str:
    bucket = url.partition("://")[2].partition("/")[0]
    return f"there is no bucket {bucket!r}{nearest_hint(bucket, _buckets(url))}"


def _buckets(url: str) -> list[str]:
    """Return the names of the buckets; none where listing them is not allowed."""
    from pyarrow import fs

    try:
        return [info.path for info in open_store(url)[0].get_file_info(fs.FileSelector(""))]
    except OSError:
        return []


def etag_of(handle: Any) -> str:
    """Return a store's ETag of an open object; empty if it gives none."""

    def text(value: Any) -> str:
        return value.decode(errors="replace") if isinstance(value, bytes) else str(value)

    metadata = {text(key).lower(): text(v) for key, v in (handle.metadata() or {}).items()}
    return metadata.get("etag", "").strip('"')
