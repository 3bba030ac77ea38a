"""Writes overrides as a command line has them."""

from __future__ import annotations

import re
import shlex


def quote_hydra_value(text: str) -> str:
    """Return a path as a value in Hydra's grammar."""
    if re.fullmatch(r"[A-Za-z0-9_/.@%+-]+", text) and ("/" in text or text.endswith(".yaml")):
        return text
    return "'" + text.replace("\\'", "\\\\'").replace("'", "\\'") + "'"


def shell_override(key: str, path: object) -> str:
    """Return `key=path`, quoted for a shell and for Hydra, which then reads the path unchanged."""
    word = f"{key}={quote_hydra_value(str(path))}"
    return f'"{word}"' if "'" in word and not re.search(r'["$`\\!]', word) else shlex.quote(word)
