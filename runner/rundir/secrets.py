"""Masking of secrets in all that leaves the process: each is replaced by a reference to it.

A secret is the value of an environment variable that a configuration has read by `${oc.env:NAME}`,
or whose name says that it is one. A value stays known after its variable is gone, since a program
may remove it from its environment as soon as it has read it.
"""

from __future__ import annotations

import base64
import html
import json
import logging
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, quote_plus

# Shorter values, and short plain words and numbers, are no secrets and occur in any text.
MIN_SECRET_LENGTH = 4  # characters
_MIN_PLAIN_LENGTH = 8  # of plain words and numbers; shorter secrets are masked as whole words only
_MIN_LINE_LENGTH = 16  # of a line of a secret of several lines, such as a private key
_MIN_BASE64_LENGTH = 12
_REFERENCE = re.compile(r"\$\{oc\.env:\s*([A-Za-z_][A-Za-z0-9_]*)")
_PLAIN = re.compile(r"[A-Za-z]*|[-+.,\d]*")
_SECRET_NAME = re.compile(
    r"SECRET|PASSW(OR)?D|PASSPHRASE|CREDENTIAL|TOKEN(?!I)|KEY(?!BOARD|MAP)", re.IGNORECASE
)
# Variables that paths of this machine are made of, whether a configuration reads them or not
HARMLESS_NAMES = {"HOME", "HOSTNAME", "LOGNAME", "PATH", "PWD", "SHELL", "TMPDIR", "USER"}


@dataclass(frozen=True)
class Spelling:
    """A spelling of a secret, and its replacement."""

    text: str
    reference: str
    whole_word: bool  # a short text, or a number, which may be a part of another number

    def replace_in(self, text: str) -> str:
        if self.text not in text:
            return text
        if not self.whole_word:
            return text.replace(self.text, self.reference)
        pattern = rf"(?<![A-Za-z0-9])(?<!\d\.){re.escape(self.text)}(?![A-Za-z0-9]|\.\d)"
        return re.sub(pattern, lambda _: self.reference, text)


# secret -> its variable, and whether the variable's name says that it is one
_by_value: dict[str, tuple[str, bool]] = {}
# by `everything` of `known_spellings`
_spellings_of: dict[bool, tuple[Spelling, ...]] = {False: (), True: ()}
_environment: dict[str, str] = {}  # the environment when it was last searched


def note_reference(name: str) -> None:
    """Note that a configuration has read a variable of the environment, whose value is masked."""
    if name not in HARMLESS_NAMES and name in os.environ:
        _add(name, os.environ[name], named=_SECRET_NAME.search(name) is not None)


def note_references(texts: Iterable[str]) -> None:
    """Note the variables that overrides name, since a message may quote one before it is read."""
    for text in texts:
        for name in _REFERENCE.findall(text):
            note_reference(name)


def _add(name: str, value: str, *, named: bool) -> None:
    is_plain = len(value) < _MIN_PLAIN_LENGTH and _PLAIN.fullmatch(value)
    if len(value) < MIN_SECRET_LENGTH or is_plain:
        return
    if value in _by_value and _by_value[value][1] >= named:
        return
    _by_value[value] = name, named
    for everything in (False, True):
        spellings = {
            text: Spelling(
                text,
                f"${{oc.env:{name}}}",
                len(text) < _MIN_PLAIN_LENGTH or not text.strip("0123456789"),
            )
            for value, (name, named) in _by_value.items()
            if everything or named
            for text in _spell(value)
        }
        # longer ones first, since one may contain another
        _spellings_of[everything] = tuple(
            sorted(spellings.values(), key=lambda f: len(f.text), reverse=True)
        )


def _spell(value: str) -> set[str]:
    """Return the spellings of a secret in JSON, Python, URLs, HTML and base64, and long lines."""
    texts = {value}
    if "\n" in value:
        texts |= {line for line in value.splitlines() if len(line) >= _MIN_LINE_LENGTH}
    spellings = set(texts)
    for text in texts:
        spellings |= {json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}
        spellings |= {repr(text)[1:-1], html.escape(text)}
        spellings |= {quote(text), quote(text, safe=""), quote_plus(text)}
        raw = text.encode(errors="surrogateescape")
        for shift in range(3):  # the bytes before it decide the alignment of its bits
            encoded = base64.b64encode(bytes(shift) + raw).decode()
            core = encoded[-(-shift * 8 // 6) : (shift + len(raw)) * 8 // 6]
            if len(core) >= _MIN_BASE64_LENGTH:
                spellings |= {core, core.replace("+", "-").replace("/", "_")}
    return spellings


def known_spellings(*, everything: bool = True) -> tuple[Spelling, ...]:
    """Return every spelling of every secret, longer ones first.

    Args:
        everything: whether values count that a configuration has read from variables whose names
            do not say that they are secrets, such as a path. They do not count in files whose
            values are read back.
    """
    global _environment
    now = os.environ.copy()
    if now != _environment:
        _environment = now
        for name, value in now.items():
            if _SECRET_NAME.search(name):
                _add(name, value, named=True)
    return _spellings_of[everything]


def mask_secrets(text: str, *, everything: bool = True) -> str:
    """Replace secrets in a text by references to them; `everything` as in `known_spellings`."""
    return _mask_text(text, known_spellings(everything=everything))


def _mask_text(text: str, spellings: tuple[Spelling, ...]) -> str:
    for spelling in spellings:
        text = spelling.replace_in(text)
    return text


def mask_values(value: Any, *, everything: bool = True) -> Any:
    """Replace secrets in all texts of a JSON value, keys included; numbers stay as they are."""
    spellings = known_spellings(everything=everything)
    return _mask_node(value, spellings) if spellings else value


def _mask_node(value: Any, spellings: tuple[Spelling, ...]) -> Any:
    if isinstance(value, str):
        return _mask_text(value, spellings)
    if isinstance(value, Mapping):
        return {_mask_node(k, spellings): _mask_node(v, spellings) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_mask_node(v, spellings) for v in value]
    return value


class SecretMaskingFormatter(logging.Formatter):
    """A formatter that masks secrets in messages and tracebacks."""

    def format(self, record: logging.LogRecord) -> str:
        return mask_secrets(super().format(record))
