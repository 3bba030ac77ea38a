"""Plans a prediction, and checks everything that can be wrong. Imports no torch."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runner.config.compose import ComposedConfig, compose
from runner.config.composed_checks import check_composed
from runner.config.targets import allowed_packages
from runner.data.files.file_list import describe_other_formats
from runner.data.files.read_text import TextFormat
from runner.data.tabular.table_recipe import TableRecipe
from runner.errors import UserError
from runner.launch import changed_data_note, with_kept_schema
from runner.rundir.checkpoint import Checkpoint
from runner.rundir.find_checkpoint import describe_large, find_checkpoint
from runner.rundir.find_run import find_run
from runner.rundir.run_files import read_meta
from runner.serving.artifact.model_facts import checkpoint_hash
from runner.serving.items.item_index import read_index_manifest
from runner.serving.predict.parts import (
    FORMAT,
    check_writable,
    input_fingerprint,
    manifest_hash,
    part_path,
)
from runner.serving.predict.split import open_split
from runner.serving.rows.encode import Transforms, check_input_types, with_types_of_roles
from runner.serving.rows.input import InputTable, check_kept_columns, find_format
from runner.serving.rows.outputs import Outputs
from runner.serving.rows.transforms import find_training_table, read_transforms

PART_ROWS = 1 << 16  # about so many: parts hold whole batches, so that none is cut by a boundary
_NOT_MADE = ("callbacks", "delivery", "launcher", "remote", "search", "tracker")
OWN_KEYS = ("run", "loop", "hydra.run.dir")  # settings that flags of a prediction replace


@dataclass(frozen=True)
class PredictionPlan:
    """A prediction that was checked."""

    run: Path
    config: Mapping[str, Any]
    allowed: Sequence[str]
    checkpoint: Checkpoint
    transforms: Transforms
    table: InputTable
    outputs: Outputs
    part_rows: int
    folder: Path
    manifest: Mapping[str, Any]
    training: TableRecipe | None = None  # which tells the texts of the best items
    lacks_texts: bool = False  # they are needed, and not known
    split: str | None = None  # of the run's own data, whose labels are written
    notes: Sequence[str] = ()  # printed before it begins

    def is_done(self, number: int) -> bool:
        return part_path(self.folder, number).exists()


def make_plan(
    run: str | Path,
    inputs: Sequence[str],
    *,
    split: str | None = None,
    out: str | Path | None = None,
    keep: Sequence[str] = (),
    rows: int | None = None,
    outputs: Outputs = Outputs(),  # noqa: B008  (it is frozen)
    overrides: Sequence[str] = (),
    allow: Sequence[str] = (),
) -> PredictionPlan:
    """Check all arguments, and plan the prediction. Writes nothing.

    Args:
        run: a run directory, or a folder whose newest run is meant.
        inputs: files, folders, globs or URLs, of one format; none with `split`.
        split: train, validation or test, of the run's own data: its rows are scored, and their
            labels written, too.
        out: the folder of the parts; by default one below `outputs/predict`, which the same call
            finds again.
        keep: columns of the input to carry over.
        rows: rows of a part; by default about 65,536.
        outputs: the columns that are written in addition to the kept ones.
        overrides: settings that differ from those of the run.
        allow: packages of yours whose code the configuration may name.

    Raises:
        UserError: for every kind of mistake.
    """
    _check_arguments(run, inputs, split, rows)
    folder, allowed = find_run(run), allowed_packages(allow)
    composed = compose_for_prediction(folder, overrides, allowed)
    config = composed.config
    warnings: list[str] = []
    if size_note := describe_large(folder):
        print(size_note, file=sys.stderr, flush=True)
    checkpoint = find_checkpoint(folder, config["checkpoint"]["step"], warn=warnings.append)
    transforms = read_transforms(config["dataset"], folder)
    check_kept_columns(keep, _written_names(transforms, outputs, has_labels=split is not None))
    table = _open_table(config["dataset"], transforms, folder, inputs, split, keep)
    finds_items = bool(outputs.top_k) and outputs.index is None
    needs_texts = finds_items and "string" in transforms.fitted.id_types.values()
    training = find_training_table(config["dataset"], folder) if needs_texts else None
    batch_size = config["trainer"]["batch_size"] * config["trainer"]["num_processes"]
    part_rows = rows or max(1, round(PART_ROWS / batch_size)) * batch_size
    files = [file for split_files in table.files.values() for file in split_files]
    manifest = {
        "format": FORMAT,
        "run": read_meta(folder)["signature"],
        "checkpoint": {"step": checkpoint.step, "sha256": checkpoint_hash(checkpoint.path)},
        "input": input_fingerprint(files, table.partitions_read),
        **({} if split is None else {"split": split}),
        "rows_per_part": part_rows,
        "keep": list(table.keep),
        "outputs": _describe_outputs(outputs, config, checkpoint),
        **({"item_texts": training is not None} if needs_texts else {}),
        "settings": _describe_settings(config, table, batch_size),
    }
    name = f"{folder.resolve().name}_{manifest_hash(manifest)}"
    return PredictionPlan(
        run=folder,
        config=config,
        allowed=allowed,
        checkpoint=checkpoint,
        transforms=transforms,
        table=table,
        outputs=outputs,
        part_rows=part_rows,
        folder=Path("outputs", "predict", name) if out is None else Path(out),
        manifest=manifest,
        training=training,
        lacks_texts=needs_texts and training is None,
        split=split,
        notes=[
            *(f"warning: {warning}" for warning in warnings),
            *describe_unread(inputs, table.format),
            *(() if split is None else changed_data_note(composed)),
        ],
    )


def _check_arguments(
    run: str | Path, inputs: Sequence[str], split: str | None, rows: int | None
) -> None:
    """Refuse arguments of `make_plan` that do not fit together.

    Raises:
        UserError: for the first of them.
    """
    if bool(inputs) == (split is not None):
        raise UserError("predict: name files to score, or --split for rows of the run's own data")
    later = [name for name in inputs if (Path(name) / "meta.json").exists()]
    if later and Path(run).is_file():
        raise UserError(f"predict: the run is named before its input: predict {later[0]} {run}")
    if rows is not None and rows < 1:
        raise UserError(f"--rows {rows}: a part has at least one row")


def _written_names(transforms: Transforms, outputs: Outputs, *, has_labels: bool) -> list[str]:
    """Return the names of the columns that are written in addition to the kept ones."""
    labels = transforms.columns.labels
    written = outputs.column_names(labels)
    if has_labels:
        written += [f"label_{label.name}" for label in labels]
        if transforms.declared.weight not in (None, "weight"):  # it is kept, under that name
            written.append("weight")
    return written


def _open_table(
    dataset: Mapping[str, Any],
    transforms: Transforms,
    folder: Path,
    inputs: Sequence[str],
    split: str | None,
    keep: Sequence[str],
) -> InputTable:
    """Open the rows to score: of the named inputs, or of a split of the run in `folder`."""
    columns = tuple(dict.fromkeys(keep))
    if split is None:
        table = _input_table(dataset, transforms, inputs, columns)
    else:
        table = open_split(dataset, transforms, folder, split, columns)
    path, input_schema = table.first_schema
    same_format = table.format == dataset.get("format", "parquet")
    input_schema = with_types_of_roles(transforms, input_schema.empty_table()).schema
    check_input_types(transforms, input_schema, path, same_format=same_format)
    check_writable(table.empty_rows().select(list(table.keep)))
    return table


def _describe_settings(
    config: Mapping[str, Any], table: InputTable, batch_size: int
) -> dict[str, Any]:
    """Return the settings that scores depend on bit for bit, and those of reading."""
    trainer = config["trainer"]
    return {
        "batch_size": batch_size,
        "amp": trainer["amp"] and trainer["amp_dtype"],
        "ema": uses_average(trainer),
        "leave_history_out": config["metrics"]["leave_history_out"],
        "on_bad_rows": table.on_bad_rows,
        "format": table.format,
        "text": vars(table.text_format),
    }


def _describe_outputs(
    outputs: Outputs, config: Mapping[str, Any], checkpoint: Checkpoint
) -> dict[str, Any]:
    """Return the identity of outputs for the manifest; an index counts by its hash, not its path.

    Raises:
        UserError: for an index of another model.
    """
    described = {name: value for name, value in vars(outputs).items() if name != "index"}
    if outputs.index is not None:
        model = index_model(config, checkpoint)
        described["index"] = read_index_manifest(Path(outputs.index), model)["version"]
    return described


def index_model(config: Mapping[str, Any], checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the facts that an index must have in its manifest to be used with a run."""
    return {
        "checkpoint": checkpoint_hash(checkpoint.path),
        "weights": "ema" if uses_average(config["trainer"]) else "trained",
    }


def uses_average(trainer: Mapping[str, Any]) -> bool:
    """Return whether evaluations take the moving average of the weights."""
    return bool(trainer["ema"]["decay"] and trainer["ema"]["evaluate"])


def compose_for_prediction(
    run: Path, overrides: Sequence[str], allowed: Sequence[str]
) -> ComposedConfig:
    """Return a run's configuration with some overrides, checked.

    Raises:
        ConfigError: with every mistake.
        UserError: for a setting that an argument of `predict` replaces.
    """
    for word in overrides:
        if word.partition("=")[0].lstrip("+~") in OWN_KEYS:
            raise UserError(f"{word}: predict takes the run as DIR, and --out for its result")
    composed = with_kept_schema(compose(overrides, from_run=run))
    # what these groups read of the environment is not sent: a prediction makes none of their parts
    reads = [read for read in composed.sent_reads if read[0].split(".")[0] not in _NOT_MADE]
    composed = replace(composed, sent_reads=tuple(reads), has_begun=True)
    check_composed(composed, allowed, has_loss=False)
    return composed


def _input_table(
    dataset: Mapping[str, Any], transforms: Transforms, inputs: Sequence[str], keep: tuple[str, ...]
) -> InputTable:
    return InputTable(
        path=list(inputs),
        schema=None,
        features=transforms.features,
        keep=keep,
        id_types=transforms.fitted.id_types,
        **text_settings(dataset, transforms.declared.places, inputs),
    )


def describe_unread(inputs: Sequence[str], format_: str) -> list[str]:
    """Return a warning for each folder that has files of another format."""
    return [f"warning: {n}" for path in inputs for n in describe_other_formats(path, format_)]


def text_settings(
    dataset: Mapping[str, Any], places: Mapping[str, Any], inputs: Sequence[str]
) -> dict[str, Any]:
    """Return the settings for reading an input: the run's own, if both have the same format.

    Args:
        places: of its schema, which may say how text files are written.

    Raises:
        UserError: for files of several formats.
    """
    own_format = dataset.get("format", "parquet")
    format_ = find_format(inputs, own_format)
    names = ("delimiter", "quote", "decimal", "column_names") if format_ == own_format else ()
    # of the schema, such as its delimiter, unless the run has set it; a default quote is not set
    defaults = (None, TextFormat.quote)
    settings = {**places, **{n: v for n, v in dataset.items() if v not in defaults}}
    known = (*names, "on_bad_rows", "max_bad_rows")
    return {"format": format_, **{n: settings[n] for n in known if n in settings}}
