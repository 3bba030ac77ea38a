"""Schedules against closed formulas and against torch's own schedulers."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml
from torch.optim import lr_scheduler

from runner.errors import ConfigError
from runner.optim.lr_schedule import build_schedule, check_schedule
from runner.optim.lr_shapes import SCHEDULE_KINDS
from tests.conftest import python

T = 40
CONF = Path(__file__).parents[2] / "conf" / "scheduler"


def curve(settings: dict, total: int | None = T, count: int = T, **more) -> list[float]:
    factor = build_schedule(settings, total, **more)
    return [factor(k) for k in range(1, count + 1)]


def torch_curve(make) -> list[float]:
    """The rates that a torch scheduler gives to updates 1 .. T at a full rate of 1."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = make(optimizer)
    rates = []
    for _ in range(T):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


TORCH = {
    "constant": ({}, lambda o: lr_scheduler.ConstantLR(o, factor=1.0)),
    "linear": (
        {"final": 0.2},
        lambda o: lr_scheduler.LinearLR(o, start_factor=1.0, end_factor=0.2, total_iters=T),
    ),
    "cosine": ({"final": 0.1}, lambda o: lr_scheduler.CosineAnnealingLR(o, T, eta_min=0.1)),
    "polynomial": ({"power": 3.0}, lambda o: lr_scheduler.PolynomialLR(o, T, power=3.0)),
    "step": ({"every": 7, "gamma": 0.5}, lambda o: lr_scheduler.StepLR(o, 7, gamma=0.5)),
    "exponential": ({"every": 1, "gamma": 0.9}, lambda o: lr_scheduler.ExponentialLR(o, 0.9)),
    "piecewise": (
        {"at": [5, 20], "factors": [0.1, 0.01]},
        lambda o: lr_scheduler.MultiStepLR(o, [5, 20], gamma=0.1),
    ),
    "cosine_restarts": (
        {"period": 5, "growth": 2.0, "final": 0.1},
        lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 5, T_mult=2, eta_min=0.1),
    ),
    "inverse_sqrt": (
        {"scale": 9},
        lambda o: lr_scheduler.LambdaLR(o, lambda i: math.sqrt(9 / (9 + i))),
    ),
}


@pytest.mark.parametrize("kind", TORCH)
@pytest.mark.parity("L15")
def test_without_warmup_it_is_torchs(kind):
    settings, make = TORCH[kind]
    assert curve({"kind": kind, **settings}) == pytest.approx(torch_curve(make), rel=1e-9)


def test_one_cycle_by_hand():
    rates = curve({"kind": "one_cycle", "rise": 0.25, "start": 0.1, "final": 0.01})
    up = [1 - 0.9 * (1 + math.cos(math.pi * i / 10)) / 2 for i in range(10)]
    down = [0.01 + 0.99 * (1 + math.cos(math.pi * i / 30)) / 2 for i in range(30)]
    assert rates == pytest.approx(up + down)


@pytest.mark.parametrize(
    ("shape", "formula"),
    [
        ("linear", lambda p: 1 - p),
        ("cosine", lambda p: (1 + math.cos(math.pi * p)) / 2),
        ("sqrt", lambda p: 1 - math.sqrt(p)),
    ],
)
def test_wsd_by_hand(shape, formula):
    rates = curve({"kind": "wsd", "warmup": 4, "decay": 10, "curve": shape, "final": 0.2})
    warm = [0.25, 0.5, 0.75, 1.0]
    assert rates == pytest.approx(
        warm + [1.0] * 26 + [0.2 + 0.8 * formula(i / 10) for i in range(10)]
    )


def test_cyclical_by_hand():
    rates = curve({"kind": "cyclical", "period": 4, "low": 0.2, "gamma": 0.5}, count=9)
    assert rates == pytest.approx([1, 0.6, 0.2, 0.6, 0.6, 0.4, 0.2, 0.4, 0.4])


@pytest.mark.parametrize("kind", [k for k in SCHEDULE_KINDS if k != "one_cycle"])
def test_warmup_rises_to_the_full_rate_and_never_starts_at_zero(kind):
    needs = {
        "step": {"every": 5},
        "exponential": {"every": 5},
        "piecewise": {"at": [30], "factors": [0.5]},
        "cosine_restarts": {"period": 7},
        "cyclical": {"period": 6},
    }
    rates = curve({"kind": kind, "warmup": 8, **needs.get(kind, {})})
    assert rates[:9] == pytest.approx([k / 8 for k in range(1, 9)] + [1.0])
    assert all(rate > 0 for rate in rates)


def test_decay_after_warmup_spans_the_rest_of_the_run():
    rates = curve({"kind": "linear", "warmup": 10, "final": 0.0})
    assert rates[9:] == pytest.approx([1.0] + [1 - i / 30 for i in range(30)])
    after = build_schedule({"kind": "linear", "warmup": 10, "final": 0.1}, T)
    assert after(T + 1) == after(T + 100) == pytest.approx(0.1)


def test_lengths_are_updates_fractions_or_epochs():
    expected = curve({"kind": "cosine", "warmup": 10})
    assert curve({"kind": "cosine", "warmup": 0.25}) == expected
    assert curve({"kind": "cosine", "warmup": "2ep"}, steps_per_epoch=5) == expected
    at = {"kind": "piecewise", "factors": [0.5, 0.1]}
    assert curve({**at, "at": [0.5, "3ep"]}, steps_per_epoch=10) == curve({**at, "at": [20, 30]})


def test_an_endless_run_takes_what_counts_updates_alone():
    assert curve({"kind": "constant", "warmup": 2}, None, 4) == [0.5, 1, 1, 1]
    assert curve({"kind": "step", "every": 2, "gamma": 0.5}, None, 5) == [1, 1, 0.5, 0.5, 0.25]
    for settings in ({"kind": "cosine"}, {"kind": "wsd"}, {"kind": "constant", "warmup": 0.1}):
        with pytest.raises(ConfigError, match="needs the length of the run"):
            build_schedule(settings, None)
        check_schedule(settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "cosin"}, r"scheduler\.kind=cosin: must be one of.*nearest: 'cosine'"),
        ({}, r"scheduler\.kind=None"),
        ({"kind": "cosine", "warmpu": 3}, r"scheduler\.warmpu.*nearest: 'warmup'"),
        ({"kind": "constant", "final": 0.1}, r"scheduler\.final is not a setting of constant"),
        ({"kind": "cosine", "warmup": -1}, r"scheduler\.warmup=-1"),
        ({"kind": "cosine", "warmup": 1.5}, "whole updates"),
        ({"kind": "cosine", "warmup": True}, "must be updates"),
        ({"kind": "cosine", "warmup": "ep"}, "must be updates"),
        ({"kind": "cosine", "final": "low"}, "final=low: expected number, got text 'low'"),
        ({"kind": "cosine", "final": -0.1}, "final=-0.1: must not be negative"),
        ({"kind": "step"}, r"scheduler\.every=None"),
        ({"kind": "step", "every": 0}, "at least 1 update"),
        ({"kind": "piecewise", "at": [3], "factors": [1, 2]}, "as many as"),
        ({"kind": "piecewise", "at": 3, "factors": [1]}, "must be a list"),
        ({"kind": "wsd", "curve": "cosin"}, "nearest: 'cosine'"),
        ({"kind": "one_cycle", "warmup": 5}, "one_cycle rises by itself"),
        ({"kind": "cyclical", "period": 1}, "at least 2 updates"),
    ],
)
def test_mistakes_are_named_before_the_length_of_the_run_is_known(settings, message):
    with pytest.raises(ConfigError, match=message):
        check_schedule(settings)
    with pytest.raises(ConfigError, match=message):
        build_schedule(settings, T)


@pytest.mark.parametrize(
    ("settings", "keys"),
    [
        ({"kind": "cosine", "warmup": -3, "final": -1, "x": 0}, ["x", "warmup=-3", "final=-1"]),
        ({"kind": "cosin", "warmup": -3}, ["kind=cosin", "warmup=-3"]),
        ({"kind": "step", "every": 0, "gamma": "x"}, ["every=0", "gamma=x"]),
        ({"kind": "piecewise", "at": 3, "factors": [-1]}, ["at=3", "factors=[-1]"]),
        ({"kind": "wsd", "decay": 1.5, "curve": "cosin"}, ["decay=1.5", "curve=cosin"]),
    ],
)
def test_all_mistakes_of_a_schedule_are_told_at_once(settings, keys):
    for read in (check_schedule, partial(build_schedule, total_steps=T)):
        with pytest.raises(ConfigError) as told:
            read(settings)
        found = {
            p.removeprefix("scheduler.").split(": ")[0].split(" ")[0] for p in told.value.problems
        }
        assert found == set(keys)


def test_mistakes_that_need_the_length_of_the_run():
    with pytest.raises(ConfigError, match="longer than the run of 40 updates"):
        build_schedule({"kind": "constant", "warmup": 41}, T)
    with pytest.raises(ConfigError, match="must rise"):
        build_schedule({"kind": "piecewise", "at": [0.5, 10], "factors": [1, 1]}, T)
    with pytest.raises(ConfigError, match="length of an epoch"):
        build_schedule({"kind": "constant", "warmup": "1ep"}, T)


@pytest.mark.parity("L15")
def test_every_kind_has_an_option_that_builds():
    options = {path.stem: yaml.safe_load(path.read_text()) for path in CONF.glob("*.yaml")}
    assert options.pop("own") == {"_target_": "???"}  # for one of the user's
    assert set(options) == set(SCHEDULE_KINDS)
    for stem, settings in options.items():
        assert settings["kind"] == stem
        assert set(settings) >= set(SCHEDULE_KINDS[stem].keys), "every setting shows in the YAML"
        check_schedule(settings)
        assert all(0 < rate <= 1 for rate in curve(settings, steps_per_epoch=10))


def test_settings_and_schedules_import_no_torch():
    code = (
        "import sys, runner.optim.lr_schedule, runner.optim.settings; "
        "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    assert python("-c", code).returncode == 0


@pytest.mark.parametrize(
    "settings",
    [
        {"kind": "exponential", "every": 1, "gamma": 1e300},
        {"kind": "step", "every": 1, "gamma": 10.0},
        {"kind": "piecewise", "at": [1], "factors": [1e31]},
    ],
)
def test_a_rate_that_grows_without_bound_is_refused(settings):
    with pytest.raises(ConfigError, match=r"scheduler: at update 40 the rate is over 1e\+30 times"):
        build_schedule(settings, 40)
    assert build_schedule({"kind": "step", "every": 10, "gamma": 10.0}, 40)(40) == 1000
    with pytest.raises(ConfigError, match="must be finite numbers of at least 0"):
        build_schedule({"kind": "piecewise", "at": [1], "factors": [float("inf")]}, 40)
