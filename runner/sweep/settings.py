"""The settings of the launcher: the keys of `conf/launcher/`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from runner.errors import ConfigError, nearest_hint


@dataclass(frozen=True)
class LauncherSettings:
    """How many jobs run at once, how long, and how often."""

    slots: int = 1  # jobs at once
    timeout_s: float | None = None  # of one try of one job
    retries: int = 0  # further tries of a job that failed


def read_launcher_settings(node: Mapping[str, Any] | None) -> LauncherSettings:
    """Return the checked settings of a `launcher` node.

    Raises:
        ConfigError: for an unknown key, or a value that is out of range.
    """
    given = dict(node or {})
    known = [f.name for f in fields(LauncherSettings)]
    for key in given:
        if key not in known:
            raise ConfigError(
                f"launcher.{key}={given[key]}: there is no such key{nearest_hint(key, known)}"
            )
    settings = LauncherSettings(**given)
    if not _is_whole(settings.slots) or settings.slots < 1:
        raise ConfigError(f"launcher.slots={settings.slots}: a whole number of jobs, at least 1")
    if not _is_whole(settings.retries) or settings.retries < 0:
        raise ConfigError(f"launcher.retries={settings.retries}: a whole number, at least 0")
    limit = settings.timeout_s
    if limit is not None and (isinstance(limit, bool | str) or not limit > 0):
        raise ConfigError(f"launcher.timeout_s={limit}: seconds above 0, or null for no limit")
    return settings


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
