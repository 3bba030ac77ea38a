"""A small model in several versions: a whole artifact, and deltas on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from runner.data.core.fitted import FittedTransforms
from runner.serving.artifact.delta import WEIGHTS
from runner.serving.artifact.folder import Task, graph_file, write_manifest, write_schema
from runner.serving.artifact.formats import save_graph
from runner.serving.export.delta_write import (
    ModelVersion,
    find_difference,
    graph_weights,
    write_delta,
)
from runner.serving.export.graphs import TableChoice, build_graphs, export_graph, without_tables
from runner.serving.rows.encode import Transforms
from runner.serving.scorer import Scorer
from tests.models.scene import from_yaml
from tests.serving.test_scorer import DECLARED, SCHEMA
from tests.tiny import make_context

ROWS: dict[str, Any] = {"age": [1.0, 2.0], "a": [0, 3], "b": [5, 1], "tags": [[1, 2], []]}


@dataclass
class Versions:
    """A model, and what was written of it last."""

    folder: Path
    quantise: str | None = None
    formats: tuple[str, ...] = ("pt2",)
    step: int = 0
    weights: dict[str, np.ndarray] = field(default_factory=dict)  # as delivered last

    def __post_init__(self) -> None:
        self.model = from_yaml("mlp", SCHEMA, embedding_dim=4, deep=[8])
        self.context = make_context(model=self.model)

    def train(self, *, rows: int = 2) -> None:
        """Change some rows of each table and all of the dense half."""
        generator = torch.Generator().manual_seed(self.step)
        self.step += 10
        with torch.no_grad():
            for name, weight in self.context.tables.state().items():
                if name.endswith("/weight"):
                    picked = torch.randperm(len(weight), generator=generator)[:rows]
                    weight[picked] = torch.randn(len(picked), weight.shape[1], generator=generator)
            for parameter in self.model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator))

    def facts(self) -> dict[str, Any]:
        return {
            "formats": list(self.formats),
            "quantise": self.quantise,
            "weights": "trained",
            "architecture": "mlp",
            "run": {"name": "test", "signature": "0"},
            "checkpoint": {"step": self.step, "sha256": "0"},
            "versions": {},
        }

    def raw(self) -> Transforms:
        return Transforms(DECLARED, FittedTransforms(num_rows={"a": 4, "b": 6, "tags": 5}))

    def now(self) -> ModelVersion:
        specs, weights = graph_weights(self.model, SCHEMA, TableChoice(self.quantise))
        tasks = (Task("click", "binary"),)
        return ModelVersion(self.facts(), specs, tasks, self.raw(), weights)

    def write_whole(self, name: str) -> Path:
        """Export the model as it is now."""
        path = self.folder / name
        path.mkdir()
        for format_ in self.formats:
            choice = TableChoice(self.quantise, for_onnx=format_ == "onnx")
            graphs = build_graphs(self.model, SCHEMA, choice)
            with without_tables(self.model):
                for spec, module in graphs:
                    file = path / graph_file(spec.name, format_)
                    save_graph(export_graph(spec, module), spec, file, format_, portable=False)
        new = self.now()
        write_schema(path, new.graphs, new.tasks, new.raw)
        write_manifest(path, new.facts)
        self.weights = dict(new.weights)
        return path

    def write_delta(self, name: str, base: Any) -> Path:
        """Write what changed since the last time on a base."""
        path = self.folder / name
        path.mkdir()
        new = self.now()
        write_delta(path, base, new, find_difference(self.weights, new.weights))
        assert (path / WEIGHTS).exists()
        self.weights = dict(new.weights)
        return path


def served(scorer: Scorer, format_: str = "pt2") -> np.ndarray:
    return scorer.snapshot().score(ROWS)["click"]
