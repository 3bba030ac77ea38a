"""`clean [DIR...]`: lists runs without a result; with --yes deletes them."""

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
    """List or delete failed runs and runs that ended before their first checkpoint.

    With --interrupted also those that could be resumed, with --older-than AGE also finished ones of
    that age.

    Raises:
        UserError: for a flag that does not exist, or a folder that does not.
    """
    from runner.cli.report import parse_verb_flags
    from runner.reporting.report.cleanup import delete_runs, plan_cleanup, show_cleanup

    given, flags = parse_verb_flags("clean", words, _FLAGS, _SWITCHES)
    folders = [Path(w) for w in given] or [Path("outputs")]
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"clean {folder}: no such folder; clean [DIR...], outputs by default")
    age_s = _age(flags["--older-than"]) if "--older-than" in flags else None
    plan = plan_cleanup(folders, interrupted="--interrupted" in flags, older_than_s=age_s)
    show_cleanup(plan)
    if not plan.removable:
        return 0
    if "--yes" not in flags:
        print("nothing was deleted; --yes deletes them")
        return 0
    return 0 if delete_runs(plan.removable) else 1


def _age(text: str) -> float:
    """Return an age in seconds.

    Raises:
        UserError: if the text is no age.
    """
    match = _AGE.fullmatch(text)
    if match is None:
        raise UserError(f"clean --older-than {text}: an age such as 30min, 12h, 7d or 4w")
    return float(match[1]) * _SECONDS[match[2]]
