"""Checks which settings a resume may not change. Runs before anything is written, without torch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from runner.config.hydra_text import shell_override
from runner.config.settings.trainer import LENGTH_KEYS
from runner.distributed.global_batch import GLOBAL_BATCH_KEYS
from runner.errors import UserError
from runner.optim.param_groups import TABLE_PREFIX, parse_parameter_groups
from runner.rundir.checkpoint.folder import CheckpointSummary, peek_checkpoint
from runner.rundir.diff import format_changes
from runner.rundir.run import RunSpec, signature_changes
from runner.rundir.run_files import read_meta

Change = tuple[str, Any, Any]  # key, before, now
FIXED_KEYS = ("data", "dataset", "seed", "model", "task")
# Prefixes of signed settings that have an effect without another update
UNTRAINED_KEYS = (
    *LENGTH_KEYS,
    "trainer.eval_",
    "trainer.ema.evaluate",
    "checkpoint.monitor.",
    "loop.",
    "metrics.",
)


def check_resumable(folder: Path, spec: RunSpec) -> None:
    """Check that a resume has the same data, seed, model, task and rows per update.

    Changed settings must also have an update to affect: otherwise a finished run would be recorded
    with settings with which it was not trained.

    Raises:
        UserError: naming what differs; it would be another run.
    """
    changes = signature_changes(folder, read_meta(folder), spec)
    fixed = [change for change in changes if change[0].split(".")[0] in FIXED_KEYS]
    if fixed:
        dataset = spec.config["dataset"]
        paths = [dataset.get(key) for key in ("path", "validation_path", "test_path")]
        where = " or ".join(map(str, filter(None, paths))) or dataset.get("schema", "the dataset")
        is_same = [key for key, _, _ in fixed] == ["data"]  # but not by any of its settings
        changed = f"the data of {where} have changed since, or how they are read\n" * is_same
        raise UserError(
            f"{folder} cannot go on with other data, seed, model or task:\n"
            f"{format_changes(fixed)}\n{changed}"
            f"{shell_override('checkpoint.init_from', folder)} starts a new run from its weights"
        )
    reasons = [*_global_batch_changes(changes), *_row_scope_changes(changes)]
    newest = peek_checkpoint(folder, "last") if changes else None
    if newest is not None:
        reasons += _without_updates(newest, changes, spec.config["trainer"])
        if any(key.startswith(("trainer.ema.", "optimizer.")) for key, _, _ in changes):
            reasons += _dropped_averages(newest, spec.config)
            reasons += _newly_frozen(newest, spec.config)
    if reasons:
        listed = "\n".join(reasons)
        raise UserError(
            f"{folder} cannot go on with these settings:\n{listed}\n"
            f"{shell_override('checkpoint.init_from', folder)} starts a new run from its weights"
        )


def _global_batch_changes(changes: list[Change]) -> Iterator[str]:
    for key, before, now in changes:
        if key == "global_batch":
            yield (
                f"  trainer.batch_size: an update of this run has {before:,} rows, over all ranks "
                f"and micro-batches, and now it would have {now:,}; a resume keeps them: without "
                "trainer.batch_size each rank takes its share, and trainer.batch_on_plateau lets "
                "an update grow"
            )


def _row_scope_changes(changes: list[Change]) -> Iterator[str]:
    keys = [f"trainer.{name}" for name in GLOBAL_BATCH_KEYS]
    scope_changes = [change for change in changes if change[0] in keys]
    if scope_changes and not any(key == "global_batch" for key, _, _ in changes):
        yield (
            "  model.loss.within or model.net.norm_scope is micro_batch: the rows of each "
            "micro-batch of each rank make the result, and these would change:\n"
            f"{format_changes(scope_changes)}"
        )


def _without_updates(
    saved: CheckpointSummary, changes: list[Change], trainer: Mapping[str, Any]
) -> Iterator[str]:
    """Find a length that the run has exceeded, and settings that no remaining update would use."""
    step, cursor = saved.values["step"], saved.values["cursor"]
    key, done, begun, at = "trainer.max_steps", step, False, f"step {step:,}"
    length = trainer["max_steps"]
    if length is None:
        length = trainer["max_epochs"]
        key, done, begun = "trainer.max_epochs", cursor["epoch"], cursor["offset"] > 0
        at = f"{at}, after {done:,} whole epochs"
    trained = [(k, now) for k, _, now in changes if not k.startswith(UNTRAINED_KEYS)]
    if done + begun > length and any(k in LENGTH_KEYS for k, _, _ in changes):
        yield (
            f"  {key}={length}: the run is at {at} already, and no update is taken back; loop=eval "
            "with checkpoint.step=N evaluates an earlier checkpoint that it has kept"
        )
    elif done >= length and trained:
        listed = ", ".join(f"{k}={'null' if now is None else now}" for k, now in trained)
        yield (
            f"  {listed}: the run has made all its updates, at {at}, and nothing would be trained "
            f"with this; with a larger {key} it goes on"
        )


def _dropped_averages(saved: CheckpointSummary, config: Mapping[str, Any]) -> Iterator[str]:
    has_averages = any(n.startswith("ema/") for n in saved.tensor_names)
    if has_averages and config["trainer"]["ema"]["decay"] is None:
        yield (
            "  trainer.ema.decay=null: this run keeps moving averages, and its evaluations so far "
            "are of them; trainer.ema.evaluate=false goes on with evaluations of the weights"
        )


def _newly_frozen(saved: CheckpointSummary, config: Mapping[str, Any]) -> Iterator[str]:
    """Find parameters that the run has trained but that would now be frozen."""
    names = [*saved.values.get("dense_optimizer", {})]
    states = [name.split("/") for name in saved.tensor_names if name.startswith("tables/")]
    names += sorted({f"{TABLE_PREFIX}{s[1]}" for s in states if s[-1] != "weight"})
    reported: set[int] = set()
    parts = parse_parameter_groups(config["optimizer"])
    for name in names:
        owner = next((i for i, p in enumerate(parts) if re.search(p.pattern, name)), None)
        if owner is not None and parts[owner].frozen and owner not in reported:
            reported.add(owner)
            yield (
                f"  optimizer.parts[{owner}]: {parts[owner].pattern!r} freezes {name!r}, which "
                "this run has trained and whose optimizer's state is in the checkpoint"
            )
