"""Counts the updates of the moments of tables, which Adam's bias correction needs.

All tables of one rate share one count, since their kernel takes one. It counts the updates of this
run, and after a warm start with the optimizer's state also those of the source run.
"""

from __future__ import annotations

from collections.abc import Mapping

from runner.embeddings.interface import EmbeddingTables
from runner.embeddings.row_updates import STATE_NAMES
from runner.errors import ConfigError

_MOMENT_NAMES = ("exp_avg", "exp_avg_sq")


def uses_step_count(tables: EmbeddingTables) -> bool:
    """Return whether the optimizer of these tables uses the number of the update."""
    return any(state in _MOMENT_NAMES for state in STATE_NAMES[tables.settings.kind])


def initial_step_count(tables: EmbeddingTables, counts: Mapping[str, int]) -> int:
    """Return how many updates the moments of these tables had before their run began.

    Args:
        tables: tables of one rate.
        counts: the number of updates by table; a missing one is 0.
    """
    return counts.get(tables.layout.tables[0].name, 0)


def check_step_counts(groups: Mapping[str, EmbeddingTables], counts: Mapping[str, int]) -> None:
    """Check that the moments of all tables of a rate have had the same number of updates.

    Args:
        groups: the tables of each rate.
        counts: the number of updates by table; a missing one is 0.

    Raises:
        ConfigError: if the numbers differ.
    """
    for tables in groups.values():
        table_counts = {spec.name: counts.get(spec.name, 0) for spec in tables.layout.tables}
        if uses_step_count(tables) and len(set(table_counts.values())) > 1:
            raise ConfigError(
                "optimizer.parts: after the warm start, the moments of tables that share a rate "
                f"have had different numbers of updates: {describe_counts(table_counts)}; put the "
                "tables with equal numbers into a part of optimizer.parts of their own"
            )


def describe_counts(counts: Mapping[str, int | None]) -> str:
    """List tables by their number of updates, with None for tables that start afresh."""
    by_count: dict[int | None, list[str]] = {}
    for name, count in counts.items():
        by_count.setdefault(count, []).append(name)
    descriptions = []
    for count, (first, *other_names) in by_count.items():
        more = f" and {len(other_names)} other{'s' * (len(other_names) > 1)}" if other_names else ""
        descriptions.append(f"{first}{more} " + ("afresh" if count is None else f"{count:,}"))
    return ", ".join(descriptions)
