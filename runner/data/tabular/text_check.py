"""Whether a file is a text at all, told in words that pyarrow does not have."""

from __future__ import annotations

import codecs

from runner.data.tabular.file_list import DataFile
from runner.errors import DataError

SAMPLE_BYTES = 1 << 16  # of a text file that are looked at before pyarrow reads it
_OTHER_FORMATS = {  # first bytes of files that are often taken for text
    b"PAR1": "it is Parquet; dataset=parquet reads it",
    b"\x1f\x8b": "it is compressed by gzip; its name must end in .gz",
    b"PK\x03\x04": "it is a zip archive or a spreadsheet; unpack or export it",
    b"ARROW1": "it is an Arrow file",
}


def check_is_text(file: DataFile) -> None:
    """Check that a file begins as a text file, in words that pyarrow does not have.

    Raises:
        DataError: naming the file, and what it is.
    """
    if file.name.endswith(".gz"):
        return
    try:
        with file.open() as handle:
            start = handle.read(SAMPLE_BYTES)
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror or error}") from error
    for magic, hint in _OTHER_FORMATS.items():
        if start.startswith(magic):
            raise DataError(f"{file}: no text file: {hint}")
    if not start.strip():
        raise DataError(f"{file}: has no rows, and no line with names")
    try:
        # the sample may end within a character, of at most four bytes
        text = codecs.getincrementaldecoder("utf-8")().decode(start)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{file}: no text file in UTF-8: byte {start[error.start]:#04x} at position "
            f"{error.start:,}; text files are read as UTF-8"
        ) from error
    if "\0" in text:
        raise DataError(f"{file}: no text file: it has a zero byte at position {start.find(0):,}")
