"""Restores all that trial updates change, bit for bit."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from runner.distributed.shards import local_row, local_tensors
from runner.training.job import Job
from runner.training.rng_state import restore_rng_state, rng_state_tensors, rng_state_values
from runner.training.state import ema_tensors, growing_tensors, rebuild_growing_ids, weight_tensors
from runner.training.update.context import Context


@contextmanager
def restored_after(job: Job) -> Iterator[None]:
    """Restore the state of a training after the trial updates in this context.

    Weights, optimizers, loss scale, logged means, random states, modes of modules and micro-batch
    size are afterwards what they were. The copies are in the host's memory. Every rank keeps its
    own part; there is no collective.
    """
    ctx = job.context
    copies = [(live, live.detach().to("cpu", copy=True)) for live in _live_tensors(ctx)]
    optimizers = [(o, deepcopy(o.state_dict())) for o in ctx.optimizers().values()]
    logged_means = deepcopy(ctx.logged_means)
    generators = {
        name: local_row(t).clone() for name, t in rng_state_tensors(job.device, ctx.ranks).items()
    }
    values = rng_state_values()
    modes = [(module, module.training) for root in ctx.root_modules() for module in root.modules()]
    micro_batch_size = ctx.micro_batch_size
    schedules = deepcopy(job.learning_rates.states())
    try:
        yield
    finally:
        with torch.no_grad():
            for live, copy in copies:
                live.copy_(copy)
        for optimizer, before in optimizers:
            restore_optimizer(optimizer, before)
        rebuild_growing_ids(ctx)
        ctx.zero_grad()  # of a trial that failed half-way
        for state in ctx.update_states:
            state.forget_update()
        ctx.logged_means = logged_means
        job.learning_rates.load_states(schedules)
        restore_rng_state(generators, values, job.device)
        for module, training in modes:
            module.training = training
        ctx.micro_batch_size = micro_batch_size
        free_memory(job.device)


def free_memory(device: torch.device) -> None:
    """Release what a trial that ran out of memory still holds."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _live_tensors(ctx: Context) -> list[Tensor]:
    """Return this rank's part of all tensors that an update may change in place, each once."""
    roots = [*ctx.root_modules(), *([ctx.loss] if isinstance(ctx.loss, nn.Module) else [])]
    tensors = [
        *weight_tensors(ctx).values(),
        *ema_tensors(ctx).values(),
        *growing_tensors(ctx).values(),
        *ctx.tables.state().values(),
        *ctx.tables.resume_state().values(),
    ]
    tensors += [buffer for root in roots for buffer in root.buffers()]
    if ctx.loss_scale is not None:
        tensors.append(ctx.loss_scale.state)
    local = [part for t in tensors for part in local_tensors(t)]
    return list({(t.data_ptr(), t.shape, t.dtype): t for t in local if t.numel()}.values())


def restore_optimizer(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Put an optimizer's state back; a state that did not exist then is removed."""
    if saved["state"]:
        optimizer.load_state_dict(saved)
        return
    optimizer.state.clear()
    for group, before in zip(optimizer.param_groups, saved["param_groups"]):
        group.update({k: v for k, v in before.items() if k != "params"})
