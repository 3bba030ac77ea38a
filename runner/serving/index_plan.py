"""The plan of an index's evaluation: mistakes of its words are reported here. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runner.config.compose import ComposedConfig
from runner.errors import ConfigError
from runner.metrics.settings import MetricSettings
from runner.serving.artifact import Artifact
from runner.serving.export_plan import ExportSettings, plan_export


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
