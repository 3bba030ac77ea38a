"""Checks shared by the settings of this subpackage. This module imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

from runner.config_key import Key
from runner.errors import ConfigError, raise_combined, unknown_setting

FROM_ZERO = Annotated[float, Key(ge=0)]


def find_unknown_keys(
    settings: Iterable[str], known: Sequence[str], key: str, owner: str
) -> Iterator[str]:
    """Yield a message for each unknown setting, with the nearest known one.

    Args:
        known: all names of `owner`.
        key: the dotted key of the settings.
        owner: what the settings belong to, for the message.
    """
    return (unknown_setting(key, str(name), owner, known) for name in settings if name not in known)


def check_pattern_entry(
    entry: Any, known: Sequence[str], key: str, owner: str, *, example: str
) -> str:
    """Check an entry of a list of settings for parameters, and return its pattern.

    Args:
        entry: an item of the list, which should be a mapping with a `pattern`.
        known: all keys that an entry may have.
        key: the dotted key of the entry.
        owner: what the entry describes, for the message.
        example: keys of an entry as a user writes them, for the message.

    Raises:
        ConfigError: if the entry is not a mapping, has an unknown key, or has no pattern.
    """
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{key}={entry!r}: write {{{example}}}")
    raise_combined(find_unknown_keys(entry, known, key, owner))
    pattern = entry.get("pattern")
    if not isinstance(pattern, str) or not pattern:
        raise ConfigError(f"{key}.pattern: is missing; give a regular expression for names")
    return pattern
