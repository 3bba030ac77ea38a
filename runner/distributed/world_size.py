"""The number of ranks of a job, and each rank's share of an update's rows. Imports no torch.

The rows of an update are part of a run's signature; the number of ranks that share them is not.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any

from runner.distributed.global_batch import GLOBAL_BATCH_KEYS, batches_per_update, global_batch_size
from runner.errors import ConfigError

_UNSET = "a launcher such as torchrun sets this environment variable; without one, unset it"


_LEAST = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_PORT": 1}


def launched_world_size(environment: Mapping[str, str] = os.environ) -> int | None:
    """Return the number of ranks started by torchrun or another launcher, if there is one.

    Raises:
        ConfigError: for a launcher's variables that are not numbers, or contradict each other.
    """
    required = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    missing = [name for name in required if name not in environment]
    if missing:
        if not {"RANK", "WORLD_SIZE"} & {*missing} and environment["WORLD_SIZE"] != "1":
            raise ConfigError(
                f"WORLD_SIZE={environment['WORLD_SIZE']}, RANK={environment['RANK']}: without "
                f"{' and '.join(missing)} the ranks cannot meet, and each would train alone; "
                "torchrun sets all of these; without a launcher, unset them"
            )
        return None
    numbers = {n: _whole_number(n, environment, least) for n, least in _LEAST.items()}
    for name, size in (("RANK", "WORLD_SIZE"), ("LOCAL_RANK", "LOCAL_WORLD_SIZE")):
        if name in environment and size in environment and numbers[name] >= numbers[size]:
            raise ConfigError(
                f"{name}={numbers[name]}: must be less than {size}={numbers[size]}; {_UNSET}"
            )
    if numbers["MASTER_PORT"] > 65_535:
        raise ConfigError(f"MASTER_PORT={numbers['MASTER_PORT']}: must be at most 65535; {_UNSET}")
    return numbers["WORLD_SIZE"]


def _whole_number(name: str, environment: Mapping[str, str], least: int) -> int:
    """Return the number in a variable of a launcher; the least if it is not set.

    Raises:
        ConfigError: if it is not a number, or below the least.
    """
    value = environment.get(name, str(least))
    if not (value.isascii() and value.isdecimal() and int(value) >= least):
        raise ConfigError(f"{name}={value}: must be a whole number, at least {least}; {_UNSET}")
    return int(value)


def launched_rank() -> int:
    """Return this process's rank among those started by a launcher; 0 without a launcher."""
    return 0 if launched_world_size() is None else int(os.environ["RANK"])


def local_world_size(config: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> int:
    """Return how many ranks of a job share this machine with this process."""
    ranks: int = config["trainer"]["num_processes"]
    if launched_world_size(environment) is None:
        return ranks
    return int(environment.get("LOCAL_WORLD_SIZE", ranks))


def may_restart(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether torchrun restarts this command when a rank or a node is lost."""
    return _whole_number("TORCHELASTIC_MAX_RESTARTS", environment, 0) > 0


def resolve_world_size(
    config: dict[str, Any],
    record: dict[str, Any],
    *,
    previous_config: Mapping[str, Any],
    overridden_keys: Collection[str],
    started_ranks: int | None,
) -> tuple[list[str], list[str]]:
    """Set the number of ranks, and the batch size of each, in a configuration in place.

    Args:
        record: the same configuration as written into the run directory.
        previous_config: of the run that is continued, empty if there is none.
        overridden_keys: keys that the command line sets.
        started_ranks: number of ranks started by a launcher, if there is one.

    Returns:
        Problems, because of which the run is refused, and notes for the user.
    """
    trainer, trainer_record = config.get("trainer"), record.get("trainer")
    if not isinstance(trainer, dict) or not isinstance(trainer_record, dict):
        return [], []
    key = "trainer.num_processes"
    requested = trainer.get("num_processes", 1)
    if started_ranks is not None:
        if key in overridden_keys and requested != started_ranks:
            return [
                f"{key}={requested}: but {started_ranks} ranks have been started, says WORLD_SIZE; "
                "leave it out, or unset RANK and WORLD_SIZE if no launcher has set them"
            ], []
        trainer["num_processes"] = trainer_record["num_processes"] = started_ranks
    previous = previous_config.get("trainer") or {}
    return _keep_global_batch(trainer, trainer_record, previous, overridden_keys)


def _keep_global_batch(
    trainer: dict[str, Any],
    trainer_record: dict[str, Any],
    previous: Mapping[str, Any],
    overridden_keys: Collection[str],
) -> tuple[list[str], list[str]]:
    """Keep the rows of an update when the number of ranks or micro-batches changes.

    The batch size of a rank changes instead. Returns problems and notes.
    """
    numbers = [node.get(name, 1) for node in (previous, trainer) for name in GLOBAL_BATCH_KEYS]
    if not all(type(n) is int and n > 0 for n in numbers):
        return [], []  # another check refuses wrong types
    (batch_size, *old_parts), (_, *new_parts) = numbers[:3], numbers[3:]
    if not previous or old_parts == new_parts or "trainer.batch_size" in overridden_keys:
        return [], []
    total = global_batch_size(batch_size, *old_parts)
    num_parts = batches_per_update(*new_parts)
    if total % num_parts:
        keys = zip(GLOBAL_BATCH_KEYS[1:], old_parts, new_parts)
        changed = [f"trainer.{key}={now}" for key, before, now in keys if before != now]
        return [
            f"{', '.join(changed)}: an update of this run has {total:,} rows, which "
            f"{_describe_parts(*new_parts)} cannot share evenly; choose numbers that divide them"
        ], []
    trainer["batch_size"] = trainer_record["batch_size"] = total // num_parts
    old, new = _describe_parts(*old_parts), _describe_parts(*new_parts)
    change = f"trainer.batch_size={batch_size} -> {total // num_parts}"
    return [], [f"an update keeps its {total:,} rows, shared by {new} instead of {old}: {change}"]


def _describe_parts(accumulate: int, ranks: int) -> str:
    words = f"{ranks} rank{'s' * (ranks > 1)}"
    return words if accumulate == 1 else f"{words} x {accumulate} micro-batches"
