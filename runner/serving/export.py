"""`export DIR`: writes a trained model as a folder that scores raw rows without this project."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from runner.errors import UserError
from runner.reporting.console import View
from runner.rundir.json_files import sync_folder, write_json
from runner.rundir.run import read_meta
from runner.serving import promise
from runner.serving.artifact import (
    METRICS,
    SCORE,
    Task,
    graph_file,
    hash_file,
    write_manifest,
    write_schema,
)
from runner.serving.export_plan import ExportSettings
from runner.serving.formats import save_graph
from runner.serving.graphs import TableChoice, build_graphs, export_graph, without_tables
from runner.serving.run_inputs import RunInputs, find_run_inputs
from runner.serving.scorer import Scorer
from runner.training.builder import build_job
from runner.training.job import Job
from runner.training.loops.evaluate_split import evaluate_split, select_splits
from runner.training.state import restore_weights

EXAMPLE_ROWS = 4


def export_run(
    config: Mapping[str, Any],
    out: Path,
    settings: ExportSettings,
    *,
    view: View,
    allowed: Sequence[str] = (),
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Export the model of a run, and hold the artifact against the run's evaluation.

    Args:
        config: of `loop=eval` over the run, resolved and checked.
        out: the folder to write, which must not exist.
        settings: what to write.
        view: where people read how the evaluation goes.
        allowed: packages that a `_target_` may name besides ours.
        say: tells what was measured.

    Returns:
        The content of `metrics.json`.

    Raises:
        UserError: for a model or dataset that cannot be exported, before anything is written; and
            for an artifact that is not what was evaluated, which is not kept.
    """
    job = build_job(config, None, view=view, allowed=allowed)
    assert job.source_checkpoint is not None
    run_dir = job.source_checkpoint.path.parent.parent
    split = select_splits(job)[0]
    inputs = find_run_inputs(config, job.dataset, run_dir)
    restore_weights(job, job.source_checkpoint)
    if settings.weights == "ema" and job.context.ema is None:
        raise UserError(f"--weights ema: {run_dir} kept no moving average (trainer.ema.decay)")
    with _aside(out) as folder:
        facts = _facts(job, run_dir, settings)
        _write_graphs(job, inputs, folder, settings)
        write_manifest(folder, facts)
        with view.evaluation(job.dataset.num_rows[split]):
            evaluated = evaluate_split(job, split)
        assert evaluated is not None
        measured = _measure(job, inputs, folder, split, evaluated, settings)
        problems = [
            f"{format_}: {problem}"
            for format_, found in measured["formats"].items()
            for problem in found.pop("problems")
        ]
        for line in describe(measured):
            say(line)
        if problems:
            raise UserError(
                "not written, since it is not what was evaluated: " + "; ".join(problems)
            )
        write_json(folder / METRICS, measured)
        write_manifest(folder, facts)
    return measured


@contextmanager
def _aside(out: Path) -> Iterator[Path]:
    """Give a temporary folder beside `out`, which becomes `out` if the block succeeds.

    Raises:
        UserError: if `out` cannot be written.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{out.name}.tmp-", dir=out.parent))
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written: {error.strerror or error}") from error
    try:
        yield folder
        if out.exists():
            raise UserError(f"--out {out}: exists by now; nothing was written")
        folder.chmod(0o755)
        os.rename(folder, out)
        sync_folder(out.parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
        "model": job.config["model"]["net"]["_target_"],
        "run": {"name": job.name or meta.get("name"), "signature": meta["signature"]},
        "checkpoint": {
            "step": checkpoint.step,
            "sha256": hash_file(checkpoint.path / "manifest.json"),
        },
        "versions": {name: version(name) for name in packages},
    }


def _write_graphs(job: Job, inputs: RunInputs, folder: Path, settings: ExportSettings) -> None:
    schema, model = job.dataset.schema, job.context.model
    specs = []
    for format_ in settings.formats:
        choice = TableChoice(settings.quantise, for_onnx=format_ == "onnx")
        with job.context.evaluation_weights():
            graphs = build_graphs(model, schema, choice)
            specs = [spec for spec, _ in graphs]
            with without_tables(model):
                for spec, module in graphs:
                    program = export_graph(spec, module)
                    path = folder / graph_file(spec.name, format_)
                    save_graph(program, spec, path, format_, settings.portable)
    tasks = tuple(Task(task.name, task.kind) for task in schema.tasks)
    write_schema(folder, tuple(specs), tasks, inputs.raw)
    shutil.copyfile(Path(__file__).with_name("score.py"), folder / SCORE)


def _measure(
    job: Job,
    inputs: RunInputs,
    folder: Path,
    split: str,
    evaluated: dict[str, float],
    settings: ExportSettings,
) -> dict[str, Any]:
    """Score the split in every format, time them, and write the rows of `score.py`."""
    formats: dict[str, Any] = {}
    example: dict[str, np.ndarray] = {}
    rows = promise.first_rows(inputs, split, EXAMPLE_ROWS)
    for format_ in settings.formats:
        scorer = Scorer.load(folder, format=format_, trust_native_code=True)
        found = promise.compare(job, scorer, inputs, split, evaluated)
        latency = promise.measure_latency(job, scorer, inputs, split)
        names = [graph_file(spec.name, format_) for spec in scorer.artifact.graphs]
        formats[format_] = {
            "metrics": found.metrics,
            "largest_logit_difference": found.largest_difference,
            "bytes": sum((folder / name).stat().st_size for name in names),
            "latency_us": latency,
            "problems": found.problems,
        }
        for spec in scorer.artifact.graphs:
            arrays = dict(zip(spec.inputs, scorer.arrays(spec.name, rows)))
            example |= {f"{spec.name}/{name}": values for name, values in arrays.items()}
            outputs = scorer.run(spec.name, rows)
            example |= {f"{spec.name}/{format_}/{name}": x for name, x in outputs.items()}
    np.savez(folder / "example.npz", allow_pickle=False, **example)
    return {
        "split": split,
        "rows": job.dataset.num_rows[split],
        "batch_size": job.trainer.batch_size,
        "threads": torch.get_num_threads(),
        "quantise": settings.quantise,
        "evaluated": evaluated,
        "formats": formats,
    }


def describe(measured: Mapping[str, Any]) -> list[str]:
    """Return what people read about an artifact."""
    evaluated, lines = measured["evaluated"], []
    shown = [n for n in evaluated if n.partition("/")[0] in ("auc", "loss") or "@" in n]
    for format_, found in measured["formats"].items():
        parts = []
        for name in shown[:4]:
            before, after = evaluated[name], found["metrics"][name]
            same = "the same" if before == after else f"{after:.6f} ({after - before:+.1e})"
            parts.append(f"{name} {before:.6f} evaluated, {same} exported")
        lines.append(f"{format_}: {measured['split']} {'; '.join(parts)}")
        latency = found["latency_us"]
        times = [
            f"{size} rows {latency['exported'][size]:,.0f} us (eager {latency['eager'][size]:,.0f})"
            for size in latency["exported"]
        ]
        lines.append(f"{format_}: {found['bytes'] / 1e6:.2f} MB; {', '.join(times)}")
    return lines
