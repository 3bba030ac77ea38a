"""The folder of files that are cached between runs."""

from __future__ import annotations

import os
from pathlib import Path

from runner.errors import DataError


def cache_root() -> Path:
    """Return `$RUNNER_CACHE` or, if it is not set, `runner/` in the user's cache folder.

    Raises:
        DataError: if the user has no home folder, such as one without an entry in /etc/passwd.
    """
    if root := os.environ.get("RUNNER_CACHE"):
        return Path(os.path.expanduser(root)).absolute()  # see runner/serving/write_aside.py
    user_cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if user_cache.startswith("~"):
        raise DataError(
            f"there is no folder for prepared data: HOME is not set, and user {os.getuid()} has no "
            "entry in /etc/passwd; RUNNER_CACHE names one"
        )
    return Path(user_cache) / "runner"
