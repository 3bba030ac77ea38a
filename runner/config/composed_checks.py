"""Checks of a composed configuration, before any data is read and before torch is imported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from runner.config.compose import ComposedConfig
from runner.config.interpolation import CANNOT_BE_RESOLVED
from runner.config.proposed_length import AUTO, UNKNOWN_ROWS, automatic_keys, fill_automatic
from runner.config.rules import check_config, get_key
from runner.config.rules.idle_keys import find_idle_beside_defaults, find_idle_keys
from runner.config.rules.loops import many_epochs, rows_not_told, tells_rows
from runner.config.sent_runs import check_sent_files, check_sent_reads
from runner.config.settings import ONLINE_LOOP
from runner.errors import raise_combined
from runner.models.unused_settings import find_unused_settings
from runner.rundir.diff import flatten


def with_row_count(composed: ComposedConfig, train_rows: int | None = None) -> ComposedConfig:
    """Return a configuration with each `auto` replaced by the number proposed for so many rows.

    Args:
        train_rows: None: not counted yet; a dataset that cannot tell them is a mistake.
    """
    nodes = (composed.config, composed.saved_config, composed.default_config)
    if not any(map(automatic_keys, nodes)):
        return composed
    problems, keys = composed.problems, automatic_keys(composed.config)
    is_online = get_key(composed.config, "loop._target_") == ONLINE_LOOP
    if is_online and "trainer.max_epochs" in keys:
        problems = (*problems, many_epochs(AUTO))  # as written by the user
        keys.remove("trainer.max_epochs")
    if train_rows is None and not tells_rows(composed.config):
        problems = (*problems, *map(rows_not_told, keys))
    num_rows = UNKNOWN_ROWS if train_rows is None else train_rows
    config, saved, default = (fill_automatic(node, num_rows) for node in nodes)
    return replace(
        composed, config=config, saved_config=saved, default_config=default, problems=problems
    )


def check_composed(
    composed: ComposedConfig, allowed: Sequence[str], *, has_loss: bool = True
) -> None:
    """Check a configuration; `has_loss` as in `check_config`.

    Raises:
        ConfigError: with every mistake.
    """
    problems = check_config(
        composed.config,
        composed.default_config,
        added_keys=composed.added_keys,
        allowed=allowed,
        from_run=composed.source_run is not None
        or bool(get_key(composed.config, "checkpoint.path")),
        source_config=composed.source_config,
        known_problems=composed.problems,
        has_loss=has_loss,
        has_begun=composed.has_begun,
    )
    # a value that is missing or unresolved, which a message reports, is null for the rules
    keys = [k for k, value in flatten(composed.saved_config) if value == "???"]
    keys += [p.partition("=")[0] for p in composed.problems if CANNOT_BE_RESOLVED in p]
    missing = tuple(f"{k}{sign}" for k in keys for sign in "=:")
    sent = check_sent_reads(composed.sent_reads, allowed)
    if composed.was_sent:
        sent += check_sent_files(composed.config, composed.overrides)
    raise_combined([*composed.problems, *sent, *(p for p in problems if not p.startswith(missing))])


def notes_before_start(composed: ComposedConfig) -> tuple[str, ...]:
    """Return the lines to print before a checked job starts."""
    from_run = composed.source_run is not None
    notes = (*composed.notes, *find_idle_keys(composed.config, from_run))
    if from_run:
        return notes
    configs = (composed.config, composed.default_config)
    return (*notes, *find_unused_settings(*configs), *find_idle_beside_defaults(*configs))
