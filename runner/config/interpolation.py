"""Resolves interpolations; what reads the environment stays a reference in the saved files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.base import Container
from omegaconf.errors import OmegaConfBaseException
from omegaconf.resolvers import oc

from runner.rundir.secrets import mask_values, note_reference

CANNOT_BE_RESOLVED = ": cannot be resolved: "


def resolve_interpolations(config: DictConfig) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Resolve a configuration into plain values.

    Returns:
        The values, the same to be saved (whatever read the environment is left as its reference,
        since it may be a secret; secrets given as such are replaced by references), and a message
        for each value that is missing or cannot be resolved.
    """
    problems: list[str] = []
    with _track_env_reads() as read:
        config_values, saved_values = _resolve_node(config, "", read, problems)
    return config_values, mask_values(saved_values, everything=False), problems


def find_value(config: DictConfig, key: str) -> Any:
    """Return the value at a dotted key; None where it is missing or cannot be resolved."""
    return OmegaConf.select(
        config, key, throw_on_missing=False, throw_on_resolution_failure=False, default=None
    )


def resolve_text(node: DictConfig, name: str, key: str, problems: list[str]) -> str | None:
    """Return one value of a node as text, or None and a message if it cannot be resolved.

    Args:
        node: of the configuration.
        name: of the value in the node.
        key: its dotted name.
        problems: gets the message.
    """
    value, _ = _resolve_value(node, name, key, [], problems)
    return None if value is None else str(value)


@contextmanager
def _track_env_reads() -> Iterator[list[str]]:
    """Note each variable that `${oc.env:...}` reads, also through other interpolations."""
    read: list[str] = []

    def read_variable(key: str, *default: Any) -> Any:
        read.append(key)
        note_reference(key)
        return oc.env(key, *default)

    OmegaConf.register_new_resolver("oc.env", read_variable, replace=True)
    try:
        yield read
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)


def _resolve_node(
    node: Container, key: str, read: list[str], problems: list[str]
) -> tuple[Any, Any]:
    names: list[Any] = list(node.keys()) if isinstance(node, DictConfig) else [*range(len(node))]  # type: ignore[arg-type]
    values, saved_values = [], []
    for name in names:
        full = f"{key}[{name}]" if isinstance(node, ListConfig) else f"{key}.{name!s}".lstrip(".")
        value, saved_value = _resolve_value(node, name, full, read, problems)
        values.append(value)
        saved_values.append(saved_value)
    if isinstance(node, DictConfig):
        return dict(zip(names, values)), dict(zip(names, saved_values))
    return values, saved_values


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
        resolved = parent[name]
    except OmegaConfBaseException as error:
        first = str(error).splitlines()[0]
        problems.append(f"{key}={child._value()}{CANNOT_BE_RESOLVED}{first}")
        return None, child._value()
    if isinstance(resolved, Container):
        plain = OmegaConf.to_container(resolved, resolve=True)
    else:
        plain = resolved
    return plain, (child._value() if read else plain)
