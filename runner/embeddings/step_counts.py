"""The updates that moments of tables have behind them: Adam's bias correction goes by their number.

One number holds for all tables of a rate, since their kernels take one. It is this run's number of
updates, and after a warm start with the optimizer's state those of the source before it.
"""

from __future__ import annotations

from collections.abc import Mapping

from runner.embeddings.interface import EmbeddingTables
from runner.embeddings.row_updates import STATE_NAMES
from runner.errors import ConfigError

MOMENTS = ("exp_avg", "exp_avg_sq")


def uses_step_count(tables: EmbeddingTables) -> bool:
    """Whether the rule of these tables goes by the number of the update."""
    return any(state in MOMENTS for state in STATE_NAMES[tables.settings.kind])


def initial_step_count(tables: EmbeddingTables, counts: Mapping[str, int]) -> int:
    """Updates behind the moments of these tables when their run began. counts: by table."""
    return counts.get(tables.layout.tables[0].name, 0)


def check_step_counts(groups: Mapping[str, EmbeddingTables], counts: Mapping[str, int]) -> None:
    """Raises: ConfigError if tables of one rate do not have the same number behind them."""
    for tables in groups.values():
        found = {spec.name: counts.get(spec.name, 0) for spec in tables.layout.tables}
        if uses_step_count(tables) and len(set(found.values())) > 1:
            raise ConfigError(
                "optimizer.parts: puts tables under one rate whose moments have different numbers "
                f"of updates behind them, from a warm start: {describe_counts(found)}"
            )


def describe_counts(counts: Mapping[str, int | None]) -> str:
    """By table, those of one number together; None: begins afresh."""
    by_count: dict[int | None, list[str]] = {}
    for name, count in counts.items():
        by_count.setdefault(count, []).append(name)
    parts = []
    for count, (first, *others) in by_count.items():
        more = f" and {len(others)} other{'s' * (len(others) > 1)}" if others else ""
        parts.append(f"{first}{more} " + ("afresh" if count is None else f"{count:,}"))
    return ", ".join(parts)
