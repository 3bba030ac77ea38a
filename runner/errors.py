"""Errors that a user can cause. Everything else is a bug or the machine, and exits with 1."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Configuration or input is wrong: one clear message, no traceback, exit code 2."""


class ConfigError(UserError):
    """A key, value or combination in the configuration."""


class DataError(UserError):
    """A file, column, row or value in the data; the message names it."""


def nearest_hint(name: str, known: Iterable[str], count: int = 1) -> str:
    """`; nearest: 'x'` for an error message, or nothing when no known name is alike."""
    close = difflib.get_close_matches(str(name), [str(k) for k in known], n=count, cutoff=0.5)
    return f"; nearest: {', '.join(repr(c) for c in close)}" if close else ""


def combined_error(problems: Iterable[str]) -> ConfigError:
    """One error out of several messages, so that all mistakes of a command are told at once."""
    found = list(dict.fromkeys(problems))
    if len(found) == 1:
        return ConfigError(found[0])
    listed = "\n".join(f"  {i}. {p}" for i, p in enumerate(found, 1))
    return ConfigError(f"{len(found)} mistakes\n{listed}")


def raise_combined(problems: Iterable[str]) -> None:
    """Raise one error with all messages, or nothing if there is none.

    Raises:
        ConfigError: with every message.
    """
    found = list(problems)
    if found:
        error = combined_error(found)
        raise error


def nearest_keys(key: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Dotted keys alike, best first, judged by the whole and by the last part: `lr` is nearest to
    `optimizer.dense.lr`, `trainer.max_step` to `trainer.max_steps`."""
    last = key.split(".")[-1]

    def alike(other: str) -> float:
        whole = difflib.SequenceMatcher(None, key, other).ratio()
        ends = difflib.SequenceMatcher(None, last, other.split(".")[-1]).ratio()
        return max(whole, 0.95 * ends + 0.05 * whole)

    scored = sorted(((alike(k), k) for k in known), reverse=True)
    return [k for score, k in scored[:count] if score >= 0.6 and score >= scored[0][0] - 0.02]
