"""`importance DIR`: how much each feature matters to the model of a run."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.cli.schema import write_new_file
from runner.cli.verb_parser import VerbParser
from runner.config.hydra_text import is_override, quote_hydra_value, shell_override
from runner.errors import (
    ConfigError,
    UserError,
    already_exists,
    raise_combined,
    system_errors,
    unknown_choice,
)

METHODS = ("both", "shark", "permutation")
# rows stay in one process; the graph is cut at the look-ups; slices would need the rows' ids
_FIXED = ("trainer.num_processes=1", "trainer.compile=false", "metrics.slice_by=null")


def importance(words: Sequence[str], allow: Sequence[str]) -> int:
    """Measure the features of a run, print a table, and save it in the run directory.

    Raises:
        UserError: for errors in the words and settings, before torch is imported.
    """
    from runner.config.compose import compose_job
    from runner.config.composed_checks import check_composed
    from runner.config.targets import allowed_packages
    from runner.launch import changed_data_note, print_status, with_kept_schema
    from runner.machine.cores import set_thread_environment, usable_cores
    from runner.reporting.report.feature_importance import IMPORTANCE_FILE, show_importance
    from runner.reporting.report.terminal import make_console
    from runner.reporting.report.write import REPORT_FILE, write_report
    from runner.rundir.find_run import find_run
    from runner.rundir.json_files import write_json
    from runner.rundir.regular_files import check_kind
    from runner.serving.rows.transforms import find_own_table

    args = make_parser().parse(words)
    _check_words(args)
    run = find_run(args.folder)
    allowed = allowed_packages(allow)
    composed = compose_job(
        ["loop=eval", f"run={quote_hydra_value(str(run))}", *_FIXED, *args.overrides]
    )
    check_composed(composed, allowed)
    composed = with_kept_schema(composed)
    for note in changed_data_note(composed):
        print_status(note)
    config = composed.config
    table = (
        None
        if args.keep is None
        else _find_table(config["dataset"], args.keep, find_own_table(run))
    )
    target = args.json or run / IMPORTANCE_FILE
    if not os.access(target.absolute().parent, os.W_OK):
        raise UserError(f"{target}: cannot be written; --json FILE names another place")
    if args.json is not None:  # writing replaces what has this name, and root may replace a device
        with system_errors(f"--json {args.json}", "; name another file"):
            check_kind(args.json)
    set_thread_environment(config["trainer"]["num_threads"] or usable_cores())
    from runner.reporting.console import View
    from runner.training.importance_run import measure_importance

    facts = measure_importance(
        config, method=args.method, num_rows=args.rows, view=View(), allowed=allowed
    )
    show_importance(make_console(), facts)
    with system_errors(f"{target}: cannot be written"):
        write_json(target, facts)
    print_status(f"wrote {target}")
    if args.json is None and (run / REPORT_FILE).exists():
        write_report(run)
    if table is not None:
        _write_kept(table, facts, args)
    return 0


def make_parser() -> VerbParser:
    """Return the parser of the words after `importance`."""
    parser = VerbParser(
        "importance",
        "Measure how much each feature matters to a run's best checkpoint: by SHARK, which\n"
        "estimates the effect of replacing an embedding by its mean in one backward pass, and by\n"
        "permutation. The table goes into importance.json and the report of the run.",
        examples=(
            "importance outputs/mine",
            "importance outputs/mine --method shark --keep 20 --out best20.yaml",
        ),
    )
    parser.add_argument("folder", nargs="?", metavar="DIR", help="the run")
    parser.add_words("overrides", "KEY=VALUE", "such as loop.split=test")
    parser.add_value(
        "--method",
        "METHOD",
        "shark (first order, and the metric with each feature at its mean), permutation, or "
        "both (the default)",
        default="both",
    )
    parser.add_value(
        "--rows", "N", "the first N rows of the validation split; default: up to 40,960", int
    )
    parser.add_value("--json", "FILE", "default: importance.json in the run directory", Path)
    parser.add_value(
        "--keep",
        "N",
        "write the YAML of the table's columns with the N most important features",
        int,
    )
    parser.add_value("--out", "FILE", "that YAML; it must not exist")
    return parser


def _check_words(args: argparse.Namespace) -> None:
    """Check everything that follows from the words alone.

    Raises:
        UserError: with every mistake.
    """
    problems = []
    if args.folder is None or is_override(args.folder):
        problems.append("importance: name a run: importance DIR [--keep N --out FILE]")
    if args.method not in METHODS:
        problems.append(unknown_choice("--method", args.method, METHODS))
    if args.rows is not None and args.rows < 2:
        problems.append(f"--rows {args.rows}: must be at least 2")
    if args.keep is not None and args.keep < 1:
        problems.append(f"--keep {args.keep}: must be at least 1")
    if (args.keep is None) != (args.out is None):
        problems.append("--keep N and --out FILE go together: how many features, and where")
    if args.out is not None and Path(args.out).exists():
        problems.append(already_exists("--out", args.out))
    elif args.out is not None:  # it is written last, after what may take hours
        there = next(p for p in Path(args.out).absolute().parents if os.path.lexists(p))
        if not there.is_dir() or not os.access(there, os.W_OK):
            problems.append(f"--out {args.out}: {there} is no folder that can be written")
    raise_combined(problems)


def _find_table(dataset: Mapping[str, Any], count: int, own: Any = None) -> Any:
    """Return the recipe of a user's declared table; for Criteo, of its file as a table.

    Args:
        own: the run's table that no configuration describes, if there is one.

    Raises:
        ConfigError: for a dataset without such a table, and for too many features.
    """
    from runner.data.prepare.fingerprint import build_recipe
    from runner.data.sets.criteo import Criteo
    from runner.data.tabular.table_recipe import TableRecipe

    recipe = build_recipe(dataset) or own
    table = recipe.as_table() if isinstance(recipe, Criteo) else recipe
    if not isinstance(table, TableRecipe):
        raise ConfigError(
            f"--keep {count}: dataset {dataset['_target_']} has no declaration of columns that "
            "could be shortened; `python -m runner dataset=... dataset.write_to=FOLDER` writes its "
            "rows as Parquet with a schema.yaml, and a run of dataset=parquet can be shortened"
        )
    num_features = len(table.declared.numeric) + len(table.declared.ids)
    if count > num_features:
        raise ConfigError(f"--keep {count}: there are {num_features} features")
    return table


def _write_kept(table: Any, facts: Mapping[str, Any], args: argparse.Namespace) -> None:
    from runner.data.tabular.keep_features import format_kept_schema, keep_features
    from runner.launch import print_status

    names = [feature["name"] for feature in facts["features"][: args.keep]]
    content = keep_features(table, names)
    heading = (
        f"The {len(names)} most important features of {args.folder}, by "
        f"`importance --method {args.method}`"
    )
    write_new_file(Path(args.out), format_kept_schema(content, heading))
    print_status(
        f"wrote {args.out}; next: python -m runner dataset={table.format} "
        f"{shell_override('dataset.schema', args.out)}"
    )
