"""Masks secrets in the standard output and error of this process.

Names and values from a run directory or a data file may hold control sequences of a terminal: a new
title, text for the clipboard, an answer typed for the user. None of them reaches a terminal.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any

from runner.rundir.secrets import known_spellings, mask_secrets

_CONTROLS = r"[\x00-\x08\x0b-\x1f\x7f-\x9f]"
_PLAIN = re.compile(_CONTROLS)
_COLOURED = re.compile(rf"(?P<kept>\x1b\[[\d;]*m)|{_CONTROLS}")
# handlers that refuse what an encoding lacks; the second is that of locales such as C
_RAISING = ("strict", "surrogateescape")
_DRAWN = re.compile(rf"(?P<kept>\r|\x1b\[[0-?]*[ -/]*[@-~])|{_CONTROLS}")  # views move the cursor


def replace_controls(text: str, *, colours: bool = False) -> str:
    """Return a text with `?` for control characters other than line breaks and tabs.

    Args:
        text: with names or values from an unknown source.
        colours: whether the text has our own colours, which stay.
    """
    return _replace(_COLOURED if colours else _PLAIN, text)


def _replace(pattern: re.Pattern[str], text: str) -> str:
    return pattern.sub(lambda found: found[0] if found.lastgroup else "?", text)


class MaskingBuffer(io.BufferedIOBase):
    """The bytes of a stream. A possible beginning of a secret is held until the next write.

    After a line break nothing is held. The stream below is never closed.

    Args:
        below: the stream.
        is_optional: whether nothing fails if the reader is gone or the disk is full; then the rest
            is written nowhere.
    """

    def __init__(self, below: IO[bytes], *, is_optional: bool = False) -> None:
        self._below, self._is_optional = below, is_optional
        self._held = b""

    @property
    def name(self) -> Any:
        return self._below.name

    def write(self, data: Any, /) -> int:
        content = self._held + bytes(data)
        num_held = 0 if content.endswith(b"\n") else _length_of_beginning(content)
        self._held = content[len(content) - num_held :]
        self._write_masked(content[: len(content) - num_held])
        return len(data)

    def _write_masked(self, content: bytes) -> None:
        text = content.decode(errors="surrogateescape")
        shown = _replace(_DRAWN, mask_secrets(text))
        with self._as_optional():
            self._below.write(shown.encode(errors="surrogateescape"))

    def write_held(self) -> None:
        """Write the held bytes at the end."""
        held, self._held = self._held, b""
        self._write_masked(held)
        self.flush()

    def flush(self) -> None:
        with self._as_optional():
            self._below.flush()

    @contextmanager
    def _as_optional(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            if not self._is_optional:
                raise
            # buffered output goes there, too; otherwise the interpreter would fail on exit
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)

    def close(self) -> None:
        """Flush, and leave the stream below open, since it belongs to others."""
        if not self.closed and not self._below.closed:
            self.write_held()

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._below.isatty()

    def fileno(self) -> int:
        return self._below.fileno()


def _length_of_beginning(content: bytes) -> int:
    """Return how many bytes at the end may be the beginning of a secret."""
    longest = 0
    for spelling in known_spellings():
        text = spelling.text.encode(errors="surrogateescape")
        for length in range(min(len(text) - 1, len(content)), longest, -1):
            if content.endswith(text[:length]):
                longest = length
                break
    return longest


def open_closed_streams() -> None:
    """Open /dev/null for standard streams that this process was started without.

    A daemon may start it so, as `>&-` does. Files that are opened later would get their
    descriptors, and output would be written into them.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            os.set_inheritable(number, True)  # by the processes of ranks and jobs
            stream = open(  # noqa: SIM115
                number, mode, encoding="utf-8", errors="backslashreplace"
            )
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def mask_standard_streams() -> Callable[[], None]:
    """Mask secrets in all that this process prints from now on, tracebacks included.

    Returns:
        A function that restores the streams; it does nothing if they were masked already.
    """
    masked = {}
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        below = getattr(stream, "buffer", None)
        if below is None or isinstance(below, MaskingBuffer):
            continue  # a stream without a buffer of bytes, such as a notebook's
        stream.flush()
        buffer = MaskingBuffer(below, is_optional=name == "stderr")  # output is on stdout
        wrapper = io.TextIOWrapper(
            buffer,
            encoding=stream.encoding,
            # a run must not fail because the terminal's encoding lacks a character
            errors="backslashreplace" if stream.errors in _RAISING else stream.errors,
            newline="",  # the stream below has no line breaks of its own left to translate
            line_buffering=stream.line_buffering or name == "stderr",
        )
        setattr(sys, name, wrapper)
        masked[name] = stream, wrapper, buffer

    def restore() -> None:
        for name, (stream, wrapper, buffer) in masked.items():
            wrapper.flush()
            buffer.write_held()
            if getattr(sys, name) is wrapper:
                setattr(sys, name, stream)

    return restore
