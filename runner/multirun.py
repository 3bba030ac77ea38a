"""`-m`: one command line into many, each a job in a process of its own (runner/sweep)."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.types import Override

from runner.errors import ConfigError, UserError, mistakes
from runner.flags import Flags


def expand(overrides: Sequence[str]) -> list[list[str]]:
    """The overrides of each job of a grid, as Hydra's users know it: the last key varies fastest.

    Raises: ConfigError for a grid with nothing in it, or overrides that cannot be read.
    """
    from runner.compose import parse

    parsed: list[Override] = [o for o in parse(overrides) if o.key_or_group != "hydra.mode"]
    empty = [
        f"{o.input_line}: a sweep over nothing"
        for o in parsed
        if o.is_sweep_override() and not list(o.sweep_string_iterator())
    ]
    if empty:
        raise mistakes(empty)
    try:
        batches = BasicSweeper.split_arguments(parsed, max_batch_size=None)
    except Exception as error:
        raise ConfigError(f"the sweep cannot be expanded: {error}") from error
    return [list(job) for batch in batches for job in batch]


def multirun(flags: Flags, allowed: Sequence[str]) -> int:
    """Composes and checks every job, then hands them over; each starts as its own process."""
    jobs = expand(flags.overrides)
    try:
        from runner.sweep.run import sweep
    except ModuleNotFoundError as missing:
        if missing.name != "runner.sweep.run":
            raise
        raise UserError("-m: sweeps are not part of this version") from None
    return int(sweep(jobs, flags=flags, allowed=allowed, command=sys.orig_argv))
