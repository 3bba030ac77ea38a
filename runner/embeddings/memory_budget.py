"""The memory that tables take on each rank, and whether a device has it.

TorchRec's planner asks this of the tables that it places; those of our own exchange are asked here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import torch

from runner.distributed.ranks import Ranks
from runner.embeddings.interface import Placement
from runner.embeddings.row_updates import ROWWISE_STATES, STATE_NAMES
from runner.embeddings.sharding_settings import ShardingSettings
from runner.errors import ConfigError

_GB = 10**9
_FLOAT_BYTES = 4


def table_memory_budget(sharding: ShardingSettings, ranks: Ranks, device: torch.device) -> int:
    """Of a rank's device, for tables: what is left of it over the storage reserve."""
    return int(_device_bytes(sharding, ranks, device) * (1 - sharding.storage_reserve))


def table_bytes_per_rank(placement: Iterable[Placement], kind: str, world_size: int) -> list[int]:
    """What each rank holds of these pieces: weights, and the states of the optimizer `kind`."""
    rowwise = ROWWISE_STATES.get(kind, ())
    full = 1 + sum(name not in rowwise for name in STATE_NAMES[kind])
    held = [0] * world_size
    for piece in placement:
        numbers = piece.num_rows * (full * piece.num_columns + len(rowwise))
        held[piece.rank] += numbers * _FLOAT_BYTES
    return held


def check_memory(used_bytes: Sequence[int], budget_bytes: int, sharding: ShardingSettings) -> None:
    """Args: used_bytes: bytes of every rank; budget_bytes: of each. Raises: ConfigError if they do not fit."""
    most = max(used_bytes)
    if most <= budget_bytes:
        return
    memory, reserve = sharding.device_memory_gb, sharding.storage_reserve
    said = f"sharding.storage_reserve={reserve}"
    raise ConfigError(
        f"{said if memory is None else f'sharding.device_memory_gb={memory}'}: rank "
        f"{used_bytes.index(most)} would hold {_shown(most)} of tables and their optimizers' states, "
        f"and {_shown(budget_bytes)} are for them ({'its device' if memory is None else f'{memory} GB'} "
        f"less {said} of it); row_wise on more ranks, narrower tables, or an optimizer with fewer "
        "states take less of each"
    )


def _device_bytes(sharding: ShardingSettings, ranks: Ranks, device: torch.device) -> float:
    if sharding.device_memory_gb is not None:
        return sharding.device_memory_gb * _GB
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return machine // ranks.local_world_size


def _shown(size: int) -> str:
    """Bytes in the unit that leaves a few digits of them."""
    for unit, name in ((_GB, "GB"), (10**6, "MB"), (1000, "kB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} bytes"
