"""Writes overrides in command-line syntax."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from typing import Any

_NO_TEXTS = ("null", "true", "false", "nan", "inf")  # words of another type in Hydra's grammar


def is_override(word: str) -> bool:
    """Return whether a word changes settings; a folder `lr=0.1` or `~/runs`, or a URL, does not."""
    has_form = "=" in word or (word.startswith("~") and not word.startswith("~/"))
    return has_form and "://" not in word.partition("=")[0] and not os.path.exists(word)


def quote_hydra_value(text: str) -> str:
    """Return a path as a value in Hydra's grammar."""
    is_word = text[:1].isalpha() and text.lower() not in _NO_TEXTS
    is_text = is_word or "/" in text or text.endswith(".yaml")
    if is_text and re.fullmatch(r"[A-Za-z0-9_/.@%+-]+", text):
        return text
    return _quote(text, "single")


def hydra_value(value: Any) -> str:
    """Return a value of a configuration, such as a list of mappings, in Hydra's grammar."""
    from hydra._internal.grammar.utils import escape_special_characters

    if isinstance(value, Mapping):
        items = (f"{escape_special_characters(k)}: {hydra_value(v)}" for k, v in value.items())
        return f"{{{', '.join(items)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(hydra_value, value))}]"
    if isinstance(value, str):
        return _quote(value, "double")
    return "null" if value is None else str(value).lower()  # as in YAML: true, inf


def _quote(text: str, quote: str) -> str:
    from hydra.core.override_parser.types import Quote, QuotedString

    text = text.replace("${", "\\${")  # OmegaConf would resolve it
    return QuotedString(text, Quote[quote]).with_quotes()


def shell_override(key: str, path: object) -> str:
    """Return `key=path`, quoted for a shell and for Hydra, which then reads the path unchanged."""
    word = f"{key}={quote_hydra_value(str(path))}"
    return f'"{word}"' if "'" in word and not re.search(r'["$`\\!]', word) else shlex.quote(word)
