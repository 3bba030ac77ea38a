"""Which code a configuration may name: parts of a known kind, of an allowed package.

Names and places of every `_target_` are checked before torch is imported. The object that a name
resolves to is checked afterwards and before it is called: `runner.foo.os.system` has an allowed
prefix too, and most contents of a package are not parts of a job. The list of packages never comes
from YAML or from a run directory.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from runner.config.locations import CONF, EXPERIMENTS, PROJECT
from runner.errors import ConfigError, nearest_hint
from runner.rundir.moved_targets import current_target

ALLOWED_PACKAGES = ("runner", "torch.optim", "torch.nn", "torchmetrics", "experiments")
# Keys of Hydra's own `instantiate`, which ours does not accept.
RESERVED_KEYS = ("_args_", "_partial_", "_recursive_", "_convert_")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*(\.[A-Za-z][A-Za-z0-9_]*)+")
_PLACES = re.compile(
    r"(dataset|model\.(net|loss)|task|loop|scheduler|optimizer\.schedules\.(dense|sparse)"
    r"|optimizer\.(dense|parts\[\d+\]\.(dense|schedule))"
    r"|(tracker|callbacks|metrics\.own)\.[^.\[]+)\._target_"
)


@dataclass(frozen=True)
class PartKind:
    """The kind of part that a group of the configuration accepts, as checked by the builder."""

    accepts: Callable[[Any], bool]  # checks a resolved object, without calling it
    takes: str  # what is accepted, for messages
    marking: str  # how a user-defined part is recognised, for messages
    attributes: tuple[str, ...] = ()  # required of a constructed object
    given: tuple[str, ...] = ()  # arguments that the code passes
    methods: tuple[str, ...] = ()  # of a class, so that a message can name the missing ones

    def describe_missing(self, target: Any) -> str:
        """Describe which methods a class lacks, if it has some of them."""
        members = {name: getattr(target, name, None) for name in self.methods}
        abstract = [n for n, m in members.items() if getattr(m, "__isabstractmethod__", False)]
        missing = [name for name, m in members.items() if not callable(m) or name in abstract]
        is_near = abstract or len(missing) < len(self.methods)
        if not isinstance(target, type) or not missing or not is_near:
            return ""
        return f"; {target.__name__} lacks {', '.join(missing)}"


def allowed_packages(flags: Sequence[str]) -> tuple[str, ...]:
    """Return our packages, those of `--allow`, and those of RUNNER_ALLOW (comma-separated).

    Raises:
        ConfigError: for a word that is not the name of a package.
    """
    extra = [*flags, *os.environ.get("RUNNER_ALLOW", "").split(",")]
    extra = [p.strip() for p in extra if p.strip()]
    for package in extra:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*", package):
            raise ConfigError(f"--allow {package}: not the name of a Python package")
    return tuple(dict.fromkeys([*ALLOWED_PACKAGES, *extra]))


def is_in_packages(path: str, allowed: Sequence[str]) -> bool:
    """Return whether a dotted name is one of the packages or inside one."""
    return any(path == package or path.startswith(f"{package}.") for package in allowed)


def find_targets(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every `_target_` below a node, at any depth, with its dotted key."""
    yield from _find_keys(node, ("_target_",), key)


def _find_keys(node: Any, names: Collection[str], key: str) -> Iterator[tuple[str, Any]]:
    if isinstance(node, Mapping):
        for name, value in node.items():
            full = f"{key}.{name}".lstrip(".")
            if name in names:
                yield full, value
            else:
                yield from _find_keys(value, names, full)
    elif isinstance(node, list | tuple):
        for i, value in enumerate(node):
            yield from _find_keys(value, names, f"{key}[{i}]")


def check_reserved_keys(node: Any, key: str = "") -> list[str]:
    """Return a message for every key below a node that only Hydra's `instantiate` supports."""
    return [
        f"{full}: there is no such key; a part takes its settings by name only"
        for full, _ in _find_keys(node, RESERVED_KEYS, key)
    ]


def misplaced_target(key: str, path: object) -> str:
    """Return the message for a `_target_` where no part is built."""
    return (
        f"{key}={path}: nothing is built here; a _target_ is allowed directly in dataset, task, "
        "loop, scheduler, model.net, model.loss, optimizer.dense, optimizer.schedules.dense and "
        "sparse, the dense and schedule of optimizer.parts, tracker.NAME, callbacks.NAME or "
        "metrics.own.NAME"
    )


def check_target_names(config: Mapping[str, Any], allowed: Sequence[str]) -> list[str]:
    """Return a message for every `_target_` with a wrong name, package or place."""
    problems = check_reserved_keys(config)
    for key, path in find_targets(config):
        if str(path).startswith("__main__."):
            name = str(path).rpartition(".")[2]
            problems.append(
                f"{key}={path}: what a notebook or a script defines has no name by which a resumed "
                f"run finds it; write it into a file, such as mine.py, and name mine.{name}"
            )
        elif not isinstance(path, str) or not _NAME.fullmatch(path):
            problems.append(f"{key}={path}: not the dotted name of a public class or function")
        elif (current := current_target(path)) != path:
            problems.append(f"{key}={path}: has moved; {key}={current} is its name now")
        elif not is_in_packages(path, allowed):
            package = path.split(".")[0]
            problems.append(
                f"{key}={path}: not in an allowed package ({', '.join(allowed)}); "
                f"--allow {package} or RUNNER_ALLOW={package} adds yours"
            )
        elif not _PLACES.fullmatch(key):
            problems.append(misplaced_target(key, path))
    return problems


def find_unshipped_targets(config: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return key and name of every `_target_` that none of our options has in this place."""
    return tuple((k, path) for k, path in find_targets(config) if path not in _shipped_targets(k))


def _shipped_targets(key: str) -> frozenset[str]:
    place = re.sub(r"\.parts\[\d+\]", "", key.removesuffix("._target_"))
    folders = {"model.net": "model", "model.loss": "model/loss", "optimizer.dense": "optimizer"}
    return _targets_of_options(folders.get(place, place.split(".")[0]))


@cache
def _targets_of_options(folder: str) -> frozenset[str]:
    texts = [path.read_text(encoding="utf-8") for path in (CONF / folder).glob("*.yaml")]
    return frozenset(name for text in texts for name in re.findall(r"_target_: ([\w.]+)", text))


def resolve_part(path: str, allowed: Sequence[str], kind: PartKind, key: str) -> Any:
    """Import and return the part that a `_target_` names. It is not called.

    Raises:
        ConfigError: if the name does not exist, is outside the allowed packages, or is
            not a part of this kind.
    """
    try:
        target = resolve_target(path, allowed)
    except ConfigError as error:
        raise ConfigError(f"{key}.{error}") from error
    if not kind.accepts(target):
        raise ConfigError(
            f"{key}._target_={path}: not a part that {key} takes, which is {kind.takes}; "
            f"{kind.marking}{kind.describe_missing(target)}"
        )
    return target


def resolve_target(path: str, allowed: Sequence[str]) -> Any:
    """Import and return the class or function of a dotted name, of any kind.

    Only `resolve_part` calls it, which checks the kind. Every module on the way and the object's
    own `__module__` are checked, not only the spelling.

    Raises:
        ConfigError: if it does not exist, or lies outside the allowed packages.
    """
    if not isinstance(path, str) or not _NAME.fullmatch(path) or not is_in_packages(path, allowed):
        raise ConfigError(f"_target_={path}: not a public name in {', '.join(allowed)}")
    if is_in_packages(path, ("experiments",)):
        _find_experiments(path)
    target, rest = _import_longest(path)
    for name in rest:
        if not hasattr(target, name):
            where = getattr(target, "__name__", repr(target))
            known = [n for n in dir(target) if not n.startswith("_")]
            raise ConfigError(
                f"_target_={path}: {where} has no {name!r}{nearest_hint(name, known)}"
            )
        target = getattr(target, name)
        if isinstance(target, ModuleType) and not is_in_packages(target.__name__, allowed):
            raise ConfigError(f"_target_={path}: leads to {target.__name__}, which is not allowed")
    origin = getattr(target, "__module__", None)
    if isinstance(target, ModuleType) or not callable(target):
        raise ConfigError(f"_target_={path}: not a class or function")
    if not isinstance(origin, str) or not is_in_packages(origin, allowed):
        raise ConfigError(
            f"_target_={path}: comes from {origin}, which is not in {', '.join(allowed)}"
        )
    return target


def _find_experiments(path: str) -> None:
    """Make the project's `experiments/` importable from any folder.

    Raises:
        ConfigError: if another package has that name here.
    """
    if str(PROJECT) not in sys.path:
        sys.path.append(str(PROJECT))
    spec = importlib.util.find_spec("experiments")  # which does not run it
    places = [] if spec is None else list(spec.submodule_search_locations or [])
    if {Path(place).resolve() for place in places} != {EXPERIMENTS}:
        other = ", ".join(places) or "a file"
        raise ConfigError(
            f"_target_={path}: experiments is {other} here, not the folder beside runner; give "
            "that one another name, and --allow it"
        )


def _import_longest(path: str) -> tuple[Any, list[str]]:
    """Import the longest prefix of a dotted name that is a module; return it and the names after.

    Raises:
        ConfigError: if there is none, or if one of the modules cannot be imported.
    """
    parts = path.split(".")
    for length in range(len(parts) - 1, 0, -1):
        name = ".".join(parts[:length])
        try:
            return importlib.import_module(name), parts[length:]
        except ModuleNotFoundError as missing:
            # A module that exists but lacks one of its own imports must not look like a typo.
            if missing.name is None or not (
                name == missing.name or name.startswith(missing.name + ".")
            ):
                raise ConfigError(
                    f"_target_={path}: importing {name} failed: {missing}"
                ) from missing
    raise ConfigError(f"_target_={path}: no package {parts[0]!r} can be imported")
