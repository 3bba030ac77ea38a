"""Our dropout, which draws 16 bits for an element, has the distribution of torch's."""

from __future__ import annotations

import math

import pytest
import torch

from runner.distributed.ranks import SINGLE_PROCESS
from runner.models.layers.dropout import Dropout
from runner.training.rng_state import restore_rng_state, rng_state_tensors, rng_state_values
from tests.devices import DEVICES

NUM = 1_000_003  # no multiple of four: the last draw is used in part


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [0.05, 0.5, 0.9])
def test_the_share_that_is_dropped_is_p_and_the_mean_stays(p, dtype, device):
    torch.manual_seed(0)
    x = torch.ones(NUM, dtype=dtype, device=device, requires_grad=True)
    out = Dropout(p)(x)
    dropped = (out == 0).float().mean().item()
    deviation = math.sqrt(p * (1 - p) / NUM)
    assert abs(dropped - p) < 5 * deviation + 2**-17
    kept = out[out != 0].float()
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / (1 - p)), rtol=1e-2, atol=0)
    out.sum().backward()
    assert torch.equal(x.grad, out)


@pytest.mark.parametrize("device", DEVICES)
def test_neighbours_are_dropped_independently(device):
    torch.manual_seed(0)
    dropped = (Dropout(0.5)(torch.ones(NUM, device=device)) == 0).double()
    for lag in (1, 2, 3, 4, 256):
        both = (dropped[:-lag] * dropped[lag:]).mean().item()
        assert abs(both - 0.25) < 5 * math.sqrt(0.25 * 0.75 / NUM), lag


@pytest.mark.parametrize("device", DEVICES)
def test_a_seed_repeats_it_and_a_second_call_differs(device):
    drop, x = Dropout(0.3), torch.randn(64, 16, device=device)
    torch.manual_seed(1)
    first, second = drop(x), drop(x)
    torch.manual_seed(1)
    assert torch.equal(drop(x), first)
    assert not torch.equal(first, second)
    # what a checkpoint holds of generators
    states = {n: t[0].clone() for n, t in rng_state_tensors(device, SINGLE_PROCESS).items()}
    values = rng_state_values()
    third = drop(x)
    restore_rng_state(states, values, device)
    assert torch.equal(drop(x), third)


@pytest.mark.parametrize("device", DEVICES)
def test_nothing_is_dropped_in_evaluation_or_at_zero_and_all_at_one(device):
    x = torch.randn(8, 3, device=device)
    assert torch.equal(Dropout(0.5).eval()(x), x)
    assert torch.equal(Dropout(0.0)(x), x)
    assert torch.equal(Dropout(1.0)(x), torch.zeros_like(x))
    assert Dropout(0.5)(x[:0]).shape == (0, 3)


@pytest.mark.parametrize("p", [-0.1, 1.5])
def test_a_probability_out_of_range_is_refused(p):
    with pytest.raises(ValueError, match="dropout probability"):
        Dropout(p)
