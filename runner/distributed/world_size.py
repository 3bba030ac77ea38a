"""How many ranks a job has and how many rows each takes. No torch here.

The number of rows of an update is part of what a run is; how many ranks share them is not.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any

from runner.distributed.global_batch import (
    GLOBAL_BATCH_KEYS,
    batches_per_update,
    global_batch_size,
)


def launched_world_size(environment: Mapping[str, str] = os.environ) -> int | None:
    """The number of ranks that torchrun, or another launcher, has started; None: nobody has."""
    needed = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    if any(name not in environment for name in needed):
        return None
    return int(environment["WORLD_SIZE"])


def launched_rank(environment: Mapping[str, str] = os.environ) -> int:
    """Of this process among them; 0 if nobody has started any."""
    return 0 if launched_world_size(environment) is None else int(environment["RANK"])


def resolve_world_size(
    config: dict[str, Any],
    record: dict[str, Any],
    *,
    previous_config: Mapping[str, Any],
    overridden_keys: Collection[str],
    started_ranks: int | None,
) -> tuple[list[str], list[str]]:
    """Writes the number of ranks into a configuration, and the batch of each. In place.

    Args: previous_config: the configuration of the run that it goes on from, if any; overridden_keys: keys that the
    command line sets; started_ranks: the number of ranks that a launcher has started.
    Returns: problems, notes.
    """
    trainer, kept = config.get("trainer"), record.get("trainer")
    if not isinstance(trainer, dict) or not isinstance(kept, dict):
        return [], []
    key = "trainer.num_processes"
    asked = trainer.get("num_processes", 1)
    if started_ranks is not None:
        if key in overridden_keys and asked != started_ranks:
            return [f"{key}={asked}: but {started_ranks} ranks have been started; leave it out"], []
        trainer["num_processes"] = kept["num_processes"] = started_ranks
    return _keep_global_batch(trainer, kept, previous_config.get("trainer") or {}, overridden_keys)


def _keep_global_batch(
    trainer: dict[str, Any], kept: dict[str, Any], was: Mapping[str, Any], given: Collection[str]
) -> tuple[list[str], list[str]]:
    """On other ranks or micro-batches the rows of an update stay, so each takes another part."""
    numbers = [node.get(name, 1) for node in (was, trainer) for name in GLOBAL_BATCH_KEYS]
    if not all(type(n) is int and n > 0 for n in numbers):
        return [], []  # of a wrong type, or nothing to go on from: said elsewhere
    (rows, *cut), (_, *cut_now) = numbers[:3], numbers[3:]
    if not was or cut == cut_now or "trainer.batch_size" in given:
        return [], []
    total, share = global_batch_size(rows, *cut), batches_per_update(*cut_now)
    if total % share:
        keys = zip(GLOBAL_BATCH_KEYS[1:], cut, cut_now)
        changed = [f"trainer.{key}={now}" for key, before, now in keys if before != now]
        return [
            f"{', '.join(changed)}: an update of this run has {total:,} rows, which "
            f"{_counted(*cut_now)} cannot share evenly; needed are numbers that divide them"
        ], []
    trainer["batch_size"] = kept["batch_size"] = total // share
    note = f"an update keeps its {total:,} rows, shared by {_counted(*cut_now)} instead of "
    return [], [f"{note}{_counted(*cut)}: trainer.batch_size={rows} -> {total // share}"]


def _counted(accumulate: int, ranks: int) -> str:
    words = f"{ranks} rank{'s' * (ranks > 1)}"
    return words if accumulate == 1 else f"{words} x {accumulate} micro-batches"
