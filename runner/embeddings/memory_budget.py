"""Checks that the memory of tables fits on the device of each rank.

TorchRec's planner checks the tables that it places; the tables of our own exchange are checked
here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import torch

from runner.distributed.ranks import Ranks
from runner.embeddings.interface import Placement
from runner.embeddings.row_updates import ROWWISE_STATES, STATE_NAMES
from runner.embeddings.sharding_settings import DISK, ShardingSettings
from runner.errors import ConfigError
from runner.optim.settings import SparseSettings

_GB = 10**9
_FLOAT_BYTES = 4


def table_memory_budget(sharding: ShardingSettings, ranks: Ranks, device: torch.device) -> int:
    """Return the bytes of a rank's device that tables may take: all but the storage reserve.

    Collective on several nodes, which may differ: the smallest device of all ranks counts.
    """
    least = _device_bytes(sharding, ranks, device)
    if ranks.local_world_size < ranks.world_size:
        least = -ranks.all_reduce_max(-least)
    return int(least * (1 - sharding.storage_reserve))


def table_bytes_per_rank(
    placement: Iterable[Placement], settings: SparseSettings, world_size: int
) -> list[int]:
    """Return the bytes that each rank needs for weights, and for the states of their optimizer.

    Tables that the plan leaves on disk need no memory.

    Where every row is updated, gradients of all weights count, too.
    """
    rowwise, states = ROWWISE_STATES.get(settings.kind, ()), STATE_NAMES[settings.kind]
    num_full = settings.every_row + sum(name not in rowwise for name in states)
    weight_bytes = 2 if settings.is_16_bit else _FLOAT_BYTES
    needed = [0] * world_size
    for shard in placement:
        if shard.plan == DISK:
            continue
        states_and_gradients = num_full * shard.num_columns + len(rowwise)
        row_bytes = shard.num_columns * weight_bytes + states_and_gradients * _FLOAT_BYTES
        needed[shard.rank] += shard.num_rows * row_bytes
    return needed


def check_memory(used_bytes: Sequence[int], budget_bytes: int, sharding: ShardingSettings) -> None:
    """Check that the tables of every rank fit.

    Args:
        used_bytes: the bytes that each rank needs.
        budget_bytes: the bytes that any rank may take.
        sharding: the settings from which the budget comes, for the message.

    Raises:
        ConfigError: if they do not fit.
    """
    most = max(used_bytes)
    if most <= budget_bytes:
        return
    memory = sharding.device_memory_gb
    reserve = f"sharding.storage_reserve={sharding.storage_reserve}"
    key = reserve if memory is None else f"sharding.device_memory_gb={memory}"
    device = "its device" if memory is None else f"{memory} GB"
    raise ConfigError(
        f"{key}: rank {used_bytes.index(most)} would hold {_format_bytes(most)} of tables and "
        f"their optimizers' states, but it has {_format_bytes(budget_bytes)} for them ({device} "
        f"less {reserve} of it); row_wise on more ranks, narrower tables, or an optimizer with "
        "fewer states take less memory"
    )


def _device_bytes(sharding: ShardingSettings, ranks: Ranks, device: torch.device) -> float:
    if sharding.device_memory_gb is not None:
        return sharding.device_memory_gb * _GB
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return machine // ranks.local_world_size


def _format_bytes(size: int) -> str:
    """Format bytes in the largest unit in which they are at least 1."""
    for unit, name in ((_GB, "GB"), (10**6, "MB"), (1000, "kB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} bytes"
