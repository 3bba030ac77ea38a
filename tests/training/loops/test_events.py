"""When callbacks are called, what they may ask for, and what they cannot break."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from runner.batch import DataPosition
from runner.config.intervals import parse_interval
from runner.config.settings import CheckpointSettings, MonitorSettings, TrainerSettings
from runner.distributed.ranks import SINGLE_PROCESS
from runner.errors import ConfigError
from runner.reporting.trackers import Trackers
from runner.training.callbacks import Callbacks
from runner.training.callbacks.watch.weights import Weights
from runner.training.job import Cadence
from runner.training.loops.events import (
    CallbackError,
    CallbackRunner,
    PendingRequests,
    TrainingHandle,
)
from runner.training.loops.train import train
from runner.training.state import TrainState
from runner.training.steps import steps
from runner.training.stop_signal import StopSignal
from tests.conftest import TINY
from tests.tiny import make_context, snapshot
from tests.tiny_job import Rows, make_job
from tests.training.callbacks.user_callbacks import Asker, Diary, Gambler


class WithSplits(Rows):
    def __init__(self) -> None:
        super().__init__(160)
        self.num_rows = {"train": 160, "validation": 64, "test": 32}


def job_of(evaluate="5", **callbacks):
    """A job of 2 epochs of 5 updates. Its best weights must be its last: it has no disk."""
    job = make_job(
        make_context(), dataset=WithSplits(), trainer=TrainerSettings(batch_size=32, max_epochs=2)
    )
    return replace(
        job,
        callbacks=Callbacks(callbacks, ranks=SINGLE_PROCESS, exist_on_any_rank=bool(callbacks)),
        cadence=Cadence(None, parse_interval(evaluate, key="k"), None),
        checkpoint=CheckpointSettings(monitor=MonitorSettings("validation/auc", "max")),
        loop_settings={"final_splits": ["test"]},
        total_steps=10,
    )


@pytest.mark.parity("L16")
def test_every_event_comes_at_its_time(tmp_path):
    train(job_of(diary=Diary(file=str(tmp_path / "d"))))
    lines = [json.loads(line) for line in (tmp_path / "d.0").read_text().splitlines()]
    updates = [[[k, "batch_start"], [k + 1, "update", 32]] for k in range(10)]
    second_best = [line for line in lines if line == [10, "best"]]  # as the numbers have it
    assert lines == [
        [0, "run_start"],
        [0, "epoch_start", 0],
        *[line for update in updates[:5] for line in update],
        [5, "epoch", 1],
        [5, "evaluation_start", "validation"],
        [5, "evaluation", "validation", "auc"],
        [5, "best"],
        [5, "epoch_start", 1],
        *[line for update in updates[5:] for line in update],
        [10, "epoch", 2],
        [10, "evaluation_start", "validation"],
        [10, "evaluation", "validation", "auc"],
        *second_best,
        [10, "evaluation_start", "test"],
        [10, "evaluation", "test", "auc"],
        [10, "run_end", "completed"],
    ]


@pytest.mark.parametrize("name", ["split", "step", "examples", "loss", "lr/dense"])
def test_a_number_of_the_task_cannot_take_the_name_of_another_key_of_the_row(name):
    job = job_of()
    job.context.log(name, 7.0)
    with pytest.raises(ValueError, match=f"^ctx.log: '{name}' is another key of the row"):
        train(job)


def test_a_number_of_a_callback_cannot_take_the_name_of_a_key_of_every_row():
    job = job_of()
    stop = StopSignal(SINGLE_PROCESS)
    handle = TrainingHandle(job, TrainState(), stop, PendingRequests())
    handle.log("mine", {"loss": 1.0})
    with pytest.raises(ValueError, match=r"^training\.log: 'step' is another key"):
        handle.log("mine", {"loss": 1.0, "step": 2.0})


def test_without_a_best_the_end_evaluates_validation_as_any_other_split(tmp_path):
    job = job_of(diary=Diary(file=str(tmp_path / "d")))
    rows = []
    tracker = SimpleNamespace(
        log=lambda split, step, metrics: rows.append((split, step)),
        messages=list,
        finish=lambda status: None,
    )
    job = replace(
        job,
        trainer=replace(job.trainer, eval_splits=[]),
        trackers=Trackers({"own": tracker}, warn=print),
        loop_settings={"final_splits": ["train", "test"]},
    )
    train(job)
    lines = [json.loads(line) for line in (tmp_path / "d.0").read_text().splitlines()]
    splits = ["validation", "train_eval", "test"]
    assert [line for line in lines if "evaluation" in line[1]] == [
        line
        for split in splits
        for line in ([10, "evaluation_start", split], [10, "evaluation", split, "auc"])
    ]
    assert [row for row in rows if row[0] not in ("perf", "train")] == [(s, 10) for s in splits]


@pytest.mark.parametrize("direction", ["min", "max"])  # by one of them step 5 is the best
def test_an_evaluation_of_the_last_weights_is_not_made_again_at_the_end(direction):
    rows = []
    tracker = SimpleNamespace(
        log=lambda split, step, metrics: rows.append((split, step)),
        messages=list,
        finish=lambda status: None,
    )
    monitor = MonitorSettings("validation/auc", direction)
    job = replace(job_of(), checkpoint=CheckpointSettings(monitor=monitor))
    result = train(replace(job, trackers=Trackers({"own": tracker}, warn=print)))
    assert [row for row in rows if row[0] not in ("perf", "train")] == [
        ("validation", 5),
        ("validation", 10),
        ("test", 10),
    ]
    assert "validation/auc" in result.metrics


def test_a_signal_ends_the_evaluation_of_validation_at_the_end():
    job = job_of(asker=Asker(step=10, what="pause", event="on_evaluation_start"))
    job = replace(job, trainer=replace(job.trainer, eval_splits=[]))
    result = train(job)
    assert (result.status, result.step) == ("interrupted", 10)
    assert not [name for name in result.metrics if name.startswith("test/")]


def test_a_resume_within_an_epoch_does_not_start_it_again(tmp_path):
    job = job_of(diary=Diary(file=str(tmp_path / "d")))
    state = TrainState(step=3, cursor=DataPosition(0, 96))
    events = CallbackRunner(job, state, StopSignal(SINGLE_PROCESS))
    for output in steps(job, state, before_update=events.call_update_start):
        if state.step == 7:
            break
        events.call_update(output)
    lines = [json.loads(line) for line in (tmp_path / "d.0").read_text().splitlines()]
    assert [line for line in lines if "epoch" in line[1]] == [
        [5, "epoch", 1],
        [5, "epoch_start", 1],
    ]


def test_an_evaluation_that_is_interrupted_leaves_no_row_of_any_split():
    asker = Asker(step=4, what="pause", event="on_evaluation")
    job = job_of("4", asker=asker)
    rows = []
    tracker = SimpleNamespace(
        log=lambda split, step, metrics: rows.append((split, step)),
        messages=list,
        finish=lambda status: None,
    )
    splits = replace(job.trainer, eval_splits=["train", "validation", "test"])
    job = replace(job, trainer=splits, trackers=Trackers({"own": tracker}, warn=print))
    result = train(job)
    assert (result.status, result.step) == ("interrupted", 4)
    # the pause came after all three were measured, so their rows are there
    assert [row for row in rows if row[0] != "perf"] == [
        ("train_eval", 4),
        ("validation", 4),
        ("test", 4),
    ]
    rows.clear()
    asker.event = "on_evaluation_start"
    assert train(replace(job, context=make_context())).step == 4
    assert [row for row in rows if row[0] != "perf"] == []


@pytest.mark.parametrize(
    ("event", "step", "end"),
    [
        ("on_run_start", 0, 0),
        ("on_update", 3, 3),
        ("on_update", 4, 4),
        ("on_epoch", 5, 5),
        ("on_evaluation", 2, 2),
        ("on_update", 10, 10),
        ("on_epoch_start", 5, 6),
        ("on_batch_start", 3, 4),
        ("on_evaluation_start", 2, 2),
        ("on_best", 2, 2),
    ],
)
@pytest.mark.parity("L16")
def test_a_callback_that_asks_to_stop_ends_the_run_after_that_update(event, step, end):
    every = "2" if event in ("on_evaluation", "on_evaluation_start", "on_best") else None
    result = train(job_of(every, asker=Asker(step=step, what="stop", event=event)))
    assert (result.status, result.step) == ("completed", end)
    assert result.notes["stopped"] == "it is enough"
    assert "validation/auc" in result.metrics and "test/auc" in result.metrics


@pytest.mark.parametrize("event", ["on_run_start", "on_update", "on_evaluation"])
def test_a_callback_that_asks_for_a_pause_interrupts_as_sigterm_does(event, capsys):
    step = 0 if event == "on_run_start" else 4
    result = train(job_of("4", asker=Asker(step=step, what="pause", event=event)))
    assert (result.status, result.step, result.signal) == ("interrupted", step, 15)
    told = f"step {step}: it is enough: leaving; checkpoint.keep=0 saves nothing"
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(("step", "evaluated"), [(3, 3), (4, 4), (7, 4)])
def test_an_interrupted_run_tells_its_best_validation_and_of_which_step_it_is(step, evaluated):
    rows = {}
    tracker = SimpleNamespace(
        log=lambda split, step, metrics: rows.setdefault((split, step), metrics),
        messages=list,
        finish=lambda status: None,
    )
    job = job_of("4", asker=Asker(step=step, what="pause", event="on_update"))
    result = train(replace(job, trackers=Trackers({"own": tracker}, warn=print)))
    assert (result.status, result.step) == ("interrupted", step)
    assert result.notes["evaluated_step"] == evaluated
    if step < 5:  # no evaluation yet, so the last weights are evaluated
        assert result.best is None and 0 < result.metrics["validation/auc"] < 1
    else:
        best = rows["validation", 4]["auc"]
        assert result.best == {"step": 4, "value": best}
        assert result.metrics["validation/auc"] == best


@pytest.mark.parametrize(
    ("event", "step"),
    [
        ("on_run_start", 0),
        ("on_update", 3),
        ("on_epoch", 5),
        ("on_evaluation", 5),
        ("on_epoch_start", 5),
        ("on_batch_start", 7),
        ("on_evaluation_start", 5),
        ("on_best", 5),
        ("on_run_end", 10),
    ],
)
def test_a_callback_that_raises_is_named_with_its_event_and_step(event, step):
    every = None if event == "on_run_end" else "5"
    with pytest.raises(CallbackError) as caught:
        train(job_of(every, mine=Asker(step=step, what="raise", event=event)))
    text = str(caught.value)
    assert text.startswith(f"callbacks.mine (Asker) at {event}, step {step}: ")
    assert text.endswith("raised ValueError: out of ideas")  # nothing is saved without a disk
    assert isinstance(caught.value.__cause__, ValueError)


def test_settings_that_a_callback_refuses_at_the_start_are_a_mistake_of_the_configuration():
    weights = Weights(every="1ep", parameters=[{"pattern": "nope", "statistics": ["norm"]}])
    with pytest.raises(ConfigError, match=r"callbacks\.weights: parameters: 'nope' matches"):
        train(job_of(weights=weights))


def test_other_callbacks_are_still_called_after_one_has_raised(tmp_path):
    diary = Diary(file=str(tmp_path / "d"))
    with pytest.raises(CallbackError):
        train(job_of(mine=Asker(step=3, what="raise"), diary=diary))
    assert [3, "update", 32] in [json.loads(s) for s in (tmp_path / "d.0").read_text().splitlines()]


def test_what_a_callback_draws_at_random_changes_nothing():
    def weights_and_draws(**callbacks):
        torch.manual_seed(1), random.seed(1), np.random.seed(1)
        job = job_of(None, **callbacks)
        torch.manual_seed(1)
        train(job)
        return snapshot(job.context), (torch.rand(3).tolist(), random.random(), np.random.rand())

    (with_callback, draws), (without, draws_without) = (
        weights_and_draws(g=Gambler()),
        weights_and_draws(),
    )
    assert draws == draws_without
    assert all(torch.equal(with_callback[n], without[n]) for n in without)


@pytest.mark.long
def test_two_ranks_train_with_a_callback_that_only_rank_0_has(runner, tmp_path):
    run = tmp_path / "run"
    two = ("trainer.num_processes=2", "sharding=row_wise", "trainer.batch_size=16")
    watch = ("callbacks=throughput", "callbacks.throughput.every=5", "trainer.max_steps=10")
    runner.run(*TINY, *two, *watch, f"hydra.run.dir={run}").check()
    rows = [json.loads(line) for line in (run / "perf.jsonl").read_text().splitlines()]
    assert [r["step"] for r in rows if "throughput/examples_per_s" in r] == [5, 10]


def test_without_callbacks_an_update_pays_for_nothing(monkeypatch):
    """It makes no call beyond the checks that find no callback listed."""
    job, state = job_of(), TrainState()
    events = CallbackRunner(job, state, StopSignal(SINGLE_PROCESS))
    output = next(steps(job, state))

    def forbidden(*args, **more):
        raise AssertionError("called")

    monkeypatch.setattr("runner.training.loops.events.preserve_rng_state", forbidden)
    monkeypatch.setattr("runner.training.loops.events.current_progress", forbidden)
    monkeypatch.setattr(type(events), "call", forbidden)
    events.call_update(output)
