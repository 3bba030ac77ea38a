"""A tracker and metrics of one's own on two ranks, and what each rank logs of its speed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from runner.reporting.console.format import format_speed
from tests.conftest import TINY, Zygote

TRACKERS = "tests.reporting.trackers.user_trackers"
TORCHMETRICS = "torchmetrics.classification"
ALLOW = ("--allow", "tests")
OWN = (
    f"+tracker.lines={{_target_: {TRACKERS}.Lines}}",
    "metrics.eval=[auc,precision@0.2,recall@0.2]",
    f"+metrics.own.p={{_target_: {TORCHMETRICS}.BinaryPrecision, threshold: 0.2}}",
    f"+metrics.own.auroc={{_target_: {TORCHMETRICS}.BinaryAUROC}}",
)


def read_lines(path: Path) -> list:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def run(runner: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two") / "run"
    two = ("trainer.num_processes=2", "trainer.batch_size=16", "sharding=row_wise")
    runner.run(*ALLOW, *TINY, *two, *OWN, f"hydra.run.dir={folder}").check()
    return folder


@pytest.mark.long
@pytest.mark.parity("T13")
def test_every_rank_logs_the_training_into_a_file_of_its_own(run):
    first, second = ((run / name).read_text() for name in ("log.txt", "log.rank1.txt"))
    for text in (first, second):
        steps = re.findall(r"train  step +(\d+)/40  loss", text)
        assert list(map(int, steps)) == [7, 14, 21, 28, 35, 40]
    assert len(re.findall("train  step", first)) == 6  # rank 1 has not written here


@pytest.mark.long
@pytest.mark.parity("T1")
def test_speeds_stand_on_the_line_in_the_run_and_at_the_trackers(run):
    rows = [row for row in read_lines(run / "perf.jsonl") if "updates_per_s" in row]
    assert [row["step"] for row in rows] == [7, 14, 21, 28, 35, 40]
    for row in rows:
        assert row["examples_per_s"] == pytest.approx(32 * row["updates_per_s"])
        assert row["examples_per_s"] == 2 * row["examples_per_s_per_rank"]
    assert format_speed(rows[-1]) in (run / "log.txt").read_text()
    sent = {(split, step): numbers for split, step, numbers in read_lines(run / "lines.jsonl")}
    for row in rows:
        assert sent["perf", row["step"]] == {
            k: v for k, v in row.items() if k not in ("step", "examples")
        }
    assert ("completed", 0) in sent and ("validation", 11) in sent


@pytest.mark.long
@pytest.mark.parity("E21", "T11")
def test_metrics_of_ones_own_are_the_same_on_two_ranks_and_on_one(runner, run, tmp_path):
    result = json.loads((run / "result.json").read_text())["metrics"]
    assert result["test/p"] == pytest.approx(result["test/precision@0.2"], abs=1e-6)
    assert result["test/auroc"] == pytest.approx(result["test/auc"], abs=1e-6)
    assert 0 < result["test/recall@0.2"] < 1
    directions = json.loads((run / "result.json").read_text())["own_metrics"]
    assert directions["p"] == "max"
    words = ("loop=eval", f"run={run}", "trainer.num_processes=1", "trainer.batch_size=32")
    runner.run(*ALLOW, *words, f"hydra.run.dir={tmp_path / 'eval'}").check()
    alone = json.loads((tmp_path / "eval" / "result.json").read_text())["metrics"]
    assert alone.keys() >= {"test/p", "test/auroc", "test/recall@0.2"}
    assert all(value == pytest.approx(result[name], abs=1e-6) for name, value in alone.items())


@pytest.mark.parametrize(
    ("word", "said"),
    [
        (f"+tracker.x={{_target_: {TRACKERS}.Half}}", "Half lacks state, finish, messages"),
        (
            f"+tracker.x={{_target_: {TRACKERS}.Wrong}}",
            "tracker.x (Wrong): log(metrics: 'Any') -> 'None' must take (split, step, metrics)",
        ),
        ("+tracker.x=3", "tracker.x=3: needs a _target_"),
        (
            f"+metrics.own.x={{_target_: {TORCHMETRICS}.BinaryAURoC}}",
            "has no 'BinaryAURoC'; nearest: 'BinaryAUROC'",
        ),
        (f"+metrics.own.x={{_target_: {TORCHMETRICS}.BinaryAUROC, treshold: 3}}", "treshold"),
        (f"+metrics.own.auc={{_target_: {TORCHMETRICS}.BinaryAUROC}}", "names a new metric"),
        (
            "+metrics.own.x={_target_: torchmetrics.image.fid.FrechetInceptionDistance}",
            "not a part that metrics.own.x takes",
        ),
        ("+metrics.own.x=3", "metrics.own.x: needs a _target_"),
        ("metrics.eval=[auc/click]", "the dataset has no task 'click'"),
        ("metrics.eval=[precision]", "'precision' must end in a probability between 0 and 1"),
    ],
)
def test_a_mistake_in_a_part_of_ones_own_is_told(runner, tmp_path, word, said):
    done = runner.run(*ALLOW, *TINY, word, f"hydra.run.dir={tmp_path / 'run'}").check(2)
    assert said in done.text
