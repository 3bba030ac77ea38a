"""Rules that wait for a metric, against tables worked out by hand."""

from __future__ import annotations

import pytest

from runner.config.compose import compose
from runner.config.composed_checks import check_composed
from runner.config.early_stopping import (
    BatchOnPlateau,
    LrOnPlateau,
    PatienceState,
    is_exhausted,
    natural_direction,
    next_batch_multiplier,
    next_lr_scale,
    reaches_threshold,
    record_evaluation,
    reset,
)
from runner.config.rules import check_config
from runner.config.targets import ALLOWED_PACKAGES

NAN, INF = float("nan"), float("inf")


def decisions(values, *, patience, min_delta=0.0, direction="max", max_times=None, once=False):
    """Return at which evaluations, from 1, a rule acts; with `once` it ends the run."""
    wait, found = PatienceState(), []
    for number, value in enumerate(values, start=1):
        wait = record_evaluation(wait, value, direction=direction, min_delta=min_delta)
        if is_exhausted(wait, patience, max_times):
            found.append(number)
            wait = reset(wait)
            if once:
                break
    return found


# values -> when a rule with that patience acts; beside it what the wait counts after each value
TABLE = [
    # since:  0   1   2           0   1   2!
    ([0.50, 0.49, 0.48, 0.51, 0.50, 0.49], {"patience": 2}, [3, 6]),
    # equal is no improvement:  0   1!   1!   1!  (waits anew after each)
    ([0.5, 0.5, 0.5, 0.5], {"patience": 1}, [2, 3, 4]),
    # always better: never
    ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], {"patience": 1}, []),
    # better by 0.01 each, which is not more than 0.02; two such steps are: 0.50 -> 0.53 improves
    ([0.50, 0.51, 0.52, 0.53, 0.54, 0.55], {"patience": 2, "min_delta": 0.02}, [3, 6]),
    # the best stays that of before it acted: 0.6 is not reached again
    ([0.6, 0.1, 0.2, 0.3, 0.4], {"patience": 2}, [3, 5]),
    # smaller is better
    ([0.7, 0.6, 0.65, 0.61, 0.59, 0.6, 0.6], {"patience": 2, "direction": "min"}, [4, 7]),
    ([0.7, 0.69, 0.68, 0.6], {"patience": 2, "direction": "min", "min_delta": 0.05}, [3]),
    # NaN is never better, counts as one more, and is not taken as the best
    ([NAN, NAN, 0.1, NAN, NAN], {"patience": 2}, [2, 5]),
    ([0.5, NAN, 0.6, NAN, 0.7], {"patience": 2}, []),
    # an infinite loss is a value like others: anything is below it
    ([INF, 0.7, INF, INF], {"patience": 2, "direction": "min"}, [4]),
    # no more often than allowed
    ([0.5] * 8, {"patience": 2, "max_times": 2}, [3, 5]),
    ([0.5] * 8, {"patience": 3}, [4, 7]),
    ([0.5] * 4, {"patience": 4}, []),
    ([0.5] * 8, {"patience": 3, "once": True}, [4]),
    ([0.5] * 8, {"patience": None}, []),
]


@pytest.mark.parametrize(("values", "rule", "expected"), TABLE)
@pytest.mark.parity("L9")
def test_a_rule_acts_where_the_table_says(values, rule, expected):
    assert decisions(values, **rule) == expected


@pytest.mark.parametrize("cut", range(9))
def test_a_rule_whose_state_was_saved_in_between_acts_as_one_that_was_not(cut):
    from dataclasses import asdict

    values = [0.5, 0.4, 0.6, 0.6, 0.5, 0.5, 0.7, 0.1, 0.2]
    wait, found = PatienceState(), []
    for number, value in enumerate(values, start=1):
        if number == cut + 1:
            wait = PatienceState(**asdict(wait))
        wait = record_evaluation(wait, value, direction="max", min_delta=0.0)
        if is_exhausted(wait, 2):
            found.append(number)
            wait = reset(wait)
    assert found == decisions(values, patience=2) == [5, 9]


@pytest.mark.parametrize(
    ("value", "threshold", "direction", "expected"),
    [
        (0.8, 0.8, "max", True),
        (0.79, 0.8, "max", False),
        (0.3, 0.4, "min", True),
        (0.5, 0.4, "min", False),
        (NAN, 0.4, "min", False),
        (NAN, 0.4, "max", False),
        (0.9, None, "max", False),
        (0.0, 0.0, "max", True),
    ],
)
def test_a_threshold_is_reached_from_its_better_side(value, threshold, direction, expected):
    assert reaches_threshold(value, threshold, direction) is expected


def test_rates_fall_by_the_factor_down_to_the_floor():
    scales, scale = [], 1.0
    for _ in range(5):
        scale = next_lr_scale(scale, LrOnPlateau(factor=0.5, min_scale=0.2))
        scales.append(scale)
    assert scales == [0.5, 0.25, 0.2, 0.2, 0.2]


@pytest.mark.parametrize(
    ("factor", "max_rows", "expected"),
    [
        (2, None, [2, 4, 8, 16]),
        (2, 500, [2, 4, 5, 5]),  # 500 rows are 5 original updates of 100
        (3, 1000, [3, 9, 10, 10]),
        (2, 199, [1, 1, 1, 1]),
    ],
)
def test_an_update_grows_in_whole_multiples_up_to_the_cap(factor, max_rows, expected):
    seen, growth = [], 1
    for _ in range(4):
        growth = next_batch_multiplier(
            growth, BatchOnPlateau(factor=factor, max_rows=max_rows), base_rows=100
        )
        seen.append(growth)
    assert seen == expected


@pytest.mark.parametrize(
    ("metric", "direction"),
    [
        ("validation/auc", "max"),
        ("validation/auc/click", "max"),
        ("validation/log_loss", "min"),
        ("validation/loss", "min"),
        ("validation/mse/rating", "min"),
        ("validation/calibration", None),
        ("validation/unheard_of", None),
    ],
)
def test_what_is_better_is_known_by_the_metrics_name(metric, direction):
    assert natural_direction(metric) == direction


MISTAKES = [
    (["early_stop.patience=0"], ["early_stop.patience=0: must be at least 1; null turns it off"]),
    (["early_stop.patience=2.5"], ["expected whole number"]),
    (["early_stop.min_delta=0.1"], ["does nothing without trainer.early_stop.patience"]),
    (["early_stop.patience=2", "early_stop.min_delta=-1"], ["must be at least 0 and finite"]),
    (["early_stop.pateince=2"], ["nearest: 'trainer.early_stop.patience'"]),
    (["early_stop=3"], ["is a group of keys (patience"]),
    (["early_stop=null"], ["trainer.early_stop is a group of keys"]),
    (
        ["early_stop.patience=2", "early_stop.metric=validation/acu"],
        ["early_stop.metric=validation/acu: no such metric; nearest: 'auc'"],
    ),
    (
        ["early_stop.patience=2", "early_stop.metric=validation/gauc"],
        ["validation/gauc: metrics.eval does not list it"],
    ),
    (["early_stop.patience=2", "early_stop.metric=auc"], ["such as validation/auc"]),
    (
        ["early_stop.patience=2", "early_stop.metric=test/auc"],
        ["is not evaluated on the way; trainer.eval_splits=[validation,test] adds test/auc"],
    ),
    (
        ["early_stop.patience=2", "early_stop.metric=train/auc"],
        ["is not evaluated on the way", "eval_splits=[validation,train] adds train_eval/auc"],
    ),
    (
        ["early_stop.patience=2", "early_stop.metric=tset/auc", "eval_splits=[validation,test]"],
        ["there is no split tset; nearest: 'test'"],
    ),
    (["eval_splits=[train]"], ["eval_splits=[train]: must hold validation"]),
    (["eval_splits=[validation,tset]"], ["eval_splits=tset: must be one of", "nearest: 'test'"]),
    (["eval_splits=[validation,validation]"], ["eval_splits=validation: is listed twice"]),
    (["eval_splits=[]"], ["eval_splits=[]: needs a split"]),
    (["eval_batch_size=0"], ["eval_batch_size=0: must be at least 1"]),
    (["stop_grace_s=-1"], ["stop_grace_s=-1: must not be negative"]),
    (
        ["lr_on_plateau.patience=2", "lr_on_plateau.metric=validation/calibration"],
        ["lr_on_plateau.direction is not set", "lr_on_plateau.direction=max or"],
    ),
    (
        [
            "lr_on_plateau.patience=2",
            "lr_on_plateau.metric=validation/log_loss",
            "lr_on_plateau.direction=max",
        ],
        ["min is better for validation/log_loss"],
    ),
    (
        ["lr_on_plateau.patience=2", "lr_on_plateau.direction=mxa"],
        ["one of max, min; nearest: 'max'"],
    ),
    (["lr_on_plateau.patience=2", "lr_on_plateau.factor=1.0"], ["above 0 and below 1"]),
    (
        ["lr_on_plateau.patience=2", "lr_on_plateau.min_scale=1.0"],
        ["min_scale=1.0: must be at least 0 and below 1"],
    ),
    (["lr_on_plateau.patience=2", "lr_on_plateau.max_times=0"], ["max_times=0: must be at least"]),
    (["batch_on_plateau.patience=2", "batch_on_plateau.factor=1"], ["must be at least 2"]),
    (["batch_on_plateau.patience=2", "batch_on_plateau.factor=1.5"], ["expected whole number"]),
    (
        ["batch_on_plateau.patience=2", "batch_on_plateau.max_rows=6000"],
        ["no room to grow: an update has 4,096 rows", "8,192"],
    ),
]


@pytest.mark.parametrize(("words", "said"), MISTAKES)
def test_a_mistake_is_told_by_key_value_and_rule(words, said):
    composed = compose([f"trainer.{word}" for word in words])
    problems = "\n".join(
        [
            *composed.problems,
            *check_config(composed.config, composed.default_config, allowed=ALLOWED_PACKAGES),
        ]
    )
    for part in said:
        assert part in problems, problems


def test_a_monitored_loss_whose_direction_was_left_at_max_is_a_mistake():
    composed = compose(["checkpoint.monitor.metric=validation/log_loss"])
    [problem] = check_config(composed.config, composed.default_config, allowed=ALLOWED_PACKAGES)
    assert "checkpoint.monitor.direction=min" in problem


@pytest.mark.parametrize("loop", ["train", "debug"])
def test_what_is_right_is_accepted_by_every_loop(loop):
    words = [
        "trainer.early_stop.threshold=0.9",
        "trainer.lr_on_plateau.patience=2",
        "trainer.lr_on_plateau.metric=validation/calibration",
        "trainer.lr_on_plateau.direction=min",
        "trainer.batch_on_plateau.patience=2",
        "trainer.batch_on_plateau.metric=validation/log_loss",
        "trainer.batch_on_plateau.max_rows=8192",
        "callbacks=[loss_guard,weights]",
    ]
    check_composed(compose([*words, f"loop={loop}"]), ALLOWED_PACKAGES)
