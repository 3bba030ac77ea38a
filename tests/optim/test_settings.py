"""Settings of the table optimizer."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from runner.errors import ConfigError
from runner.optim.settings import SPARSE_KINDS, SparseSettings, parse_sparse

CONF = Path(__file__).parents[2] / "conf" / "optimizer"


def test_every_optimizer_option_parses():
    paths = sorted(CONF.glob("*.yaml"))
    assert len(paths) >= 5
    for path in paths:
        settings = parse_sparse(yaml.safe_load(path.read_text())["sparse"])
        assert settings.kind in SPARSE_KINDS
        assert settings.lr > 0 or path.stem == "lbfgs"  # which freezes its tables


def test_values_and_defaults():
    assert parse_sparse({"kind": "adam", "lr": 1, "betas": [0.5, 0.6]}) == SparseSettings(
        kind="adam", lr=1.0, betas=(0.5, 0.6), eps=1e-8, weight_decay=0.0
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"kind": "adamm", "lr": 1},
            r"optimizer\.sparse\.kind=adamm: must be one of.*nearest: 'adam'",
        ),
        ({"lr": 1}, r"optimizer\.sparse\.kind=None: must be one of"),
        ({"kind": "sgd"}, r"optimizer\.sparse\.lr is missing"),
        (
            {"kind": "adam", "lr": 1, "beta": 1},
            r"sparse\.beta is not a setting of adam; nearest: 'betas'",
        ),
        ({"kind": "sgd", "lr": 1, "momentum": 0.9}, r"momentum: .* have no momentum"),
        ({"kind": "sgd", "lr": 1, "weight_decay": 0.1}, r"weight_decay: .* of sgd ignore it"),
        ({"kind": "rowwise_adagrad", "lr": 1, "weight_decay": 0.1}, "ignore it"),
        ({"kind": "adagrad", "lr": 1, "initial_accumulator_value": 0.1}, "start at 0"),
        ({"kind": "adam", "lr": 1, "amsgrad": True}, "no table kernel has it"),
        ({"kind": "sgd", "lr": "1"}, r"lr=1: expected number, got text '1'"),
        ({"kind": "sgd", "lr": True}, r"lr=True: expected number, got true or false True"),
        ({"kind": "sgd", "lr": -1}, r"lr=-1: must not be negative"),
        ({"kind": "sgd", "lr": float("nan")}, r"lr=nan: must be at least 0 and finite"),
        ({"kind": "adagrad", "lr": 1, "eps": 0}, r"eps=0: must be above 0"),
        (
            {"kind": "adam", "lr": 1, "betas": [0.9, 1.0]},
            r"betas\[1\]=1\.0: must be at least 0 and below 1",
        ),
        ({"kind": "adam", "lr": 1, "betas": 0.9}, r"betas=0\.9: expected list of number"),
        ({"kind": "adam", "lr": 1, "betas": [0.9]}, r"betas=\[0\.9\]: needs 2 items"),
        (
            {"kind": "lars_sgd", "lr": 1, "momentum": 1.0},
            r"momentum=1\.0: must be at least 0 and below 1",
        ),
    ],
)
def test_mistakes_and_what_kernels_would_ignore_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        parse_sparse(settings)


def test_all_mistakes_are_told_at_once():
    wrong = {"kind": "adagrad", "lr": -1, "eps": 0, "dtype": "x", "l2_tables": -1, "every_row": 3}
    with pytest.raises(ConfigError) as told:
        parse_sparse({**wrong, "momentum": 0.9, "esp": 1}, "optimizer.parts[0].sparse")
    keys = [
        p.split(": ")[0].removeprefix("optimizer.parts[0].sparse.") for p in told.value.problems
    ]
    assert keys == [
        *("lr=-1", "eps=0", "dtype=x", "l2_tables=-1", "every_row=3", "momentum"),
        "esp is not a setting of adagrad; nearest",
    ]


def test_settings_that_exclude_each_other_are_told_beside_a_wrong_one():
    wrong = {"kind": "adam", "lr": -1, "l2_tables": 0.1, "dtype": "bf16"}
    with pytest.raises(ConfigError) as told:
        parse_sparse(wrong)
    rate, penalty, rounding = told.value.problems
    assert rate == "optimizer.sparse.lr=-1: must not be negative"
    assert "l2_tables=0.1: reaches every row" in penalty
    assert "dtype=bf16: does not work with optimizer.sparse.l2_tables" in rounding


def test_an_unknown_kind_hides_no_other_mistake():
    with pytest.raises(ConfigError) as told:
        parse_sparse({"kind": "adamm", "lr": -1})
    assert [p.split(":")[0] for p in told.value.problems] == [
        "optimizer.sparse.kind=adamm",
        "optimizer.sparse.lr=-1",
    ]
