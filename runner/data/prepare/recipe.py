"""What a dataset option is made of: a recipe prepares files once; then all take the same path."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from runner.data.core import cache
from runner.data.core.columns import Columns
from runner.data.prepare.progress import show_progress

if TYPE_CHECKING:
    from runner.data.read.parquet_dataset import ParquetDataset

SPLITS = ("train", "validation", "test")
LAYOUT_VERSION = 3  # of prepared files: raise it when their format changes and their rows do not


@dataclass(frozen=True)
class PreparedFiles:
    """What `Recipe.make` leaves: names of files and what was learnt, all JSON."""

    splits: Mapping[str, Sequence[str]]  # in the order train, validation, test
    learnt: Mapping[str, Any]  # sizes, vocabularies, lengths: what `columns` needs
    reachable: Mapping[str, Mapping[str, float]]


class Recipe(Protocol):
    """Settings of one dataset option. Its module has it as `recipe`, and imports no torch."""

    @property
    def name(self) -> str: ...

    def check(self) -> None:
        """Raises: DataError or ConfigError for a missing path or a wrong setting. Quick."""

    def content_fields(self) -> Mapping[str, Any]:
        """All that the prepared files depend on: content of the sources, settings, a version."""

    def reading_fields(self) -> Mapping[str, Any]:
        """All else that shapes the batches."""

    def num_progress_units(self) -> int:
        """Of progress, for `make`."""

    def make(self, folder: Path, advance: Any) -> PreparedFiles:
        """Writes the files of all splits."""

    def columns(self, learnt: Mapping[str, Any]) -> Columns: ...


def hash_json(value: Any, length: int = 16) -> str:
    """Of a JSON value, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, default=_plain)
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def cache_key(recipe: Recipe) -> str:
    """Of the prepared files: what is in them, and how it is laid out."""
    reading = recipe.reading_fields()
    more = {"reading": reading} if reading else {}
    return hash_json({"layout": LAYOUT_VERSION, **recipe.content_fields(), **more})


def prepare(recipe: Recipe) -> tuple[Path, PreparedFiles]:
    """The recipe's files, made now or found in the cache. Imports no torch."""
    recipe.check()

    def make(folder: Path) -> Mapping[str, Any]:
        with show_progress(f"preparing {recipe.name}", recipe.num_progress_units()) as advance:
            made = recipe.make(folder, advance)
        return {"splits": made.splits, "learnt": made.learnt, "reachable": made.reachable}

    folder = cache.get_or_prepare(recipe.name, cache_key(recipe), make)
    return folder, PreparedFiles(**cache.read_contents(folder))


def open_recipe(
    recipe: Recipe, *, window_rows: int, prefetch: int, workers: int = 0, rest: str = "short"
) -> ParquetDataset:
    """The dataset of a recipe, prepared if need be."""
    folder, made = prepare(recipe)
    from runner.data.read.parquet_dataset import ParquetDataset  # torch enters here

    return ParquetDataset(
        {split: [folder / name for name in names] for split, names in made.splits.items()},
        recipe.columns(made.learnt),
        window_rows=window_rows,
        prefetch=prefetch,
        workers=workers,
        rest=rest,
        reachable=made.reachable,
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"{value!r} is not JSON")
