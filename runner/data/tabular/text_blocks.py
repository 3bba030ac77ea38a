"""The content of text files, plain or compressed, in blocks of whole lines."""

from __future__ import annotations

from collections.abc import Generator
from typing import IO

import pyarrow as pa

from runner.data.tabular.file_list import DataFile
from runner.errors import DataError

BLOCK_BYTES = 1 << 23
MAX_LINE_BYTES = 1 << 26
CODECS = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\x28\xb5\x2f\xfd": "zstd"}  # by the first bytes
UNREADABLE = {
    b"PK\x03\x04": "a ZIP archive or an Excel file: unpack it, or save the sheet as CSV",
    b"\xd0\xcf\x11\xe0": "an Excel file: save the sheet as CSV",
    b"\xfd7zXZ": "compressed with xz: unpack it, or compress it with zstd, gzip or bzip2",
    b"PAR1": "a Parquet file: dataset=parquet",
}
# What Arrow raises for damaged texts, compressed or not
TEXT_ERRORS = (pa.ArrowException, OSError, UnicodeDecodeError)


def read_blocks(file: DataFile, num_bytes: int) -> Generator[bytes]:
    """Yield the content of a file, unpacked, in blocks that end with a line.

    Raises:
        DataError: for a file of another kind, and for a line without end.
    """
    with file.open() as handle, _unpack(handle, file) as stream:
        rest, data = b"", stream.read(num_bytes)
        while following := stream.read(num_bytes) if data else b"":
            cut = (data.rfind(b"\n") + 1) or (data.rfind(b"\r") + 1)
            if cut:
                if (block := rest + data[:cut]).strip(b"\r\n"):
                    yield block
                rest = b""
            elif len(rest) > MAX_LINE_BYTES:
                raise DataError(f"{file}: a line of over {len(rest):,} bytes: is it a text file?")
            rest, data = rest + data[cut:], following
        if (rest + data).strip(b"\r\n"):
            yield rest + data


def _unpack(handle: IO[bytes], file: DataFile) -> IO[bytes] | pa.NativeFile:
    """Return what reads the plain content; of what file it is, its first bytes say.

    Raises:
        DataError: for a file of another kind.
    """
    start = handle.read(4096)
    handle.seek(0)
    for magic, problem in UNREADABLE.items():
        if start.startswith(magic):
            raise DataError(f"{file}: is {problem}")
    for magic, codec in CODECS.items():
        if start.startswith(magic):
            return pa.CompressedInputStream(pa.PythonFile(handle, "r"), codec)
    if b"\x00" in start:
        raise DataError(
            f"{file}: is no text in UTF-8: it has bytes of value 0; iconv -f UTF-16 -t UTF-8 FILE "
            "> FILE.utf8 converts UTF-16"
        )
    return handle
