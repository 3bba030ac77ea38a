"""Looks up dotted keys, and names the nodes that every job needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Config = Mapping[str, Any]

REQUIRED_NODES = (  # every job reads them
    "model.net",
    "model.loss",
    "dataset",
    "optimizer.sparse",
    "optimizer.dense",
    "scheduler",
    "task",
    "loop",
    "trainer",
    "checkpoint.monitor",
    "sharding",
    "metrics",
)


def get_key(config: Config, key: str) -> Any:
    """Return the value at a dotted key, or None."""
    node: Any = config
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node
