"""`-m` and `search=NAME`: many jobs from one command line, each in a separate process."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.types import Glob, Override

from runner.cli.flags import Flags
from runner.config.compose import ComposedConfig, compose_job
from runner.config.composed_checks import check_composed, with_row_count
from runner.config.groups import load_groups
from runner.config.hydra_keys import find_hydra_problem
from runner.config.hydra_text import hydra_value
from runner.config.overrides import (
    HIDDEN_WIDTHS,
    find_repeated,
    name_hidden_widths,
    own_key,
    parse_overrides,
)
from runner.config.rules import get_key
from runner.config.settings import SearchSettings, make_settings
from runner.config.settings.trainer import LENGTH_KEYS
from runner.errors import ConfigError, raise_combined
from runner.launch import check_parts, print_status, resolve_automatic, run_spec
from runner.reporting.report.terminal import make_console
from runner.sweep.hydra_launcher import choose_launcher, parse_launcher
from runner.sweep.live_view import CheckProgress
from runner.sweep.local_process import JobStarter
from runner.sweep.plan import CheckedJob, SweepPlan, plan_sweep
from runner.sweep.run import SweepOptions, run_sweep
from runner.sweep.search import find_idle_settings, plan_search
from runner.sweep.space import MOST_VALUES, Space, listed_values, read_space

# Keys of the default spaces that some models lack; any other missing key is a mistake
MODEL_KEYS = tuple(
    f"model.net.{name}"
    for name in ("embedding_dim", "embedding_dropout", "dropout", "norm", *HIDDEN_WIDTHS)
)
WIDTH_KEYS = {f"model.net.{name}" for name in HIDDEN_WIDTHS}


def expand_grid(overrides: Sequence[str], *, config_dirs: Sequence[str] = ()) -> list[list[str]]:
    """Return the overrides of each job of a grid. As in Hydra the last key varies fastest.

    Args:
        config_dirs: the user's folders, whose options a glob(...) may also choose.

    Raises:
        ConfigError: for a grid without a job or with more than `MOST_VALUES`, or overrides that
            cannot be parsed.
    """
    parsed: list[Override] = [
        _with_options(o, config_dirs)
        for o in parse_overrides(overrides)
        if o.key_or_group != "hydra.mode" or find_hydra_problem(o)
    ]
    counts = {
        str(o.input_line): len(listed_values(o))
        for o in parsed
        if o.is_sweep_override() and not o.is_interval_sweep()
    }
    empty = [f"{line}: a sweep over nothing" for line, count in counts.items() if not count]
    endless = [
        f"{o.input_line}: an interval has no end of values; choice(...) or range(...) makes a "
        "grid, search=random (or another; `python -m runner ls search`) chooses from it"
        for o in parsed
        if o.is_interval_sweep()
    ]
    void = [
        f"{o.input_line}: has no effect, {last.input_line} follows; a key of a sweep is given once"
        for o, last in find_repeated(parsed)
        if o.is_sweep_override() or last.is_sweep_override()
    ]
    raise_combined([*empty, *endless, *void])
    if (num_jobs := math.prod(counts.values())) > MOST_VALUES:
        raise ConfigError(
            f"{' '.join(counts)}: {num_jobs:,} jobs; a grid has at most {MOST_VALUES:,}, and "
            "search=random (or another; `python -m runner ls search`) chooses from more"
        )
    batches = BasicSweeper.split_arguments(parsed, max_batch_size=None)
    return [list(job) for batch in batches for job in batch]


def _with_options(override: Override, config_dirs: Sequence[str]) -> Override:
    """Return an override with the options that match its glob(...), if it has one.

    Raises:
        ConfigError: if none matches.
    """
    value = override.value()
    if not isinstance(value, Glob):
        return override
    repository = load_groups((), config_dirs).repository
    names = value.filter(repository.get_group_options(override.key_or_group))
    if not names:
        raise ConfigError(f"{override.input_line}: a sweep over nothing")
    [listed] = parse_overrides([f"{str(override.input_line).partition('=')[0]}={','.join(names)}"])
    return listed


def multirun(
    flags: Flags,
    allowed: Sequence[str],
    allow: Sequence[str],
    make_starter: Callable[[SweepPlan, Sequence[str], str], JobStarter] = choose_launcher,
) -> int:
    """Compose and check every job, then run the sweep or search; return its exit code.

    Args:
        allow: those of them from `--allow`, for the command lines of the jobs.

    Raises:
        UserError: before anything has started or been written.
        UnicodeEncodeError: likewise, if the name of the current folder is not valid text.
    """
    os.getcwd().encode()  # the record of each job contains it, so all of them would fail

    def check(overrides: Sequence[str]) -> CheckedJob:
        composed = compose_job(overrides, config_dirs=flags.config_dirs)
        check_composed(with_row_count(composed), allowed)
        composed = resolve_automatic(composed, allowed, in_own_process=True)
        check_parts(composed, allowed, in_own_process=True)  # a sweep imports no torch
        signature = run_spec(composed).signature
        return CheckedJob(signature, composed.name, composed.config, composed.sweep_dir)

    dirs = [w for folder in flags.config_dirs for w in ("--config-dir", os.path.abspath(folder))]
    options = SweepOptions(
        flags=[*dirs, *(w for package in allow for w in ("--allow", package))],
        command=sys.orig_argv,
        dry_run=flags.dry_run,
        rerun=flags.rerun,
        make_starter=make_starter,
        launcher_plugin=parse_launcher(flags.overrides),
        resume_arguments=[*dirs, *flags.overrides],
    )
    parsed = [_with_options(o, flags.config_dirs) for o in parse_overrides(flags.overrides)]
    fixed = [str(o.input_line) for o in parsed if not o.is_sweep_override()]
    # a search is chosen by its group, or inside an experiment
    if any(o.key_or_group in ("search", "experiments") for o in parsed):
        base = compose_job(fixed, config_dirs=flags.config_dirs)
        if get_key(base.config, "search"):
            plan, spec = plan_search(*_split_search(base, parsed, allowed), check)
            return run_sweep(plan, options, spec)
    grid = expand_grid(flags.overrides, config_dirs=flags.config_dirs)
    progress = CheckProgress(make_console(draws=True))
    return run_sweep(plan_sweep(grid, check, progress=progress), options)


def _split_search(
    base: ComposedConfig, parsed: Sequence[Override], allowed: Sequence[str]
) -> tuple[list[str], Space, SearchSettings]:
    """Return the fixed overrides, the space, and the settings of a search.

    Raises:
        ConfigError: for several values of a key that applies to the whole sweep, and for every
            other mistake.
    """
    problems: list[str] = []
    for o in parsed:
        key = o.key_or_group.removeprefix("search.space.")
        if not o.is_sweep_override() or not _is_sweep_wide(o):
            continue
        if key == o.key_or_group:
            problems.append(f"{o.input_line}: holds for the whole sweep; give it one value")
        else:
            text = f"{key}={o.get_value_string()}"
            problems.append(
                f"{o.input_line}: write the key that is searched without search.space: {text}"
            )
    raise_combined(problems)
    check_composed(with_row_count(base), allowed)
    parsed = name_hidden_widths(base.unresolved_config, parsed, problems)
    raise_combined(problems)
    settings = _with_own_keys(make_settings(SearchSettings, base.config["search"]), base.config)
    missing = [k for k in MODEL_KEYS if k in settings.space and not _has_key(base.config, k)]
    searched = {k: v for k, v in settings.space.items() if k not in missing}
    space, notes = read_space(searched, parsed)
    if missing := [k for k in missing if k not in WIDTH_KEYS or WIDTH_KEYS.isdisjoint(searched)]:
        notes.append(f"not searched, since the model has no {', no '.join(missing)}")
    notes += find_idle_settings(settings, base.default_config.get("search") or {})
    for note in notes:
        print_status(note)
    searched_keys = {d.key for d in space}
    fixed = [
        str(o.input_line)
        for o in parsed
        if o.key_or_group not in searched_keys and not o.is_sweep_override()
    ]
    return [*_settings_of_each_job(settings, parsed), *fixed], space, settings


def _with_own_keys(settings: SearchSettings, config: Mapping[str, Any]) -> SearchSettings:
    """Return the settings of a search with `model.net.hidden` replaced by the model's own key."""
    net = config["model"]["net"]
    return replace(
        settings,
        space={own_key(key, net): text for key, text in settings.space.items()},
        each_job={own_key(key, net): value for key, value in settings.each_job.items()},
    )


def _has_key(config: Mapping[str, Any], key: str) -> bool:
    """Return whether a configuration has a dotted key, with any value."""
    node, _, name = key.rpartition(".")
    return name in (get_key(config, node) or {})


def _settings_of_each_job(settings: SearchSettings, parsed: Sequence[Override]) -> list[str]:
    """Return `search.each_job` as overrides, without the keys set on the command line.

    A length there replaces that of the search, even if it is set by the other key.
    """
    overridden = {o.key_or_group for o in parsed}
    overridden |= set() if overridden.isdisjoint(LENGTH_KEYS) else set(LENGTH_KEYS)
    return [f"{k}={hydra_value(v)}" for k, v in settings.each_job.items() if k not in overridden]


def _is_sweep_wide(override: Override) -> bool:
    return override.key_or_group.split(".")[0].split("/")[0] in ("search", "launcher", "hydra")
