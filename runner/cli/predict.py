"""`predict DIR INPUT...`: scores the rows of files with the model of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runner.cli.verb_parser import VerbParser, split_run_words
from runner.errors import UserError


def predict(words: Sequence[str], allow: Sequence[str]) -> int:
    """Score files, and print the path of the result.

    Raises:
        UserError: for errors in the words, the settings, the input or the output's folder.
    """
    from runner.serving.predict.plan import make_plan
    from runner.serving.predict.run import predict_files
    from runner.serving.rows.outputs import Outputs

    args = make_parser().parse(words)
    run, inputs, overrides = split_run_words(args.words)
    if inputs and args.split is not None:
        raise UserError(
            f"--split {args.split}: and files cannot be scored together; leave out --split, or "
            f"{inputs[0]}"
        )
    if not run or not (inputs or args.split):
        raise UserError(
            "predict: name a run and what to score: predict DIR INPUT... [--out DIR], or a split "
            "of its own data: predict DIR --split test; --help says more"
        )
    plan = make_plan(
        run,
        inputs,
        split=args.split,
        out=args.out,
        keep=_split_names(args.keep),
        rows=args.rows,
        outputs=Outputs(args.logits, tuple(_split_names(args.embeddings)), args.top_k, args.index),
        overrides=overrides,
        allow=allow,
    )
    predict_files(plan)
    return 0


def make_parser() -> VerbParser:
    """Return the parser of the words after `predict`."""
    parser = VerbParser(
        "predict",
        "Score the rows of files with a run's best checkpoint, and write Parquet files with the\n"
        "rows in the same order. The files have the columns of the training; labels are not read.\n"
        "After a kill the same command makes the missing parts, on any number of ranks.",
        examples=(
            "predict outputs/latest data/new.parquet --keep user,item",
            "predict outputs/mine 'data/day=*/*.csv' --out scores checkpoint.step=last",
            "predict outputs/mine --split test --keep user",
            "predict outputs/mine data/ --top-k 10 trainer.num_processes=2",
        ),
    )
    parser.add_words(
        "words",
        "DIR INPUT... KEY=VALUE",
        "the run (of a sweep the best job, of another folder the newest run), then files, "
        "folders, globs or URLs of any format that a table may have, "
        "and settings that differ from the run's",
    )
    parser.add_value(
        "--split", "NAME", "in place of files: train, validation or test of the run, with labels"
    )
    parser.add_value("--out", "DIR", "default: below outputs/predict", Path)
    parser.add_value("--keep", "COLUMN,...", "columns of the input to carry over")
    parser.add_value("--rows", "N", "rows of a part; about 65,536", int)
    parser.add_switch("--logits", "write logits in place of probabilities")
    parser.add_value(
        "--embeddings",
        "NAME,...",
        "write vectors too: user and item of a retrieval model, pooled of any model",
    )
    parser.add_value(
        "--top-k",
        "K",
        "write the K best items of each row too, for a retrieval model",
        int,
        default=0,
    )
    parser.add_value(
        "--index", "DIR", "search them in a folder of `index`; default: all items are compared"
    )
    return parser


def _split_names(text: str | None) -> list[str]:
    return [name for name in (text or "").split(",") if name]
