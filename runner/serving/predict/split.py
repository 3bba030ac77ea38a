"""Reads a split of a run's own data, with labels, as input of a prediction. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from runner.data.core.fitted import with_fitted_transforms
from runner.data.files.file_list import DataFile
from runner.data.prepare.fingerprint import build_recipe
from runner.data.prepare.recipe import SPLITS, prepare
from runner.data.tabular.table_recipe import TableRecipe
from runner.errors import UserError, unknown_choice
from runner.serving.rows.encode import Transforms
from runner.serving.rows.input import InputTable, LocatedChunk, find_format
from runner.serving.rows.selected_rows import rows_of_split


@dataclass(frozen=True)
class SplitTable(InputTable):
    """The table of a run's training, of which one split is scored."""

    wanted: str = "test"  # the split
    # where the splits begin in time, as determined by the training
    times: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def files(self) -> dict[str, list[DataFile]]:
        return super(InputTable, self).files

    @property
    def columns_read(self) -> list[str]:
        split = [self.row_split.column] if self.row_split.column else []
        return list(dict.fromkeys([*super().columns_read, *split]))

    def num_rows(self, counted: int) -> int:
        return counted

    def located_chunks(self, is_wanted: Callable[[int, int], bool]) -> Iterator[LocatedChunk]:
        """Yield the rows of the split in the order of evaluations."""
        start = 0
        for piece in rows_of_split(self, self.times, self.wanted):
            yield start, piece
            start += piece.num_rows


def open_split(
    dataset: Mapping[str, Any], transforms: Transforms, run: Path, split: str, keep: tuple[str, ...]
) -> SplitTable:
    """Return the rows of a split of a run's dataset.

    Args:
        dataset: the group of the run's configuration.
        split: train, validation or test.

    Raises:
        UserError: for a split that does not exist, a dataset without a table, and files that are
            missing.
    """
    recipe = build_recipe(with_fitted_transforms(dataset, run / "data"))
    declared, fitted = transforms.declared, transforms.fitted
    if declared.interactions is not None:
        raise UserError(
            "--split: the rows of this run were made of events; `python -m runner histories` makes "
            "rows of events that predict scores, and loop=eval measures the splits"
        )
    if recipe is None or not hasattr(recipe, "make"):
        raise UserError(
            f"--split: dataset {dataset['_target_']} gives batches, and no columns that could be "
            "scored and kept; name files to score instead"
        )
    common: dict[str, Any] = {"features": declared, "keep": keep, "id_types": fitted.id_types}
    if isinstance(recipe, TableRecipe):
        known = {*recipe.row_split.splits, *recipe.files}
        settings = {name: getattr(recipe, name) for name in TableRecipe.__dataclass_fields__}
        table = SplitTable(**{**settings, **common}, wanted=split, times=dict(fitted.times or {}))
    else:
        folder, prepared = prepare(recipe)
        known = set(prepared.splits)
        files = [str(folder / name) for name in prepared.splits.get(split, ())]
        # the split has its own files: all rows are wanted
        table = SplitTable(find_format(files, "parquet"), files, None, wanted="train", **common)
    if split not in known:
        raise UserError(unknown_choice("--split", split, [s for s in SPLITS if s in known]))
    return table
