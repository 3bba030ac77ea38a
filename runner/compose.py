"""From a command line to one checked configuration, through Hydra's compose API.

Nothing here touches the disk. Group choices and Hydra's own settings are composed first; the other
overrides are then laid on one by one, so that every mistake among them is told, not the first.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from runner import mistakes as say
from runner.config import JUDGED_ELSEWHERE
from runner.errors import ConfigError, mistakes
from runner.identity import describe, differences
from runner.record import DEFAULT_RUN_DIR, read_meta
from runner.resolve import resolve

ROOT = Path(__file__).resolve().parent.parent
CONF = ROOT / "conf"
PATHS = (
    ("dataset", "path"),
    ("dataset", "schema"),
    ("checkpoint", "path"),
    ("checkpoint", "init_from"),
)
ONLY_FRESH = ("experiments", "search")  # groups that say how to compose, not what a node holds


@dataclass(frozen=True)
class Composed:
    """One job's configuration.

    config: resolved, what the builder gets; record: the same with `${oc.env:...}` left as it is, for
    files and trackers; plain: what the options say without any override (for the type checks);
    raw, hydra: unresolved, for `--cfg`; problems: mistakes found so far, to be told with the rest;
    choices: group -> option; source: the run
    directory it was taken from (eval and resume); before: that run's own record;
    run_dir, sweep_dir: Hydra's templates, with {name}, {time}, {signature} in them.
    """

    config: dict[str, Any]
    record: dict[str, Any]
    plain: dict[str, Any]
    raw: DictConfig
    hydra: DictConfig
    choices: dict[str, str | None]
    problems: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    added: tuple[str, ...] = ()  # keys that came with a `+`
    notes: tuple[str, ...] = ()
    run_dir: str = DEFAULT_RUN_DIR
    sweep_dir: str = ""
    source: Path | None = None
    before: dict[str, Any] = field(default_factory=dict)

    @property
    def multirun(self) -> bool:
        return self.hydra.mode is not None and self.hydra.mode.name == "MULTIRUN"

    @property
    def name(self) -> str:
        given = self.config.get("name")
        parts = (self.choices.get("model"), self.choices.get("dataset"))
        return str(given or "_".join(re.sub(r"\W+", "-", str(p)) for p in parts if p) or "run")


def register(config_dirs: Sequence[str] = ()) -> None:
    """Makes the top-level folder `experiments/` a group, and adds the user's `--config-dir`s."""
    from runner.sources import ExperimentsSource

    class Folders(SearchPathPlugin):
        def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
            search_path.append("experiments", f"{ExperimentsSource.scheme()}://{ROOT}")
            for folder in config_dirs:
                search_path.append("command-line", f"file://{os.path.abspath(folder)}")

    for folder in config_dirs:
        if not Path(folder).is_dir():
            raise ConfigError(f"--config-dir {folder}: no such folder")
    plugins = Plugins.instance()
    plugins.register(ExperimentsSource)
    # One process composes several times in tests: the last call's folders hold.
    plugins.plugin_type_to_subclass_list[SearchPathPlugin] = [
        p
        for p in plugins.plugin_type_to_subclass_list[SearchPathPlugin]
        if p.__name__ != Folders.__name__
    ]
    plugins.register(Folders)


def compose_job(overrides: Sequence[str], *, config_dirs: Sequence[str] = ()) -> Composed:
    """The configuration of one job: a new run's, or with `run=DIR` that of a loop over a run.

    Raises: ConfigError with every mistake found in the overrides.
    """
    given = {o.key_or_group: o for o in _single(parse(overrides))}
    loop = given["loop"].value() if "loop" in given else None
    run = given["run"].value() if "run" in given else None
    checkpoint = given["checkpoint.path"].value() if "checkpoint.path" in given else None
    if run is None and not (loop == "eval" and checkpoint):
        return compose(overrides, config_dirs=config_dirs)
    if loop in (None, "train", "debug"):
        raise ConfigError(
            f"run={run}: is for loops that start from a run: loop=eval run={run}. `resume {run}` "
            f"continues it, checkpoint.init_from={run} starts a new run from its weights"
        )
    source = run_directory(Path(str(run))) if run is not None else run_of(Path(str(checkpoint)))
    if source is None:
        return compose(overrides, config_dirs=config_dirs)
    rest = [o for o in overrides if o.partition("=")[0] != "run"]
    composed = compose_from_run(source, rest, config_dirs=config_dirs)
    for values in (composed.config, composed.record):
        values["run"] = str(source)
    changes = differences(_without_loop(composed.before), _without_loop(composed.record))
    if changes:
        differs = f"differs from the training of {source}:\n{describe(changes)}"
        return replace(composed, notes=(*composed.notes, differs))
    return composed


def run_directory(folder: Path) -> Path:
    """The absolute path of a run that was trained. Raises: UserError saying what it is instead."""
    meta = read_meta(folder)
    if meta.get("kind") == "eval":
        of = (meta.get("source") or {}).get("path")
        raise ConfigError(f"run={folder}: is an evaluation itself, of {of}; name that one")
    return folder.absolute()


def run_of(checkpoint: Path) -> Path | None:
    """The run directory that a checkpoint folder lies in; None if it lies alone."""
    if not checkpoint.is_dir():
        raise ConfigError(f"checkpoint.path={checkpoint}: no such folder")
    folder = checkpoint.absolute().parent.parent
    return folder if (folder / "meta.json").exists() else None


def _without_loop(config: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in config.items() if k not in ("loop", "run")}


def compose(overrides: Sequence[str], *, config_dirs: Sequence[str] = ()) -> Composed:
    """The configuration of a new run. Raises: ConfigError with every mistake found."""
    return _composed(overrides, config_dirs, from_run=None)


def compose_from_run(
    run_dir: Path, overrides: Sequence[str], *, config_dirs: Sequence[str] = ()
) -> Composed:
    """A run's own configuration with only these overrides laid on it, never today's defaults.

    An override of a group composes that option freshly and replaces the node. Raises: ConfigError.
    """
    return _composed(overrides, config_dirs, from_run=run_dir.absolute())


def _single(parsed: Sequence[Override]) -> Sequence[Override]:
    problems = [
        say.sweep_without_multirun(str(o.input_line)) for o in parsed if o.is_sweep_override()
    ]
    if problems:
        raise mistakes(problems)
    return parsed


def parse(overrides: Sequence[str]) -> list[Override]:
    """Raises: ConfigError naming every override that is no `key=value` of Hydra's grammar."""
    parser, parsed, problems = OverridesParser.create(), [], []
    for text in overrides:
        try:
            parsed.extend(parser.parse_overrides([text]))
        except HydraException as error:
            problems.append(say.bad_grammar(text, error))
    if problems:
        raise mistakes(problems)
    return parsed


def displace(parsed: Sequence[Override], problems: list[str]) -> tuple[list[Override], str | None]:
    """Of max_steps and max_epochs the command line's one displaces the file's one."""
    pair = ("trainer.max_steps", "trainer.max_epochs")
    given = {o.key_or_group: o for o in parsed if o.key_or_group in pair and not o.is_delete()}
    chosen = [k for k, o in given.items() if o.is_sweep_override() or o.value() is not None]
    if len(chosen) == 2:
        lines = " and ".join(str(given[k].input_line) for k in chosen)
        problems.append(f"{lines}: give one of them; each says how long the run is")
    if len(chosen) != 1 or len(given) == 2:
        return list(parsed), None
    other = pair[1 - pair.index(chosen[0])]
    return [*parsed, *parse([f"{other}=null"])], chosen[0]


class Groups:
    """Hydra's groups and options as this search path offers them."""

    def __init__(self, hydra_overrides: Sequence[str]) -> None:
        loader = GlobalHydra.instance().config_loader()
        assert isinstance(loader, ConfigLoaderImpl)
        _, self.repo = loader._parse_overrides_and_create_caching_repo(
            "config", list(hydra_overrides)
        )

    def is_group(self, override: Override) -> bool:
        return self.repo.group_exists(override.key_or_group) and not isinstance(
            override.value() if not override.is_sweep_override() else None, dict
        )

    def options(self, group: str) -> list[str]:
        return self.repo.get_group_options(group)

    def names(self) -> list[str]:
        return [g for g in self.repo.get_group_options("", None) if self.repo.group_exists(g)]

    def problem(self, override: Override, plain: Mapping[str, Any]) -> str | None:
        """A message if the option chosen does not exist."""
        group, value = override.key_or_group, override.value()
        for option in value if isinstance(value, list) else [value]:
            if option is not None and not self.repo.config_exists(f"{group}/{option}"):
                return say.unknown_option(group, option, self.options(group), plain)
        return None


def _composed(
    overrides: Sequence[str], config_dirs: Sequence[str], from_run: Path | None
) -> Composed:
    problems: list[str] = []
    parsed, displaced = displace(_single(parse(overrides)), problems)
    register(config_dirs)
    with initialize_config_dir(str(CONF), job_name="runner", version_base="1.3"):
        for_hydra = [str(o.input_line) for o in parsed if o.is_hydra_override()]
        groups = Groups(for_hydra)
        own = [o for o in parsed if not o.is_hydra_override()]
        chosen = [o for o in own if groups.is_group(o)]
        values = [o for o in own if o not in chosen]
        start = _fresh if from_run is None else _frozen
        base, plain, hydra = start(from_run, chosen, for_hydra, groups, problems)
        changed = _displaced_note(displaced, base)
        for override in values:
            problem = _lay_on(base, override)
            if problem:
                problems.append(problem)
    config, record, unresolved = resolve(base)
    make_absolute(config, record)
    return Composed(
        raw=base,
        hydra=hydra["node"],
        problems=(*problems, *unresolved),
        before=hydra.get("before", {}),
        config=config,
        record=record,
        plain=resolve(plain)[0],
        choices=hydra["choices"],
        overrides=tuple(overrides),
        added=tuple(o.key_or_group for o in values if o.is_add() or o.is_force_add()),
        notes=changed,
        run_dir=hydra["run_dir"],
        sweep_dir=hydra["sweep_dir"],
        source=from_run,
    )


def _fresh(
    _: Path | None,
    chosen: Sequence[Override],
    for_hydra: Sequence[str],
    groups: Groups,
    problems: list[str],
) -> tuple[DictConfig, DictConfig, dict[str, Any]]:
    """Today's defaults with the groups chosen, before any other override."""
    plain = _hydra([])
    bad = {id(o): p for o in chosen if (p := groups.problem(o, _own(plain)))}
    problems.extend(bad.values())
    good = [str(o.input_line) for o in chosen if id(o) not in bad]
    if not good and not for_hydra:
        return _own(plain), deepcopy(_own(plain)), _hydra_settings(plain)
    base = _hydra([*for_hydra, *good])
    choices = base.hydra.runtime.choices
    if any(choices.get(g) for g in ONLY_FRESH):
        options = [f"{g}={o}" for g, o in choices.items() if o and not g.startswith("hydra/")]
        plain = _hydra([f"{g}=null" for g in ONLY_FRESH if g in choices] + options)
    else:
        plain = base
    return _own(base), deepcopy(_own(plain)), _hydra_settings(base)


def _frozen(
    run_dir: Path | None,
    chosen: Sequence[Override],
    for_hydra: Sequence[str],
    groups: Groups,
    problems: list[str],
) -> tuple[DictConfig, DictConfig, dict[str, Any]]:
    """A run's configuration, the groups chosen composed freshly in place of its nodes."""
    assert run_dir is not None
    loaded = OmegaConf.load(run_dir / "config.yaml")
    assert isinstance(loaded, DictConfig)
    before = resolve(loaded)[1]
    choices: dict[str, str | None] = dict(read_meta(run_dir).get("choices", {}))
    for override in chosen:
        group, node = override.key_or_group, override.key_or_group.replace("/", ".")
        problem = groups.problem(override, loaded)
        if group in ONLY_FRESH:
            problem = (
                f"{override.input_line}: lays itself on today's defaults, not on a finished run"
            )
        if problem:
            problems.append(problem)
            continue
        fresh = _hydra([str(override.input_line)])
        choices[group] = fresh.hydra.runtime.choices[group]
        with_flag = OmegaConf.select(fresh, node)
        OmegaConf.update(loaded, node, with_flag, merge=False, force_add=True)
    OmegaConf.set_struct(loaded, True)
    settings = _hydra_settings(_hydra(list(for_hydra)))
    return loaded, deepcopy(loaded), {**settings, "choices": choices, "before": before}


def make_absolute(config: dict[str, Any], record: dict[str, Any]) -> None:
    """Paths hold wherever a later command on the run directory is typed. In place."""
    for group, name in PATHS:
        node, kept = config.get(group), record.get(group)
        value = node.get(name) if isinstance(node, dict) else None
        if isinstance(value, str) and "://" not in value and isinstance(kept, dict):
            node[name] = os.path.abspath(os.path.expanduser(value))  # type: ignore[index]
            if kept[name] == value:
                kept[name] = node[name]  # type: ignore[index]


def _hydra(overrides: list[str]) -> DictConfig:
    try:
        return hydra_compose("config", overrides, return_hydra_config=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(say.from_hydra(error)) from error


def _own(config: DictConfig) -> DictConfig:
    """Without Hydra's node; still closed to unknown keys."""
    own = OmegaConf.masked_copy(config, [str(k) for k in config if k != "hydra"])
    OmegaConf.set_struct(own, True)
    return own


def _hydra_settings(config: DictConfig) -> dict[str, Any]:
    node = config.hydra
    return {
        "choices": {k: v for k, v in node.runtime.choices.items() if not k.startswith("hydra/")},
        "run_dir": node.run.dir,
        "sweep_dir": node.sweep.dir,
        "node": node,
    }


def _lay_on(config: DictConfig, override: Override) -> str | None:
    """Applies one override in place; a message if it cannot be."""
    key = override.key_or_group
    before = OmegaConf.select(config, key, throw_on_missing=False, default=None)
    if isinstance(before, DictConfig) and not override.is_delete():
        value = override.value()
        if not isinstance(value, dict):
            return say.scalar_for_node(str(override.input_line), before, value)
    try:
        if key.rpartition(".")[0] in JUDGED_ELSEWHERE and not override.is_delete():
            OmegaConf.update(config, key, override.value(), force_add=True)
            return None
        ConfigLoaderImpl._apply_overrides_to_config([override], config)
    except (HydraException, OmegaConfBaseException) as error:
        return say.bad_override(override, config, error)
    return None


def _displaced_note(displaced: str | None, base: DictConfig) -> tuple[str, ...]:
    if displaced is None:
        return ()
    other = "max_epochs" if displaced.endswith("max_steps") else "max_steps"
    was = OmegaConf.select(base, f"trainer.{other}")
    if was is None:
        return ()
    return (f"{displaced} from the command line displaces trainer.{other}={was}",)
