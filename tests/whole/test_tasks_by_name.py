"""Several tasks: the loss and the metrics of each stand by its name wherever numbers go."""

from __future__ import annotations

import json

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.conftest import TINY
from tests.whole.compare_runs import read_rows

PER_TASK = ("auc", "normalized_entropy", "calibration")


@pytest.mark.parametrize("loss", ["by_kind", "uncertainty", "bce"])
@pytest.mark.parity("C4", "L5")
def test_each_tasks_loss_and_metrics_are_logged_by_name(runner, tmp_path, loss):
    run = tmp_path / "run"
    words = [w for w in TINY if not w.startswith(("model.net.bottom", "model.net.top"))]
    settings = ("model=mmoe", f"model/loss={loss}", "dataset.num_tasks=2", "tracker=tensorboard")
    runner.run(
        *words,
        *settings,
        "trainer.max_steps=11",
        "checkpoint.monitor.metric=validation/auc/label_2",
        f"hydra.run.dir={run}",
    ).check()
    rows = read_rows(run)
    board = EventAccumulator(str(run / "tensorboard"))
    board.Reload()
    for split in ("train", "validation", "test"):
        row = next(row for row in rows if row["split"] == split)
        names = {f"{metric}/{task}" for metric in PER_TASK for task in ("label", "label_2")}
        names |= {"loss/label", "loss/label_2"}
        assert names <= row.keys()
        assert row["loss"] == pytest.approx(row["loss/label"] + row["loss/label_2"])
        assert {f"{split}/{name}" for name in names} <= set(board.Tags()["scalars"])
    result = json.loads((run / "result.json").read_text())
    assert result["best"]["value"] == result["metrics"]["validation/auc/label_2"]


def test_without_a_word_several_tasks_are_monitored_by_the_mean_of_their_auc(runner, tmp_path):
    run = tmp_path / "run"
    words = [w for w in TINY if not w.startswith(("model.net.bottom", "model.net.top"))]
    runner.run(*words, "model=mmoe", "dataset.num_tasks=2", f"hydra.run.dir={run}").check()
    result = json.loads((run / "result.json").read_text())
    both = [result["metrics"][f"validation/auc/{task}"] for task in ("label", "label_2")]
    assert result["best"]["value"] == result["metrics"]["validation/auc"] == sum(both) / 2
