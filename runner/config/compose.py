"""Makes one configuration from a command line, through Hydra's compose API. Writes nothing.

Hydra composes the chosen groups; then the other overrides are applied to the result. A loop over a
run and a resume start from the configuration of that run, never from current defaults.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig

from runner.config.base_config import (
    BaseConfig,
    base_of_new_run,
    base_of_saved_run,
    drop_held_for_one_command,
)
from runner.config.fit_choices import follow_model_kind
from runner.config.groups import ConfigGroups, find_places, load_groups, set_places
from runner.config.hydra_keys import describe_hydra_error, find_hydra_problem
from runner.config.hydra_text import shell_override
from runner.config.interpolation import (
    Resolution,
    find_value,
    resolve_folder,
    resolve_interpolations,
)
from runner.config.overrides import (
    apply_override,
    describe_displaced_length,
    drop_displaced_length,
    drop_unsupported_arguments,
    find_repeated,
    name_hidden_widths,
    parse_job_overrides,
    replaces_part,
)
from runner.config.paths import (
    PATH_KEYS,
    find_dirs_elsewhere,
    find_empty_paths,
    make_paths_absolute,
)
from runner.config.restart import config_before_restart
from runner.config.rules.keys import get_key
from runner.config.sent_runs import find_sent_reads
from runner.config.settings import TUNE_BATCH_SIZE_LOOP
from runner.distributed.world_size import launched_world_size, resolve_world_size
from runner.errors import ConfigError, raise_combined, shell_path
from runner.optim.lr_scaling import resolve_lr_batches
from runner.rundir.checkpoint.folder import saved_steps
from runner.rundir.diff import diff_settings, format_changes
from runner.rundir.find_run import find_run
from runner.rundir.location import DEFAULT_RUN_DIR
from runner.rundir.provenance import changed_code_note
from runner.rundir.regular_files import check_run_files
from runner.rundir.run_files import read_meta


@dataclass(frozen=True)
class ComposedConfig:
    """The configuration of one job, not yet checked by the rules."""

    config: dict[str, Any]  # resolved, for the builder
    saved_config: dict[str, Any]  # the same with `${oc.env:...}` unresolved, for files and trackers
    default_config: Mapping[str, Any]  # the options without any override, for the type checks
    unresolved_config: DictConfig  # with all interpolations, for `--cfg`
    hydra: DictConfig  # Hydra's own node, unresolved, for `--cfg`
    choices: dict[str, str | None]  # group -> option
    problems: tuple[str, ...] = ()  # mistakes found so far, reported with those of the rules
    overrides: tuple[str, ...] = ()  # the words of the command line
    added_keys: tuple[str, ...] = ()  # keys that came with a `+`
    notes: tuple[str, ...] = ()  # lines that are printed before the job starts
    run_dir: str = DEFAULT_RUN_DIR  # Hydra's template, with {name}, {time} and {signature} in it
    sweep_dir: str = ""  # the same for a sweep
    source_run: Path | None = None  # the run whose configuration this was (eval and resume)
    source_config: dict[str, Any] = field(default_factory=dict)  # of that run, as saved
    was_sent: bool = False  # whether another user's runner wrote that one (see sent_runs.py)
    sent_reads: tuple[tuple[str, str], ...] = ()  # key and variable of what it would then read
    has_begun: bool = False  # whether there are weights to continue from: nothing starts anew

    @property
    def is_multirun(self) -> bool:
        return self.hydra.mode is not None and self.hydra.mode.name == "MULTIRUN"

    @property
    def name(self) -> str:
        name = self.config.get("name")
        parts = (self.choices.get("model"), self.choices.get("dataset"))
        return str(name or "_".join(re.sub(r"\W+", "-", str(p)) for p in parts if p) or "run")


def compose_job(overrides: Sequence[str], *, config_dirs: Sequence[str] = ()) -> ComposedConfig:
    """Compose the configuration of a new run, or with `run=DIR` of a loop over that run.

    Raises:
        ConfigError: for overrides that cannot be parsed, and for a loop that takes no run.
        UserError: for a folder that is not a run directory.
    """
    settings = {
        o.key_or_group: o.value() for o in parse_job_overrides(overrides) if not o.is_delete()
    }
    raise_combined(find_empty_paths(settings, ["run"]))
    for key in ("run", "checkpoint.path"):  # not resolved yet, and so not unescaped
        if isinstance(text := settings.get(key), str):
            settings[key] = text.replace("\\${", "${")
    run, loop, checkpoint = (settings.get(k) for k in ("run", "loop", "checkpoint.path"))
    if run is None and not (loop == "eval" and checkpoint):
        return compose(overrides, config_dirs=config_dirs)
    if loop in (None, "train"):
        raise ConfigError(
            f"run={run}: is for loops that start from a run: "
            f"loop=eval {shell_override('run', run)}. "
            f"`python -m runner resume {shell_path(run)}` continues it, "
            f"{shell_override('checkpoint.init_from', run)} starts a new run from its weights"
        )
    source = (
        find_run(str(run)) if run is not None else find_run_of_checkpoint(Path(str(checkpoint)))
    )
    if source is None:
        return compose(overrides, config_dirs=config_dirs)
    rest = [o for o in overrides if o.partition("=")[0] != "run"]
    rest += _words_of_own_files(settings)
    composed = compose(rest, config_dirs=config_dirs, from_run=source)
    for values in (composed.config, composed.saved_config):
        values["run"] = str(source)
    changes = diff_settings(
        _training_settings(composed.source_config), _training_settings(composed.saved_config)
    )
    composed = replace(composed, notes=(*composed.notes, *changed_code_note(read_meta(source))))
    if not changes:
        return composed
    note = f"differs from the training of {source}:\n{format_changes(changes)}"
    return replace(composed, notes=(*composed.notes, note))


def _words_of_own_files(values: Mapping[str, Any]) -> list[str]:
    """Return the override implied by naming files to evaluate: they are used without a split."""
    names_files = any(values.get(f"dataset.{name}_path") for name in ("validation", "test"))
    splits_rows = any(key.split(".")[:2] == ["dataset", "split"] for key in values)
    return ["dataset.split={}"] if names_files and not splits_rows else []


def find_run_of_checkpoint(checkpoint: Path) -> Path | None:
    """Return the run directory that contains a checkpoint folder; None if there is none.

    Raises:
        ConfigError: if there is no such folder, or it is a run directory.
        UserError: if a file of its run is a link, a pipe or similar.
    """
    if not checkpoint.is_dir():
        raise ConfigError(f"checkpoint.path={checkpoint}: no such folder")
    if (checkpoint / "meta.json").exists():
        raise ConfigError(
            f"checkpoint.path={checkpoint}: is a run directory, not a checkpoint folder in one; "
            f"run={checkpoint} evaluates it"
        )
    folder = checkpoint.absolute().parent.parent
    if not (folder / "meta.json").exists():
        return None
    check_run_files(folder)
    return folder


def _training_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the keys that only describe the evaluation."""
    settings = {k: v for k, v in config.items() if k not in ("loop", "run", "name")}
    checkpoint = config.get("checkpoint") or {}
    settings["checkpoint"] = {k: v for k, v in checkpoint.items() if k not in ("step", "path")}
    return settings


def compose(
    overrides: Sequence[str], *, config_dirs: Sequence[str] = (), from_run: Path | None = None
) -> ComposedConfig:
    """Compose the configuration of a new run, or of a given run with only these overrides applied.

    An override of a group composes that option anew and replaces the node.
    """
    from_run = from_run and from_run.absolute()
    problems: list[str] = []
    words = _sort_overrides(overrides, config_dirs, problems)
    groups, group_choices = words.groups, words.group_choices
    if from_run is None:
        base = base_of_new_run(group_choices, groups, problems)
    else:
        base = base_of_saved_run(from_run, group_choices, groups, problems, words.job_keys)
    base = replace(base, hydra=set_places(base.hydra, words.places, words.hydra_overrides))
    displaced = describe_displaced_length(words.displaced, base.config)
    notes = (*words.without_effect, *base.notes, *displaced)
    dense_target = find_value(base.config, "optimizer.dense._target_")
    key_overrides = name_hidden_widths(base.config, words.key_overrides, problems)
    # the keys of an option that does not exist are unknown
    unknown = {o.key_or_group for o in group_choices if groups.check_choice(o, base.config)}
    problems += [
        p + groups.suggest_group_option(o)
        for o in key_overrides
        if (p := apply_override(base.config, o)) and o.key_or_group.split(".")[0] not in unknown
    ]
    followed, (config, saved_config, resolution) = _resolve(
        base, key_overrides, dense_target, is_new=from_run is None
    )
    make_paths_absolute(config, saved_config, base.source_config)
    drop_held_for_one_command(saved_config)
    run_dir, sweep_dir = (
        resolve_folder(base.hydra[node], f"hydra.{node}.dir", problems) for node in ("run", "sweep")
    )
    overridden = {o.key_or_group for o in key_overrides}
    begun_in = run_dir if from_run is None else None
    size_problems, size_notes = _fit_to_ranks(
        config, saved_config, base.source_config, overridden, begun_in, overrides
    )
    return ComposedConfig(
        config=config,
        saved_config=saved_config,
        default_config=base.default_config,
        unresolved_config=base.config,
        hydra=base.hydra,
        choices=base.choices,
        problems=(
            *(*problems, *resolution.problems, *size_problems),
            *find_dirs_elsewhere({"hydra.run.dir": run_dir, "hydra.sweep.dir": sweep_dir}),
        ),
        overrides=tuple(overrides),
        added_keys=tuple(
            o.key_or_group
            for o in key_overrides
            if o.is_add() or o.is_force_add() or replaces_part(o)
        ),
        notes=(*notes, *followed, *size_notes),
        run_dir=DEFAULT_RUN_DIR if run_dir is None else run_dir,
        sweep_dir=sweep_dir or "",
        source_run=from_run,
        source_config=base.source_config,
        was_sent=base.sent_reads is not None,
        sent_reads=_find_sent_reads(base, config, resolution, overrides),
        has_begun=bool(begun_in and saved_steps(Path(begun_in) / "checkpoints")),
    )


@dataclass(frozen=True)
class _SortedOverrides:
    """The overrides of a command line by what they apply to, and the groups they choose from."""

    groups: ConfigGroups
    group_choices: list[Override]
    key_overrides: list[Override]
    job_keys: list[str]  # of both, in the order of the command line
    hydra_overrides: list[Override]
    places: list[Override]  # those of the folders of results
    displaced: str | None  # trainer.max_steps or max_epochs, which replaces the other
    without_effect: list[str]  # a sentence for each


def _sort_overrides(
    overrides: Sequence[str], config_dirs: Sequence[str], problems: list[str]
) -> _SortedOverrides:
    """Parse and sort overrides; mistakes are added to `problems`.

    Raises:
        ConfigError: for options that cannot be read.
    """
    parsed = parse_job_overrides(overrides)
    repeated = find_repeated(parsed)
    values = {o.key_or_group: o.value() for o in parsed if not o.is_delete()}
    paths = [".".join(key) for key in PATH_KEYS]
    problems += find_empty_paths(values, paths)
    parsed = [o for o in parsed if o.key_or_group not in paths or values.get(o.key_or_group) != ""]
    parsed, displaced = drop_displaced_length(parsed, problems)
    checked = [(o, find_hydra_problem(o)) for o in parsed if o.is_hydra_override()]
    problems += [problem for _, problem in checked if problem is not None]
    hydra_overrides = [o for o, problem in checked if problem is None]
    places = find_places(hydra_overrides)
    for_hydra = [str(o.input_line) for o in hydra_overrides if o not in places]
    try:
        groups = load_groups(for_hydra, config_dirs)
        groups.compose([])
    except ConfigError as error:
        if not for_hydra:
            raise
        problems.append(describe_hydra_error(str(error)))
        hydra_overrides = [o for o in hydra_overrides if o.key_or_group == "hydra.searchpath"]
        groups = load_groups([str(o.input_line) for o in hydra_overrides], config_dirs)
    job_overrides = [o for o in parsed if not o.is_hydra_override()]
    group_choices = [o for o in job_overrides if groups.is_group_choice(o)]
    return _SortedOverrides(
        groups=groups,
        group_choices=group_choices,
        key_overrides=[o for o in job_overrides if o not in group_choices],
        job_keys=[o.key_or_group for o in job_overrides],
        hydra_overrides=hydra_overrides,
        places=places,
        displaced=displaced,
        without_effect=[
            f"{o.input_line}: has no effect, {last.input_line} follows" for o, last in repeated
        ],
    )


def _find_sent_reads(
    base: BaseConfig, config: Mapping[str, Any], resolution: Resolution, overrides: Sequence[str]
) -> tuple[tuple[str, str], ...]:
    """Return `ComposedConfig.sent_reads` for a configuration and the findings of its resolution."""
    if base.sent_reads is None:
        return ()
    key = "dataset.token_env"
    token_env = get_key(config, key)
    if token_env != get_key(base.source_config, key):
        token_env = None  # the command line has set it
    return find_sent_reads(base.sent_reads, resolution.env_reads, token_env, overrides)


def _resolve(
    base: BaseConfig, overrides: Sequence[Override], dense_target: Any, *, is_new: bool
) -> tuple[tuple[str, ...], tuple[dict[str, Any], dict[str, Any], Resolution]]:
    """Derive settings from others in place, and resolve all; return notes and the resolved values.

    Nothing is derived if a value cannot be resolved, since the job will be refused.
    """
    resolved = resolve_interpolations(base.config)
    if resolved[2].problems:
        return (), resolved
    notes = drop_unsupported_arguments(base.config, overrides, dense_target)
    if is_new:
        notes += follow_model_kind(base.config, overrides, base.default_config)
    return notes, resolve_interpolations(base.config) if notes else resolved


def _fit_to_ranks(
    config: dict[str, Any],
    saved_config: dict[str, Any],
    source_config: Mapping[str, Any],
    overridden: set[str],
    run_dir: str | None,
    overrides: Sequence[str],
) -> tuple[Sequence[str], Sequence[str]]:
    """Set in place the keys that depend on the number of ranks; return problems and notes."""
    started_ranks = launched_world_size()
    before = source_config
    if run_dir is not None and started_ranks is not None:
        before = config_before_restart(Path(run_dir), overrides)
        if before:  # the command's batch size is for as many ranks as there were then
            overridden.discard("trainer.batch_size")
    problems, notes = resolve_world_size(
        config,
        saved_config,
        previous_config=before,
        overridden_keys=overridden,
        started_ranks=started_ranks,
    )
    resolve_lr_batches(config, saved_config, before)
    loop = config.get("loop")
    if isinstance(loop, dict) and loop.get("_target_") == TUNE_BATCH_SIZE_LOOP:
        notes = []  # it prints itself which rows it keeps
    return problems, notes
