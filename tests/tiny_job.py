"""A whole job in memory around the tiny model, for tests of loops."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from runner.batch import Batch, DataPosition, Schema
from runner.config.settings import CheckpointSettings, TrainerSettings
from runner.metrics import MetricSet
from runner.metrics.settings import MetricSettings
from runner.reporting.console import View
from runner.reporting.trackers import Trackers
from runner.training.job import Cadence, Job, LearningRates, Result
from runner.training.update.context import Context
from runner.training.update.task import Supervised
from tests.tiny import SCHEMA, random_batch

START = DataPosition()
DEBUG_OPTIONS = {
    "max_steps": 3,
    "anomaly": False,
    "statistics": False,
    "overfit_one_batch": False,
    "stop_at_nonfinite": True,
    "summary": False,
}


class Rows:
    """Random rows of the tiny schema, in file order, cut into batches."""

    def __init__(self, num_rows: int = 160, *, schema: Schema = SCHEMA, seed: int = 0) -> None:
        self.schema = schema
        self.num_rows = {"train": num_rows}
        self.reachable: dict[str, dict[str, float]] = {}
        self.rest = "short"
        self.bad_rows: dict[str, object] = {"count": 0, "examples": []}
        self.all = random_batch(num_rows, seed, num_tasks=len(schema.tasks))

    def save_fitted_transforms(self, folder: Path) -> None:
        raise AssertionError("a tiny job learns nothing from its data")

    def batches(
        self, split: str, *, batch_size: int, start: DataPosition = START, **order: Any
    ) -> Iterator[Batch]:
        total = self.num_rows[split]
        for low in range(start.offset, total, batch_size):
            high = min(low + batch_size, total)
            end = (
                DataPosition(start.epoch, high)
                if high < total
                else DataPosition(start.epoch + 1, 0)
            )
            yield self.rows(low, high, end)

    def rows(self, low: int, high: int, end: DataPosition) -> Batch:
        whole, part = self.all, slice(low, high)
        keys = whole.sparse.keys()
        jagged = [whole.sparse[key] for key in keys]
        ids = [j.values()[j.offsets()[low] : j.offsets()[high]] for j in jagged]
        return replace(
            whole,
            dense_BD=whole.dense_BD[part],
            sparse=KeyedJaggedTensor(
                keys=whole.sparse.keys(),
                values=torch.cat(ids),
                lengths=torch.cat([j.lengths()[part] for j in jagged]),
            ),
            labels_BT=whole.labels_BT[part],
            weights_B=whole.weights_B[part],
            rows_B=whole.rows_B[part],
            groups_BG=whole.groups_BG[part],
            cursor=end,
        )


def make_job(
    context: Context,
    *,
    dataset: Rows | None = None,
    rates: LearningRates | None = None,
    trainer: TrainerSettings | None = None,
    **options: Any,
) -> Job:
    """A job of loop=debug; options: of the loop's group. Its view writes to `output(job)`."""
    dataset = dataset or Rows()
    trainer = trainer or TrainerSettings(batch_size=32)
    context.micro_batch_size = trainer.batch_size

    def metrics(exact: bool) -> MetricSet:
        settings = MetricSettings(eval=["auc"], train=["log_loss"])
        tasks = dataset.schema.tasks
        return MetricSet(tasks, exact=exact, device=context.device, settings=settings)

    return Job(
        name="tiny",
        seed=0,
        config={"metrics": {"eval": ["auc", "log_loss"], "train": ["log_loss"]}},
        trainer=trainer,
        checkpoint=CheckpointSettings(),
        metric_settings=MetricSettings(eval=["auc", "log_loss"], train=["log_loss"]),
        cadence=Cadence(None, None, None),
        loop=lambda job: Result("completed", 0, 0),
        loop_settings={**DEBUG_OPTIONS, **options},
        device=context.device,
        dataset=dataset,
        task=Supervised(),
        context=context,
        learning_rates=rates or LearningRates({"dense": 0.1, "sparse": 0.1}, lambda step: 1.0),
        total_steps=5,
        make_metrics=metrics,
        train_metrics=metrics(False),
        trackers=Trackers({}, warn=print),
        view=View(io.StringIO()),
    )


def output(job: Job) -> str:
    """What the view has written so far, but for warnings, which go to stderr."""
    stream = job.view._surface._stream
    assert isinstance(stream, io.StringIO)
    return stream.getvalue()
