"""TensorBoard reads back what the tracker wrote into the run directory."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest

from runner.reporting.trackers import Histogram
from runner.reporting.trackers.tensorboard import TensorBoard
from tests.conftest import python


def points(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def histograms(folder: Path) -> dict[str, list]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"histograms": 0})
    events.Reload()
    return {tag: events.Histograms(tag) for tag in events.Tags()["histograms"]}


def started(folder: Path, step: int = 0) -> TensorBoard:
    tracker = TensorBoard()
    tracker.start({"name": "n", "dir": folder, "config": {"seed": 1}, "step": step}, None)
    return tracker


@pytest.mark.parity("L5", "E8")
def test_scalars_are_read_back_by_split_and_metric(tmp_path):
    tracker = started(tmp_path)
    tracker.log("train", 10, {"loss": 0.5, "auc": math.nan})
    tracker.log("validation", 10, {"loss": 0.25})
    tracker.finish("completed")
    found = points(tmp_path)
    assert found["train/loss"] == [(10, 0.5)]
    assert found["validation/loss"] == [(10, 0.25)]
    assert math.isnan(found["train/auc"][0][1])


def test_a_resumed_run_has_each_step_once(tmp_path):
    first = started(tmp_path)
    for step in range(1, 8):
        first.log("train", step, {"loss": -step})
    first.finish("failed")  # it was killed after step 7, its last checkpoint is of step 4
    second = started(tmp_path, step=4)
    for step in range(5, 11):
        second.log("train", step, {"loss": step})
    second.finish("completed")
    losses = points(tmp_path)["train/loss"]
    assert losses == [(s, -s) for s in range(1, 5)] + [(s, s) for s in range(5, 11)]


def test_a_run_killed_before_its_first_checkpoint_begins_anew(tmp_path):
    first = started(tmp_path)
    first.log("train", 1, {"loss": 7.0})
    first.finish("failed")
    second = started(tmp_path, step=0)
    second.log("train", 1, {"loss": 1.0})
    second.finish("completed")
    assert points(tmp_path)["train/loss"] == [(1, 1.0)]


def test_histograms_are_read_back_and_a_resumed_run_has_each_step_once(tmp_path):
    def histogram(shift: float) -> Histogram:
        edges = tuple(shift + edge for edge in (-1.0, 0.0, 0.5, 2.0))
        return Histogram(edges, (3, 0, 4), 1.5, 6.25)

    first = started(tmp_path)
    for step in (2, 4, 6):
        first.log_histograms("weights", step, {"dense/top.0.weight": histogram(0.0)})
    first.finish("failed")  # it was killed after step 6, its last checkpoint is of step 4
    second = started(tmp_path, step=4)
    second.log_histograms("weights", 6, {"dense/top.0.weight": histogram(10.0)})
    second.finish("completed")
    read = histograms(tmp_path)["weights/dense/top.0.weight"]
    assert [event.step for event in read] == [2, 4, 6]
    value = read[0].histogram_value
    assert (value.min, value.max, value.num, value.sum, value.sum_squares) == (-1, 2, 7, 1.5, 6.25)
    assert list(value.bucket_limit) == [0.0, 0.5, 2.0]
    assert list(value.bucket) == [3, 0, 4]
    assert read[2].histogram_value.min == 9.0


def test_points_before_a_checkpoint_survive_a_kill(tmp_path):
    tracker = started(tmp_path / "run")
    tracker.log("train", 1, {"loss": 0.5})
    tracker.state()  # a checkpoint asks for it
    shutil.copytree(tmp_path / "run", tmp_path / "killed")
    assert points(tmp_path / "killed")["train/loss"] == [(1, 0.5)]
    tracker.finish("completed")


def test_tensorboard_is_imported_only_when_it_is_used():
    code = (
        "import sys, runner.reporting.trackers.tensorboard, runner.reporting.trackers.wandb;"
        "sys.exit(bool({'torch', 'tensorboard', 'wandb'} & set(sys.modules)))"
    )
    assert python("-c", code).returncode == 0
