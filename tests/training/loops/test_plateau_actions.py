"""What evaluations change: the rates, the size of updates, the length and the end of the run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runner.batch import DataPosition
from runner.config.early_stopping import BatchOnPlateau, EarlyStop, LrOnPlateau
from runner.config.settings import TrainerSettings
from runner.optim.lr_schedule import build_schedule
from runner.training.job import LearningRates
from runner.training.loops.plateau_actions import apply_plateau_rules
from runner.training.state import TrainState
from runner.training.steps import current_total_steps, is_finished, schedule_step, steps
from tests.tiny import make_context
from tests.tiny_job import Rows, make_job, output


def job_of(num_rows=160, **trainer):
    settings = TrainerSettings(batch_size=32, **{"max_epochs": 3, **trainer})
    job = make_job(make_context(), dataset=Rows(num_rows), trainer=settings)
    per_epoch = -(-num_rows // 32)
    total = settings.max_steps or per_epoch * settings.max_epochs
    rates = LearningRates({"dense": 0.1, "sparse": 0.2}, build_schedule({"kind": "linear"}, total))
    return replace(job, total_steps=total, learning_rates=rates)


# auc at each evaluation -> (scale of the rates, batch multiplier, stopped) after it
TABLE = [
    (0.50, (1.0, 1, False)),
    (0.52, (1.0, 1, False)),  # better, but not by more than 0.05: 1 without
    (0.51, (0.5, 1, False)),  # 2 without: rates fall
    (0.54, (0.5, 2, False)),  # 3 without: updates grow
    (0.56, (0.5, 2, False)),  # better by 0.06
    (0.40, (0.5, 2, False)),  # 1
    (float("nan"), (0.25, 2, False)),  # 2: rates fall
    (0.60, (0.25, 4, False)),  # 3: by 0.04 only; updates grow
    (0.61, (0.25, 4, False)),  # 4: by exactly 0.05 or less; rates fell twice, and may no more
    (0.55, (0.25, 4, True)),  # 5: the end
]


def test_every_rule_decides_as_the_table_says():
    job = job_of(
        early_stop=EarlyStop(patience=5, min_delta=0.05),
        lr_on_plateau=LrOnPlateau(patience=2, min_delta=0.05, max_times=2),
        batch_on_plateau=BatchOnPlateau(patience=3, min_delta=0.05, max_rows=128),
    )
    state = TrainState()
    for number, (auc, expected) in enumerate(TABLE, start=1):
        state.step = number
        apply_plateau_rules(job, state, {"validation": {"auc": auc}})
        assert (state.lr_scale, state.batch_multiplier, state.stopped is not None) == expected, (
            number
        )
    assert state.stopped == (
        "early_stop: validation/auc has not improved by more than 0.05 in 5 evaluations"
    )
    text = output(job)
    assert "step 3: validation/auc has not improved by more than 0.05 in 2 evaluations" in text
    assert "learning rates are 0.25 of the schedule's from here on (were 0.5)" in text
    assert "64 rows an update from here on (were 32); " in text


def test_without_rules_an_evaluation_decides_nothing():
    job, state = job_of(), TrainState()
    for auc in (0.9, 0.1, float("nan")):
        apply_plateau_rules(job, state, {"validation": {"auc": auc}})
    assert state == TrainState()


def test_a_rule_uses_its_own_metric_and_its_direction():
    job = job_of(early_stop=EarlyStop(patience=1, metric="validation/log_loss"))
    state = TrainState()
    for loss in (0.7, 0.6, 0.5):
        apply_plateau_rules(job, state, {"validation": {"auc": 0.5, "log_loss": loss}})
    assert state.stopped is None
    apply_plateau_rules(job, state, {"validation": {"auc": 0.9, "log_loss": 0.55}})
    assert state.stopped is not None


def test_a_threshold_alone_ends_the_run():
    job, state = job_of(early_stop=EarlyStop(threshold=0.8)), TrainState()
    apply_plateau_rules(job, state, {"validation": {"auc": 0.79}})
    assert not is_finished(job, state)
    apply_plateau_rules(job, state, {"validation": {"auc": 0.81}})
    assert is_finished(job, state)
    assert state.stopped == "early_stop: validation/auc has reached 0.8: 0.81000"


def test_a_run_at_its_end_changes_nothing_more_but_still_counts():
    job = job_of(max_epochs=None, max_steps=9, early_stop=EarlyStop(patience=1))
    state = TrainState(step=9)
    for auc in (0.9, 0.1):
        apply_plateau_rules(job, state, {"validation": {"auc": auc}})
    assert state.stopped is None
    assert state.waits["early_stop"].since == 1  # a longer run goes on from here


def simulate(job, multipliers):
    """Make a run whose updates grow by `multipliers` (update -> multiplier), and record them."""
    state, seen = TrainState(), []
    for out in steps(job, state):
        state.batch_multiplier = multipliers.get(state.step, state.batch_multiplier)
        seen.append(
            (out.rows_B.numel(), state.cursor, state.rates["dense"], state.batch_multiplier)
        )
    return state, seen


@pytest.mark.parametrize("num_rows", [160, 150, 33])
@pytest.mark.parametrize("multipliers", [{3: 2}, {1: 4}, {2: 3, 4: 6}, {5: 2, 6: 4}, {7: 8}])
def test_larger_updates_use_every_example_as_often_and_the_length_is_foreseen(
    num_rows, multipliers
):
    job = job_of(num_rows)
    state, seen = simulate(job, multipliers)
    assert state.examples == sum(size for size, *_ in seen) == 3 * num_rows
    assert state.cursor == DataPosition(3, 0)
    for number, (_, cursor, _, multiplier) in enumerate(seen, start=1):
        at = TrainState(step=number, cursor=cursor, batch_multiplier=multiplier)
        if multiplier == seen[-1][-1] and multiplier > 1:  # nothing changes any more
            assert current_total_steps(job, at) == state.step, number


def test_the_schedule_of_a_run_of_epochs_advances_by_examples():
    job = job_of(160)  # 5 updates of 32 an epoch, 15 in all; linear from 0.1 to 0
    _, seen = simulate(job, {5: 2})
    # the original update at which each one ends: at first 32 rows, then 64, and 32 at the end
    ends = [1, 2, 3, 4, 5, 7, 9, 10, 12, 14, 15]
    assert [rate for _, _, rate, _ in seen] == pytest.approx(
        [0.1 * job.learning_rates.factor(k) for k in ends], abs=1e-15
    )
    assert [size for size, *_ in seen] == [32] * 5 + [64, 64, 32] * 2


def test_a_run_of_updates_keeps_its_length_and_its_schedule():
    job = job_of(max_epochs=None, max_steps=12)
    state, seen = simulate(job, {4: 2})
    assert state.step == 12
    assert [schedule_step(job, TrainState(step=k, batch_multiplier=2)) for k in (4, 11)] == [5, 12]
    assert current_total_steps(job, TrainState(step=5, batch_multiplier=2)) == 12
    assert [rate for _, _, rate, _ in seen] == pytest.approx(
        [0.1 * job.learning_rates.factor(k) for k in range(1, 13)]
    )


def test_lower_rates_multiply_the_schedule_on_both_sides():
    job = job_of()
    state = TrainState(lr_scale=0.25)
    stream = steps(job, state)
    next(stream)
    assert state.rates == {"dense": 0.1 * 0.25, "sparse": 0.2 * 0.25}
    [group] = job.context.dense_optimizer.param_groups
    assert group["lr"] == 0.1 * 0.25
