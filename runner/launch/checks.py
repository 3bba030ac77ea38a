"""Checks of a composed job that need its data or torch, before its run directory is created."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from runner.config.compose import ComposedConfig
from runner.config.composed_checks import check_composed, with_row_count
from runner.config.proposed_length import automatic_keys
from runner.config.rules import get_key
from runner.config.rules.data_fit import find_data_problems
from runner.config.rules.loops import rows_not_told
from runner.distributed.world_size import launched_world_size, local_world_size
from runner.errors import ConfigError, raise_combined
from runner.machine.cores import set_thread_environment, usable_cores
from runner.worker import find_part_mistakes, judge_parts


def resolve_automatic(
    composed: ComposedConfig, allowed: Sequence[str], *, in_own_process: bool = False
) -> ComposedConfig:
    """Return a configuration with a number in place of each `auto`, after counting the rows for it.

    Args:
        composed: checked, see `with_row_count`.
        allowed: packages in which a `_target_` may be.
        in_own_process: see `check_parts`.

    Raises:
        ConfigError: for a dataset whose rows cannot be counted, and if the configuration is wrong
            with the numbers.
        UserError: for data that cannot be found or read.
    """
    keys = automatic_keys(composed.config)
    if not keys:
        return composed
    from runner.data.prepare.count_rows import count_train_rows

    check_parts(composed, allowed, in_own_process=in_own_process)
    check_fits_dataset(composed.config)
    rows = count_train_rows(composed.config["dataset"])
    if rows is None:
        raise ConfigError(rows_not_told(keys[0]))
    resolved = with_row_count(composed, rows)
    check_composed(resolved, allowed)
    chosen = ", ".join(f"{key}={get_key(resolved.config, key)}" for key in keys)
    return replace(resolved, notes=(*resolved.notes, f"auto, for {rows:,} train rows: {chosen}"))


def check_fits_dataset(config: Mapping[str, Any]) -> None:
    """Check the configuration against the schema that the dataset declares, before data is read.

    Raises:
        ConfigError: with everything that does not fit.
    """
    from runner.data.prepare.outline import outline_dataset

    outline = outline_dataset(config["dataset"])
    if outline is not None:
        raise_combined(find_data_problems(config, outline))


def check_with_parts(composed: ComposedConfig, allowed: Sequence[str]) -> None:
    """Check a configuration; if it is refused, tell mistakes in a user's own parts as well.

    Raises:
        ConfigError: with every mistake.
    """
    try:
        check_composed(composed, allowed)
    except ConfigError as error:
        also = find_part_mistakes(composed.config, allowed)
        if not also:
            raise
        raise_combined([*(error.problems or [str(error)]), *also])


def check_parts(
    composed: ComposedConfig, allowed: Sequence[str], *, in_own_process: bool = False
) -> None:
    """Check the objects that the `_target_`s of a configuration name, before any data is read.

    Args:
        composed: the configuration, checked.
        allowed: packages in which a `_target_` may be.
        in_own_process: check in a child process, so that this one stays free of torch, and
            can fork ranks.

    Raises:
        ConfigError: with every mistake.
    """
    forks = composed.config["trainer"]["num_processes"] > 1 and launched_world_size() is None
    if not (in_own_process or forks):
        set_threads(composed)
    judge_parts(composed, allowed, in_own_process=in_own_process or forks)


def set_threads(composed: ComposedConfig) -> None:
    """Set what must be set before torch is imported."""
    trainer = composed.config["trainer"]
    share = max(1, usable_cores() // local_world_size(composed.config))
    set_thread_environment(trainer["num_threads"] or share)
