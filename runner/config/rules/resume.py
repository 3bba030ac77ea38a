"""What a resume may not change, with the reason. Before anything is written, and without torch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from runner.config.signature import describe
from runner.errors import UserError
from runner.models.row_scope import CUT
from runner.optim.param_groups import TABLES, parse_parts
from runner.rundir.checkpoint.peek import Glimpse, glimpse
from runner.rundir.run import Plan, changes_of, read_meta

Change = tuple[str, Any, Any]  # key, before, now
ANOTHER_RUN = ("data", "dataset", "seed", "model", "task")


def check_resumable(folder: Path, plan: Plan) -> None:
    """A resume goes on with the same data in the same order; else it would be another run.

    Raises: UserError that names what differs.
    """
    changes = changes_of(folder, read_meta(folder), plan)
    fixed = [change for change in changes if change[0].split(".")[0] in ANOTHER_RUN]
    if fixed:
        raise UserError(
            f"{folder} cannot go on with other data, seed, model or task:\n{describe(fixed)}\n"
            f"checkpoint.init_from={folder} starts a new run from its weights"
        )
    reasons = [*_rows(changes), *_cut(changes)]
    if any(key.startswith(("trainer.ema.", "optimizer.")) for key, _, _ in changes):
        newest = glimpse(folder, "last")
        if newest is not None:
            reasons += [*_averages(newest, plan.config), *_frozen(newest, plan.config)]
    if reasons:
        told = "\n".join(reasons)
        raise UserError(
            f"{folder} cannot go on so:\n{told}\n"
            f"checkpoint.init_from={folder} starts a new run from its weights"
        )


def _rows(changes: list[Change]) -> Iterator[str]:
    for key, before, now in changes:
        if key == "global_batch":
            yield (
                f"  trainer.batch_size: an update of this run has {before:,} rows, over all ranks "
                f"and micro-batches, and now it would have {now:,}; a resume keeps them: without "
                "trainer.batch_size each takes its share, and trainer.batch_on_plateau lets an "
                "update grow"
            )


def _cut(changes: list[Change]) -> Iterator[str]:
    cut = [change for change in changes if change[0] in [f"trainer.{name}" for name in CUT]]
    if cut and not any(key == "global_batch" for key, _, _ in changes):
        yield (
            "  model.loss.within=micro_batch: the loss compares the rows of each micro-batch of "
            f"each rank, which would be others:\n{describe(cut)}"
        )


def _averages(saved: Glimpse, config: Mapping[str, Any]) -> Iterator[str]:
    if config["trainer"]["ema"]["decay"] is None and any(n.startswith("ema/") for n in saved.names):
        yield (
            "  trainer.ema.decay=null: this run keeps moving averages, and what it has evaluated "
            "so far are these; trainer.ema.evaluate=false goes on with evaluations of the weights"
        )


def _frozen(saved: Glimpse, config: Mapping[str, Any]) -> Iterator[str]:
    """Parts that would be frozen in the middle, whose optimizer the checkpoint goes on with."""
    names = [*saved.values.get("dense_optimizer", {})]
    states = [name.split("/") for name in saved.names if name.startswith("tables/")]
    names += sorted({f"{TABLES}{s[1]}" for s in states if s[-1] != "weight"})
    told: set[int] = set()
    parts = parse_parts(config["optimizer"])
    for name in names:
        owner = next((i for i, p in enumerate(parts) if re.search(p.pattern, name)), None)
        if owner is not None and parts[owner].frozen and owner not in told:
            told.add(owner)
            yield (
                f"  optimizer.parts[{owner}]: {parts[owner].pattern!r} freezes {name!r}, which "
                "this run has trained and whose optimizer's state it goes on with"
            )
