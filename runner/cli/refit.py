"""`refit DIR`: trains a model for use, on all rows, for as long as a run was getting better."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.cli.verb_parser import VerbParser
from runner.config.hydra_text import is_override
from runner.errors import UserError, shell_path
from runner.rundir.find_run import find_run
from runner.rundir.json_files import read_json
from runner.rundir.run_files import read_config, read_result
from runner.sweep.plan import override_key

if TYPE_CHECKING:
    from runner.data.tabular.table_recipe import TableRecipe

# Settings that wait for a metric of held-out rows, which do not exist.
_WITHOUT_RULES = (
    "trainer.early_stop.patience=null",
    "trainer.early_stop.threshold=null",
    "trainer.lr_on_plateau.patience=null",
    "trainer.batch_on_plateau.patience=null",
)


def refit(words: Sequence[str], allow: Sequence[str]) -> int:
    """Train the model of a run anew on the rows of all its splits; return the exit code.

    Raises:
        UserError: before anything is started, for a run that held out no rows of a table.
    """
    from runner.cli.flags import parse_flags, refuse_flags
    from runner.config.compose import compose
    from runner.config.composed_checks import check_composed
    from runner.config.paths import drop_places_of_run
    from runner.config.rules import get_key
    from runner.config.rules.loops import TUNING_LOOPS
    from runner.config.settings import EVALUATE_LOOP
    from runner.config.settings.trainer import LENGTH_KEYS
    from runner.config.targets import allowed_packages
    from runner.launch import changed_data_note, check_parts, launch, print_status, with_kept_schema

    flags = parse_flags(words)
    if not flags.overrides or is_override(flags.overrides[0]):
        raise UserError("refit: name a run: refit DIR [KEY=VALUE ...]")
    folder, overrides = find_run(flags.overrides[0]), flags.overrides[1:]
    refuse_flags(flags, f"refit {folder} trains one model")
    if "checkpoint.step" in map(override_key, overrides):
        raise UserError(
            "refit: checkpoint.step chooses a checkpoint, and refit reads none: it trains anew; "
            "trainer.max_steps=N or trainer.max_epochs=N sets for how long"
        )
    allowed = allowed_packages(allow)
    composed = compose(overrides, config_dirs=flags.config_dirs, from_run=folder)
    if get_key(composed.config, "loop._target_") in (EVALUATE_LOOP, *TUNING_LOOPS):
        loop = composed.choices.get("loop")
        raise UserError(f"refit: loop={loop} makes no model to use; leave it out")
    check_composed(composed, allowed)
    composed = with_kept_schema(composed)
    dataset = composed.config["dataset"]
    recipe = _find_table(folder, dataset)
    lengths, length_note = _find_length(folder, composed.config, recipe)
    notes = list(changed_data_note(composed))
    overridden = {override_key(word) for word in overrides}
    if overridden.isdisjoint(LENGTH_KEYS):
        notes.append(length_note)
    else:
        lengths = []  # nor the rates and the warm-up that depend on them
    own_overrides = [w for w in (*_WITHOUT_RULES, *lengths) if override_key(w) not in overridden]
    composed = compose([*own_overrides, *overrides], config_dirs=flags.config_dirs, from_run=folder)
    drop_places_of_run(composed.config, composed.saved_config)
    changes = {"schema": dataset["schema"], **_take_all_rows(recipe)}
    changes = {n: v for n, v in changes.items() if f"dataset.{n}" not in overridden}
    for values in (composed.config, composed.saved_config):
        values["dataset"] |= changes
    check_composed(composed, allowed)
    check_parts(composed, allowed)
    for note in notes:
        print_status(note)
    return launch(composed, allowed=allowed, command=sys.orig_argv)


def make_parser() -> VerbParser:
    """Return the parser, which shows the arguments of `refit`."""
    parser = VerbParser(
        "refit",
        "Train the model of a run again from scratch on the rows of all splits of its table,\n"
        "since those that were held out are often the newest. It makes as many updates for each\n"
        "row as the run had at its best step. No rows are left for a test: expect what the run\n"
        "reached on its test split.",
        examples=("refit outputs/latest", "refit outputs/clicks hydra.run.dir=outputs/final"),
    )
    parser.add_argument("folder", nargs="?", metavar="DIR", help="the run")
    parser.add_words("overrides", "KEY=VALUE", "settings that differ from those of the run")
    return parser


def _find_table(folder: Path, dataset: Mapping[str, Any]) -> TableRecipe:
    """Return the table of a run.

    Raises:
        UserError: for a dataset that is not a table, and a run that held out no rows.
    """
    from runner.config.rules.loops import STREAM_DATASETS
    from runner.data.prepare.fingerprint import build_recipe
    from runner.data.tabular.table_recipe import TableRecipe

    if str(dataset["_target_"]).startswith(STREAM_DATASETS):
        raise UserError(
            f"refit: {folder} trained on all rows of a stream, so no rows were held out; give "
            "the command of that run again to train it on newer rows"
        )
    recipe = build_recipe(dict(dataset))
    if not isinstance(recipe, TableRecipe):
        raise UserError(
            f"refit: {folder} trained on {dataset['_target_']}, whose splits are fixed; only a "
            "run on a table (dataset=parquet, csv and the like) can be trained again on all rows"
        )
    if set(recipe.splits) == {"train"}:
        raise UserError(
            f"refit: {folder} held out no rows, so it was trained on all of them already"
        )
    return recipe


def _take_all_rows(recipe: TableRecipe) -> dict[str, Any]:
    """Return the settings that make all rows of a table train rows."""
    split = recipe.row_split
    new_split: dict[str, Any] = {}
    if split.kind == "column":  # rows whose value is in no list stay excluded
        values = [value for name in split.splits for value in split.of[name]]
        new_split = {"column": split.column, "train": values}
    changes: dict[str, Any] = {"split": new_split, "path": _paths(recipe)}
    if set(recipe.files) != {"train"}:
        content = dict(recipe.schema_content)
        for name in ("validation_path", "test_path"):
            content.pop(name, None)
            changes[name] = None
        changes["schema"] = content
    return changes


def _paths(recipe: TableRecipe) -> list[str]:
    """Return the paths of the files of all splits."""
    all_paths: list[str] = []
    for key in ("path", "validation_path", "test_path"):
        paths = getattr(recipe, key)
        if paths is None and key in recipe.declared.places:
            paths = recipe.resolve_path(recipe.declared.places[key])
        all_paths += [] if paths is None else [paths] if isinstance(paths, str) else paths
    return [p if "://" in p else os.path.abspath(os.path.expanduser(p)) for p in all_paths]


def _find_length(
    folder: Path, config: Mapping[str, Any], recipe: TableRecipe
) -> tuple[list[str], str]:
    """Return the settings of the length, and a line that describes them.

    Raises:
        UserError: for a run that is not finished, or was never evaluated.
    """
    from runner.distributed.global_batch import configured_global_batch_size

    result = read_result(folder) or {}
    if result.get("status") != "completed":
        status = f"is {result['status']}" if result.get("status") else "has no result yet"
        command = f"`python -m runner resume {shell_path(folder)}`"
        raise UserError(f"refit: {folder} {status}; finish it first by {command}")
    best = (result.get("best") or {}).get("step")
    if best is None:
        raise UserError(
            f"refit: {folder} has no best step, since it was not evaluated during training"
        )
    num_rows = read_json(folder / "data.json")["num_rows"]
    events = recipe.declared.interactions
    if events is not None and events.train_on == "windows":  # as many as before, roughly
        total = num_rows["train"]
    else:
        total = sum(num_rows.values())
    batch, own_batch = (
        configured_global_batch_size(values["trainer"]) for values in (config, read_config(folder))
    )
    updates = max(1, round(best * own_batch / batch * total / num_rows["train"]))
    words = [f"trainer.max_steps={updates}"]
    warmup = config["scheduler"].get("warmup")
    if warmup and warmup >= 1:
        words.append(f"scheduler.warmup={min(warmup, updates)}")
    if best == 0:  # the initial weights were best, which the one update must not change
        words += ["optimizer.dense.lr=0", "optimizer.sparse.lr=0", "scheduler.warmup=0"]
    return words, (
        f"training on the rows of all splits with trainer.max_steps={updates}: as many updates for "
        f"each row as {folder} made on its {num_rows['train']:,} train rows up to its best step, "
        f"{best:,}"
    )
