"""Whether a new run's warm start has what it is to take, as far as names tell."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from runner.config.rules.keys import Config, get_key
from runner.config.rules.loops import NEW_RUN_LOOPS
from runner.errors import nearest_hint
from runner.rundir.checkpoint.folder import saved_steps
from runner.rundir.checkpoint.manifest import MANIFEST_FILE
from runner.rundir.checkpoint.peek import peek_checkpoint


def check_warm_start_sources(config: Config, from_run: bool) -> Iterator[str]:
    """Args: from_run: a run that goes on has started long ago."""
    if from_run or get_key(config, "loop._target_") not in NEW_RUN_LOOPS:
        return
    init = get_key(config, "checkpoint.init_from")
    if init is not None:
        yield from _check_has_checkpoint("checkpoint.init_from", Path(init))
    for table, given in (get_key(config, "checkpoint.init_tables") or {}).items():
        key, path = f"checkpoint.init_tables.{table}", Path(given["from"])
        yield from _check_has_checkpoint(f"{key}.from", path)
        found = peek_checkpoint(path)
        if found is None:
            continue
        names = [name.split("/") for name in found.tensor_names if name.startswith("tables/")]
        known = sorted({name[1] for name in names if name[-1] == "weight"})
        asked = given.get("table") or table
        if asked not in known:
            there = f"; {path} has {', '.join(known)}" if known else f"; {path} has none"
            yield f"{key}.table={asked}: no table {asked!r}{nearest_hint(asked, known)}{there}"


def _check_has_checkpoint(key: str, path: Path) -> Iterator[str]:
    if not path.is_dir() or (path / MANIFEST_FILE).exists():
        return  # the first is said elsewhere
    if not saved_steps(path / "checkpoints"):
        yield f"{key}={path}: holds no whole checkpoint; needed is a run directory that does"
