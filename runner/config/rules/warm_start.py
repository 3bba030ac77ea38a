"""Rules for a warm start: its keys, and whether its sources contain what the new run takes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from runner.config.rules.keys import Config, get_key
from runner.config.rules.loops import NEW_RUN_LOOPS
from runner.errors import UserError, nearest_hint, unknown_keys
from runner.models.argument_types import FITTED
from runner.rundir.checkpoint.folder import peek_checkpoint, saved_steps
from runner.rundir.checkpoint.manifest import MANIFEST_FILE
from runner.rundir.run_files import is_exported
from runner.rundir.sweep_folder import find_best_job, is_sweep

LINEAR_START_NET = "runner.models.wide_and_deep.WideAndDeep"


def check_warm_start(config: Config) -> Iterator[str]:
    """Check the keys of a warm start against each other."""
    init, target = get_key(config, "checkpoint.init_from"), get_key(config, "loop._target_")
    if target not in NEW_RUN_LOOPS:
        return
    if init is not None and not os.path.isdir(init):
        yield f"checkpoint.init_from={init}: no such folder"
    elif init is not None and is_exported(Path(init)):
        yield (
            f"checkpoint.init_from={init}: an exported model, which has no tables to learn on; "
            "name the run that it was made from, or one of its checkpoints"
        )
    names, tables = (
        get_key(config, f"checkpoint.{key}") or {} for key in ("init_names", "init_tables")
    )
    if init is None and names:
        yield "checkpoint.init_names: renames weights of checkpoint.init_from, which is not set"
    if init is None and not tables and get_key(config, "checkpoint.init_optimizer"):
        yield (
            "checkpoint.init_optimizer=true: takes the optimizers' states of what "
            "checkpoint.init_from or init_tables name, and neither is set"
        )
    if init is None and get_key(config, "checkpoint.init_average"):
        yield (
            "checkpoint.init_average=true: takes the averages of checkpoint.init_from, which is "
            "not set"
        )
    has_source = init is not None or bool(tables)
    if get_key(config, "checkpoint.init_linear"):
        yield from _check_linear_start(config, has_source=has_source)
    elif get_key(config, "model.net.pairs") == FITTED and not has_source:
        yield (
            f"model.net.pairs={FITTED}: checkpoint.init_linear=true fits them, and is not set; "
            "model.net.pairs=true learns them in the training"
        )
    for name, other in names.items():
        if not (other is None or (isinstance(other, str) and other)):
            yield (
                f"checkpoint.init_names.{name}={other}: needed is the name in the source, or null "
                "to leave the weight out"
            )
    for table, source in tables.items():
        yield from _check_table_source(f"checkpoint.init_tables.{table}", source)


def _check_linear_start(config: Config, *, has_source: bool) -> Iterator[str]:
    key = "checkpoint.init_linear=true"
    net = str(get_key(config, "model.net._target_"))
    if net.startswith("runner.models.") and net != LINEAR_START_NET:
        name = net.rpartition(".")[2]
        yield f"{key}: {name} has no linear half beside a deep one; model=wide_and_deep has"
    if has_source:
        yield (
            f"{key}: checkpoint.init_from and init_tables give the start; choose one: "
            "checkpoint.init_linear=false goes with them"
        )
    if (ranks := get_key(config, "trainer.num_processes")) != 1:
        yield f"{key}: works on one rank, not trainer.num_processes={ranks}"


def _check_table_source(key: str, source: Any) -> Iterator[str]:
    if not isinstance(source, Mapping) or not isinstance(source.get("from"), str):
        yield f"{key}={source}: write {{from: DIR}}, or {{from: DIR, table: NAME}} for another name"
        return
    yield from unknown_keys(source, ("from", "table"), key)
    if not isinstance(source.get("table", ""), str):
        yield f"{key}.table={source['table']}: needed is the name of a table in the source"
    if not os.path.isdir(source["from"]):
        yield f"{key}.from={source['from']}: no such folder"


def check_warm_start_sources(config: Config, from_run: bool) -> Iterator[str]:
    """Check the checkpoints and tables from which a new run starts.

    Args:
        from_run: whether it was taken from a run, which has already started.
    """
    if from_run or get_key(config, "loop._target_") not in NEW_RUN_LOOPS:
        return
    init = get_key(config, "checkpoint.init_from")
    if init is not None:
        yield from _check_has_checkpoint("checkpoint.init_from", Path(init))
    for table, source in (get_key(config, "checkpoint.init_tables") or {}).items():
        key, path = f"checkpoint.init_tables.{table}", Path(source["from"])
        yield from _check_has_checkpoint(f"{key}.from", path)
        summary = peek_checkpoint(path)
        if summary is None:
            continue
        names = [name.split("/") for name in summary.tensor_names if name.startswith("tables/")]
        known = sorted({name[1] for name in names if name[-1] == "weight"})
        source_table = source.get("table") or table
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
