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
    """Return `key=path` as a word for a shell, of which Hydra reads the path as it is."""
    word = f"{key}={quote_hydra_value(str(path))}"
    return f'"{word}"' if "'" in word and not re.search(r'["$`\\!]', word) else shlex.quote(word)
