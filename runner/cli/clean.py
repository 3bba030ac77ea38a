"""`clean [DIR...]`: takes away runs that came to nothing. Shows them first; --yes deletes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from runner.errors import UserError

_FLAGS = ("--older-than",)
_SWITCHES = ("--yes", "--interrupted")
_AGE = re.compile(r"(\d+(?:\.\d+)?)(min|h|d|w)")
_SECONDS = {"min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def clean(words: Sequence[str], allow: Sequence[str]) -> int:
    """Failed runs and those that ended before their first checkpoint; with --interrupted also
    those that could be resumed, with --older-than AGE also finished ones of that age."""
    from runner.cli.report import parse_verb_flags
    from runner.reporting.report.cleanup import delete_runs, plan_cleanup, show_cleanup

    given, flags = parse_verb_flags("clean", words, _FLAGS, _SWITCHES)
    folders = [Path(w) for w in given] or [Path("outputs")]
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"clean {folder}: no such folder; clean [DIR...], outputs by default")
    age_s = _age(flags["--older-than"]) if "--older-than" in flags else None
    found = plan_cleanup(folders, interrupted="--interrupted" in flags, older_than_s=age_s)
    show_cleanup(found)
    if not found.removable:
        return 0
    if "--yes" not in flags:
        print("nothing was deleted; --yes deletes them")
        return 0
    return 0 if delete_runs(found.removable) else 1


def _age(text: str) -> float:
    """Seconds. Raises: UserError."""
    match = _AGE.fullmatch(text)
    if match is None:
        raise UserError(f"clean --older-than {text}: an age such as 30min, 12h, 7d or 4w")
    return float(match[1]) * _SECONDS[match[2]]
