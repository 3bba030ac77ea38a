"""Saves and restores the random states of torch, Python and NumPy, for each rank its own."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from runner.distributed.ranks import Ranks
from runner.distributed.shards import stack_by_rank

RNG_PREFIX = "rng/"  # prefix of the names of these tensors in a checkpoint


def rng_state_tensors(device: torch.device, ranks: Ranks) -> dict[str, Tensor]:
    """Return copies of torch's random states: a row for each rank, its own on this one."""
    states = {f"{RNG_PREFIX}torch": torch.get_rng_state()}
    if device.type == "cuda":
        states[f"{RNG_PREFIX}cuda"] = torch.cuda.get_rng_state(device)
    return {n: stack_by_rank(s, ranks.rank, ranks.world_size) for n, s in states.items()}


def rng_state_values() -> dict[str, Any]:
    """Return Python's and NumPy's random states as JSON; custom tasks may draw from them."""
    version, internal, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": [version, list(internal), gauss],
        "numpy": [kind, [int(k) for k in keys], int(position), int(has_gauss), float(cached)],
    }


def restore_rng_state(
    states: Mapping[str, Tensor], values: Mapping[str, Any], device: torch.device
) -> None:
    """Set the random states of this rank.

    Args:
        states: torch's, from `rng_state_tensors`.
        values: Python's and NumPy's, from `rng_state_values`.
        device: whose generator is set, if the states have one for it.
    """
    # cloned, since torch reads a state from the start of its storage, where only the first row is
    torch.set_rng_state(states[f"{RNG_PREFIX}torch"].clone())
    if f"{RNG_PREFIX}cuda" in states and device.type == "cuda":
        torch.cuda.set_rng_state(states[f"{RNG_PREFIX}cuda"].clone(), device)
    version, internal, gauss = values["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, position, has_gauss, cached = values["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, cached))


@contextmanager
def preserve_rng_state(device: torch.device) -> Iterator[None]:
    """Restore the random states of PyTorch, Python and NumPy when the block ends."""
    with ExitStack() as after:
        after.callback(torch.set_rng_state, torch.get_rng_state())
        after.callback(random.setstate, random.getstate())
        after.callback(np.random.set_state, np.random.get_state())
        if device.type == "cuda":
            after.callback(torch.cuda.set_rng_state, torch.cuda.get_rng_state(device), device)
        yield


def seed_rank(seed: int, rank: int, *, step: int = 0) -> None:
    """Give each rank random states of its own, for custom tasks and for dropout on a GPU.

    Called after the model is made, whose initial weights are the same on all ranks. Rank 0 keeps
    its states, which are those of a single process.
    """
    if rank > 0:
        seeds = [int(n) for n in np.random.SeedSequence([seed, rank, step]).generate_state(3)]
        torch.manual_seed(seeds[0])
        random.seed(seeds[1])
        np.random.seed(seeds[2])
