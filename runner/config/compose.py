"""Makes one configuration from a command line, through Hydra's compose API. Writes nothing.

Hydra composes the chosen groups; then the other overrides are applied to the result. A loop over a
run and a resume start from the configuration of that run, never from today's defaults.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from runner.config.fit_choices import drop_unfit_settings, follow_model_kind
from runner.config.groups import ConfigGroups, GroupComposition, compose_groups, load_groups
from runner.config.interpolation import resolve_interpolations
from runner.config.overrides import (
    apply_override,
    describe_displaced_length,
    drop_displaced_length,
    drop_unfit_arguments,
    drop_unsupported_arguments,
    find_unknown_hydra_keys,
    name_hidden_widths,
    parse_job_overrides,
    replaces_dense_optimizer,
)
from runner.config.restart import config_before_restart
from runner.distributed.world_size import launched_world_size, resolve_world_size
from runner.errors import ConfigError
from runner.object_store import is_store_url
from runner.optim.lr_scaling import resolve_lr_batches
from runner.rundir.diff import diff_settings, format_changes
from runner.rundir.location import DEFAULT_RUN_DIR
from runner.rundir.mirror.fetch import local_run
from runner.rundir.regular_files import check_run_files
from runner.rundir.run_files import CONFIG_NODES, read_config, read_meta
from runner.rundir.saved_config import unedited_config

# keys that are for the present command, and what is saved in their place
HOLD_FOR_ONE_COMMAND: Mapping[tuple[str, str], Any] = {
    ("checkpoint", "accept_damaged_metrics"): False,
    ("checkpoint", "optimizer_state"): "kept",
    ("dataset", "write_to"): None,
}
NEW_RUN_ONLY_GROUPS = ("experiments", "recipe", "search")  # they change how a new run is composed
PATH_KEYS = (
    ("dataset", "path"),
    ("dataset", "validation_path"),
    ("dataset", "test_path"),
    ("dataset", "learnt"),
    ("dataset", "write_to"),
    ("dataset", "schema"),
    ("checkpoint", "path"),
    ("checkpoint", "init_from"),
)

ComposeChoices = Callable[[Sequence[str]], GroupComposition]


@dataclass(frozen=True)
class ComposedConfig:
    """The configuration of one job, not yet checked by the rules.

    Args:
        config: resolved, for the builder.
        saved_config: the same with `${oc.env:...}` left as it is, for files and trackers.
        default_config: what the options say without any override, for the type checks.
        unresolved_config: with all interpolations, for `--cfg`.
        hydra: Hydra's own node, unresolved, for `--cfg`.
        choices: group -> option.
        problems: mistakes found so far, which are reported together with those of the rules.
        overrides: the words of the command line.
        added_keys: keys that came with a `+`.
        notes: what a user is told before the job starts.
        run_dir: Hydra's template, with {name}, {time} and {signature} in it.
        sweep_dir: the same for a sweep.
        source_run: the run directory that the configuration was taken from (eval and resume).
        source_config: the saved configuration of that run.
    """

    config: dict[str, Any]
    saved_config: dict[str, Any]
    default_config: Mapping[str, Any]
    unresolved_config: DictConfig
    hydra: DictConfig
    choices: dict[str, str | None]
    problems: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    added_keys: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    run_dir: str = DEFAULT_RUN_DIR
    sweep_dir: str = ""
    source_run: Path | None = None
    source_config: dict[str, Any] = field(default_factory=dict)

    @property
    def is_multirun(self) -> bool:
        return self.hydra.mode is not None and self.hydra.mode.name == "MULTIRUN"

    @property
    def name(self) -> str:
        given = self.config.get("name")
        parts = (self.choices.get("model"), self.choices.get("dataset"))
        return str(given or "_".join(re.sub(r"\W+", "-", str(p)) for p in parts if p) or "run")


def compose_job(overrides: Sequence[str], *, config_dirs: Sequence[str] = ()) -> ComposedConfig:
    """Compose the configuration of a new run, or with `run=DIR` of a loop over that run.

    Raises:
        ConfigError: for overrides that cannot be read, and for a loop that takes no run.
        UserError: for a folder that is no run directory.
    """
    given = {o.key_or_group: o.value() for o in parse_job_overrides(overrides) if not o.is_delete()}
    run, loop, checkpoint = (given.get(k) for k in ("run", "loop", "checkpoint.path"))
    if run is None and not (loop == "eval" and checkpoint):
        return compose(overrides, config_dirs=config_dirs)
    if loop in (None, "train"):
        raise ConfigError(
            f"run={run}: is for loops that start from a run: loop=eval run={run}. "
            f"`python -m runner resume {run}` continues it, checkpoint.init_from={run} starts a "
            "new run from its weights"
        )
    source = (
        require_trained_run(local_run(str(run)))
        if run is not None
        else find_run_of_checkpoint(Path(str(checkpoint)))
    )
    if source is None:
        return compose(overrides, config_dirs=config_dirs)
    rest = [o for o in overrides if o.partition("=")[0] != "run"]
    composed = compose_from_run(source, rest, config_dirs=config_dirs)
    for values in (composed.config, composed.saved_config):
        values["run"] = str(source)
    changes = diff_settings(
        _training_settings(composed.source_config), _training_settings(composed.saved_config)
    )
    if not changes:
        return composed
    note = f"differs from the training of {source}:\n{format_changes(changes)}"
    return replace(composed, notes=(*composed.notes, note))


def compose(overrides: Sequence[str], *, config_dirs: Sequence[str] = ()) -> ComposedConfig:
    """Compose the configuration of a new run."""
    return _compose(overrides, config_dirs, from_run=None)


def compose_from_run(
    run_dir: Path, overrides: Sequence[str], *, config_dirs: Sequence[str] = ()
) -> ComposedConfig:
    """Return a run's own configuration with only these overrides applied to it.

    An override of a group composes that option anew and replaces the node.
    """
    return _compose(overrides, config_dirs, from_run=run_dir.absolute())


def require_trained_run(folder: Path) -> Path:
    """Return the absolute path of the directory of a training.

    Raises:
        ConfigError: for the directory of an evaluation; the message names the training.
    """
    meta = read_meta(folder)
    if meta.get("kind") == "eval":
        training = (meta.get("source") or {}).get("path")
        raise ConfigError(f"run={folder}: is itself an evaluation of {training}; name that run")
    return folder.absolute()


def find_run_of_checkpoint(checkpoint: Path) -> Path | None:
    """Return the run directory that a checkpoint folder lies in; None if it lies in none.

    Raises:
        ConfigError: if there is no such folder.
        UserError: if its run has a link, a pipe or the like in place of a file.
    """
    if not checkpoint.is_dir():
        raise ConfigError(f"checkpoint.path={checkpoint}: no such folder")
    folder = checkpoint.absolute().parent.parent
    if not (folder / "meta.json").exists():
        return None
    check_run_files(folder)
    return folder


def _training_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out the keys that only say which evaluation it is."""
    settings = {k: v for k, v in config.items() if k not in ("loop", "run", "name")}
    checkpoint = config.get("checkpoint") or {}
    settings["checkpoint"] = {k: v for k, v in checkpoint.items() if k not in ("step", "path")}
    return settings


@dataclass(frozen=True)
class _BaseConfig:
    """The configuration that the overrides of keys are applied to."""

    config: DictConfig
    default_config: Mapping[str, Any]
    choices: dict[str, str | None]
    hydra: DictConfig
    source_config: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def _compose(
    overrides: Sequence[str], config_dirs: Sequence[str], from_run: Path | None
) -> ComposedConfig:
    problems: list[str] = []
    parsed, displaced = drop_displaced_length(parse_job_overrides(overrides), problems)
    for_hydra = [str(o.input_line) for o in parsed if o.is_hydra_override()]
    groups = load_groups(tuple(for_hydra), tuple(config_dirs))
    job_overrides = [o for o in parsed if not o.is_hydra_override()]
    group_choices = [o for o in job_overrides if groups.is_group_choice(o)]
    key_overrides = [o for o in job_overrides if o not in group_choices]

    def compose_choices(choices: Sequence[str]) -> GroupComposition:
        return compose_groups([*for_hydra, *choices], config_dirs)

    if from_run is None:
        base = _base_of_new_run(group_choices, compose_choices, groups, problems)
    else:
        base = _base_of_saved_run(
            from_run,
            group_choices,
            compose_choices,
            groups,
            problems,
            [o.key_or_group for o in job_overrides],
        )
    notes = (*base.notes, *describe_displaced_length(displaced, base.config))
    dense_target = OmegaConf.select(base.config, "optimizer.dense._target_")
    key_overrides = name_hidden_widths(base.config, key_overrides)
    problems += [
        p + groups.suggest_group_option(o)
        for o in key_overrides
        if (p := apply_override(base.config, o))
    ]
    notes += drop_unsupported_arguments(base.config, key_overrides, dense_target)
    if from_run is None:
        notes += follow_model_kind(base.config, key_overrides, base.default_config)
    config, saved_config, unresolved = resolve_interpolations(base.config)
    make_paths_absolute(config, saved_config)
    _drop_held_for_one_command(saved_config)
    started_ranks = launched_world_size()
    overridden = {o.key_or_group for o in key_overrides}
    before: Mapping[str, Any] = base.source_config
    if from_run is None and started_ranks is not None:
        before = config_before_restart(Path(base.hydra.run.dir), overrides)
        if before:  # the batch size of the command is that of as many ranks as there were then
            overridden.discard("trainer.batch_size")
    size_problems, size_notes = resolve_world_size(
        config,
        saved_config,
        previous_config=before,
        overridden_keys=overridden,
        started_ranks=started_ranks,
    )
    resolve_lr_batches(config, saved_config, before)
    return ComposedConfig(
        config=config,
        saved_config=saved_config,
        default_config=base.default_config,
        unresolved_config=base.config,
        hydra=base.hydra,
        choices=base.choices,
        problems=(
            *(*problems, *unresolved, *size_problems, *find_unknown_hydra_keys(parsed)),
            *_dirs_elsewhere(base.hydra),
        ),
        overrides=tuple(overrides),
        added_keys=tuple(
            o.key_or_group
            for o in key_overrides
            if o.is_add() or o.is_force_add() or replaces_dense_optimizer(o)
        ),
        notes=(*notes, *size_notes),
        run_dir=base.hydra.run.dir,
        sweep_dir=base.hydra.sweep.dir,
        source_run=from_run,
        source_config=base.source_config,
    )


def _base_of_new_run(
    group_choices: Sequence[Override],
    compose_choices: ComposeChoices,
    groups: ConfigGroups,
    problems: list[str],
) -> _BaseConfig:
    """Compose today's defaults with the chosen options."""
    default = compose_choices([])
    bad = {id(o): p for o in group_choices if (p := groups.check_choice(o, default.config))}
    problems += bad.values()
    good = [str(o.input_line) for o in group_choices if id(o) not in bad]
    base = compose_choices(good) if good else default
    plain = base
    config = deepcopy(base.config)
    notes: tuple[str, ...] = ()
    if experiment := base.choices.get("experiments"):
        options = [f"{g}={o}" for g, o in base.choices.items() if o and g != "experiments"]
        plain = compose_choices(["~experiments", *options])
        chosen = {o.key_or_group for o in group_choices}
        for group, node in (("dataset", "dataset"), ("model", "model.net")):
            if group in chosen:
                notes += drop_unfit_settings(config, plain.config, node, experiment)
    recipe = base.choices.get("recipe")
    if recipe and recipe != default.choices.get("recipe"):
        without = compose_choices(
            [*(w for w in good if not w.startswith("recipe=")), "recipe=default"]
        )
        notes += drop_unfit_arguments(config, without.config, recipe)
    return _BaseConfig(config, plain.resolved_config, base.choices, base.hydra, notes=notes)


def _base_of_saved_run(
    run_dir: Path,
    group_choices: Sequence[Override],
    compose_choices: ComposeChoices,
    groups: ConfigGroups,
    problems: list[str],
    overridden: Collection[str],
) -> _BaseConfig:
    """Read a run's configuration, and replace the nodes of the chosen groups by new ones.

    Raises:
        ConfigError: if the file lacks what every job needs.
    """
    meta = read_meta(run_dir)
    read = read_config(run_dir)
    if missing := [key for key in CONFIG_NODES if read.get(key) is None]:
        raise ConfigError(f"{run_dir / 'config.yaml'}: damaged: it has no {missing[0]}")
    saved_config = unedited_config(run_dir, meta, read, overridden)
    _drop_held_for_one_command(saved_config)  # an earlier version has saved some
    loaded = OmegaConf.create(saved_config)
    source_config = resolve_interpolations(loaded)[1]
    choices: dict[str, str | None] = dict(meta.get("choices") or {})
    for override in group_choices:
        group, text = override.key_or_group, str(override.input_line)
        if group in NEW_RUN_ONLY_GROUPS:
            problems.append(f"{text}: is for a new run; this one has a configuration of its own")
        elif problem := groups.check_choice(override, loaded):
            problems.append(problem)
        else:
            fresh = compose_choices([text])
            node = group.replace("/", ".")
            value = OmegaConf.select(fresh.config, node)
            OmegaConf.update(loaded, node, value, merge=False, force_add=True)
            choices[group] = fresh.choices.get(group)
    OmegaConf.set_struct(loaded, True)
    default_config = resolve_interpolations(loaded)[0]
    return _BaseConfig(loaded, default_config, choices, compose_choices([]).hydra, source_config)


def make_paths_absolute(config: dict[str, Any], saved_config: dict[str, Any]) -> None:
    """Make paths absolute in place, so that they hold in whatever folder a later command runs."""
    for *groups, name in [*PATH_KEYS, *_table_source_keys(config)]:
        node, saved_node = (_select_node(values, groups) for values in (config, saved_config))
        value = node.get(name) if isinstance(node, dict) else None
        if name == "init_from" and isinstance(node, dict) and is_store_url(value):
            node[name] = value = str(local_run(str(value)))
            saved_node[name] = value
        if isinstance(value, str) and "://" not in value and isinstance(saved_node, dict):
            node[name] = os.path.abspath(os.path.expanduser(value))
            if saved_node[name] == value:
                saved_node[name] = node[name]


def _dirs_elsewhere(hydra: DictConfig) -> list[str]:
    """Return a message for each output folder that is no folder of this machine."""
    return [
        f"{key}={place}: must be a folder of this machine, since logs in it grow and are locked; "
        "checkpoint.mirror=s3://bucket/runs/mine copies a run into an object store as it trains"
        for key, place in (("hydra.run.dir", hydra.run.dir), ("hydra.sweep.dir", hydra.sweep.dir))
        if "://" in str(place)
    ]


def _drop_held_for_one_command(saved_config: Mapping[str, Any]) -> None:
    for (group, name), default in HOLD_FOR_ONE_COMMAND.items():
        node = saved_config.get(group)
        if isinstance(node, dict) and name in node:
            node[name] = default


def _table_source_keys(config: Mapping[str, Any]) -> list[tuple[str, ...]]:
    tables = (config.get("checkpoint") or {}).get("init_tables")
    names = tables if isinstance(tables, dict) else {}
    return [("checkpoint", "init_tables", name, "from") for name in names]


def _select_node(values: Any, names: Sequence[str]) -> Any:
    for name in names:
        values = values.get(name) if isinstance(values, dict) else None
    return values
