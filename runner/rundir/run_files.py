"""Reads the main files of a run: `config.yaml`, `meta.json` and `result.json`."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from runner.errors import UserError, nearest_hint, shell_path
from runner.rundir.json_files import dumps, read_json
from runner.rundir.moved_targets import with_current_targets
from runner.rundir.readers import check_shapes, read_signed_meta
from runner.rundir.regular_files import check_run_files, read_bytes
from runner.rundir.walk import runs_below

MAX_YAML_BYTES = 1 << 20
_MAX_DEPTH = 100
_TOO_DEEP = f"is nested deeper than {_MAX_DEPTH} levels"
_MAX_REFERENCES = 12  # a run saves resolved values; only those that read the environment refer
# files by which a job of a search asks its sweep whether to continue
REQUEST_FILE, ANSWER_FILE = ".evaluated.json", ".answer.json"
TUNED_FILE = "tuned.json"  # what a tuner has found
# what every job needs
CONFIG_NODES = ("model", "dataset", "optimizer", "task", "loop", "trainer", "checkpoint", "metrics")
_CONFIG_SHAPES = dict.fromkeys(
    (*CONFIG_NODES, "scheduler", "sharding", "callbacks", "tracker"), dict
)
_RESULT_SHAPES = {
    **dict.fromkeys(("step", "examples"), int),
    **dict.fromkeys(("metrics", "best", "own_metrics"), dict),
    **dict.fromkeys(("status", "error"), str),
}


def read_meta(folder: Path) -> dict[str, Any]:
    """Read `meta.json`.

    Raises:
        UserError: if the folder is not a run directory, with what is missing.
    """
    if folder.is_file():
        raise UserError(f"{folder}: is a file, not a run directory")
    if not folder.is_dir():
        raise UserError(f"{folder}: no such run directory{_runs_nearby(folder)}")
    path = folder / "meta.json"
    if not path.exists() or not (folder / "config.yaml").exists():
        missing = "meta.json" if not path.exists() else "config.yaml"
        hint = ""
        if folder.parent.name == "checkpoints":
            hint = f"; this is a checkpoint, its run is {folder.parent.parent}"
        elif is_exported(folder):
            hint = "; it is an exported model: name the run that it was made from"
        elif (folder / "study.db").exists():
            hint = (
                f"; this is a sweep, whose jobs are runs; `python -m runner resume "
                f"{shell_path(folder)}` continues the whole sweep"
            )
        elif runs := runs_below(folder):
            hint = (
                f"; it is a folder of runs, of which {runs[0]} is the newest; "
                f"`python -m runner report {shell_path(folder)}` lists them"
            )
        raise UserError(f"{folder}: no run directory: it has no {missing}{hint}")
    check_run_files(folder)
    return read_signed_meta(folder)


def is_exported(folder: Path) -> bool:
    """Return whether a folder is an exported model of a run."""
    return (folder / "manifest.json").exists() and (folder / "score.py").exists()


def _runs_nearby(folder: Path) -> str:
    """Return the runs with similar names, and the command that lists all runs."""
    place = folder.parent if folder.parent.is_dir() else Path("outputs")
    names = [path.parent.name for path in place.glob("*/meta.json")]
    if not names:
        return ""
    near = nearest_hint(folder.name, names, 3)
    return f"{near}; `python -m runner report {shell_path(place)}` lists those of {place}"


def read_config(folder: Path) -> dict[str, Any]:
    """Read the configuration of a run, with the present names of its targets.

    References to the environment stay references.

    Raises:
        UserError: if the file is damaged, or is more than plain YAML.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    text = read_plain_yaml(folder / "config.yaml")
    try:
        config = OmegaConf.to_container(OmegaConf.load(io.StringIO(text)), resolve=False)
    except (yaml.YAMLError, OmegaConfBaseException, OSError) as error:  # a scalar is an OSError
        raise UserError(f"{folder / 'config.yaml'}: damaged: {error}") from error
    if not isinstance(config, dict):
        raise UserError(f"{folder / 'config.yaml'}: damaged: it is not a mapping")
    if len(re.findall(r"\$\{(?!oc\.env:)", dumps(config))) > _MAX_REFERENCES:
        raise UserError(
            f"{folder / 'config.yaml'}: refused: more than {_MAX_REFERENCES} values refer to "
            "others, which may multiply without end"
        )
    current: dict[str, Any] = with_current_targets({str(k): v for k, v in config.items()})
    check_shapes(folder / "config.yaml", current, _CONFIG_SHAPES)
    return current


def read_result(folder: Path) -> dict[str, Any] | None:
    """Read `result.json`; None if the run has not ended.

    Raises:
        UserError: if it is damaged.
    """
    path = folder / "result.json"
    if not os.path.lexists(path):
        return None
    try:
        result = read_json(path)
        if not isinstance(result, dict):
            raise UserError(f"{path}: damaged: it is no mapping")
        check_shapes(path, result, _RESULT_SHAPES)
        check_shapes(path, result.get("best") or {}, {"step": int})
    except UserError as error:
        if isinstance(error.__cause__, OSError):
            raise
        again = f"after `rm {shell_path(path)}` a resume writes it anew from the checkpoints"
        raise UserError(f"{error}; {again}") from error
    return result


def to_yaml(config: Mapping[str, Any]) -> str:
    """Write a configuration as YAML, with its references kept."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.create(dict(config)), resolve=False)


def read_plain_yaml(path: Path) -> str:
    """Return the text of a YAML file whose parsing is harmless.

    Raises:
        UserError: if it cannot be read, is no YAML, has more than 1 MiB, or has an alias or a tag.
    """
    try:
        text = read_bytes(path, MAX_YAML_BYTES).decode()
        _check_plain(text, path)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    except yaml.scanner.ScannerError as error:
        if "nesting depth" not in error.problem:  # a limit of libyaml from 0.2.6 on
            raise UserError(f"{path}: damaged: {error}") from error
        line = error.problem_mark.line + 1
        raise UserError(f"{path}: refused: line {line} {_TOO_DEEP}") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{path}: damaged: {error}") from error
    return text


def _check_plain(text: str, path: Path) -> None:
    """Refuse aliases, tags and deep nesting, which make large values or objects of small files.

    Raises:
        UserError: with the line.
    """
    depth = 0
    for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            problem = "has an alias or an anchor"
        elif getattr(event, "tag", None) is not None:
            problem = f"has the tag {event.tag}"
        elif depth > _MAX_DEPTH:
            problem = _TOO_DEEP
        else:
            continue
        raise UserError(f"{path}: refused: line {event.start_mark.line + 1} {problem}")
