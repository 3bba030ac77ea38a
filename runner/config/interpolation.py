"""Resolves interpolations; references to the environment are kept in the saved files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.base import Container
from omegaconf.errors import OmegaConfBaseException
from omegaconf.resolvers import oc

from runner.config.hydra_text import shell_override
from runner.rundir.secrets import mask_values, note_reference

CANNOT_BE_RESOLVED = ": cannot be resolved: "


@dataclass(frozen=True)
class EnvRead:
    """A value that was resolved from the environment."""

    text: str  # the interpolation
    value: Any  # None: it cannot be resolved
    variables: frozenset[str]


@dataclass
class Resolution:
    """Collects findings while a configuration is resolved."""

    problems: list[str]  # a message for each value that is missing or cannot be resolved
    read: list[str] = field(default_factory=list)  # variables, of each value in turn
    env_reads: dict[str, EnvRead] = field(default_factory=dict)  # by dotted key


def resolve_interpolations(config: DictConfig) -> tuple[dict[str, Any], dict[str, Any], Resolution]:
    """Resolve a configuration into plain values.

    Returns:
        The values, the same to be saved (values from the environment are kept as references, since
        they may be secret; secrets given as such are replaced by references), and what else was
        found.
    """
    resolution = Resolution([])
    with _track_env_reads(resolution.read):
        config_values, saved_values = _resolve_node(config, "", resolution)
    return config_values, mask_values(saved_values, everything=False), resolution


def find_value(config: DictConfig, key: str) -> Any:
    """Return the value at a dotted key; None if it is missing or cannot be resolved."""
    return OmegaConf.select(
        config, key, throw_on_missing=False, throw_on_resolution_failure=False, default=None
    )


def resolve_folder(node: DictConfig, key: str, problems: list[str]) -> str | None:
    """Return the folder that a node names, or None if it cannot be resolved.

    A `~` that no shell has expanded becomes the user's home.

    Args:
        key: the dotted name of the value, whose last part is that in the node.
        problems: receives a message if it cannot be resolved.
    """
    name = key.rpartition(".")[2]
    own_problems: list[str] = []
    value, _ = _resolve_value(node, name, key, Resolution(own_problems))
    literal = shell_override(key, node._get_node(name)._value()) if own_problems else ""  # type: ignore[union-attr]
    problems += [f"{problem}; a folder of that name: {literal}" for problem in own_problems]
    return None if value is None else os.path.expanduser(str(value))


@contextmanager
def _track_env_reads(names: list[str]) -> Iterator[None]:
    """Record each variable that `${oc.env:...}` reads, also through other interpolations."""

    def read_variable(key: str, *default: Any) -> Any:
        names.append(key)
        note_reference(key)
        return oc.env(key, *default)

    OmegaConf.register_new_resolver("oc.env", read_variable, replace=True)
    try:
        yield
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)


def _resolve_node(node: Container, key: str, resolution: Resolution) -> tuple[Any, Any]:
    names: list[Any] = list(node.keys()) if isinstance(node, DictConfig) else [*range(len(node))]  # type: ignore[arg-type]
    values, saved_values = [], []
    for name in names:
        full = f"{key}[{name}]" if isinstance(node, ListConfig) else f"{key}.{name!s}".lstrip(".")
        value, saved_value = _resolve_value(node, name, full, resolution)
        values.append(value)
        saved_values.append(saved_value)
    if isinstance(node, DictConfig):
        return dict(zip(names, values)), dict(zip(names, saved_values))
    return values, saved_values


def _resolve_value(parent: Any, name: Any, key: str, resolution: Resolution) -> tuple[Any, Any]:
    child = parent._get_node(name)
    if child._is_missing():
        resolution.problems.append(f"{key}: has no default and must be given, e.g. {key}=VALUE")
        return None, "???"
    if not child._is_interpolation():
        if child._is_none() or not isinstance(child, Container):
            return child._value(), child._value()
        return _resolve_node(child, key, resolution)
    resolution.read.clear()
    plain, is_resolved = None, False
    try:
        resolved = parent[name]
        is_container = isinstance(resolved, Container)
        plain = OmegaConf.to_container(resolved, resolve=True) if is_container else resolved
        is_resolved = True
    except OmegaConfBaseException as error:
        first = str(error).splitlines()[0]
        resolution.problems.append(f"{key}={child._value()}{CANNOT_BE_RESOLVED}{first}")
    if resolution.read:
        resolution.env_reads[key] = EnvRead(child._value(), plain, frozenset(resolution.read))
    return plain, (plain if is_resolved and not resolution.read else child._value())
