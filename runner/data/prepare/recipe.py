"""Recipes: each dataset option has one, which prepares files that all read in the same way."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from runner.data.core import cache
from runner.data.core.columns import Columns
from runner.data.prepare.progress import Advance, show_progress

if TYPE_CHECKING:
    from runner.data.read.parquet_dataset import ParquetDataset

SPLITS = ("train", "validation", "test")
LAYOUT_VERSION = 4  # raise it when the format of prepared files changes but not their rows


@dataclass(frozen=True)
class PreparedFiles:
    """The result of `Recipe.make`, all JSON."""

    splits: Mapping[str, Sequence[str]]  # split -> files, in the order train, validation, test
    learnt: Mapping[str, Any]  # needed by `Recipe.columns`: sizes, vocabularies, lengths
    reachable: Mapping[str, Mapping[str, float]]  # split -> metric -> best possible


class Recipe(Protocol):
    """The settings of one dataset option, which its module exports as `recipe`, without torch.

    A subclass may omit `reading_fields`.
    """

    @property
    def name(self) -> str: ...

    # a recipe whose files have changed format has a `layout_version` instead of LAYOUT_VERSION

    def check(self) -> None:
        """Check the settings quickly.

        Raises:
            DataError: for a path that does not exist.
            ConfigError: for a wrong setting.
        """

    def content_fields(self) -> Mapping[str, Any]:
        """Return all that the prepared files depend on: sources' content, settings, a version."""

    def reading_fields(self) -> Mapping[str, Any]:
        """Return everything else that affects the batches."""
        return {}

    def num_progress_units(self) -> int:
        """Return the number of units of progress that `make` reports."""

    def make(self, folder: Path, advance: Any) -> PreparedFiles:
        """Write the files of all splits, calling `advance` with the units that are done."""

    def columns(self, learnt: Mapping[str, Any]) -> Columns:
        """Return the columns of the prepared files, from `PreparedFiles.learnt`."""


def hash_json(value: Any) -> str:
    """Return the first 16 hex digits of a JSON value's SHA-256, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, default=_to_plain)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def cache_key(recipe: Recipe) -> str:
    """Return the cache key of a recipe's files, computed from everything on which they depend."""
    reading = recipe.reading_fields()
    reading_entry = {"reading": reading} if reading else {}
    layout = getattr(recipe, "layout_version", LAYOUT_VERSION)
    return hash_json({"layout": layout, **recipe.content_fields(), **reading_entry})


def prepare(
    recipe: Recipe, make_files: Callable[[Path, Advance], PreparedFiles] | None = None
) -> tuple[Path, PreparedFiles]:
    """Return the recipe's files, made now or found in the cache, without importing torch.

    Args:
        make_files: makes the same files as the recipe's `make`, with several workers.
    """
    recipe.check()
    make_files = make_files or recipe.make

    def make(folder: Path) -> Mapping[str, Any]:
        with show_progress(f"preparing {recipe.name}", recipe.num_progress_units()) as advance:
            return vars(make_files(folder, advance))

    folder = cache.get_or_prepare(recipe.name, cache_key(recipe), make)
    return folder, PreparedFiles(**cache.read_contents(folder))


def open_recipe(recipe: Recipe, **reading: Any) -> ParquetDataset:
    """Return the dataset of a recipe, after preparing its files if the cache lacks them.

    Args:
        reading: `window_rows`, `prefetch`, `workers` and `rest` of `BlockDataset`.
    """
    folder, prepared = prepare(recipe)
    from runner.data.read.parquet_dataset import ParquetDataset  # imports torch

    return ParquetDataset(
        {split: [folder / name for name in names] for split, names in prepared.splits.items()},
        recipe.columns(prepared.learnt),
        reachable=prepared.reachable,
        **reading,
    )


def _to_plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"{value!r} is not JSON")
