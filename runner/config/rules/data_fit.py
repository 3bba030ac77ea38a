"""Checks model, loss and metrics against the names of a dataset's columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from runner.config.rules.keys import Config
from runner.errors import ConfigError
from runner.metrics.settings import MetricSettings, check_slice_column, find_group_column
from runner.models.misfits import find_misfits
from runner.models.table_widths import resolve_widths


def find_data_problems(config: Config, schema: Any) -> Iterator[str]:
    """Yield a message for everything that the dataset lacks.

    Args:
        schema: or its outline, with the same names of features, tasks and groups.
    """
    yield from find_misfits(config["model"], schema)
    settings = MetricSettings(**config["metrics"])
    features = [f.name for f in schema.sparse]
    checks: tuple[Callable[[], object], ...] = (
        partial(find_group_column, settings, schema.groups),
        partial(check_slice_column, settings, schema.groups, features),
        partial(_check_width_patterns, config["model"].get("net") or {}, schema),
    )
    for check in checks:
        try:
            check()
        except ConfigError as error:
            yield str(error)


def _check_width_patterns(net: Config, schema: Any) -> None:
    tables = {f.table_name: 1 for f in (*schema.sparse, *schema.sequences)}
    widths = net.get("embedding_dim")
    if tables and isinstance(widths, Mapping):
        resolve_widths(widths, tables)
