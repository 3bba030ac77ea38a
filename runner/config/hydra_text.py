"""Writes overrides in command-line syntax."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping

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
    text = text.replace("${", "\\${")  # OmegaConf would resolve it
    return "'" + text.replace("\\'", "\\\\'").replace("'", "\\'") + "'"


def hydra_mapping(numbers: Mapping[str, float]) -> str:
    """Return numbers by name in Hydra's syntax, with a backslash before special characters."""
    names = {name: re.sub(r"([\\()\[\]{}:=, \t])", r"\\\1", name) for name in numbers}
    return "{" + ", ".join(f"{names[name]}: {number:g}" for name, number in numbers.items()) + "}"


def shell_override(key: str, path: object) -> str:
    """Return `key=path`, quoted for a shell and for Hydra, which then reads the path unchanged."""
    word = f"{key}={quote_hydra_value(str(path))}"
    return f'"{word}"' if "'" in word and not re.search(r'["$`\\!]', word) else shlex.quote(word)
