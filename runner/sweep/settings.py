"""The launcher's settings: keys of conf/launcher/, declared in config/settings/sweep.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from runner.config.settings import LauncherSettings, make_settings
from runner.config.typecheck import check_types
from runner.errors import raise_combined

__all__ = ["LauncherSettings", "read_launcher_settings"]


def read_launcher_settings(node: Mapping[str, Any] | None) -> LauncherSettings:
    """Return the settings of a `launcher` node; null: the defaults.

    Raises:
        ConfigError: for an unknown key or a value that is not allowed.
    """
    given = dict(node or {})
    problems = check_types({"launcher": given}, {"launcher": asdict(LauncherSettings())}, ())
    raise_combined(problems)
    return make_settings(LauncherSettings, given)
