"""SGD with L2 of whole tables, which catches up on rows, against SGD that decays every row."""

from __future__ import annotations

import pytest
import torch

from runner.embeddings.decayed_tables import DecayedTables
from runner.embeddings.factory import build_tables
from runner.errors import ConfigError
from runner.optim.settings import SparseSettings
from tests.devices import CPU, DEVICES, tolerance
from tests.embeddings.test_dense_tables import WIDE, bags_of, l2_loss, pooled_by
from tests.embeddings.test_tables import FEATURES, SPECS, jagged

L2 = 0.1  # of `l2_loss`


def tables_of(specs, device=CPU, l2=L2):
    settings = SparseSettings("sgd", 0.05, l2_tables=l2)
    tables = build_tables(specs, FEATURES, settings, seed=0, device=device)
    assert isinstance(tables, DecayedTables)
    return tables


def train(tables, steps, lr=0.5):
    for step in steps:
        tables.set_lr_and_step(lr, step)
        pooled = tables(jagged(step, weighted=True))
        pooled.backward(torch.full_like(pooled, 0.3) * pooled.detach().sign())


@pytest.mark.parametrize("specs", [SPECS, WIDE], ids=["multiples of 4", "any width"])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("lr", [0.05, 3.0])
def test_sixty_steps_equal_torch_sgd_with_the_penalty_in_the_loss(device, specs, lr):
    """At rate 3 the scale is folded into the rows on the way: .7 ** 60 is below it."""
    tables = tables_of(specs, device)
    bags = bags_of(tables, specs)
    optimizer = torch.optim.SGD(bags.parameters(), lr=lr)
    near = {"rtol": tolerance(device, 1e-4, 1e-3), "atol": 1e-5}
    for step in range(1, 61):
        kjt = jagged(step, 1 + step % 3)
        optimizer.zero_grad()
        tables.set_lr_and_step(lr / step**0.5, step)
        optimizer.param_groups[0]["lr"] = lr / step**0.5
        ours, theirs = tables(kjt.to(device)), pooled_by(bags, specs, kjt)
        torch.testing.assert_close(ours.cpu(), theirs, **near)
        grad = torch.randn(ours.shape)
        if step % 7 == 0:
            continue  # an update that was skipped for a gradient that is not finite
        ours.backward(grad.to(device))
        ((theirs * grad).sum() + l2_loss(bags)).backward()
        optimizer.step()
    for spec in specs:
        weight = tables.state()[f"{spec.name}/weight"].cpu()
        torch.testing.assert_close(weight, bags[spec.name].weight.detach(), **near)


@pytest.mark.parametrize("saves", [(), (2, 3)], ids=["", "saved on the way"])
def test_a_resumed_training_goes_on_bit_for_bit(saves):
    whole, before, after = (tables_of(WIDE) for _ in range(3))
    train(whole, range(1, 9))
    for step in range(1, 5):
        train(before, [step])
        if step in saves:
            before.state()
    for state in ("state", "resume_state"):
        for name, tensor in getattr(after, state)().items():
            tensor.copy_(getattr(before, state)()[name])
    train(after, range(5, 9))
    for state in ("state", "resume_state"):
        for name, tensor in getattr(whole, state)().items():
            assert torch.equal(tensor, getattr(after, state)()[name]), name


def test_weights_alone_are_taken_over_where_a_load_says_so():
    source, ours = tables_of(WIDE), tables_of(WIDE)
    train(source, range(1, 4))
    train(ours, range(4, 9))
    saved = {name: t.clone() for name, t in source.state().items()}
    into = ours.state()
    into["shared/weight"].copy_(saved["shared/weight"])
    kept = into["a/weight"].clone()
    ours.take_over_weights()
    assert torch.equal(ours.state()["shared/weight"], saved["shared/weight"])
    assert torch.equal(ours.state()["a/weight"], kept)
    assert set(ours.resume_state()["a/scale"].tolist()) == {1.0}
    torch.testing.assert_close(
        ours(jagged(1)).split([10, 4, 7, 10], 1)[0], source(jagged(1)).split([10, 4, 7, 10], 1)[0]
    )


def test_what_is_written_in_parts_is_taken_over_whole_and_an_update_makes_new_copies():
    tables = tables_of(WIDE)
    train(tables, [1])
    tables.set_lr_and_step(0.5, 2)
    for name in ("shared/weight", "a/weight"):
        tables.state()[name].fill_(0.5)
    tables.take_over_weights()
    before = tables.state()
    assert all((before[name] == 0.5).all() for name in ("shared/weight", "a/weight"))
    pooled = tables(jagged(2, weighted=True))
    pooled.backward(torch.ones_like(pooled))
    after = tables.state()
    assert all(not torch.equal(after[name], before[name]) for name in before)


def test_groups_of_different_scales_that_a_resume_joins_have_one():
    tables = tables_of(SPECS)
    train(tables, range(1, 4))
    tables.resume_state()["a/scale"].fill_(0.25)
    stored = {name: t.clone() for name, t in tables.resume_state().items()}
    weight = tables.state()
    for spec in SPECS:
        expected = stored[f"{spec.name}/unscaled"] * float(stored[f"{spec.name}/scale"])
        torch.testing.assert_close(weight[f"{spec.name}/weight"], expected)


def test_a_decay_that_takes_away_all_of_a_weight_is_refused():
    with pytest.raises(ConfigError, match=r"l2_tables=4: times the rate 0\.25 it must be below 1"):
        tables_of(SPECS, l2=4.0).set_lr_and_step(0.25, 1)
