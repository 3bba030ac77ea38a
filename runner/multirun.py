"""`-m`: one command line into many, each a job in a process of its own (runner/sweep)."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.types import Override

from runner.compose import compose_job
from runner.errors import ConfigError, mistakes
from runner.flags import Flags
from runner.launch import plan_of, verify
from runner.overrides import parse


def expand(overrides: Sequence[str]) -> list[list[str]]:
    """The overrides of each job of a grid, as Hydra's users know it: the last key varies fastest.

    Raises: ConfigError for a grid with nothing in it, or overrides that cannot be read.
    """
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


def multirun(flags: Flags, allowed: Sequence[str], allow: Sequence[str]) -> int:
    """Composes and checks every job, then hands them over; each starts as its own process.

    Raises: UserError before anything has started or been written.
    """
    from runner.sweep import Checked, sweep

    def check(overrides: Sequence[str]) -> Checked:
        composed = compose_job(overrides, config_dirs=flags.config_dirs)
        verify(composed, allowed)
        signature = plan_of(composed).signature
        return Checked(signature, composed.name, composed.config, composed.sweep_dir)

    dirs = [w for folder in flags.config_dirs for w in ("--config-dir", os.path.abspath(folder))]
    return sweep(
        expand(flags.overrides),
        check=check,
        flags=[*dirs, *(w for package in allow for w in ("--allow", package))],
        command=sys.orig_argv,
        dry_run=flags.dry_run,
    )
