"""Warnings of intervals and patiences that a run is too short for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from torch.nn import Linear

from runner.config.early_stopping import BatchOnPlateau, EarlyStop, LrOnPlateau
from runner.config.intervals import parse_interval
from runner.config.proposed_length import propose_length
from runner.config.settings import ONLINE_LOOP, TRAIN_LOOP, TrainerSettings
from runner.training.builder.data import describe_order_by_user, makes_windows
from runner.training.builder.job import show_preflight_warnings
from runner.training.builder.preflight import RunLength, preflight_warnings
from runner.training.job import Cadence

RUN = RunLength(steps=100, steps_per_epoch=30, rows_per_epoch=300, rows_per_update=10)


def warnings(*, log="10", evaluate="10", save="10", **rules):
    keys = {"log_every": log, "eval_every": evaluate, "save_every": save}
    cadence = Cadence(**{k: parse_interval(v, key=k, allow_time=True) for k, v in keys.items()})
    return list(preflight_warnings(cadence, TrainerSettings(**rules), RUN))


@pytest.mark.parametrize(
    ("interval", "times"),
    [("10", 10), ("7", 14), ("101", 0), ("1ep", 3), ("2ep", 1), ("4ep", 0), ("5min", None)]
    + [("100ex", 10), ("999ex", 1), ("1001ex", 0), (None, 0)],
)
def test_how_often_an_interval_passes(interval, times):
    assert (
        RUN.count_intervals(parse_interval(interval, key="k", allow_time=True), RUN.steps) == times
    )


def test_too_few_updates_are_told_with_what_to_try_and_a_chosen_number_is_left_in_peace():
    short = RunLength(steps=2, steps_per_epoch=2, rows_per_epoch=8087, rows_per_update=4096)
    cadence = Cadence(None, None, None)
    (said,) = preflight_warnings(cadence, TrainerSettings(), short)
    assert said.startswith("8,087 rows in batches of 4,096 make 2 updates an epoch: too few to le")
    assert " ".join(propose_length(8087).overrides()) in said
    # 64 updates an epoch: a tenth of 1,280 is more than an epoch
    assert "trainer.batch_size=128 trainer.max_epochs=20 scheduler.warmup=64" in said
    assert said.endswith("; the value auto for these settings chooses the same")
    assert not list(preflight_warnings(cadence, TrainerSettings(max_steps=2), short))
    assert not list(preflight_warnings(cadence, TrainerSettings(), short, is_warm=True))
    (said,) = preflight_warnings(cadence, TrainerSettings(batch_size=512), short)  # on 8 ranks
    assert "trainer.batch_size=16 trainer.max_epochs=20 scheduler.warmup=64" in said
    usual = RunLength(steps=80, steps_per_epoch=4, rows_per_epoch=238, rows_per_update=64)
    (said,) = preflight_warnings(cadence, TrainerSettings(max_epochs=20), usual)
    assert "too few to learn; more rows would help" in said and "try" not in said
    (said,) = preflight_warnings(cadence, TrainerSettings(), short, is_next_item=True)
    assert said.endswith("too few to learn; try trainer.batch_size=32 trainer.max_steps=3000")


def test_windows_of_events_are_no_data_for_a_model_that_learns_from_the_item_of_a_row():
    cadence = Cadence(None, None, None)
    (said,) = preflight_warnings(cadence, TrainerSettings(), RUN, skips_events=True)
    assert said.endswith("which makes a row of each event")
    events = {"user": "user", "item": "item", "time": "time"}
    option = "runner.data.tabular.table.table"
    for train_on in ("windows", "every"):
        schema = {"interactions": {**events, "train_on": train_on}}
        node = {"_target_": option, "format": "csv", "path": "events.csv", "schema": schema}
        assert makes_windows(node) is (train_on == "windows")
    assert not makes_windows({"_target_": "my.own.Dataset"})


def test_online_learning_from_events_is_told_that_their_rows_lie_by_user_and_not_by_time():
    schema = {"interactions": {"user": "user", "item": "item", "time": "time"}}
    node = {"_target_": "runner.data.tabular.table.table", "format": "csv", "path": "events.csv"}
    config = {"loop": {"_target_": ONLINE_LOOP}, "dataset": {**node, "schema": schema}}
    (said,) = describe_order_by_user(config)
    assert "user by user, whatever their times" in said and "checkpoint.init_from=RUN" in said
    assert not list(describe_order_by_user({**config, "loop": {"_target_": TRAIN_LOOP}}))
    rows = {**node, "schema": {"labels": ["y"], "categorical": ["item"]}}
    for dataset in (rows, {"_target_": "my.own.Dataset"}):
        assert not list(describe_order_by_user({**config, "dataset": dataset}))


@pytest.mark.parametrize("rows", [1, 100, 3000, 8087, 250_000, 2_000_000, 45_000_000])
def test_a_proposed_length_learns_enough_and_is_not_warned_of(rows):
    length = propose_length(rows)
    per_epoch = -(-rows // length.batch_size)
    assert 64 <= length.batch_size <= 4096
    assert per_epoch >= 60 or length.batch_size == 64
    run = RunLength(per_epoch * length.max_epochs, per_epoch, rows, length.batch_size)
    warned = list(preflight_warnings(Cadence(None, None, None), TrainerSettings(), run))
    assert bool(warned) is (rows <= 100)  # 20 epochs of which are too few all the same


def test_an_interval_longer_than_the_run_is_named_and_one_that_fits_or_is_timed_is_not():
    assert warnings() == []
    assert warnings(log="30s", save="2h") == []
    found = warnings(log="101", evaluate="4ep", save="1001ex")
    assert [w.split(":")[0] for w in found] == [
        "trainer.log_every",
        "trainer.eval_every",
        "checkpoint.save_every",
    ]
    assert "101 updates is longer than the run (100 updates)" in found[0]
    assert found[1].endswith("only the end is evaluated; trainer.eval_every=25 is short enough")


@pytest.mark.parametrize("rule", [EarlyStop, LrOnPlateau, BatchOnPlateau])
@pytest.mark.parametrize(
    ("evaluate", "patience", "warned"),
    [
        # evaluations before the end at 10, ..., 90: after the first, 8 can be worse than the best
        ("10", 8, False),
        ("10", 9, True),
        # at 30, 60, 90
        ("1ep", 2, False),
        ("1ep", 3, True),
        (None, 1, True),
        ("10", None, False),
    ],
)
def test_a_patience_that_cannot_run_out_is_a_warning(rule, evaluate, patience, warned):
    name = {EarlyStop: "early_stop", LrOnPlateau: "lr_on_plateau"}.get(rule, "batch_on_plateau")
    found = warnings(evaluate=evaluate, **{name: rule(patience=patience)})
    assert bool(found) is warned
    if warned:
        assert f"trainer.{name}.patience={patience}: has no effect" in found[0]
        assert found[0].endswith("set a smaller patience or trainer.eval_every, or train longer")


@pytest.mark.parametrize("key", ["init_linear", "init_from", "init_tables"])
@pytest.mark.parametrize(("patience", "warned"), [(3, False), (4, True)])
def test_patience_counts_the_evaluation_of_weights_that_a_run_starts_with(key, patience, warned):
    said = []
    trainer = TrainerSettings(max_steps=100, early_stop=EarlyStop(patience=patience))
    checkpoint = {"init_from": None, "init_linear": False, "init_tables": {}} | {key: "x"}
    dataset, loop = {"_target_": "my.own.Dataset"}, {"_target_": TRAIN_LOOP}
    config = {"loop": loop, "dataset": dataset, "checkpoint": checkpoint}
    inputs = SimpleNamespace(config=config, trainer=trainer, view=SimpleNamespace(warn=said.append))
    cadence = Cadence(None, parse_interval("1ep", key="trainer.eval_every"), None)  # 0, 30, 60, 90
    show_preflight_warnings(inputs, cadence, RUN, Linear(1, 1))
    assert bool(said) is warned
    assert all("there are 4 evaluations before the end" in line for line in said)
    loop["_target_"] = ONLINE_LOOP
    said.clear()
    show_preflight_warnings(inputs, cadence, RUN, Linear(1, 1))
    assert "there are 0 evaluations before the end" in said[0]


def test_learning_online_is_told_nothing_of_evaluations_which_it_has_not():
    said = []
    inputs = SimpleNamespace(
        config={
            "loop": {"_target_": ONLINE_LOOP},
            "dataset": {"_target_": "my.own.Dataset"},
            "checkpoint": {"init_from": None},
        },
        trainer=TrainerSettings(max_steps=100),
        view=SimpleNamespace(warn=said.append),
    )
    epoch = parse_interval("4ep", key="trainer.eval_every")
    show_preflight_warnings(inputs, Cadence(None, epoch, None), RUN, Linear(1, 1))
    assert not said
    inputs.config["loop"]["_target_"] = TRAIN_LOOP
    show_preflight_warnings(inputs, Cadence(None, epoch, None), RUN, Linear(1, 1))
    assert [line.split(":")[0] for line in said] == ["trainer.eval_every"]
