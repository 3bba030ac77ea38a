"""`index MODEL`: makes an index of the items of an exported retrieval model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.cli.verb_parser import VerbParser
from runner.errors import UserError, shell_path

if TYPE_CHECKING:
    from runner.serving.items.item_index import ItemIndex


def index(words: Sequence[str], allow: Sequence[str]) -> int:
    """Make an index, or evaluate one, and print the measurements.

    Raises:
        UserError: for errors in the words, a model without items, or a missing package.
    """
    from runner.config.targets import allowed_packages
    from runner.launch import changed_data_note, print_status
    from runner.machine.cores import set_thread_environment, usable_cores
    from runner.serving.artifact.check_artifact import check_artifact, trusted_formats
    from runner.serving.artifact.folder import open_artifact
    from runner.serving.export.plan import plan_evaluation
    from runner.serving.index.build_index import (
        IndexSettings,
        check_index_settings,
        describe_index,
        make_index,
    )

    args = make_parser().parse(words)
    if args.model is None:
        raise UserError("index: name an exported model: index MODEL [--kind KIND] [--out DIR]")
    settings = IndexSettings(args.kind, args.recall, args.top_k)
    model = Path(args.model)
    out = args.out or model.with_name(f"{model.name}.{args.kind or 'index'}")
    check_index_settings(out, settings)
    artifact, evaluate = open_artifact(model), None
    if args.evaluate is not None:
        trust = args.trust_native_code
        formats = trusted_formats(artifact, trust) or artifact.formats
        _, format_ = check_artifact(model, formats[0], trust)
        allowed = allowed_packages(allow)
        composed = plan_evaluation(args.evaluate, artifact, out, args.overrides, allowed)
        for note in changed_data_note(composed):
            print_status(note)
        config = composed.config
        set_thread_environment(config["trainer"]["num_threads"] or usable_cores())
        evaluate = partial(_evaluate, config, model, format_, allowed)
    elif args.overrides:
        raise UserError(f"{args.overrides[0]}: settings are those of --evaluate, which is not set")
    facts = make_index(artifact, out, settings, evaluate)
    for line in describe_index(facts, args.recall):
        print(line)
    print_status(f"wrote {out}; predict --top-k K --index {shell_path(out)} searches it")
    return 0


def _evaluate(
    config: Mapping[str, Any], model: Path, format_: str, allowed: Sequence[str], index: ItemIndex
) -> dict[str, Any]:
    from runner.serving.index.evaluate_index import evaluate_index  # imports torch

    return evaluate_index(config, model, format_, index, allowed)


def make_parser() -> VerbParser:
    """Return the parser of the words after `index`."""
    parser = VerbParser(
        "index",
        "Make an index of the items of an exported retrieval model, to search the best items of a\n"
        "query. Its recall against an exact search is measured, with queries of the model's test\n"
        "split.",
        examples=(
            "index exported/sasrec",
            "index exported/sasrec --kind hnsw --recall 0.99 --evaluate outputs/sasrec",
        ),
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help="a folder of `export`")
    parser.add_words("overrides", "KEY=VALUE", "settings of the evaluation")
    parser.add_value(
        "--kind", "KIND", "exact (the default up to a million items), or hnsw or ivf of faiss"
    )
    parser.add_value(
        "--out",
        "DIR",
        "the folder to write; default: MODEL.KIND, or MODEL.index without --kind",
        Path,
    )
    parser.add_value(
        "--recall",
        "SHARE",
        "of the exact best items, which hnsw and ivf are to find; default 0.95",
        float,
        default=0.95,
    )
    parser.add_value("--top-k", "K", "how many best items; default 100", int, default=100)
    parser.add_value(
        "--evaluate",
        "DIR",
        "also rank the rows of this run's test split, as loop=eval does, through the index",
    )
    parser.add_switch(
        "--trust-native-code", "with --evaluate: the queries may be made by machine code (aoti)"
    )
    return parser
