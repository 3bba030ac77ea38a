"""Reads text files, plain or compressed, in blocks of whole rows."""

from __future__ import annotations

import os
import shlex
from collections.abc import Generator
from dataclasses import dataclass
from typing import IO

import pyarrow as pa

from runner.data.files.file_list import DataFile
from runner.data.files.text_lines import is_outside_quotes, mask_line_breaks
from runner.errors import DataError, shell_path

BLOCK_BYTES = 1 << 23
MAX_LINE_BYTES = 1 << 26
DELIMITERS = ",;|\t"  # tried if none is set
TAIL_BYTES = 1 << 16  # in which the last line break of a block usually is
CODECS = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\x28\xb5\x2f\xfd": "zstd"}  # by the first bytes
UNREADABLE = {
    b"PK\x03\x04": "a ZIP archive, as .npz and .pt files are, or an Excel file: unpack it, or "
    "write its table as Parquet, or save the sheet as CSV",
    b"\xd0\xcf\x11\xe0": "an Excel file: save the sheet as CSV",
    b"\xfd7zXZ": "compressed with xz: unpack it, or compress it with zstd, gzip or bzip2",
    b"\x04\x22\x4d\x18": "compressed with lz4: unpack it, or compress it with zstd, gzip or bzip2",
    b"PAR1": "a Parquet file: dataset=parquet",
    **{
        magic: f"{kind}: write its table as Parquet, such as with to_parquet of pandas"
        for magic, kind in (
            *((b"\x80" + bytes([protocol]), "a pickle") for protocol in range(2, 6)),
            (b"\x93NUMPY", "an array of NumPy"),
            (b"\x89HDF", "an HDF5 file"),
            (b"SQLite format 3", "a database of SQLite"),
        )
    },
}
BINARY_FORMATS = {
    b"PAR1": "parquet",
    b"ARROW1": "arrow",
    b"ORC": "orc",
    b"Obj\x01": "avro",
}  # by the first bytes of a file
# Errors that Arrow raises for damaged texts, compressed or not
TEXT_ERRORS = (pa.ArrowException, OSError, UnicodeDecodeError)


def unpack_command(file: DataFile) -> str:
    """Return the shell command that writes the uncompressed content of a file."""
    packer = {".gz": "gzip -dc", ".bz2": "bzip2 -dc", ".zst": "zstd -dc"}
    return f"{packer.get(os.path.splitext(file.name)[1], 'cat')} {shell_path(file)}"


def new_name(file: DataFile, name: str) -> str:
    """Return a file name for a shell's output, which differs from its input."""
    return shlex.quote(f"new_{file.name}") if file.name.endswith(name) else name


@dataclass(frozen=True)
class TextBlocks:
    """Consecutive blocks of a plain text file, and the number of lines before them."""

    spans: tuple[tuple[int, int], ...]  # the first byte and the end of each block
    num_lines: int = 0  # before them


def find_binary_format(path: str) -> str:
    """Return the format of a local file by its first bytes, whatever its ending; empty for text."""
    if not os.path.isfile(path):
        return ""
    with open(path, "rb") as file:
        start = file.read(8)
    return next((f for magic, f in BINARY_FORMATS.items() if start.startswith(magic)), "")


def read_blocks(
    file: DataFile,
    num_bytes: int,
    blocks: TextBlocks | None = None,
    quote: str = "",
    delimiters: str = DELIMITERS,
) -> Generator[bytes]:
    """Yield the uncompressed content of a file, in blocks that end with a row.

    Args:
        blocks: the ones to read; None: all.
        quote: the character around values that may have line breaks; empty: a line is a row.
        delimiters: characters that may separate values.

    Raises:
        DataError: for a file of another kind, and for a line without end.
    """
    if blocks is not None:
        with file.open() as handle:
            for begin, end in blocks.spans:
                handle.seek(begin)
                if (block := handle.read(end - begin)).strip(b"\r\n"):
                    yield block
        return
    with file.open() as handle, _unpack(handle, file) as stream:
        rest, data = b"", stream.read(num_bytes)
        _check_text(data[:4096], file)
        while following := stream.read(num_bytes) if data else b"":
            if cut := _last_cut(data, quote.encode(), delimiters, before=rest):
                if (block := rest + data[:cut]).strip(b"\r\n"):
                    yield block
                rest = b""
            elif len(rest) > MAX_LINE_BYTES:
                raise DataError(f"{file}: a line of over {len(rest):,} bytes: is it a text file?")
            rest, data = rest + data[cut:], following
        if (rest + data).strip(b"\r\n"):
            yield rest + data


def find_blocks(file: DataFile, num_bytes: int) -> list[tuple[int, int]]:
    """Return the positions of the blocks of `read_blocks`; none for a compressed or remote file.

    Raises:
        DataError: for a file of another kind.
    """
    if file.remote is not None:
        return []
    size, cuts = file.size(), [0]
    with file.open() as handle:
        if _unpack(handle, file) is not handle:
            return []
        for end in range(num_bytes, size, num_bytes):
            handle.seek(end - min(TAIL_BYTES, num_bytes))
            if b"\n" not in (data := handle.read(min(TAIL_BYTES, num_bytes))):
                handle.seek(end - num_bytes)
                data = handle.read(num_bytes)
            if cut := _last_cut(data):
                cuts.append(end - len(data) + cut)
    spans = list(zip(cuts, [*cuts[1:], size]))
    is_text = all(end - begin <= MAX_LINE_BYTES for begin, end in spans)
    return spans if is_text else []  # the error is reported when it is read in one pass


def _last_cut(
    data: bytes, quote: bytes = b"", delimiters: str = DELIMITERS, before: bytes = b""
) -> int:
    """Return the position after the last row that ends in some bytes; 0 if none ends.

    If no row ends, a value lacks its closing quote, or is larger: then the last line is the end.

    Args:
        before: the beginning of the row that these bytes continue.
    """
    last = _end_of_lines(data)
    text = before + data[:last]
    if not quote or is_outside_quotes(text, delimiters, quote):
        return last
    masked, _ = mask_line_breaks(text, delimiters, quote)
    cut = _end_of_lines(masked) - len(before)
    return cut if cut > 0 else last


def _end_of_lines(data: bytes) -> int:
    return (data.rfind(b"\n") + 1) or (data.rfind(b"\r") + 1)


def _unpack(handle: IO[bytes], file: DataFile) -> IO[bytes] | pa.NativeFile:
    """Return a reader of the uncompressed content, chosen by the first bytes.

    Raises:
        DataError: for a file of another kind.
    """
    start = handle.read(4096)
    handle.seek(0)
    for magic, codec in CODECS.items():
        if start.startswith(magic):
            return pa.CompressedInputStream(pa.PythonFile(handle, "r"), codec)
    _check_text(start, file)
    return handle


def _check_text(start: bytes, file: DataFile) -> None:
    """Check that the first uncompressed bytes of a file may be text.

    Raises:
        DataError: for a file of another kind.
    """
    for magic, problem in UNREADABLE.items():
        if start.startswith(magic):
            raise DataError(f"{file}: is {problem}")
    if start[257:262] == b"ustar":
        raise DataError(f"{file}: is a tar archive: unpack it with tar -xf, and name a file of it")
    if b"\x00" in start:
        # every second byte of Latin letters, digits and delimiters in UTF-16
        fix = "write its table as Parquet or CSV"
        if start[:2] in (b"\xff\xfe", b"\xfe\xff") or start.count(0) > len(start) // 3:
            name = shell_path(file)
            converted = new_name(file, "utf8.csv")
            fix = f"if it is UTF-16, iconv -f UTF-16 -t UTF-8 {name} > {converted} converts it"
        raise DataError(f"{file}: is no text in UTF-8: it has bytes of value 0; {fix}")
