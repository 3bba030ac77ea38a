"""Masking of secrets: no file has the environment values to which a configuration refers."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

_REFERENCE = re.compile(r"\$\{oc\.env:\s*([A-Za-z_][A-Za-z0-9_]*)")
MIN_SECRET_LENGTH = 4  # characters; shorter values are not secrets and occur in any text


def secret_values(config: Mapping[str, Any]) -> dict[str, str]:
    """Find the values of every `${oc.env:KEY}` in a configuration.

    Args:
        config: a configuration whose references are not resolved.

    Returns:
        Value -> the reference for it, with longer values first, since one may contain another.
    """
    keys = dict.fromkeys(key for text in _texts(config) for key in _REFERENCE.findall(text))
    references = {os.environ[key]: f"${{oc.env:{key}}}" for key in keys if key in os.environ}
    longest_first = sorted(references, key=len, reverse=True)
    return {v: references[v] for v in longest_first if len(v) >= MIN_SECRET_LENGTH}


def mask_secrets(text: str, values: Mapping[str, str]) -> str:
    """Replace secret values in a text by their references."""
    for value, reference in values.items():
        text = text.replace(value, reference)
    return text


class SecretMaskingFormatter(logging.Formatter):
    """A formatter that masks secrets in messages and tracebacks."""

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
