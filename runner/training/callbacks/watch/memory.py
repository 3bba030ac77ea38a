"""The memory that the process holds, and how much is left to it."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Annotated, Any

import torch

from runner.config.intervals import parse_interval
from runner.config_key import Key
from runner.config_value import check_arguments
from runner.machine.free_memory import available_memory_share

TOGETHER = "all ranks measure after the same update, and their clocks differ"


class Memory:
    """Writes a row of perf.jsonl with the memory in use and the free memory, at each interval.

    The row holds the largest use and the smallest free share over all ranks. Numbers that this
    machine does not provide are left out.

    Args:
        every: an interval, but not a time, since all ranks must agree on it.
        warn_free_below: warn when a smaller share of the memory that the process may use is free,
            on the host or on its GPU.
    """

    on_every_rank = True
    stateless = True  # memory is that of this process

    def __init__(
        self,
        *,
        every: Annotated[int | str, Key(interval="progress", note=TOGETHER)] = 100,
        warn_free_below: Annotated[float, Key(ge=0, le=1, note="0: never")] = 0.05,
    ) -> None:
        check_arguments(Memory.__init__, locals())
        self.every = parse_interval(every, key="every")
        self.warn_free_below = warn_free_below

    def on_update(self, training: Any, output: Any) -> None:
        """Write the row. Collective, at each interval."""
        if not training.due(self.every):
            return
        values = process_memory() | gpu_memory(training.context.device)
        values = {name: training.ranks.all_reduce_max(value) for name, value in values.items()}
        free = {
            "host": -training.ranks.all_reduce_max(-available_memory_share()),
            "gpu": -training.ranks.all_reduce_max(-gpu_free_fraction(training.context.device)),
        }
        known = {f"memory/{k}_free": share for k, share in free.items() if share <= 1}
        training.log_speed({f"memory/{k}": v for k, v in values.items()} | known)
        for where, share in free.items():
            if share < self.warn_free_below:
                training.warn(
                    f"step {training.step:,}: memory: {share:.1%} of the {where}'s memory is free; "
                    "a smaller trainer.batch_size with a larger trainer.accumulate needs less"
                )


def process_memory() -> dict[str, float]:
    """Return the bytes that this process holds, and the most that it has held."""
    values = {}
    statm = Path("/proc/self/statm")
    if statm.exists():
        values["bytes"] = float(statm.read_text().split()[1]) * resource.getpagesize()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
    return {**values, "peak_bytes": max(peak, *values.values(), 0.0)}


def gpu_memory(device: torch.device) -> dict[str, float]:
    """Return the bytes of PyTorch's allocator on a GPU; empty on another device."""
    if device.type != "cuda":
        return {}
    return {
        "gpu_bytes": float(torch.cuda.memory_allocated(device)),
        "gpu_reserved_bytes": float(torch.cuda.memory_reserved(device)),
        "gpu_peak_bytes": float(torch.cuda.max_memory_allocated(device)),
    }


def gpu_free_fraction(device: torch.device) -> float:
    """Return the share of a GPU's memory that is free; 2 if there is no GPU."""
    if device.type != "cuda":
        return 2.0
    free, total = torch.cuda.mem_get_info(device)
    return free / total
