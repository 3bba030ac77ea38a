"""From a command line to one configuration, through Hydra's compose API. Touches no disk.

Group choices come first; the other overrides are laid on what they gave. A loop over a run, and a
resume, start from that run's own configuration instead, never from today's defaults.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from runner.config.groups import ConfigGroups, GroupComposition, compose_groups, load_groups
from runner.config.interpolation import resolve_interpolations
from runner.config.overrides import (
    apply_override,
    describe_displaced_length,
    drop_displaced_length,
    drop_unsupported_arguments,
    parse_job_overrides,
    replaces_dense_optimizer,
)
from runner.distributed.world_size import launched_world_size, resolve_world_size
from runner.errors import ConfigError
from runner.optim.lr_scaling import resolve_lr_batches
from runner.rundir.diff import diff_settings, format_changes
from runner.rundir.location import DEFAULT_RUN_DIR
from runner.rundir.run import read_config, read_meta

NEW_RUN_ONLY_GROUPS = (
    "experiments",
    "search",
)  # groups that say how to compose, not what a node holds
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


@dataclass(frozen=True)
class ComposedConfig:
    """One job's configuration, not yet checked by the rules.

    config: resolved, what the builder gets. record: the same with `${oc.env:...}` left as it is,
    for files and trackers. plain: what the options say without any override, for the type checks.
    raw, hydra: unresolved, for `--cfg`. choices: group -> option. problems: mistakes found so far,
    to be told with the rest. added: keys that came with a `+`. run_dir, sweep_dir: Hydra's
    templates, with {name}, {time} and {signature} in them. source: the run directory it was taken
    from (eval and resume); before: that run's own record.
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
    """The configuration of one job: a new run's, or with `run=DIR` that of a loop over a run.

    Raises: ConfigError for overrides that cannot be read, UserError for a folder that is no run.
    """
    given = {o.key_or_group: o.value() for o in parse_job_overrides(overrides) if not o.is_delete()}
    run, loop, checkpoint = (given.get(k) for k in ("run", "loop", "checkpoint.path"))
    if run is None and not (loop == "eval" and checkpoint):
        return compose(overrides, config_dirs=config_dirs)
    if loop in (None, "train"):
        raise ConfigError(
            f"run={run}: is for loops that start from a run: loop=eval run={run}. `resume {run}` "
            f"continues it, checkpoint.init_from={run} starts a new run from its weights"
        )
    source = (
        require_trained_run(Path(str(run)))
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
    """The configuration of a new run."""
    return _composed(overrides, config_dirs, from_run=None)


def compose_from_run(
    run_dir: Path, overrides: Sequence[str], *, config_dirs: Sequence[str] = ()
) -> ComposedConfig:
    """A run's own configuration with only these overrides laid on it.

    An override of a group composes that option freshly and replaces the node.
    """
    return _composed(overrides, config_dirs, from_run=run_dir.absolute())


def require_trained_run(folder: Path) -> Path:
    """The absolute path of a run that was trained. Raises: UserError saying what it is instead."""
    meta = read_meta(folder)
    if meta.get("kind") == "eval":
        of = (meta.get("source") or {}).get("path")
        raise ConfigError(f"run={folder}: is an evaluation itself, of {of}; name that one")
    return folder.absolute()


def find_run_of_checkpoint(checkpoint: Path) -> Path | None:
    """The run directory that a checkpoint folder lies in; None if it lies alone."""
    if not checkpoint.is_dir():
        raise ConfigError(f"checkpoint.path={checkpoint}: no such folder")
    folder = checkpoint.absolute().parent.parent
    return folder if (folder / "meta.json").exists() else None


def _training_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Without what says which evaluation it is."""
    kept = {k: v for k, v in config.items() if k not in ("loop", "run", "name")}
    checkpoint = config.get("checkpoint") or {}
    kept["checkpoint"] = {k: v for k, v in checkpoint.items() if k not in ("step", "path")}
    return kept


@dataclass(frozen=True)
class _BaseConfig:
    """What the overrides of keys are laid on."""

    config: DictConfig
    default_config: Mapping[str, Any]
    choices: dict[str, str | None]
    hydra: DictConfig
    source_config: dict[str, Any] = field(default_factory=dict)


def _composed(
    overrides: Sequence[str], config_dirs: Sequence[str], from_run: Path | None
) -> ComposedConfig:
    problems: list[str] = []
    parsed, displaced = drop_displaced_length(parse_job_overrides(overrides), problems)
    for_hydra = [str(o.input_line) for o in parsed if o.is_hydra_override()]
    groups = load_groups(tuple(for_hydra), tuple(config_dirs))
    own = [o for o in parsed if not o.is_hydra_override()]
    chosen = [o for o in own if groups.is_group_choice(o)]
    values = [o for o in own if o not in chosen]

    def hydra(choices: Sequence[str]) -> GroupComposition:
        return compose_groups([*for_hydra, *choices], config_dirs)

    if from_run is None:
        start = _base_of_new_run(chosen, hydra, groups, problems)
    else:
        start = _base_of_saved_run(from_run, chosen, hydra, groups, problems)
    notes = describe_displaced_length(displaced, start.config)
    dense = OmegaConf.select(start.config, "optimizer.dense._target_")
    problems += [
        p + groups.suggest_group_option(o) for o in values if (p := apply_override(start.config, o))
    ]
    notes += drop_unsupported_arguments(start.config, values, dense)
    config, record, unresolved = resolve_interpolations(start.config)
    make_paths_absolute(config, record)
    wrong, told = resolve_world_size(
        config,
        record,
        previous_config=start.source_config,
        overridden_keys=[o.key_or_group for o in values],
        started_ranks=launched_world_size(),
    )
    resolve_lr_batches(config, record)
    return ComposedConfig(
        config=config,
        saved_config=record,
        default_config=start.default_config,
        unresolved_config=start.config,
        hydra=start.hydra,
        choices=start.choices,
        problems=(*problems, *unresolved, *wrong),
        overrides=tuple(overrides),
        added_keys=tuple(
            o.key_or_group
            for o in values
            if o.is_add() or o.is_force_add() or replaces_dense_optimizer(o)
        ),
        notes=(*notes, *told),
        run_dir=start.hydra.run.dir,
        sweep_dir=start.hydra.sweep.dir,
        source_run=from_run,
        source_config=start.source_config,
    )


def _base_of_new_run(
    chosen: Sequence[Override], hydra: Any, groups: ConfigGroups, problems: list[str]
) -> _BaseConfig:
    """Today's defaults with the groups chosen."""
    default = hydra([])
    bad = {id(o): p for o in chosen if (p := groups.check_choice(o, default.config))}
    problems += bad.values()
    good = [str(o.input_line) for o in chosen if id(o) not in bad]
    base = hydra(good) if good else default
    plain = base
    if base.choices.get("experiments"):
        options = [f"{g}={o}" for g, o in base.choices.items() if o and g != "experiments"]
        plain = hydra(["~experiments", *options])
    return _BaseConfig(deepcopy(base.config), plain.resolved_config, base.choices, base.hydra)


def _base_of_saved_run(
    run_dir: Path, chosen: Sequence[Override], hydra: Any, groups: ConfigGroups, problems: list[str]
) -> _BaseConfig:
    """A run's configuration, the groups chosen composed freshly in place of its nodes."""
    meta = read_meta(run_dir)
    loaded = OmegaConf.create(read_config(run_dir))
    before = resolve_interpolations(loaded)[1]
    choices: dict[str, str | None] = dict(meta.get("choices", {}))
    for override in chosen:
        group, text = override.key_or_group, str(override.input_line)
        if group in NEW_RUN_ONLY_GROUPS:
            problems.append(f"{text}: lays itself on today's defaults, not on a run that exists")
        elif problem := groups.check_choice(override, loaded):
            problems.append(problem)
        else:
            fresh = hydra([text])
            node = group.replace("/", ".")
            value = OmegaConf.select(fresh.config, node)
            OmegaConf.update(loaded, node, value, merge=False, force_add=True)
            choices[group] = fresh.choices.get(group)
    OmegaConf.set_struct(loaded, True)
    return _BaseConfig(loaded, resolve_interpolations(loaded)[0], choices, hydra([]).hydra, before)


def make_paths_absolute(config: dict[str, Any], saved_config: dict[str, Any]) -> None:
    """Paths hold wherever a later command on the run directory is typed. In place."""
    for *groups, name in [*PATH_KEYS, *_table_source_keys(config)]:
        node, kept = (_select_node(values, groups) for values in (config, saved_config))
        value = node.get(name) if isinstance(node, dict) else None
        if isinstance(value, str) and "://" not in value and isinstance(kept, dict):
            node[name] = os.path.abspath(os.path.expanduser(value))  # type: ignore[index]
            if kept[name] == value:
                kept[name] = node[name]  # type: ignore[index]


def _table_source_keys(config: Mapping[str, Any]) -> list[tuple[str, ...]]:
    tables = (config.get("checkpoint") or {}).get("init_tables")
    names = tables if isinstance(tables, dict) else {}
    return [("checkpoint", "init_tables", name, "from") for name in names]


def _select_node(values: Any, names: Sequence[str]) -> Any:
    for name in names:
        values = values.get(name) if isinstance(values, dict) else None
    return values
