"""Hydra's access to the YAML of options, except those whose aliases multiply without end.

It presents the top-level folder `experiments/` as the group `experiments`, and nothing else. If the
project's root were an ordinary search path, `outputs/`, `.venv/` and every other folder there would
become a group, and `--help` would walk through all of them.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult
from omegaconf import OmegaConf
from omegaconf._utils import get_yaml_loader

from runner.config.options import MOST_OPTION_VALUES
from runner.config_value import compose_yaml

EXPERIMENTS_GROUP = "experiments"


class CheckedFileSource(FileConfigSource):
    """A folder of configurations, in which a YAML whose aliases multiply without end is refused."""

    def load_config(self, config_path: str) -> ConfigResult:
        path = Path(self.path, self._normalize_file_name(config_path))
        if not path.is_file():
            return super().load_config(config_path)
        text = path.read_text(encoding="utf-8")
        if "&" in text:
            compose_yaml(text, os.path.relpath(path), most_values=MOST_OPTION_VALUES)
        try:
            values = yaml.load(text, _fast_loader())
        except yaml.YAMLError:  # Python's parser shows the line
            return super().load_config(config_path)
        return ConfigResult(
            config=OmegaConf.create({} if values is None else values),
            path=f"{self.scheme()}://{self.path}",
            provider=self.provider,
            header=self._get_header_dict(text[:512]),
        )


@cache
def _fast_loader() -> Any:
    """Return OmegaConf's loader of YAML with the parser that is written in C."""

    class FastLoader(yaml.cyaml.CParser, get_yaml_loader()):  # type: ignore[misc]
        def __init__(self, stream: str) -> None:
            yaml.cyaml.CParser.__init__(self, stream)
            yaml.constructor.SafeConstructor.__init__(self)
            yaml.resolver.Resolver.__init__(self)

    return FastLoader


class ExperimentsSource(CheckedFileSource):
    """A source of configurations with the single group `experiments`."""

    @staticmethod
    def scheme() -> str:
        return "experiments"

    def is_group(self, config_path: str) -> bool:
        return _inside(config_path) and super().is_group(config_path)

    def is_config(self, config_path: str) -> bool:
        return _inside(config_path) and super().is_config(config_path)

    def available(self) -> bool:
        return True  # a project may have no experiments

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        if config_path.strip("/") == "":
            is_listed = self.is_group(EXPERIMENTS_GROUP) and results_filter != ObjectType.CONFIG
            return [EXPERIMENTS_GROUP] if is_listed else []
        return super().list(config_path, results_filter) if self.is_group(config_path) else []


def _inside(config_path: str) -> bool:
    return config_path.split("/")[0] == EXPERIMENTS_GROUP
