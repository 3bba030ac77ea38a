"""Random states of ranks: each has its own, rank 0 that of one process, alike at every start."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from runner.training.rng_state import seed_rank


def draws(rank: int, *, seed: int = 5, step: int = 0) -> tuple[list[float], ...]:
    """What torch, Python and NumPy draw after `seed_rank`, from the states that a seed gives."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    seed_rank(seed, rank, step=step)
    numbers = torch.rand(4).tolist(), [random.random() for _ in range(4)]
    return *numbers, np.random.rand(4).tolist()


@pytest.mark.long
def test_every_rank_draws_numbers_of_its_own_and_rank_0_those_of_one_process():
    with torch.random.fork_rng():
        states = random.getstate(), np.random.get_state()
        torch.manual_seed(5)
        alone = torch.rand(4).tolist()
        assert draws(0)[0] == alone
        cases = [draws(rank) for rank in range(4)] + [draws(1, seed=6), draws(1, step=7)]
        assert draws(1) == draws(1)
        for kind in range(3):
            assert len({tuple(case[kind]) for case in cases}) == len(cases)
        random.setstate(states[0])
        np.random.set_state(states[1])
