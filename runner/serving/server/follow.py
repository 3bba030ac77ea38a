"""Applies the deltas of a folder to a scorer while it serves."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from runner.errors import UserError, describe_error
from runner.serving.artifact.delta import DeltaFolder
from runner.serving.artifact.folder import EXPORT_WHOLE
from runner.serving.scorer import Scorer
from runner.serving.server.counters import WorkerCounters

LOG = logging.getLogger(__name__)
POLL_S = 1.0


async def follow(scorer: Scorer, folder: Path, counters: WorkerCounters) -> None:
    """Apply each delta for the version that is served, until this task is cancelled.

    A delta is read and prepared in a thread, and applied between two batches. One that cannot be
    applied is reported once, and the present version stays in service.
    """
    last_error, deltas = "", DeltaFolder(folder)
    while True:
        try:
            path = await asyncio.to_thread(_apply_next, scorer, deltas)
        except Exception as error:  # of any kind: nobody would see how this task ends
            path = None
            if describe_error(error) != last_error:
                last_error = describe_error(error)
                counters.add("delta_errors")
                LOG.warning("--follow: %s; version %s is still served", last_error, scorer.version)
        if path is None:
            await asyncio.sleep(POLL_S)
            continue
        last_error = ""
        counters.add("deltas")
        counters.set_version(scorer.version)
        LOG.warning("%s applied: version %s is served", path, scorer.version)


def _apply_next(scorer: Scorer, deltas: DeltaFolder) -> Path | None:
    if not deltas.path.is_dir():
        raise UserError(f"{deltas.path}: no such folder")
    # the second listing finds a delta that came during the first, before one found there
    path = deltas.take(scorer.version) or deltas.take(scorer.version)
    if path is not None:
        scorer.apply_delta(path)
    elif (step := scorer.artifact.step) is not None and (
        waiting := deltas.find_waiting(scorer.version, step)
    ):
        raise UserError(
            f"{waiting[0]}: is a delta on another version (step {waiting[1]}) than the one that is "
            f"served (step {step}), on which {deltas.path} has none: copy those between them "
            f"there, or {EXPORT_WHOLE}"
        )
    return path
