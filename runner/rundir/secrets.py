"""Values of the environment that a configuration refers to: whatever is told, no file has them."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

_REFERENCE = re.compile(r"\$\{oc\.env:\s*([A-Za-z_][A-Za-z0-9_]*)")
MIN_SECRET_LENGTH = 4  # characters; shorter ones are no secrets, and come up in any text


def secret_values(config: Mapping[str, Any]) -> dict[str, str]:
    """Value -> the reference that stands for it, of every `${oc.env:KEY}` in a configuration whose
    references are not resolved. Longer values first, since one may be part of another."""
    keys = dict.fromkeys(key for text in _texts(config) for key in _REFERENCE.findall(text))
    found = {os.environ[key]: f"${{oc.env:{key}}}" for key in keys if key in os.environ}
    return {
        v: found[v] for v in sorted(found, key=len, reverse=True) if len(v) >= MIN_SECRET_LENGTH
    }


def mask_secrets(text: str, values: Mapping[str, str]) -> str:
    for value, reference in values.items():
        text = text.replace(value, reference)
    return text


class SecretMaskingFormatter(logging.Formatter):
    """Of messages and tracebacks."""

    def __init__(self, layout: str, values: Mapping[str, str]) -> None:
        super().__init__(layout)
        self._values = values

    def format(self, record: logging.LogRecord) -> str:
        return mask_secrets(super().format(record), self._values)


def _texts(node: Any) -> Iterator[str]:
    if isinstance(node, Mapping):
        for value in node.values():
            yield from _texts(value)
    elif isinstance(node, list | tuple):
        for value in node:
            yield from _texts(value)
    elif isinstance(node, str):
        yield node
