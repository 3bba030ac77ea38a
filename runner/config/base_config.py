"""The configuration to which overrides of keys are applied: current defaults, or that of a run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from runner.config.fit_choices import drop_unfit_settings
from runner.config.groups import ConfigGroups
from runner.config.hydra_keys import find_hydra_yaml_problems
from runner.config.interpolation import EnvRead, resolve_interpolations
from runner.config.overrides import drop_unfit_arguments
from runner.errors import ConfigError
from runner.rundir.run_files import CONFIG_NODES, read_config, read_meta
from runner.rundir.saved_config import is_own_config, unedited_config

# keys that apply to the present command only, and the values saved in their place
HOLD_FOR_ONE_COMMAND: Mapping[tuple[str, str], Any] = {
    ("checkpoint", "accept_damaged_metrics"): False,
    ("checkpoint", "optimizer_state"): "kept",
    ("dataset", "write_to"): None,
}
NEW_RUN_ONLY_GROUPS = ("experiments", "recipe", "search")  # they change how a new run is composed


@dataclass(frozen=True)
class BaseConfig:
    """The configuration to which overrides of keys are applied."""

    config: DictConfig
    default_config: Mapping[str, Any]
    choices: dict[str, str | None]
    hydra: DictConfig
    source_config: dict[str, Any] = field(default_factory=dict)
    # environment variables that the configuration of a received run reads; None: the user's own run
    # (see sent_runs.py)
    sent_reads: Mapping[str, EnvRead] | None = None
    notes: tuple[str, ...] = ()


def base_of_new_run(
    group_choices: Sequence[Override], groups: ConfigGroups, problems: list[str]
) -> BaseConfig:
    """Compose today's defaults with the chosen options."""
    default = groups.compose([])
    bad = {id(o): p for o in group_choices if (p := groups.check_choice(o, default.config))}
    problems += bad.values()
    good = [str(o.input_line) for o in group_choices if id(o) not in bad]
    base = groups.compose(good) if good else default
    problems += find_hydra_yaml_problems(default.hydra, base.hydra)
    plain = base
    config = base.copy_config()
    notes: tuple[str, ...] = ()
    if experiment := base.choices.get("experiments"):
        options = [f"{g}={o}" for g, o in base.choices.items() if o and g != "experiments"]
        plain = groups.compose(["~experiments", *options])
        chosen = {o.key_or_group for o in group_choices}
        for group, node in (("dataset", "dataset"), ("model", "model.net")):
            if group in chosen:
                notes += drop_unfit_settings(config, plain.config, node, experiment)
    recipe = base.choices.get("recipe")
    if recipe and recipe != default.choices.get("recipe"):
        without_recipe = groups.compose(
            [*(w for w in good if not w.startswith("recipe=")), "recipe=default"]
        )
        notes += drop_unfit_arguments(config, without_recipe.config, recipe)
    return BaseConfig(config, plain.resolved_config, dict(base.choices), base.hydra, notes=notes)


def base_of_saved_run(
    run_dir: Path,
    group_choices: Sequence[Override],
    groups: ConfigGroups,
    problems: list[str],
    overridden: Collection[str],
) -> BaseConfig:
    """Read a run's configuration, and replace the nodes of the chosen groups by new ones.

    Raises:
        ConfigError: if the file lacks what every job needs.
    """
    meta = read_meta(run_dir)
    loaded_nodes = read_config(run_dir)
    if missing := [key for key in CONFIG_NODES if loaded_nodes.get(key) is None]:
        raise ConfigError(f"{run_dir / 'config.yaml'}: damaged: it has no {missing[0]}")
    saved_config = unedited_config(run_dir, meta, loaded_nodes, overridden)
    drop_held_for_one_command(saved_config)  # an earlier version has saved some of them
    loaded = OmegaConf.create(saved_config)
    _, source_config, resolution = resolve_interpolations(loaded)
    sent_reads = None if is_own_config(run_dir, meta) else resolution.env_reads
    choices: dict[str, str | None] = dict(meta.get("choices") or {})
    for override in group_choices:
        group, text = override.key_or_group, str(override.input_line)
        if group in NEW_RUN_ONLY_GROUPS:
            problems.append(f"{text}: is for a new run; this one has a configuration of its own")
        elif problem := groups.check_choice(override, loaded):
            problems.append(problem)
        else:
            fresh = groups.compose([text])
            node = group.replace("/", ".")
            value = OmegaConf.select(fresh.config, node)
            OmegaConf.update(loaded, node, value, merge=False, force_add=True)
            choices[group] = fresh.choices.get(group)
    OmegaConf.set_struct(loaded, True)
    default_config = resolve_interpolations(loaded)[0]
    hydra = groups.compose([]).hydra
    return BaseConfig(loaded, default_config, choices, hydra, source_config, sent_reads)


def drop_held_for_one_command(saved_config: Mapping[str, Any]) -> None:
    """Reset, in place, the keys that apply to the present command only."""
    for (group, name), default in HOLD_FOR_ONE_COMMAND.items():
        node = saved_config.get(group)
        if isinstance(node, dict) and name in node:
            node[name] = default
