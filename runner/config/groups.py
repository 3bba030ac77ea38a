"""Hydra's part of composing: paths of groups, their options, and the result of chosen options.

What Hydra composes depends on nothing but the chosen options and their files, so it is cached: a
sweep composes each combination of options once, not once for each job. A job's folder is set
afterwards.
"""

from __future__ import annotations

import os
import pickle
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.types import Override, OverrideType
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from runner.config import messages
from runner.config.experiments_source import EXPERIMENTS_GROUP, CheckedFileSource, ExperimentsSource
from runner.config.interpolation import resolve_interpolations
from runner.config.locations import CONF, PROJECT
from runner.config.rules.keys import REQUIRED_NODES
from runner.errors import ConfigError

_ONE_THREAD = threading.RLock()  # Hydra's state is that of the process
SEVERAL_OPTIONS = ("callbacks", "tracker")  # groups of which a job takes any number of options


@dataclass(frozen=True)
class GroupComposition:
    """The result of Hydra's composition, before other overrides. Shared, so never changed."""

    config: DictConfig  # the job's own part, closed to unknown keys
    hydra: DictConfig

    @cached_property
    def _pickled_config(self) -> bytes:
        return pickle.dumps(self.config)

    def copy_config(self) -> DictConfig:
        """Return a copy of the job's part for changes; `deepcopy` takes eight times as long."""
        copied: DictConfig = pickle.loads(self._pickled_config)
        return copied

    @cached_property
    def resolved_config(self) -> dict[str, Any]:
        """The job's part, resolved as far as possible without the overrides."""
        return resolve_interpolations(self.config)[0]

    @cached_property
    def choices(self) -> Mapping[str, str | None]:
        chosen = self.hydra.runtime.choices
        return {k: v for k, v in chosen.items() if not k.startswith("hydra/")}


FilesState = tuple[tuple[str, int, int], ...]  # path, time of change and size of each file


@dataclass(frozen=True)
class ConfigGroups:
    """The groups and options of one search path, with the current state of their files."""

    repository: CachingConfigRepository
    hydra_overrides: tuple[str, ...]
    config_dirs: tuple[str, ...]
    files: FilesState

    def compose(self, choices: Sequence[str]) -> GroupComposition:
        """Compose the chosen options.

        Raises:
            ConfigError: with Hydra's reason.
        """
        return _compose((*self.hydra_overrides, *choices), self.config_dirs, self.files)

    def is_group_choice(self, override: Override) -> bool:
        """Return whether an override chooses an option of a group, as Hydra sees it."""
        value = None if override.is_sweep_override() else override.value()
        return self.repository.group_exists(override.key_or_group) and not isinstance(value, dict)

    def check_choice(self, override: Override, config: DictConfig) -> str | None:
        """Return a message if the chosen option does not exist."""
        group, value, text = override.key_or_group, override.value(), override.input_line
        if override.is_delete():
            is_other = value not in (None, "", self.compose([]).choices.get(group))
            return f"{text}: ~{group} leaves the group out, whatever it has" if is_other else None
        if value is None:
            is_needed = group.split("/")[0] in {key.split(".")[0] for key in REQUIRED_NODES}
            hint = "" if is_needed else f"; ~{group} leaves it out"
            return f"{text}: a group takes one of its options{hint}"
        is_added = override.is_add() or override.is_force_add()
        if override.package is not None and not is_added:
            return f"{text}: a group has one place; {group}={value} chooses its option"
        if is_added and override.package is None and group in self.compose([]).choices:
            return f"{text}: an option is chosen without a +: {group}={value}"
        for option in value if isinstance(value, list) else [value]:
            if not self.repository.config_exists(f"{group}/{option}"):
                options = self.repository.get_group_options(group)
                files = [Path(folder, group, f"{option}.yml") for folder in self.config_dirs]
                near = "".join(f"{f}: must be named .yaml; " for f in files if f.is_file())
                return near + messages.unknown_option(group, option, options, config)
        if isinstance(value, list) and group not in SEVERAL_OPTIONS:
            # an option in a user's folder may replace one of ours; two of ours would be mixed
            shipped = [option for option in value if not self._is_in_config_dir(group, option)]
            if len(shipped) > 1:
                listed = ",".join(shipped)
                return f"{text}: {group} takes one option; -m {group}={listed} runs a job for each"
        return None

    def _is_in_config_dir(self, group: str, option: str) -> bool:
        return any(Path(folder, group, f"{option}.yaml").is_file() for folder in self.config_dirs)

    def suggest_group_option(self, override: Override) -> str:
        """Return a hint if an override of a key was meant for a nested group."""
        key, value = override.key_or_group.replace(".", "/"), override.value()
        if isinstance(value, str) and re.fullmatch(r"[\w/-]+", value):
            tops = self.repository.get_group_options("", ObjectType.GROUP)
            for group in (key, *(f"{top}/{key}" for top in tops)):
                if self.repository.config_exists(f"{group}/{value}"):
                    return f"; perhaps {group}={value}"
        return ""


def register_search_path(config_dirs: Sequence[str]) -> None:
    """Make the top-level folder `experiments/` a group, and add the user's `--config-dir`s.

    Raises:
        ConfigError: for a folder that does not exist.
    """

    class Folders(SearchPathPlugin):
        def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
            search_path.append("experiments", f"{ExperimentsSource.scheme()}://{PROJECT}")
            for folder in config_dirs:
                search_path.append("command-line", f"file://{os.path.abspath(folder)}")

    for folder in config_dirs:
        if not Path(folder).is_dir():
            raise ConfigError(f"--config-dir {folder}: no such folder")
    plugins = Plugins.instance()
    plugins.register(ExperimentsSource)
    SourcesRegistry.instance().types["file"] = CheckedFileSource
    known = plugins.plugin_type_to_subclass_list[SearchPathPlugin]
    # only the folders of the last call count
    known[:] = [p for p in known if p.__name__ != Folders.__name__]
    plugins.register(Folders)


def load_groups(hydra_overrides: Sequence[str], config_dirs: Sequence[str]) -> ConfigGroups:
    """Return the groups of a search path.

    Args:
        hydra_overrides: may contain `hydra.searchpath=[...]`.

    Raises:
        ConfigError: with Hydra's reason.
    """
    folders = tuple(os.path.abspath(folder) for folder in config_dirs)
    return _load(tuple(hydra_overrides), folders, _read_files_state(folders))


def _read_files_state(config_dirs: Sequence[str]) -> FilesState:
    """Return the state of the files of all options, which differs if any was changed."""
    states = []
    for root in (str(CONF), str(PROJECT / EXPERIMENTS_GROUP), *config_dirs):
        for folder, _, names in os.walk(root):
            for name in names:
                if name.endswith(".yaml"):
                    status = os.stat(path := os.path.join(folder, name))
                    states.append((path, status.st_mtime_ns, status.st_size))
    return tuple(sorted(states))


@lru_cache(maxsize=8)
def _load(
    hydra_overrides: tuple[str, ...], config_dirs: tuple[str, ...], files: FilesState
) -> ConfigGroups:
    with _initialized_hydra(config_dirs):
        loader = GlobalHydra.instance().config_loader()
        assert isinstance(loader, ConfigLoaderImpl)
        words = list(hydra_overrides)
        _, repository = loader._parse_overrides_and_create_caching_repo("config", words)
    return ConfigGroups(repository, hydra_overrides, config_dirs, files)


def find_places(overrides: Sequence[Override]) -> list[Override]:
    """Return the overrides of result folders, which do not affect the rest of the composition.

    Args:
        overrides: all those for Hydra. With `hydra.searchpath` none is returned: options there
            may have been edited since, so that runs in other folders share nothing.
    """
    if any(o.key_or_group == "hydra.searchpath" for o in overrides):
        return []
    return [
        override
        for override in overrides
        if override.key_or_group in ("hydra.run.dir", "hydra.sweep.dir")
        and override.type is OverrideType.CHANGE
        and not override.is_sweep_override()
        and isinstance(override.value(), str)
    ]


def set_places(
    hydra: DictConfig, places: Sequence[Override], overrides: Sequence[Override]
) -> DictConfig:
    """Return Hydra's node, composed without the places, as if composed with all overrides.

    Args:
        places: of `find_places`.
        overrides: all those for Hydra.
    """
    if not places:
        return hydra
    placed = deepcopy(hydra)
    for override in places:
        OmegaConf.update(placed, override.key_or_group.removeprefix("hydra."), override.value())
    placed.overrides.hydra = [override.input_line for override in overrides]
    return placed


@lru_cache(maxsize=64)
def _compose(
    overrides: tuple[str, ...], config_dirs: tuple[str, ...], files: FilesState
) -> GroupComposition:
    with _initialized_hydra(config_dirs):
        composed = compose("config", list(overrides), return_hydra_config=True)
    job_config = OmegaConf.masked_copy(composed, [str(k) for k in composed if k != "hydra"])
    OmegaConf.set_struct(job_config, True)
    return GroupComposition(job_config, composed.hydra)


@contextmanager
def _initialized_hydra(config_dirs: Sequence[str]) -> Iterator[None]:
    register_search_path(config_dirs)
    with _ONE_THREAD, initialize_config_dir(str(CONF), job_name="runner", version_base="1.3"):
        try:
            yield
        except (HydraException, OmegaConfBaseException, YAMLError) as error:
            raise ConfigError(messages.hydra_error(error)) from error
        except RecursionError as error:
            raise ConfigError(
                "a YAML file of an option is nested too deeply, or its defaults name each other "
                "without end"
            ) from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"{_find_undecodable(config_dirs)}: is not UTF-8: {error}") from error


def _find_undecodable(config_dirs: Sequence[str]) -> str:
    """Return the first option file that is not UTF-8."""
    for path, *_ in _read_files_state(config_dirs):
        try:
            Path(path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            return path
    return "a YAML file"
