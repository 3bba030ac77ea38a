"""Fault 22: the names of all code where a part belongs; only parts of the group's kind are taken.

Every public callable of every module (ours, torch.optim's, torch.nn's, torchmetrics', Hydra's and
OmegaConf's) is named in every group, as a run directory of a stranger may do. A profiler shows that
nothing but the judge's own code is called meanwhile.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import runner
from runner.config.targets import ALLOWED_PACKAGES, check_target_names, resolve_part
from runner.errors import ConfigError
from runner.training.builder.part_kinds import KINDS
from tests.fault_table import Table

GROUPS = tuple(KINDS)
OPEN = ("runner", "torch.optim", "torch.nn", "torchmetrics")
CLOSED = ("hydra", "omegaconf")
# How many parts there are; a new one has its line here, and whatever else is taken is a mistake.
PARTS = {
    "dataset": 9,
    "loop": 6,
    "model.net": 30,  # with two bases of models of histories
    "model.loss": 13,
    "optimizer.dense": 15,
    "task": 1,
    "scheduler": 0,  # ours have a `kind`
    "metrics.own": 108,  # classes of torchmetrics
    "tracker": 2,
    "callbacks": 6,
    "delivery": 1,
}
# Hydra's callbacks have an event of the name of one of ours; they are taken after --allow hydra
LIKE_OURS = {
    "callbacks": {
        "hydra.experimental.callback.Callback",
        "hydra.experimental.callbacks.LogJobReturnCallback",
        "hydra.experimental.callbacks.PickleJobInfoCallback",
    }
}
# Places where nothing is built: a name there is refused before torch is imported.
UNBUILT = ("metrics", "trainer", "sharding", "model", "optimizer", "checkpoint")
_JUDGES = (
    "runner/config/targets.py", "runner/training/builder/part_kinds.py", "runner/parts.py",
    "runner/errors.py", "runner/rundir/moved_targets.py",
)  # fmt: skip
EVERY_NTH = 23  # of the names, in the short tier


def public_callables(packages: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Yield the callables of all modules and of their classes, with dotted names. Calls none."""
    classes = {}
    for package in packages:
        folders = importlib.import_module(package).__path__
        modules = [m.name for m in pkgutil.walk_packages(folders, f"{package}.")]
        for name in (package, *modules):
            if any(part.startswith("_") or part == "test_utils" for part in name.split(".")):
                continue
            try:
                module = importlib.import_module(name)
            except ModuleNotFoundError:  # an optional part of a library
                continue
            for attribute, value in attributes(module):
                yield f"{name}.{attribute}", value
                if isinstance(value, type):
                    classes.setdefault(value, f"{name}.{attribute}")
    for cls, name in classes.items():
        for attribute, value in attributes(cls):
            yield f"{name}.{attribute}", value


def attributes(owner: Any) -> Iterator[tuple[str, Any]]:
    for name in dir(owner):
        value = None if name.startswith("_") else getattr(owner, name, None)
        if callable(value):
            yield name, value


@cache
def accepted() -> tuple[int, dict[str, dict[str, Any]]]:
    """Count all public callables, and judge each of them for every group."""
    every = dict(public_callables(OPEN))
    parts: dict[str, dict[str, Any]] = {group: {} for group in GROUPS}
    for target in {id(target): target for target in every.values()}.values():
        for group, kind in KINDS.items():
            if kind.accepts(target):
                parts[group][f"{target.__module__}.{target.__qualname__}"] = target
    return len(every), parts


class Watch:
    """Notes which code of ours, or of the packages that are walked, is called."""

    def __init__(self) -> None:
        root = Path(runner.__file__).parents[1]
        self.allowed = {str(root / name) for name in _JUDGES}
        packages = ("runner", "torch", "torchmetrics", "hydra", "omegaconf")
        found = [importlib.import_module(name).__file__ for name in packages]
        self.watched = tuple(str(Path(file).parent) for file in found if file)
        self.called: set[str] = set()

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file not in self.allowed and file.startswith(self.watched):
            self.called.add(f"{file}: {frame.f_code.co_qualname}")

    def __enter__(self) -> Watch:
        sys.setprofile(self.note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)


def judge_names(names: list[str], group: str, allowed: tuple[str, ...]) -> set[str]:
    """Return which parts these names lead to, as a configuration would name them."""
    taken = set()
    with Watch() as watch:
        for name in names:
            try:
                part = resolve_part(name, allowed, KINDS[group], group)
            except ConfigError:
                continue
            taken.add(f"{part.__module__}.{part.__qualname__}")
    assert not watch.called, f"called: {sorted(watch.called)[:3]}"
    return taken


def callables(table: Table, top: Path, *, short: bool) -> None:
    """Name every callable in every group."""
    table.fault = "22: every callable in every group"
    step = EVERY_NTH if short else 1
    ours = [name for name, _ in public_callables(OPEN)]
    foreign = [name for name, _ in public_callables(CLOSED)]
    _, known = accepted()
    for group, parts in known.items():

        def only_parts(group: str = group, parts: dict[str, Any] = parts) -> str:
            assert len(parts) == PARTS[group], sorted(parts)
            taken = judge_names(ours[::step], group, ALLOWED_PACKAGES)
            assert taken <= set(parts), sorted(taken - set(parts))
            assert short or taken == set(parts), sorted(set(parts) - taken)
            return f"{group} takes {len(parts)}"

        def nothing(group: str = group) -> str:
            assert not judge_names(foreign[::step], group, ALLOWED_PACKAGES)
            taken = judge_names(foreign[::step], group, (*ALLOWED_PACKAGES, *CLOSED))
            assert taken <= LIKE_OURS.get(group, set()), sorted(taken)
            return "closed packages take none"

        table.judge(f"{group} of {len(ours):,} names", only_parts)
        table.judge(f"{group} of {len(foreign):,} names", nothing)
    for group in UNBUILT:

        def refused(group: str = group) -> str:
            for name in [*ours, *foreign][:: 10 * step]:
                for node in ({"_target_": name}, {"x": [{"_target_": name}]}):
                    assert check_target_names({group: node}, ALLOWED_PACKAGES), name
            return "nothing is built there"

        table.judge(group, refused)
    table.cases["names"] = len(ours[::step]) + len(foreign[::step])
