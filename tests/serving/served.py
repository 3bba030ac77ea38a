"""Artifacts that are written within the test's process, and a server of one."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from runner.batch import Schema, SequenceFeature, SparseFeature, TaskSpec
from runner.data.columns.schema_file import parse_schema
from runner.data.core.fitted import FittedTransforms
from runner.serving.artifact.folder import Task, graph_file, write_manifest, write_schema
from runner.serving.artifact.formats import save_graph
from runner.serving.export.graphs import TableChoice, build_graphs, export_graph, without_tables
from runner.serving.rows.encode import Transforms
from tests.conftest import ROOT, Process, Zygote
from tests.models.scene import from_yaml
from tests.tiny import make_context

CLICKS = Schema(
    dense=("age",),
    sparse=(
        SparseFeature("a", 4),
        SparseFeature("b", 6),
        SparseFeature("city", 20),
        SparseFeature("tags", 5, weighted=True),
    ),
    tasks=(TaskSpec("click"), TaskSpec("price", "regression")),
)
CLICKS_COLUMNS = {
    "labels": ["click"],
    "numeric": {"age": {"default": 30.0}},
    "categorical": {
        "a": {"num_rows": 4},
        "b": {"num_rows": 6, "out_of_range": "default", "default": 2},
        "city": {"num_rows": 20, "encode": "hash", "input": "string", "default": 0},
        "tags": {"num_rows": 5, "list": True, "encode": "hash", "weights": "tag_weights"},
    },
}
ITEMS = Schema(
    dense=(),
    sparse=(SparseFeature("item", 40, table="item"), SparseFeature("user", 9)),
    tasks=(TaskSpec("click"),),
    sequences=(SequenceFeature("history", 40, 6, table="item"),),
)
ITEMS_COLUMNS = {
    "labels": ["click"],
    "categorical": {"item": {"num_rows": 40, "table": "item"}, "user": {"num_rows": 9}},
    "sequences": {"history": {"num_rows": 40, "table": "item", "max_length": 6}},
}


def write_artifact(folder: Path, model: Any, schema: Schema, columns: dict[str, Any]) -> Path:
    """Export a model with weights of its own, whose columns need no fitted values."""
    context = make_context(model=model)
    for name, weight in context.tables.state().items():  # larger than fresh ones: rows differ
        if name.endswith("/weight"):
            weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
    graphs = build_graphs(model, schema, TableChoice())
    with without_tables(model):
        for spec, module in graphs:
            path = folder / graph_file(spec.name, "pt2")
            save_graph(export_graph(spec, module), spec, path, "pt2", portable=False)
    declared = parse_schema(columns)
    fitted = FittedTransforms(num_rows={s.table or s.name: s.num_rows for s in declared.ids})
    tasks = tuple(Task(task.name, task.kind, task.one_of) for task in schema.tasks)
    write_schema(folder, tuple(spec for spec, _ in graphs), tasks, Transforms(declared, fitted))
    write_manifest(folder, {"formats": ["pt2"], "quantise": None})
    return folder


def write_clicks_model(folder: Path) -> Path:
    model = from_yaml("mmoe", CLICKS, embedding_dim=4)
    return write_artifact(folder, model, CLICKS, CLICKS_COLUMNS)


def click_rows(num_rows: int, seed: int = 0) -> pa.Table:
    """Rows with missing values, and lists of 0 to 3 tags."""
    random = np.random.default_rng(seed)
    lengths = random.integers(0, 4, num_rows)
    some = lambda values: [None if i % 5 == 4 else v for i, v in enumerate(values)]
    return pa.table(
        {
            "age": pa.array(some(random.normal(size=num_rows).tolist()), pa.float64()),
            "a": random.integers(0, 4, num_rows),
            "b": random.integers(-3, 9, num_rows),
            "city": pa.array(some([f"Zürich {n}" for n in random.integers(0, 9, num_rows)])),
            "tags": [random.integers(0, 99, n).tolist() for n in lengths],
            "tag_weights": [random.random(n).tolist() for n in lengths],
        }
    )


@dataclass
class Server:
    """A process that serves."""

    process: Process
    address: str
    code: int | None = None

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal; return the exit code."""
        self.process.kill(number)
        return self.wait()

    def wait(self) -> int:
        self.code = self.process.wait()
        return self.code


@contextmanager
def serving(runner: Zygote, model: Path | str, *flags: str, cwd: Path = ROOT) -> Iterator[Server]:
    """Serve a model at any free port; what still serves in the end is killed."""
    process = runner.start("serve", str(model), *flags, "--port", "0", cwd=cwd)
    server = Server(process, "")
    try:
        server.address = wait_for_workers(process)
        yield server
    finally:
        if server.code is None:
            server.stop(signal.SIGKILL)


def wait_for_workers(process: Process, count: int = 1) -> str:
    """Wait until so many workers have said that they serve; return where."""
    for _ in range(600):
        text = process.text if process.output.exists() else ""
        found = re.findall(r"serving .* at http://(\S+)\n", text)
        if len(found) >= count:
            return found[0]
        assert "error" not in text, text
        time.sleep(0.1)
    raise AssertionError(text)
