"""Overrides of Hydra's own node: which of its keys have an effect, and their allowed values."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import GrammarParseError

from runner.config.hydra_text import shell_override
from runner.config_value import wrong_type
from runner.errors import first_line, unknown_choice
from runner.rundir.diff import flatten

FOLDER_KEYS = ("hydra.run.dir", "hydra.sweep.dir")
HYDRA_KEYS = (*FOLDER_KEYS, "hydra.mode", "hydra.searchpath")
_OF_COMMAND = ("runtime.", "overrides.", "job.override_dirname")  # where Hydra records the command
OPEN_HYDRA_NODES = ("launcher", "sweeper")  # plugins' nodes have their own keys


def find_hydra_problem(override: Override) -> str | None:
    """Return the problem of an override of Hydra's node, if there is one."""
    key, text = override.key_or_group, override.input_line
    _, *below = re.split(r"[./]", key)
    if key not in HYDRA_KEYS or override.is_delete():
        if below[:1] and below[0] in OPEN_HYDRA_NODES and not override.is_delete():
            return None
        if longer_keys := [known for known in HYDRA_KEYS if known.startswith(f"{key}.")]:
            return f"{text}: a value is given to a key: {longer_keys[0]}=DIR"
        *names, last = (known.removeprefix("hydra.") for known in HYDRA_KEYS)
        return f"{text}: has no effect; of Hydra's keys, {', '.join(names)} and {last} have one"
    value = override.value()
    if override.is_add():
        return f"{text}: there is the key {key} already; leave out the +"
    if key in FOLDER_KEYS:
        return _find_folder_problem(key, value)
    if key == "hydra.mode":
        modes = [mode.name for mode in RunMode]
        return None if value in (None, *modes) else unknown_choice(key, value, modes)
    if not isinstance(value, list) or not all(isinstance(path, str) for path in value):
        return wrong_type(key, value, "list of text")
    missing = [p for p in value if not p.startswith("pkg://") and not _is_folder(p)]
    return f"{text}: no such folder: {', '.join(missing)}" if missing else None


def describe_hydra_error(text: str) -> str:
    """Return the message for what Hydra says of its own node: of a plugin, those that exist."""
    if found := re.search(r"Could not find '(hydra/\w+)/(.+?)'.*?':(?:; )?(.*)", text):
        group, option, listed = found.groups()
        return unknown_choice(group, option, [name for name in listed.split("; ") if name])
    return text


def find_hydra_yaml_problems(default: DictConfig, composed: DictConfig) -> Iterator[str]:
    """Yield a message for each key of Hydra's node that a YAML file sets without an effect.

    Args:
        default: the node composed by Hydra without any choice.
        composed: the node composed with the chosen options.
    """
    before, now = (
        dict(flatten(OmegaConf.to_container(node, resolve=False))) for node in (default, composed)
    )
    changed = [key for key, value in now.items() if before.get(key, "") != value]
    keys = [k for k in changed if f"hydra.{k}" not in HYDRA_KEYS and not k.startswith(_OF_COMMAND)]
    for part in dict.fromkeys(key.split(".")[0] for key in keys):
        launchers = "hydra/launcher=NAME and hydra.launcher.KEY=VALUE"
        of_command = f"; {launchers} go on the command line" * (part == "launcher")
        yield (
            f"hydra.{part}: has no effect in a YAML file, where of Hydra's keys run.dir, sweep.dir "
            f"and mode have one{of_command}"
        )


def _find_folder_problem(key: str, value: Any) -> str | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return None  # a folder such as 3
    if not isinstance(value, str):
        return wrong_type(key, value, "text, a folder")
    if not value:
        return f"{key}=: names no folder; {key}=. is the folder that you are in"
    try:
        OmegaConf.create({"dir": value})
    except GrammarParseError as error:
        named = shell_override(key, value)
        return f"{key}={value}: cannot be read: {first_line(error)}; a folder of that name: {named}"
    return None


def _is_folder(path: str) -> bool:
    return "${" in path or Path(path.removeprefix("file://")).is_dir()
