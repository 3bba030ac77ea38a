"""`export DIR`: writes a trained model as a folder that scores raw rows without this project.

With `--since MODEL` it writes a delta: the changes since that artifact of the model.
"""

from __future__ import annotations

import gc
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from runner.errors import UserError
from runner.reporting.console import View
from runner.rundir.json_files import write_json
from runner.serving.artifact.check_artifact import trusted_formats
from runner.serving.artifact.delta_moves import find_moves
from runner.serving.artifact.example_rows import write_example
from runner.serving.artifact.folder import (
    METRICS,
    SCORE,
    graph_file,
    open_artifact,
    weights_file,
    write_manifest,
    write_schema,
)
from runner.serving.artifact.formats import save_graph
from runner.serving.artifact.raw_rows import EncodedRows
from runner.serving.artifact.weights import read_artifact_weights
from runner.serving.export import promise
from runner.serving.export.delta_write import (
    ModelVersion,
    check_same_model,
    find_difference,
    graph_weights,
    write_delta,
    write_delta_manifest,
)
from runner.serving.export.graphs import TableChoice, build_graphs, export_graph, without_tables
from runner.serving.export.plan import ExportSettings, name_rows
from runner.serving.export.source import ExportSource, open_source
from runner.serving.items.item_table import find_item_feature, write_item_table
from runner.serving.items.item_vectors import make_item_table, query_columns, write_queries
from runner.serving.scorer import Scorer
from runner.serving.write_aside import write_aside

EXAMPLE_ROWS = 4
NUM_QUERIES = 1024  # at most


def export_run(
    config: Mapping[str, Any],
    out: Path,
    settings: ExportSettings,
    *,
    view: View,
    allowed: Sequence[str] = (),
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Export the model of a run, and check the artifact against the run's evaluation.

    Args:
        config: of `loop=eval` over the run, resolved and checked.
        out: the folder to write, which must not exist.
        allowed: packages that a `_target_` may name besides ours.
        say: prints what was measured.

    Returns:
        The content of `metrics.json`.

    Raises:
        UserError: for a model or dataset that cannot be exported, before anything is written; and
            for an artifact that scores otherwise than the evaluation, which is deleted.
    """
    source = open_source(config, settings, view=view, allowed=allowed)
    with write_aside(out) as folder:
        step = source.facts["checkpoint"]["step"]
        view.note(f"writing the model of step {step} as {', '.join(settings.formats)}")
        _write_graphs(source, folder, settings)
        write_manifest(folder, source.facts)
        measured = _measure(source, folder, source.evaluate(view), settings)
        for line in describe(measured):
            say(line)
        raise_problems(measured)
        write_json(folder / METRICS, measured)
        write_manifest(folder, source.facts)
    return measured


def _write_graphs(source: ExportSource, folder: Path, settings: ExportSettings) -> None:
    job = source.job
    schema, model = job.dataset.schema, job.context.model
    specs = []
    for format_ in settings.formats:
        choice = TableChoice(
            settings.quantise, for_onnx=format_ == "onnx", num_rows=source.table_rows
        )
        with job.context.evaluation_weights():
            graphs = build_graphs(model, schema, choice)
            specs = [spec for spec, _ in graphs]
            with without_tables(model):
                for spec, module in graphs:
                    program = export_graph(spec, module)
                    path = folder / graph_file(spec.name, format_)
                    save_graph(program, spec, path, format_, settings.portable)
        del graphs, module, program
        gc.collect()  # a traced graph refers to itself, and may be as large as the tables
    write_schema(folder, tuple(specs), source.tasks, source.inputs.raw)
    shutil.copyfile(Path(__file__).with_name("score.py"), folder / SCORE)


def _measure(
    source: ExportSource, folder: Path, evaluated: dict[str, float], settings: ExportSettings
) -> dict[str, Any]:
    """Score the split in every format, time them, and write the rows of `score.py`."""
    measured = source.facts_of_measurement(evaluated, settings)
    # read once: those of a split by time are behind all others
    rows = promise.first_rows(source.inputs, source.split, max(promise.LATENCY_ROWS))
    arrays: dict[str, np.ndarray] = {}
    for format_ in settings.formats:
        facts, inputs = _measure_format(source, folder, evaluated, settings, format_, rows)
        gc.collect()  # a loaded graph refers to itself, too
        measured["formats"][format_] = facts
        arrays |= inputs
    write_example(folder, settings.formats, arrays)
    return measured


def _measure_format(
    source: ExportSource,
    folder: Path,
    evaluated: dict[str, float],
    settings: ExportSettings,
    format_: str,
    rows: EncodedRows,
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the measurements of a format, and inputs of its graphs by `<graph>/<input>`."""
    scorer = Scorer.load(folder, format=format_, trust_native_code=True)
    is_first = format_ == settings.formats[0]
    if is_first and (item := find_item_feature(scorer.artifact)) is not None:
        write_item_table(folder, make_item_table(scorer, source.inputs.read_texts(item)))
        columns = query_columns(scorer.artifact)
        write_queries(folder, scorer, source.inputs.raw_rows(source.split, columns, NUM_QUERIES))
    facts = judge(source, scorer, evaluated)
    specs = scorer.artifact.graphs
    files = [folder / graph_file(spec.name, format_) for spec in specs]
    if format_ == "aoti":
        files += [folder / weights_file(spec.name) for spec in specs]
    latency = promise.measure_latency(source.job, scorer, rows, source.split)
    facts |= {"bytes": sum(file.stat().st_size for file in files), "latency_us": latency}
    examples = promise.row_range(rows, 0, EXAMPLE_ROWS)
    inputs = {
        f"{spec.name}/{name}": values
        for spec in specs
        for name, values in zip(spec.inputs, scorer.arrays(spec.name, examples))
    }
    return facts, inputs


def judge(source: ExportSource, scorer: Scorer, evaluated: Mapping[str, float]) -> dict[str, Any]:
    """Score the split from its raw rows, and check the metrics against the evaluation's."""
    comparison = promise.compare(source.job, scorer, source.inputs, source.split, evaluated)
    return {
        "metrics": comparison.metrics,
        "largest_logit_difference": comparison.largest_difference,
        "problems": comparison.problems,
    }


def raise_problems(measured: Mapping[str, Any]) -> None:
    """Remove the problems from the measurements.

    Raises:
        UserError: with all problems, if there are any.
    """
    problems = [
        f"{format_}: {problem}"
        for format_, facts in measured["formats"].items()
        for problem in facts.pop("problems")
    ]
    if problems:
        finer = {"int4": "--quantise int8, fp16 or none", "int8": "--quantise fp16 or none"}
        cause = (
            f"tables in {kind} are too coarse for this model: "
            f"{finer.get(kind, 'leave out --quantise')}"
            if (kind := measured["quantise"])
            else "if the data or the code of the model were changed since the training, train again"
        )
        listed = "\n  ".join(problems)
        raise UserError(
            "not written: the artifact predicts other values than the evaluated model; "
            f"{cause}:\n  {listed}"
        )


def describe(measured: Mapping[str, Any]) -> list[str]:
    """Return the description of an artifact that is printed."""
    evaluated, lines = measured["evaluated"], []
    shown = [n for n in evaluated if n.partition("/")[0] in ("auc", "loss") or "@" in n]
    for format_, facts in measured["formats"].items():
        parts = []
        for name in [n for n in shown if n in facts["metrics"]][:4]:
            before, after = evaluated[name], facts["metrics"][name]
            is_same = before == after or (math.isnan(before) and math.isnan(after))
            same = "the same" if is_same else f"{after:.6f} ({after - before:+.1e})"
            parts.append(f"{name} {before:.6f} in the run, {same} exported")
        lines.append(f"{format_}: {name_rows(measured)} {'; '.join(parts)}")
        if (latency := facts.get("latency_us")) is None:
            continue
        times = [
            f"{size} row{'s' * (int(size) != 1)} in {latency['exported'][size]:,.0f} us (the "
            f"run's model: {latency['eager'][size]:,.0f})"
            for size in latency["exported"]
        ]
        lines.append(f"{format_}: {facts['bytes'] / 1e6:.2f} MB; {', '.join(times)}")
    return lines


def export_delta(
    config: Mapping[str, Any],
    out: Path,
    settings: ExportSettings,
    *,
    view: View,
    allowed: Sequence[str] = (),
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Write a delta to `settings.since`, and check its result against the run's evaluation.

    Arguments and result are those of `export_run`; the formats are those of the base.

    Raises:
        UserError: for a base that is not of this model, before anything is written; and for a delta
            whose result scores otherwise than the evaluation, which is deleted.
    """
    assert settings.since is not None
    base = open_artifact(settings.since)
    source = open_source(config, settings, view=view, allowed=allowed)
    new = model_version(source, settings)
    weights = read_artifact_weights(base)
    check_same_model(base, new)
    moves = find_moves(weights, new.weights, new.graphs, base.raw, new.raw)
    difference = find_difference(weights, new.weights, moves)
    with write_aside(out) as folder:
        write_delta(folder, base, new, difference)
        evaluated = source.evaluate(view)
        measured: dict[str, Any] = source.facts_of_measurement(evaluated, settings)
        for format_ in trusted_formats(base, settings.trust_native_code):
            scorer = Scorer.load(
                base.path, format=format_, trust_native_code=settings.trust_native_code
            )
            scorer.apply_delta(folder)
            measured["formats"][format_] = judge(source, scorer, evaluated)
        for line in describe(measured):
            say(line)
        raise_problems(measured)
        write_json(folder / METRICS, measured)
        write_delta_manifest(folder, base, new, difference)
    return measured


def model_version(source: ExportSource, settings: ExportSettings) -> ModelVersion:
    """Return the weights of a run's model in the form that the graphs of an artifact have."""
    context, schema = source.job.context, source.job.dataset.schema
    choice = TableChoice(settings.quantise, num_rows=source.table_rows)
    with context.evaluation_weights():
        specs, weights = graph_weights(context.model, schema, choice)
    return ModelVersion(source.facts, specs, source.tasks, source.inputs.raw, weights)
