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
from runner.data.prepare.progress import progress

if TYPE_CHECKING:
    from runner.data.read.parquet_dataset import ParquetDataset

SPLITS = ("train", "validation", "test")
LAYOUT = 3  # of prepared files: raise it when their format changes and their rows do not


@dataclass(frozen=True)
class Made:
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

    def source(self) -> Mapping[str, Any]:
        """All that the prepared files depend on: content of the sources, settings, a version."""

    def reading(self) -> Mapping[str, Any]:
        """All else that shapes the batches."""

    def num_units(self) -> int:
        """Of progress, for `make`."""

    def make(self, folder: Path, advance: Any) -> Made:
        """Writes the files of all splits."""

    def columns(self, learnt: Mapping[str, Any]) -> Columns: ...


def digest(value: Any, length: int = 16) -> str:
    """Of a JSON value, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, default=_plain)
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def cache_key(recipe: Recipe) -> str:
    """Of the prepared files: what is in them, and how it is laid out."""
    reading = recipe.reading()
    more = {"reading": reading} if reading else {}
    return digest({"layout": LAYOUT, **recipe.source(), **more})


def prepare(recipe: Recipe) -> tuple[Path, Made]:
    """The recipe's files, made now or found in the cache. Imports no torch."""
    recipe.check()

    def make(folder: Path) -> Mapping[str, Any]:
        with progress(f"preparing {recipe.name}", recipe.num_units()) as advance:
            made = recipe.make(folder, advance)
        return {"splits": made.splits, "learnt": made.learnt, "reachable": made.reachable}

    folder = cache.prepared(recipe.name, cache_key(recipe), make)
    return folder, Made(**cache.contents(folder))


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
