"""The fingerprint of a dataset, a part of a run's signature, computed without torch."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from runner.config_value import check_value
from runner.data.core.argument_types import Rest
from runner.data.core.source_files import fingerprint_path
from runner.data.prepare.recipe import Recipe, hash_json
from runner.data.read import order
from runner.errors import ConfigError, nearest_hint
from runner.parts import is_marked

OWN_PACKAGE = "runner."
# Settings that every dataset option has, and that its recipe does not take
SHARED_SETTINGS = ("window_rows", "prefetch", "workers", "rest", "write_to")


def fingerprint(dataset: Mapping[str, Any]) -> str:
    """Return 16 hex digits that identify a dataset's content, settings and order of examples.

    Sources are identified by content, never by path or time. Settings that change no batch, such as
    prefetch or the spelling of a path, do not affect the fingerprint.

    Args:
        dataset: the resolved node of the configuration.

    Raises:
        DataError: for a missing path, with the source of the data.
        ConfigError: for a wrong setting.
    """
    recipe = build_recipe(dataset)
    if recipe is None:  # a class outside the package: its settings, and the content of its path
        content = fingerprint_path(Path(dataset["path"])) if dataset.get("path") else None
        rest = {k: v for k, v in dataset.items() if k not in ("path", "prefetch")}
        return hash_json({"settings": rest, "content": content})
    recipe.check()
    if hasattr(recipe, "fingerprint"):  # of data read elsewhere, which compute it there
        return str(recipe.fingerprint)
    rest = dataset.get("rest", "short")
    check_value("dataset.rest", rest, Rest)
    return hash_json(
        {
            "source": recipe.content_fields(),
            "reading": recipe.reading_fields(),
            "order": [
                order.ORDER_VERSION,
                dataset.get("window_rows"),
                *([rest] * (rest != "short")),
            ],
        }
    )


def _find_option(target: str) -> Any:
    """Return our dataset option of a dotted name; None for a target outside the package.

    It is checked here, since the fingerprint reads the data before the builder checks all parts.

    Raises:
        ConfigError: for a part of the package that is not a dataset option.
    """
    if not target.startswith(OWN_PACKAGE):
        return None
    module_name, _, name = target.rpartition(".")
    try:
        members = vars(import_module(module_name))
    except ModuleNotFoundError:
        members = {}
    if not is_marked(members.get(name), "dataset"):
        options = [n for n, member in members.items() if is_marked(member, "dataset")]
        raise ConfigError(
            f"dataset._target_={target}: not a function marked with @runner.dataset_option"
            f"{nearest_hint(name, options)}; `python -m runner ls dataset` lists the options"
        )
    return members[name]


def build_recipe(dataset: Mapping[str, Any]) -> Recipe | None:
    """Return the recipe of one of our dataset options; None for a target outside the package.

    Raises:
        ConfigError: for a part of the package that is no dataset option, for a setting that the
            option does not have, or one that is missing.
    """
    option = _find_option(str(dataset.get("_target_", "")))
    if option is None:
        return None
    recipe_class = vars(import_module(option.__module__))["recipe"]
    settings = {k: v for k, v in dataset.items() if k != "_target_" and k not in SHARED_SETTINGS}
    known = inspect.signature(recipe_class).parameters
    for key in settings:
        if key not in known:
            raise ConfigError(f"dataset.{key}: no such setting{nearest_hint(key, known)}")
    for key, parameter in known.items():
        if key not in settings and parameter.default is parameter.empty:
            raise ConfigError(f"dataset.{key} is not set")
    recipe: Recipe = recipe_class(**settings)
    return recipe
