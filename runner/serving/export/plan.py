"""Plans an export: every mistake in its arguments is reported here. Imports no torch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runner.config.compose import ComposedConfig, compose_job
from runner.config.composed_checks import check_composed
from runner.config.hydra_text import is_override, quote_hydra_value
from runner.config.rules.loops import STREAM_DATASETS
from runner.data.columns.schema_file import LOCATION_KEYS, TEXT_KEYS
from runner.data.columns.schema_yaml import read_schema_file
from runner.data.core.fitted import with_fitted_transforms
from runner.data.prepare.fingerprint import build_recipe
from runner.data.tabular.table_recipe import TableRecipe
from runner.errors import ConfigError, UserError, already_exists, raise_combined, unknown_choice
from runner.launch import print_status, with_kept_schema
from runner.launch.kept_schema import find_kept_schema
from runner.machine.imports import missing_extra
from runner.metrics.settings import MetricSettings
from runner.rundir.find_run import find_run
from runner.rundir.run_files import read_config
from runner.serving.artifact.folder import FORMATS, QUANTISATIONS, Artifact, open_artifact
from runner.serving.predict.plan import describe_unread, text_settings
from runner.serving.rows.transforms import find_own_table

WEIGHTS = ("ema", "trained")
_ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
# The graph is traced on the CPU in one process, in float32 as it is.
_FIXED = ("trainer.device=cpu", "trainer.num_processes=1", "trainer.compile=false")
_AVERAGES = {
    None: (),
    "ema": ("trainer.ema.evaluate=true",),
    "trained": ("trainer.ema.evaluate=false",),
}


@dataclass(frozen=True)
class ExportSettings:
    """What to write.

    Args:
        formats: pt2, aoti, onnx.
        quantise: store the tables as fp16, int8 or int4; None: in float32.
        weights: ema or trained; None: those that evaluations use.
        portable: whether machine code is for any x86-64-v3 processor, not only for this machine's.
        rows_from: labelled files with the columns of the training, to check the artifact on
            instead of the run's test split. A run on a stream needs them; a run without held-out
            rows is otherwise checked on its train rows.
        since: the artifact that is the base of a delta; None: a whole artifact is written.
        trust_native_code: whether the machine code of `since` may be run.
    """

    formats: tuple[str, ...] = ("pt2",)
    quantise: str | None = None
    weights: str | None = None
    portable: bool = False
    rows_from: tuple[str, ...] = ()
    since: str | None = None
    trust_native_code: bool = False


def settings_of_base(settings: ExportSettings, formats: tuple[str, ...] | None) -> ExportSettings:
    """Return the settings of a delta, with the formats and the quantisation of its base.

    Args:
        settings: as given on the command line.
        formats: those that were named; None if none were.

    Raises:
        UserError: for a base that is no artifact, and for settings that differ from the base's.
    """
    assert settings.since is not None
    base = open_artifact(settings.since)
    kind = {n: base.manifest.get(n) for n in ("quantise", "weights")}
    requested = {"quantise": settings.quantise, "weights": settings.weights}
    raise_combined(
        f"--{name} {value}: {settings.since} has {kind[name] or 'whole tables'}: leave it out"
        for name, value in requested.items()
        if value is not None and value != kind[name]
    )
    if formats is not None or settings.portable:
        raise UserError("--since: a delta has no format: leave out --format and --portable")
    if base.formats == ("aoti",) and not settings.trust_native_code:
        raise UserError(
            f"--since {settings.since}: has only machine code, which would run to "
            "compare the delta with the evaluation; --trust-native-code allows it for an artifact "
            "of your own"
        )
    return replace(
        settings, formats=base.formats, quantise=kind["quantise"], weights=kind["weights"]
    )


def plan_export(
    folder: str | None,
    out: str | None,
    settings: ExportSettings,
    overrides: Sequence[str],
    allowed: Sequence[str],
) -> ComposedConfig:
    """Check the arguments, and compose the evaluation that the artifact is checked against.

    Args:
        folder: the run; None if none was named.
        out: the folder to write; None if none was named.
        overrides: settings that differ from those of the run, such as `checkpoint.step=last`.
        allowed: packages that a `_target_` may name.

    Raises:
        UserError: with every mistake.
    """
    raise_combined(_find_problems(folder, out, settings))
    assert folder is not None
    run = find_run(folder)
    source = f"run={quote_hydra_value(str(run))}"
    words = ["loop=eval", source, *_FIXED, *_AVERAGES[settings.weights], *overrides]
    dataset = read_config(run).get("dataset")
    if dataset is None:
        raise UserError(f"{run / 'config.yaml'}: damaged: it has no dataset")
    if (own := find_own_table(run)) is not None:
        dataset = {**dataset, "schema": own.schema}
    dataset = {**dataset, "schema": find_kept_schema(dataset, run) or dataset.get("schema")}
    if settings.rows_from:
        composed = _compose_with_rows(words, dataset, settings.rows_from)
    else:
        has_own = any(word.startswith("dataset=") for word in overrides)
        if str(dataset["_target_"]).startswith(STREAM_DATASETS) and not has_own:
            raise UserError(
                f"export: {folder} has learnt from a stream, which has no test split to check the "
                "artifact against: --rows-from FILE names labelled rows"
            )
        composed = with_kept_schema(compose_job(words))
    check_composed(composed, allowed)
    if not settings.rows_from and (rows := _rows_without_split(composed, run, overrides)):
        composed = _compose_with_rows(words, dataset, rows)
        check_composed(composed, allowed)
    return composed


def plan_evaluation(
    run: str, artifact: Artifact, out: Path, overrides: Sequence[str], allowed: Sequence[str]
) -> ComposedConfig:
    """Compose the evaluation of a run with the weights of an artifact, and check it.

    Raises:
        UserError: with every mistake.
        ConfigError: for an evaluation that does not rank all items.
    """
    weights = ExportSettings(weights=artifact.manifest["weights"])
    step = f"checkpoint.step={artifact.manifest['checkpoint']['step']}"
    composed = plan_export(run, str(out), weights, (step, *overrides), allowed)
    if not MetricSettings(**composed.config["metrics"]).ranks_full_catalogue:
        raise ConfigError(
            f"--evaluate {run}: its evaluation does not rank all items; add "
            "metrics.candidates=full 'metrics.eval=[recall@10,ndcg@10]'"
        )
    return composed


def files_in_place_of_split(dataset: Mapping[str, Any]) -> list[str]:
    """Return the names of the files that an evaluation reads instead of a split of the dataset."""
    test: Sequence[str] = dataset.get("test_path") or ()
    return [Path(path).name for path in test] if test == dataset.get("path") else []


def name_rows(measured: Mapping[str, Any]) -> str:
    """Return the name of the evaluated rows: the names of their files, or their split.

    Args:
        measured: has `split`, or the names of files as `rows_from`.
    """
    names: Sequence[str] = measured["rows_from"]
    if len(names) < 2:
        return f"rows of {names[0]}:" if names else measured["split"]
    return f"rows of {names[0]} and {len(names) - 1} more:"


def _rows_without_split(
    composed: ComposedConfig, run: Path, overrides: Sequence[str]
) -> Sequence[str]:
    """Return the paths of the table of a run without held-out rows; empty for another run."""
    recipe = build_recipe(with_fitted_transforms(composed.config["dataset"], run / "data"))
    if (
        not isinstance(recipe, TableRecipe)
        or set(recipe.splits) != {"train"}
        or any(word.startswith(("dataset", "loop.split=")) for word in overrides)
    ):
        return ()
    places = recipe.declared.places
    paths = recipe.path if recipe.path is not None else recipe.resolve_path(places["path"])
    print_status(
        f"{run} has held out no rows: the artifact is compared with the model on train rows"
    )
    return [paths] if isinstance(paths, str) else list(paths)


def _compose_with_rows(
    words: Sequence[str], dataset: Mapping[str, Any], rows: Sequence[str]
) -> ComposedConfig:
    """Compose an evaluation on other rows, which have the columns of the run's schema.

    Raises:
        UserError: for a run without a schema, and for files of several formats.
    """
    schema = dataset.get("schema")
    if schema is None:
        raise UserError(
            "--rows-from: the columns of this run's dataset are declared by no schema; without "
            "this flag, its own test split is scored"
        )
    if not isinstance(schema, Mapping):
        schema = read_schema_file(Path(str(schema)))
    reading = text_settings(dataset, schema, rows)
    for note in describe_unread(rows, reading["format"]):
        print_status(note)
    composed = compose_job([f"dataset={reading.pop('format')}", *words])
    set_here = {word.partition("=")[0].lstrip("+~") for word in words}
    reading = {name: value for name, value in reading.items() if f"dataset.{name}" not in set_here}
    paths = [p if "://" in p else os.path.abspath(os.path.expanduser(p)) for p in rows]
    own_schema = {k: v for k, v in schema.items() if k not in (*LOCATION_KEYS, *TEXT_KEYS)}
    reading |= {"path": paths, "test_path": paths, "schema": own_schema, "mix": False}
    for values in (composed.config, composed.saved_config):
        values["dataset"] |= reading
    return composed


def _find_problems(folder: str | None, out: str | None, settings: ExportSettings) -> Iterator[str]:
    if folder is None or is_override(folder):
        yield "export: name a run: export DIR --out MODEL"
    if out is None:
        yield "export: --out is not set: the folder to write"
    elif Path(out).exists():
        yield already_exists("--out", out)
    for format_ in settings.formats:
        if format_ not in FORMATS:
            yield unknown_choice("--format", format_, FORMATS)
    if settings.quantise is not None and settings.quantise not in QUANTISATIONS:
        yield unknown_choice("--quantise", settings.quantise, QUANTISATIONS)
    if settings.weights is not None and settings.weights not in WEIGHTS:
        yield unknown_choice("--weights", settings.weights, WEIGHTS)
    if "onnx" in settings.formats:
        yield from missing_extra("--format onnx", "export", *_ONNX_PACKAGES)
