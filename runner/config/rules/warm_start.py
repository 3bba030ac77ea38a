"""Whether a new run's warm start has what it is to take, as far as names tell."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from runner.config.rules.keys import Config, get
from runner.config.rules.loops import BEGINS_AFRESH
from runner.errors import nearest
from runner.rundir.checkpoint.folder import saved_steps
from runner.rundir.checkpoint.manifest import MANIFEST
from runner.rundir.checkpoint.peek import glimpse


def warm_sources(config: Config, from_run: bool) -> Iterator[str]:
    """Args: from_run: a run that goes on has started long ago."""
    if from_run or get(config, "loop._target_") not in BEGINS_AFRESH:
        return
    init = get(config, "checkpoint.init_from")
    if init is not None:
        yield from _empty("checkpoint.init_from", Path(init))
    for table, given in (get(config, "checkpoint.init_tables") or {}).items():
        key, path = f"checkpoint.init_tables.{table}", Path(given["from"])
        yield from _empty(f"{key}.from", path)
        found = glimpse(path)
        if found is None:
            continue
        names = [name.split("/") for name in found.names if name.startswith("tables/")]
        known = sorted({name[1] for name in names if name[-1] == "weight"})
        asked = given.get("table") or table
        if asked not in known:
            there = f"; {path} has {', '.join(known)}" if known else f"; {path} has none"
            yield f"{key}.table={asked}: no table {asked!r}{nearest(asked, known)}{there}"


def _empty(key: str, path: Path) -> Iterator[str]:
    if not path.is_dir() or (path / MANIFEST).exists():
        return  # the first is said elsewhere
    if not saved_steps(path / "checkpoints"):
        yield f"{key}={path}: holds no whole checkpoint; needed is a run directory that does"
