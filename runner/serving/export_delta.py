"""`export DIR --since MODEL`: writes what changed in a run's model since an artifact of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.reporting.console import View
from runner.rundir.json_files import write_json
from runner.serving.artifact import METRICS, open_artifact
from runner.serving.artifact_weights import read_artifact_weights
from runner.serving.check_artifact import trusted_formats
from runner.serving.delta_moves import find_moves
from runner.serving.delta_write import (
    ModelVersion,
    check_same_model,
    find_difference,
    graph_weights,
    write_delta,
    write_delta_manifest,
)
from runner.serving.export import describe, judge, raise_problems
from runner.serving.export_plan import ExportSettings
from runner.serving.export_source import ExportSource, open_source
from runner.serving.graphs import TableChoice
from runner.serving.scorer import Scorer
from runner.serving.write_aside import write_aside


def export_delta(
    config: Mapping[str, Any],
    out: Path,
    settings: ExportSettings,
    *,
    view: View,
    allowed: Sequence[str] = (),
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Write a delta on `settings.since`, and hold its result against the run's evaluation.

    Args:
        config: of `loop=eval` over the run, resolved and checked.
        out: the folder to write, which must not exist.
        settings: what to write; formats are those of the base.
        view: where people read how the evaluation goes.
        allowed: packages that a `_target_` may name besides ours.
        say: tells what was measured.

    Returns:
        The content of `metrics.json`.

    Raises:
        UserError: for a base that is not of this model, before anything is written; and for a delta
            whose result is not what was evaluated, which is not kept.
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
    """Return the weights of a run's model as the graphs of an artifact have them."""
    context, schema = source.job.context, source.job.dataset.schema
    choice = TableChoice(settings.quantise, num_rows=source.table_rows)
    with context.evaluation_weights():
        specs, weights = graph_weights(context.model, schema, choice)
    return ModelVersion(source.facts, specs, source.tasks, source.inputs.raw, weights)
