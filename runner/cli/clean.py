"""`clean [DIR...]`: lists runs without a result; with --yes deletes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runner.cli.verb_parser import VerbParser
from runner.errors import UserError


def clean(words: Sequence[str], allow: Sequence[str]) -> int:
    """List or delete failed runs and runs that ended before their first checkpoint.

    With --interrupted also those that could be resumed; with --older-than AGE only those of that
    age, including finished ones.

    Raises:
        UserError: for an unknown flag, or a missing folder.
    """
    from runner.data.columns.split_setting import parse_duration
    from runner.reporting.report.cleanup import delete_runs, plan_cleanup, show_cleanup

    args = make_parser().parse(words)
    folders = [Path(w) for w in args.folders] or [Path("outputs")]
    for folder in folders:
        if not folder.is_dir():
            raise UserError(
                f"clean {folder}: no such folder; name one that holds runs, as in clean outputs"
            )
    age_s = parse_duration(args.older_than) if args.older_than else None
    if args.older_than and age_s is None:
        raise UserError(
            f"clean --older-than {args.older_than}: must be an age such as 30min, 12h, 7d or 4w"
        )
    plan = plan_cleanup(folders, interrupted=args.interrupted, older_than_s=age_s)
    show_cleanup(plan)
    if not plan.removable:
        return 0
    if not args.yes:
        print("nothing was deleted; --yes deletes them")
        return 0
    return 0 if delete_runs(plan.removable) else 1


def make_parser() -> VerbParser:
    """Return the parser of the words after `clean`."""
    parser = VerbParser(
        "clean",
        "List runs that failed or ended before their first checkpoint; delete them with --yes.",
        examples=("clean", "clean outputs/sweeps --interrupted --older-than 7d --yes"),
    )
    parser.add_words("folders", "DIR", "where to look; default: outputs")
    parser.add_value(
        "--older-than", "AGE", "only runs of this age, finished ones too, such as 12h, 7d, 4w"
    )
    parser.add_switch("--interrupted", "also runs that could be resumed")
    parser.add_switch("--yes", "delete what is listed")
    return parser
