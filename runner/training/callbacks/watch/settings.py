"""Checks of settings that several of these callbacks share."""

from __future__ import annotations

from runner.config.intervals import parse_interval
from runner.errors import ConfigError


def parse_seconds(key: str, value: int | str) -> int:
    """Return the seconds of a duration such as '30min'.

    Raises:
        ConfigError: if the value is not a duration.
    """
    duration = parse_interval(value, key=key, allow_time=True)
    if duration is None or duration.unit != "seconds":
        raise ConfigError(f"{key}={value}: a time, such as '90s', '30min' or '6h'")
    return duration.count
