"""The content of a run directory about a job: its settings, its data and its signature."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.config.compose import ComposedConfig
from runner.config.rules import get_key
from runner.config.settings import EVALUATE_LOOP
from runner.config.signature import compute_signature, signature_fields
from runner.config.targets import ALLOWED_PACKAGES, find_targets
from runner.errors import DataError
from runner.rundir.checkpoint.folder import step_folders
from runner.rundir.json_files import dumps
from runner.rundir.run import RunSpec
from runner.rundir.run_files import read_config, read_meta

_fingerprints: dict[str, str] = {}


def run_spec(composed: ComposedConfig, command: Sequence[str] = ()) -> RunSpec:
    """Return what the run directory will record about this job.

    It reads the fingerprint of the data, and writes nothing.

    Args:
        composed: the configuration.
        command: the words of the command line.

    Raises:
        UserError: for data that cannot be found or read.
    """
    kind = "eval" if get_key(composed.config, "loop._target_") == EVALUATE_LOOP else "train"
    data = _fingerprint(composed.config["dataset"])
    source = _evaluation_source(composed) if kind == "eval" else None
    saved, config = composed.saved_config, composed.config
    if _has_own_linear_weights(config):
        saved, config = map(_with_own_linear_weights, (saved, config))
    return RunSpec(
        config=composed.saved_config,
        signature_fields=signature_fields(saved, data, source),
        signature=compute_signature(config, data, source),
        name=composed.name,
        choices=composed.choices,
        command=command,
        kind=kind,
        source=source,
        overrides=composed.overrides,
        own_packages=_own_packages(composed.config),
    )


def _has_own_linear_weights(config: Mapping[str, Any]) -> bool:
    """Return whether several tasks have separate linear weights, the default of new runs.

    A job with one task keeps the signature from before this was a choice, and so does an
    older run, whose tasks share them.
    """
    net = get_key(config, "model.net") or {}
    if net.get("linear_weights", "shared") is not None:
        return False
    from runner.data.prepare.outline import outline_dataset

    outline = outline_dataset(config["dataset"])
    return outline is not None and len(outline.tasks) > 1


def _with_own_linear_weights(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration that signs the linear weights of each task."""
    net = config["model"]["net"]
    return {**config, "model": {**config["model"], "net": {**net, "linear_weights": "own"}}}


def with_kept_schema(composed: ComposedConfig) -> ComposedConfig:
    """Return a configuration whose table has the columns for which a run's weights were trained.

    The schema's file may have been changed or deleted since the training: see `find_kept_schema`.
    The saved and signed configuration still names that file.

    Args:
        composed: of a job that uses a run, such as an evaluation.
    """
    from runner.launch.kept_schema import find_kept_schema

    composed = with_kept_transforms(composed)
    run = composed.config.get("run") or composed.source_run
    schema_path = composed.saved_config["dataset"].get("schema")
    if run is None or schema_path != read_config(Path(run))["dataset"].get("schema"):
        return composed
    if (schema := find_kept_schema(composed.config["dataset"], Path(run))) is None:
        return composed
    dataset = {**composed.config["dataset"], "schema": schema}
    return replace(composed, config={**composed.config, "dataset": dataset})


def with_kept_transforms(composed: ComposedConfig) -> ComposedConfig:
    """Return a configuration with a run's own copy of `dataset.learnt`, if that folder is gone.

    Args:
        composed: of a job that uses or continues a run.
    """
    from runner.data.core.fitted import FITTED_FILE

    run = composed.config.get("run") or composed.source_run
    learnt = composed.saved_config["dataset"].get("learnt")
    folder = composed.config["dataset"].get("learnt")  # the same without `${oc.env:...}`
    if run is None or folder is None or Path(folder, FITTED_FILE).exists():
        return composed
    own, before = Path(run).absolute() / "data", read_config(Path(run))["dataset"].get("learnt")
    if learnt != before or not (own / FITTED_FILE).exists():
        return composed
    dataset = {**composed.config["dataset"], "learnt": str(own)}
    return replace(composed, config={**composed.config, "dataset": dataset})


def changed_data_note(composed: ComposedConfig) -> tuple[str, ...]:
    """Return a warning if the data of a run have changed since its training; empty if not.

    Args:
        composed: of such a job, with the run's settings of the dataset or with others.

    Returns:
        Nothing if they are the same, or if settings choose other data.

    Raises:
        UserError: for data that cannot be found or read.
    """
    before, dataset = composed.source_config.get("dataset"), composed.saved_config["dataset"]
    notes: tuple[str, ...] = ()
    is_kept = isinstance(composed.config["dataset"].get("schema"), Mapping)
    if is_kept and not isinstance(dataset.get("schema"), Mapping):  # see `with_kept_schema`
        notes = (
            f"{dataset['schema']} was changed or deleted after the training: its copy in the run's "
            "data/ is used; dataset.schema=FILE takes another",
        )
    if composed.source_run is None or before != dataset:
        return notes
    signed = read_meta(composed.source_run).get("identity", {}).get("data")
    if signed in (None, _fingerprint(composed.config["dataset"])):
        return notes
    where = dataset.get("path") or dataset.get("schema") or "the dataset"
    return (*notes, f"warning: the data of {where} have changed since the run was trained on them")


def _own_packages(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the packages that a `_target_` names and that are not ours."""
    packages = {str(path).partition(".")[0] for _, path in find_targets(config)}
    return tuple(sorted(packages - {package.partition(".")[0] for package in ALLOWED_PACKAGES}))


def _fingerprint(dataset: Mapping[str, Any]) -> str:
    """Return the fingerprint of the data, cached, since the jobs of a sweep usually share it.

    Raises:
        DataError: for a file that cannot be read.
    """
    from runner.data.prepare.fingerprint import fingerprint

    key = dumps(dataset)
    if key not in _fingerprints:
        try:
            _fingerprints[key] = fingerprint(dataset)
        except OSError as error:
            name = error.filename or "the data"
            raise DataError(f"{name}: {error.strerror or error}") from error
    return _fingerprints[key]


def _evaluation_source(composed: ComposedConfig) -> dict[str, Any]:
    """Return the run and checkpoint that an evaluation uses.

    The newest checkpoint is included, because the run may continue after this evaluation.
    """
    step = get_key(composed.config, "checkpoint.step")
    path = get_key(composed.config, "checkpoint.path")
    if composed.source_run is None:
        return {"path": os.path.abspath(path), "step": step}
    steps = step_folders(composed.source_run / "checkpoints").items()
    newest = max((s for s, folder in steps if (folder / "manifest.json").exists()), default=None)
    where = os.path.abspath(path or composed.source_run)
    signature = read_meta(composed.source_run)["signature"]
    return {"path": where, "signature": signature, "step": step, "newest": newest}
