"""The mirror of a training, from before its first update until after its report."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from runner.config.compose import ComposedConfig
from runner.config.rules import get_key
from runner.config.settings import EVALUATE_LOOP
from runner.errors import UserError
from runner.launch.status import print_status
from runner.rundir.mirror.process import MirrorProcess
from runner.rundir.run import Run
from runner.worker import release_ranks


@dataclass
class MirrorOutcome:
    """Whether the mirror has the final state: 0, or 1 as the job's exit code if it has not."""

    code: int = 0


def mirror_of(composed: ComposedConfig) -> str | None:
    """Return the URL to which a job mirrors its run; an evaluation has none."""
    if get_key(composed.config, "loop._target_") == EVALUATE_LOOP:
        return None
    url: str | None = get_key(composed.config, "checkpoint.mirror")
    return url and url.rstrip("/")


@contextmanager
def mirrored(composed: ComposedConfig, run: Run) -> Iterator[MirrorOutcome]:
    """Mirror the run while the block runs, and its final state, however the block ends.

    Raises:
        UserError: if the store refuses the first upload.
    """
    outcome = MirrorOutcome()
    if (url := mirror_of(composed)) is None:
        yield outcome
        return
    try:
        mirror = MirrorProcess(run.dir, url)
    except UserError:
        release_ranks(composed, 2)
        raise
    try:
        yield outcome
    finally:
        if problem := mirror.finish():
            outcome.code = 1
            print_status(
                f"{run.dir} is not mirrored whole: {problem}; its earlier state there is whole, "
                "and the same command uploads the rest"
            )
        else:
            print_status(f"mirrored in {url}")
