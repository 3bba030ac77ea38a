"""Interpolations: resolved for the run, kept as references in its record where secrets may be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.base import Container
from omegaconf.errors import OmegaConfBaseException
from omegaconf.resolvers import oc


def resolve_interpolations(config: DictConfig) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Plain values, the same with everything that read the environment left as its reference, and
    a message for each value that is missing or cannot be resolved."""
    problems: list[str] = []
    with _track_env_reads() as read:
        config_values, record = _resolve_node(config, "", read, problems)
    return config_values, record, problems


@contextmanager
def _track_env_reads() -> Iterator[list[str]]:
    """Notes each variable that `${oc.env:...}` reads, also through other interpolations."""
    read: list[str] = []

    def spy(key: str, default: Any = oc._DEFAULT_MARKER_) -> Any:
        read.append(key)
        return oc.env(key) if default is oc._DEFAULT_MARKER_ else oc.env(key, default)

    OmegaConf.register_new_resolver("oc.env", spy, replace=True)
    try:
        yield read
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)


def _resolve_node(
    node: Container, key: str, read: list[str], problems: list[str]
) -> tuple[Any, Any]:
    names: list[Any] = list(node.keys()) if isinstance(node, DictConfig) else [*range(len(node))]  # type: ignore[arg-type]
    values, records = [], []
    for name in names:
        full = f"{key}[{name}]" if isinstance(node, ListConfig) else f"{key}.{name!s}".lstrip(".")
        value, record = _resolve_value(node, name, full, read, problems)
        values.append(value)
        records.append(record)
    if isinstance(node, DictConfig):
        return dict(zip(names, values)), dict(zip(names, records))
    return values, records


def _resolve_value(
    parent: Any, name: Any, key: str, read: list[str], problems: list[str]
) -> tuple[Any, Any]:
    child = parent._get_node(name)
    if child._is_missing():
        problems.append(f"{key}: has no default and must be given, e.g. {key}=VALUE")
        return None, "???"
    if not child._is_interpolation():
        if child._is_none() or not isinstance(child, Container):
            return child._value(), child._value()
        return _resolve_node(child, key, read, problems)
    read.clear()
    try:
        found = parent[name]
    except OmegaConfBaseException as error:
        first = str(error).splitlines()[0]
        problems.append(f"{key}={child._value()}: cannot be resolved: {first}")
        return None, child._value()
    if isinstance(found, Container):
        plain = OmegaConf.to_container(found, resolve=True)
    else:
        plain = found
    return plain, (child._value() if read else plain)
