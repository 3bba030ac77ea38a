"""Checks that the sources of a warm start hold what the new run takes, as far as names tell."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from runner.config.rules.keys import Config, get_key
from runner.config.rules.loops import NEW_RUN_LOOPS
from runner.errors import UserError, nearest_hint
from runner.rundir.checkpoint.folder import saved_steps
from runner.rundir.checkpoint.manifest import MANIFEST_FILE
from runner.rundir.checkpoint.peek import peek_checkpoint
from runner.rundir.sweep_folder import find_best_job, is_sweep


def check_warm_start_sources(config: Config, from_run: bool) -> Iterator[str]:
    """Check the checkpoints and tables that a new run starts from.

    Args:
        config: resolved.
        from_run: whether it was taken from a run, which has started already.
    """
    if from_run or get_key(config, "loop._target_") not in NEW_RUN_LOOPS:
        return
    init = get_key(config, "checkpoint.init_from")
    if init is not None:
        yield from _check_has_checkpoint("checkpoint.init_from", Path(init))
    for table, given in (get_key(config, "checkpoint.init_tables") or {}).items():
        key, path = f"checkpoint.init_tables.{table}", Path(given["from"])
        yield from _check_has_checkpoint(f"{key}.from", path)
        summary = peek_checkpoint(path)
        if summary is None:
            continue
        names = [name.split("/") for name in summary.tensor_names if name.startswith("tables/")]
        known = sorted({name[1] for name in names if name[-1] == "weight"})
        source_table = given.get("table") or table
        if source_table not in known:
            hint = f"{nearest_hint(source_table, known)}; {path} has {', '.join(known) or 'none'}"
            yield f"{key}.table={source_table}: no table {source_table!r}{hint}"


def _check_has_checkpoint(key: str, path: Path) -> Iterator[str]:
    if not path.is_dir() or (path / MANIFEST_FILE).exists():
        return  # another rule reports a folder that does not exist
    if is_sweep(path):
        try:
            yield f"{key}={path}: is a sweep; its best job is {find_best_job(path)[0]}"
        except UserError as error:
            yield f"{key}={error}"
    elif not saved_steps(path / "checkpoints"):
        yield f"{key}={path}: holds no whole checkpoint; name a run directory that holds one"
