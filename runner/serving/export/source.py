"""The run whose model is exported: its evaluation, with the weights of its checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from runner.errors import UserError
from runner.machine.free_memory import available_memory_bytes
from runner.models.layers.embedding import TableLookup
from runner.reporting.console import View
from runner.rundir.run_files import read_meta
from runner.serving.artifact.folder import Task
from runner.serving.artifact.model_facts import model_facts
from runner.serving.export.plan import ExportSettings, files_in_place_of_split
from runner.serving.export.run_inputs import RunInputs, find_run_inputs, with_vocabularies
from runner.training.builder import build_job
from runner.training.job import Job
from runner.training.loops.evaluate_split import evaluate_split, select_splits
from runner.training.state import restore_weights


@dataclass(frozen=True)
class ExportSource:
    """A run whose model is exported, with the weights of the checkpoint that is wanted."""

    job: Job  # of `loop=eval`
    inputs: RunInputs  # its raw rows
    split: str  # what it is evaluated on
    facts: dict[str, Any]  # its facts for the manifest

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The outputs of the model."""
        schema = self.job.dataset.schema
        return tuple(Task(task.name, task.kind, task.one_of) for task in schema.tasks)

    @property
    def table_rows(self) -> Mapping[str, int]:
        """The rows that are written of growing tables: those that belong to an id."""
        return {} if self.job.context.growing is None else self.inputs.raw.fitted.num_rows

    def evaluate(self, view: View) -> dict[str, float]:
        """Return the metrics of `loop=eval`."""
        with view.evaluation(self.job.dataset.num_rows[self.split]):
            evaluated = evaluate_split(self.job, self.split)
        assert evaluated is not None
        return evaluated

    def facts_of_measurement(
        self, evaluated: Mapping[str, float], settings: ExportSettings
    ) -> dict[str, Any]:
        """Return the content of `metrics.json` as known before the artifact is measured."""
        return {
            "split": self.split,
            "rows_from": files_in_place_of_split(self.job.config["dataset"]),
            "rows": self.job.dataset.num_rows[self.split],
            "batch_size": self.job.trainer.batch_size,
            "threads": torch.get_num_threads(),
            "quantise": settings.quantise,
            "evaluated": evaluated,
            "formats": {},
        }


def open_source(
    config: Mapping[str, Any], settings: ExportSettings, *, view: View, allowed: Sequence[str]
) -> ExportSource:
    """Build the evaluation of a run, with the weights of its checkpoint.

    Args:
        config: of `loop=eval` over the run, resolved and checked.
        allowed: packages that a `_target_` may name besides ours.

    Raises:
        UserError: for a dataset whose raw rows are not known, and for averages that do not exist.
    """
    job = build_job(config, None, view=view, allowed=allowed)
    assert job.source_checkpoint is not None
    run_dir = job.source_checkpoint.path.parent.parent
    split = select_splits(job)[0]
    inputs = find_run_inputs(config, job.dataset, run_dir)
    if split == "train" and inputs.table is not None and not inputs.table.is_direct:
        raise UserError(
            "loop.split=train: the artifact is compared with the model row by row, and the rows "
            "of this split were stored in random order; leave it out, or name files of labelled "
            "rows by --rows-from"
        )
    restore_weights(job.context, job.source_checkpoint)
    if settings.weights == "ema" and job.context.ema is None:
        raise UserError(
            f"--weights ema: {run_dir} kept no moving average (trainer.ema.decay); --weights "
            "trained exports what it learnt"
        )
    if job.context.growing is not None:
        inputs = replace(inputs, raw=with_vocabularies(inputs.raw, job.context.growing.freeze()))
    source = ExportSource(job, inputs, split, _facts(job, run_dir, settings))
    _warn_of_memory(source, settings, view)
    return source


def _warn_of_memory(source: ExportSource, settings: ExportSettings, view: View) -> None:
    """Warn if memory may not suffice for the model and the artifact that is read back.

    ONNX and compiled code take the memory of the tensors and of the bytes of the file.
    """
    lookups = [m for m in source.job.context.model.modules() if isinstance(m, TableLookup)]
    num_values = sum(spec.num_rows * spec.dim for lookup in lookups for spec in lookup.specs)
    bytes_per_value = {None: 4.0, "fp16": 2.0, "int8": 1.0, "int4": 0.5}[settings.quantise]
    copies = 1 if set(settings.formats) == {"pt2"} else 2
    needed, free = copies * bytes_per_value * num_values, available_memory_bytes()
    if needed > free:
        smaller = "" if settings.quantise == "int4" else "; --quantise makes them smaller"
        view.warn(
            f"the tables need {needed / 1e9:.1f} GB more while they are written and checked, and "
            f"{free / 1e9:.1f} GB are free, so the system may end this process{smaller}"
        )


def _facts(job: Job, run_dir: Path, settings: ExportSettings) -> dict[str, Any]:
    meta = read_meta(run_dir)
    checkpoint = job.source_checkpoint
    assert checkpoint is not None
    ema = job.context.ema
    is_average = ema is not None and ema.use_in_evaluation
    packages = ("torch", *(("onnx", "onnxruntime") if "onnx" in settings.formats else ()))
    return {
        "formats": list(settings.formats),
        "quantise": settings.quantise,
        "weights": "ema" if is_average else "trained",
        "portable": settings.portable,
        **model_facts(job.config, meta, job.name, checkpoint.step, checkpoint.path),
        "versions": {name: version(name) for name in packages},
        "leave_history_out": bool(job.config["metrics"]["leave_history_out"]),
    }
