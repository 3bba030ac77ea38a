"""`histories DIR EVENTS...`: the users of events as rows that `predict` scores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runner.cli.verb_parser import VerbParser, split_run_words
from runner.errors import UserError, shell_path


def histories(words: Sequence[str], allow: Sequence[str]) -> int:
    """Write the histories of all users in some events.

    Raises:
        UserError: for errors in the words, for a run that was not trained on events, and for
            events that cannot be read.
    """
    from runner.launch import print_status
    from runner.serving.predict.make_histories import write_histories

    args = make_parser().parse(words)
    run, inputs, overrides = split_run_words(args.words)
    if not run or not inputs or args.out is None:
        raise UserError(
            "histories: name a run, its events and the file to write: "
            "histories DIR EVENTS... --out users.parquet; --help says more"
        )
    count = write_histories(run, inputs, args.out, overrides=overrides, allow=allow)
    print(f"{count:,} users")
    command = f"predict {shell_path(run)} {shell_path(args.out)} --top-k 10"
    print_status(f"wrote {args.out}; `python -m runner {command}` recommends")
    return 0


def make_parser() -> VerbParser:
    """Return the parser of the words after `histories`."""
    parser = VerbParser(
        "histories",
        "Write a row for each user of a table of events, with the history that a run on\n"
        "interactions would have made: what `predict` takes to find the user's next items.",
        examples=(
            "histories outputs/latest data/events.csv --out users.parquet",
            "histories outputs/mine 'data/day=*/*.parquet' --out u.parquet "
            "dataset.on_bad_rows=skip",
        ),
    )
    parser.add_words(
        "words",
        "DIR EVENTS... KEY=VALUE",
        "the run (of a sweep the best job, of another folder the newest run), then files, "
        "folders, globs or URLs of events with the columns of the training, "
        "and settings that differ from the run's",
    )
    parser.add_value("--out", "FILE", "the Parquet file to write", Path)
    return parser
