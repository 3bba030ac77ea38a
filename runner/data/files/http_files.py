"""Reads a file on a web server in ranges. A failed request is repeated after a wait."""

from __future__ import annotations

import io
import os
import re
from functools import cache
from typing import IO, Any, cast
from urllib.parse import urlsplit

ATTEMPTS, FIRST_WAIT_S = 10, 0.05  # waits double: a request is repeated for about 25 s
FAILED = (429, 500, 502, 503, 504)  # statuses after which a request is repeated


def open_url(url: str) -> tuple[IO[bytes], str]:
    """Open a file, and return it with its ETag, empty if the server gives none.

    Raises:
        FileNotFoundError: if the server does not have the file.
        OSError: if the request fails.
    """
    raw = _RangeReader(url)
    # one buffered request serves small reads, such as those of a footer
    return cast(IO[bytes], io.BufferedReader(raw, 1 << 16)), raw.etag


class _RangeReader(io.RawIOBase):
    """Reads each range with a separate request.

    A server without support of ranges sends the whole file at once, which is kept in memory.
    """

    def __init__(self, url: str) -> None:
        self._url, self._position, self._whole = url, 0, b""
        response = _get(url, "bytes=0-0")
        # of x.csv.gz the file itself is called compressed; x.csv only arrives so, and as a whole
        is_packed = urlsplit(url).path.lower().endswith((".gz", ".bz2", ".zst"))
        encoding = response.headers.get("Content-Encoding", "").lower()
        if encoding in response.CONTENT_DECODERS and not is_packed:
            response = _get(url, "")
        self.etag = response.headers.get("ETag", "")
        total = re.fullmatch(r"bytes 0-0/(\d+)", response.headers.get("Content-Range", ""))
        if response.status == 206 and total:
            self.size = int(total[1])
        else:  # also for an empty file, which has no range
            self._whole = response.data if response.status == 200 else b""
            self.size = len(self._whole)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size}[whence]
        self._position = max(start + offset, 0)
        return self._position

    def readinto(self, buffer: Any) -> int:
        count = max(min(len(buffer), self.size - self._position), 0)
        if not count:
            return 0
        end = self._position + count
        content = self._whole[self._position : end] if self._whole else self._read_range(end)
        buffer[:count] = content
        self._position = end
        return count

    def _read_range(self, end: int) -> bytes:
        response = _get(self._url, f"bytes={self._position}-{end - 1}")
        etag, content = response.headers.get("ETag", ""), cast(bytes, response.data)
        if etag != self.etag or len(content) != end - self._position:
            problem = f"its ETag was {self.etag or 'none'} and is {etag or 'none'}"
            if etag == self.etag:
                problem = f"the server sent {len(content):,} bytes of {end - self._position:,}"
            raise OSError(f"was changed while it was read ({problem}); start again")
        return content


def _get(url: str, range_: str) -> Any:
    """Return the response of a server with its content.

    Args:
        range_: of bytes, which are not decompressed; empty: the whole file, decompressed.

    Raises:
        FileNotFoundError: if the server does not have the file.
        OSError: if the request fails.
    """
    import urllib3

    parsed = urllib3.util.parse_url(url)
    # a compressed response would not contain the bytes of the range
    headers = urllib3.util.make_headers(accept_encoding="identity", basic_auth=parsed.auth)
    try:
        address = parsed._replace(auth=None).url
        headers |= {"Range": range_} if range_ else {}
        response = _pool(os.getpid()).request(
            "GET", address, headers=headers, decode_content=not range_
        )
    except urllib3.exceptions.HTTPError as error:
        reason = getattr(error, "reason", None) or error
        raise OSError(f"the server does not answer ({reason})") from error
    if response.status in (404, 410):
        raise FileNotFoundError(url)
    if response.status not in (200, 206, 416):
        raise OSError(f"the server answers {response.status} {response.reason}")
    return response


@cache
def _pool(pid: int) -> Any:
    """Return the connection pool of this process; a forked process gets another."""
    import urllib3

    retry = urllib3.Retry(
        ATTEMPTS - 1, backoff_factor=FIRST_WAIT_S, status_forcelist=FAILED, raise_on_status=False
    )
    return urllib3.PoolManager(retries=retry, timeout=urllib3.Timeout(connect=5, read=20))
