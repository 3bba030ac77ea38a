"""The rows of one update, counted over ranks and micro-batches. No torch here.

The signature of a run contains the product and a resume keeps it; how many ranks and micro-batches
share the rows may change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

GLOBAL_BATCH_KEYS = ("batch_size", "accumulate", "num_processes")  # keys of `trainer`


def batches_per_update(accumulate: int, world_size: int) -> int:
    """Return the number of micro-batches in one update, over all ranks."""
    return accumulate * world_size


def rank_batch_size(batch_size: int, accumulate: int, batch_multiplier: int = 1) -> int:
    """Return the rows of one rank in one update.

    Args:
        batch_size: rows of a rank's micro-batch.
        accumulate: micro-batches of a rank.
        batch_multiplier: original updates per update, raised on a plateau.
    """
    return batch_size * accumulate * batch_multiplier


def global_batch_size(
    batch_size: int, accumulate: int, world_size: int, batch_multiplier: int = 1
) -> int:
    """Return the rows of one update over all ranks; arguments as of `rank_batch_size`."""
    return rank_batch_size(batch_size, accumulate, batch_multiplier) * world_size


def configured_global_batch_size(trainer: Mapping[str, Any]) -> int:
    """Return the rows of one update as the `trainer` group of a configuration sets them.

    The configuration of an older run may lack all keys but `batch_size`, or hold null for them.
    """
    accumulate, num_processes = (trainer.get(key) for key in GLOBAL_BATCH_KEYS[1:])
    return global_batch_size(
        trainer["batch_size"],
        1 if accumulate is None else accumulate,
        1 if num_processes is None else num_processes,
    )
