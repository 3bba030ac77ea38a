"""The direct call of the kernel does what torch's own step does."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from runner.optim.fused_step import step_optimizer


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 1), nn.Linear(3, 3))


def after(update, cls, *, num_updates: int = 4, **settings):
    """Return parameters and states after updates with changing rates; the last layer is unused."""
    model = net()
    groups = [
        {"params": list(model[0].parameters())},
        {"params": [p for layer in model[2:] for p in layer.parameters()], "weight_decay": 0.1},
    ]
    optimizer = cls(groups, **settings)
    for number in range(num_updates):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 / (number + 1)
        optimizer.zero_grad()
        model[:3](
            torch.randn(4, 5, generator=torch.Generator().manual_seed(number))
        ).sum().backward()
        update(optimizer)
    found = [p.detach() for p in model.parameters()]
    for parameter in model.parameters():
        found += list(optimizer.state.get(parameter, {}).values())
    return found


@pytest.mark.parametrize(
    ("cls", "settings"),
    [
        (torch.optim.Adam, {"fused": True}),
        (torch.optim.Adam, {"fused": True, "weight_decay": 0.2, "maximize": True}),
        (torch.optim.Adam, {"fused": True, "amsgrad": True}),
        (torch.optim.Adam, {"foreach": True}),
        (torch.optim.AdamW, {"fused": True, "weight_decay": 0.3, "eps": 1e-3}),
        (torch.optim.AdamW, {"fused": True, "betas": (0.5, 0.6)}),
        (torch.optim.SGD, {"fused": True, "momentum": 0.9}),
        (torch.optim.RMSprop, {}),
    ],
)
def test_a_step_equals_torchs_own_to_the_last_bit(cls, settings):
    ours, theirs = after(step_optimizer, cls, **settings), after(cls.step, cls, **settings)
    assert len(ours) == len(theirs) > 6
    for mine, other in zip(ours, theirs):
        assert torch.equal(mine, other)


def test_a_step_goes_on_from_loaded_states():
    model = net()[:1]
    first, second = torch.optim.Adam(model.parameters(), fused=True), None
    model(torch.ones(2, 5)).sum().backward()
    step_optimizer(first)
    second = torch.optim.Adam(model.parameters(), fused=True)
    second.load_state_dict(first.state_dict())
    step_optimizer(second)
    assert [s["step"].item() for s in second.state.values()] == [2.0, 2.0]


def test_hooks_are_called_at_every_step():
    model = net()[:1]
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    calls: list[str] = []
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    for _ in range(3):
        model(torch.ones(2, 5)).sum().backward()
        step_optimizer(optimizer)
    assert calls == ["after"] * 3


def test_a_profiler_sees_every_step():
    model = net()[:1]
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    model(torch.ones(2, 5)).sum().backward()
    step_optimizer(optimizer)
    with torch.profiler.profile() as profile:
        step_optimizer(optimizer)
        step_optimizer(optimizer)
    counts = {event.key: event.count for event in profile.key_averages()}
    assert counts["Optimizer.step#Adam.step"] == 2


def test_the_kernel_is_reached_without_torchs_own_step(monkeypatch):
    model = net()[:1]
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    model(torch.ones(2, 5)).sum().backward()
    step_optimizer(optimizer)  # makes the states
    monkeypatch.setattr(
        torch.optim.Adam, "step", lambda self: pytest.fail("torch's own step was called")
    )
    before = model[0].weight.detach().clone()
    step_optimizer(optimizer)
    assert not torch.equal(before, model[0].weight)
