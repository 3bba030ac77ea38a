"""The loss scale: what it scales it unscales, and how it adapts."""

from __future__ import annotations

import torch

from runner.precision import LossScale
from runner.task import Supervised
from tests.tiny import CPU, make_context, random_batch, snapshot


def test_a_scaled_loss_gives_the_same_update():
    plain, scaled = make_context("rowwise_adagrad"), make_context("rowwise_adagrad")
    scaled.loss_scale = LossScale(CPU, initial=1024.0)
    for context in (plain, scaled):
        Supervised().train_step(context, iter([random_batch(64)]))
    a, b = snapshot(plain), snapshot(scaled)
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=0, atol=1e-6)


def test_it_halves_on_overflow_and_doubles_after_a_streak():
    scale = LossScale(CPU, initial=8.0)
    scale.adapt(False)
    assert scale.state.tolist() == [4.0, 0.0]
    for _ in range(LossScale.GROWTH_INTERVAL):
        scale.adapt(True)
    assert scale.state.tolist() == [8.0, 0.0]


def test_an_overflow_of_the_scaled_loss_is_skipped_and_told():
    context = make_context()
    context.loss_scale = LossScale(CPU, initial=1e39)
    before = snapshot(context)
    output = Supervised().train_step(context, iter([random_batch(64)]))
    after = snapshot(context)
    assert not output.applied
    assert all(torch.equal(after[n], before[n]) for n in before)
    assert context.loss_scale.state[0] == 5e38
