"""Our dropout, which draws 16 bits for an element, has the distribution of torch's."""

from __future__ import annotations

import math

import pytest
import torch

from runner.distributed.ranks import SINGLE_PROCESS
from runner.models.layers.dropout import Dropout
from runner.models.layers.row_draws import BLOCK_ROWS, RowDraws, row_draws, shared_draws
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


def dropped(drops, x, first, seed=1):
    """What several layers leave of rows of an update, one after another."""
    with row_draws(RowDraws(seed, first, x.shape[drops[0].row_dim])):
        return [drop(x) for drop in drops]


@pytest.mark.parametrize("row_dim", [0, 1])
@pytest.mark.parametrize("at_once", [1, 3, BLOCK_ROWS, BLOCK_ROWS + 1, 2 * BLOCK_ROWS + 5])
def test_however_rows_are_divided_the_same_is_dropped_of_them(at_once, row_dim):
    rows = 3 * BLOCK_ROWS + 7
    x = torch.randn(rows, 5, 3).transpose(0, row_dim)
    drops = [Dropout(0.3, row_dim=row_dim), Dropout(0.5, row_dim=row_dim)]
    whole = dropped(drops, x, 0)
    parts = [dropped(drops, part, at_once * i) for i, part in enumerate(x.split(at_once, row_dim))]
    for i, expected in enumerate(whole):
        assert torch.equal(torch.cat([part[i] for part in parts], row_dim), expected)


def test_another_seed_call_row_or_element_is_dropped_independently():
    drop, x = Dropout(0.5), torch.ones(4 * BLOCK_ROWS, 250)
    first, second = ((kept == 0).double() for kept in dropped([drop, drop], x, 0))
    other = (dropped([drop], x, 0, seed=2)[0] == 0).double()
    block = first[BLOCK_ROWS:]
    pairs = [(first, second), (first, other), (block, first[:-BLOCK_ROWS]), (first[1:], first[:-1])]
    for one, two in pairs:
        assert abs((one * two).mean().item() - 0.25) < 5 * math.sqrt(0.25 * 0.75 / one.numel())


def test_several_entries_of_a_row_and_those_that_belong_to_no_row_are_drawn_too():
    drop, x = Dropout(0.5), torch.ones(24, 10)
    with row_draws(RowDraws(1, 0, 12)):
        whole = drop(x)
    halves = []
    for first in (0, 6):
        with row_draws(RowDraws(1, first, 6)):
            halves.append(drop(x[2 * first : 2 * first + 12]))
    assert torch.equal(torch.cat(halves), whole)
    items = []
    for first in (0, 7):
        with row_draws(RowDraws(1, first, 7)):
            items.append(drop(x))
    assert not torch.equal(*items)
    shared = []
    for first, size in ((0, 6), (6, 8), (0, 5)):  # 24 items are no rows of any of them
        with row_draws(RowDraws(1, first, size)), shared_draws():
            shared.append(drop(x))
    assert torch.equal(shared[0], shared[1]) and torch.equal(shared[0], shared[2])


def test_draws_of_rows_leave_torchs_generator_alone_and_end_with_their_block():
    drop, x = Dropout(0.5), torch.ones(8, 8)
    before = torch.get_rng_state()
    dropped([drop], x, 0)
    assert torch.equal(torch.get_rng_state(), before)
    drop(x)
    assert not torch.equal(torch.get_rng_state(), before)
