"""The dense optimizer: built from settings, and resumed bit for bit whatever its class."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn, optim

from runner.errors import ConfigError
from runner.optim.dense import (
    build_dense_optimizer,
    create_dense_state,
    dense_state_tensors,
    dense_state_values,
)

CASES = [
    (optim.SGD, {"lr": 0.1}),
    (optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.3}),
    (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "fused": False}),
    (optim.Adam, {"lr": 0.01, "amsgrad": True}),
    (optim.Adam, {"lr": 0.01, "betas": [0.8, 0.9], "fused": False}),
    (optim.AdamW, {"lr": 0.01, "foreach": True}),
    (optim.Adagrad, {"lr": 0.1, "initial_accumulator_value": 0.1}),
    (optim.RMSprop, {"lr": 0.01, "momentum": 0.5, "centered": True}),
    (optim.NAdam, {"lr": 0.01}),
    (optim.RAdam, {"lr": 0.01}),
    (optim.Adamax, {"lr": 0.01}),
    (optim.Adadelta, {"lr": 1.0}),
    (optim.ASGD, {"lr": 0.01}),
    (optim.Rprop, {"lr": 0.01}),
    (optim.Adafactor, {"lr": 0.01}),
    (optim.LBFGS, {"lr": 0.5, "history_size": 3, "max_iter": 4}),
]


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1))


def train(model: nn.Module, optimizer: optim.Optimizer, steps: range) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(16, 5, generator=generator)
        y = torch.randn(16, 1, generator=generator)

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            return loss

        if isinstance(optimizer, optim.LBFGS):
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()


def parameters_of(model: nn.Module) -> dict[str, nn.Parameter]:
    return dict(model.named_parameters())


@pytest.mark.parametrize(("cls", "settings"), CASES, ids=lambda v: getattr(v, "__name__", None))
@pytest.mark.parity("E2")
def test_three_steps_save_load_three_more_equal_six(cls, settings):
    whole = make_model()
    uninterrupted = build_dense_optimizer(cls, settings, parameters_of(whole))
    train(whole, uninterrupted, range(6))

    first = make_model()
    before = build_dense_optimizer(cls, settings, parameters_of(first))
    train(first, before, range(3))
    saved = {n: t.clone() for n, t in dense_state_tensors(before, parameters_of(first)).items()}
    values = json.loads(
        json.dumps(dense_state_values(before, parameters_of(first)), allow_nan=False)
    )

    second = make_model()
    second.load_state_dict(first.state_dict())
    after = build_dense_optimizer(cls, settings, parameters_of(second))
    create_dense_state(after, parameters_of(second), values)
    live = dense_state_tensors(after, parameters_of(second))
    assert set(live) == set(saved)
    for name, tensor in live.items():
        assert tensor.shape == saved[name].shape
        assert tensor.dtype == saved[name].dtype
        tensor.copy_(saved[name])
    train(second, after, range(3, 6))

    for name, parameter in whole.named_parameters():
        assert torch.equal(parameter, parameters_of(second)[name]), name
    final = dense_state_tensors(after, parameters_of(second))
    for name, tensor in dense_state_tensors(uninterrupted, parameters_of(whole)).items():
        assert torch.equal(tensor, final[name]), name
    assert dense_state_values(after, parameters_of(second)) == dense_state_values(
        uninterrupted, parameters_of(whole)
    )


def test_states_are_named_by_parameter_and_live():
    model = make_model()
    optimizer = build_dense_optimizer(optim.Adam, {"lr": 0.01}, parameters_of(model))
    assert dense_state_tensors(optimizer, parameters_of(model)) == {}
    assert dense_state_values(optimizer, parameters_of(model)) == {}
    train(model, optimizer, range(1))
    state = dense_state_tensors(optimizer, parameters_of(model))
    assert set(state) == {
        f"{name}/{key}"
        for name in ("0.weight", "0.bias", "2.weight", "2.bias")
        for key in ("step", "exp_avg", "exp_avg_sq")
    }
    before = state["0.bias/exp_avg"].clone()
    train(model, optimizer, range(1, 2))
    assert not torch.equal(state["0.bias/exp_avg"], before)
    assert state["0.bias/step"].item() == 2


def test_a_parameter_without_gradient_has_no_state_to_save():
    model = make_model()
    optimizer = build_dense_optimizer(optim.Adam, {"lr": 0.01}, parameters_of(model))
    model[0].bias.requires_grad_(False)
    train(model, optimizer, range(1))
    assert "0.bias" not in dense_state_values(optimizer, parameters_of(model))
    fresh = build_dense_optimizer(optim.Adam, {"lr": 0.01}, parameters_of(model))
    create_dense_state(
        fresh, parameters_of(model), dense_state_values(optimizer, parameters_of(model))
    )
    assert set(dense_state_tensors(fresh, parameters_of(model))) == set(
        dense_state_tensors(optimizer, parameters_of(model))
    )


@pytest.mark.parametrize("cls", [optim.Adam, optim.AdamW, optim.SGD, optim.Adagrad])
def test_fused_on_cpu_unless_the_user_says_otherwise(cls):
    parameters = parameters_of(make_model())
    assert build_dense_optimizer(cls, {"lr": 0.1}, parameters).defaults["fused"] is True
    chosen = build_dense_optimizer(cls, {"lr": 0.1, "fused": False}, parameters)
    assert chosen.defaults["fused"] is False
    assert not build_dense_optimizer(cls, {"lr": 0.1, "foreach": True}, parameters).defaults[
        "fused"
    ]


@pytest.mark.parametrize("cls", [optim.Adam, optim.RMSprop, optim.Adadelta, optim.ASGD])
def test_a_model_of_tables_alone_has_an_optimizer_that_does_nothing(cls):
    optimizer = build_dense_optimizer(cls, {"lr": 0.1}, {})
    optimizer.step()
    assert dense_state_tensors(optimizer, {}) == {}


@pytest.mark.parametrize(
    ("cls", "settings", "message"),
    [
        (optim.Adam, {"lr": 0.1, "beta": 1}, r"optimizer\.dense\.beta.*Adam; nearest: 'betas'"),
        (optim.Adam, {"lr": 0.1, "params": []}, r"optimizer\.dense\.params is not a setting"),
        (optim.Adam, {"lr": -1.0}, r"optimizer\.dense: Adam: Invalid learning rate"),
        (optim.Adam, {"lr": "fast"}, r"optimizer\.dense: Adam"),
        (nn.Linear, {}, "is not a torch optimizer class"),
    ],
)
def test_mistakes_are_named(cls, settings, message):
    with pytest.raises(ConfigError, match=message):
        build_dense_optimizer(cls, settings, parameters_of(make_model()))


def test_state_of_an_unknown_parameter_is_refused():
    model = make_model()
    optimizer = build_dense_optimizer(optim.Adam, {"lr": 0.1}, parameters_of(model))
    with pytest.raises(ConfigError, match=r"'0\.wieght'.*nearest: '0\.weight'"):
        create_dense_state(optimizer, parameters_of(model), {"0.wieght": {}})


@pytest.mark.parametrize(
    ("cls", "settings", "kept"),
    [
        (optim.RMSprop, {"lr": 0.1}, "square_avg, step"),
        (optim.Adagrad, {"lr": 0.1}, "step, sum"),
        (optim.Adam, {"lr": 0.1, "amsgrad": True}, "exp_avg, exp_avg_sq, max_exp_avg_sq, step"),
        (optim.SGD, {"lr": 0.1, "momentum": 0.9}, "momentum_buffer"),
        (optim.SGD, {"lr": 0.1}, "none"),
        (optim.LBFGS, {"lr": 0.1}, "func_evals, n_iter"),
    ],
)
def test_states_of_another_class_or_setting_are_refused(cls, settings, kept):
    model = make_model()
    adam = build_dense_optimizer(optim.Adam, {"lr": 0.01}, parameters_of(model))
    train(model, adam, range(1))
    values = dense_state_values(adam, parameters_of(model))
    other = build_dense_optimizer(cls, settings, parameters_of(model))
    message = rf"'0\.weight' are exp_avg, exp_avg_sq, step, and {cls.__name__} .* keeps {kept}$"
    with pytest.raises(ConfigError, match=message):
        create_dense_state(other, parameters_of(model), values)


def test_states_follow_the_settings_of_a_parameters_group():
    model = make_model()
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "momentum": 0.9}]
    optimizer = optim.SGD(groups, lr=0.1)
    train(model, optimizer, range(1))
    values = dense_state_values(optimizer, parameters_of(model))
    assert set(values) == {"2.weight", "2.bias"}
    create_dense_state(optimizer, parameters_of(model), values)


def test_states_that_a_class_has_from_the_start_stay_where_none_are_described():
    model = make_model()
    optimizer = build_dense_optimizer(optim.Adagrad, {"lr": 0.1}, parameters_of(model))
    values = dense_state_values(optimizer, parameters_of(model))
    create_dense_state(optimizer, parameters_of(model), {"0.bias": values["0.bias"]})
    train(model, optimizer, range(1))
    assert dense_state_tensors(optimizer, parameters_of(model))["2.bias/step"].item() == 1
