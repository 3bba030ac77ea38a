"""Amazon reviews as next-item prediction, split leave-one-out (SASRec, arXiv:1808.09781).

The file has a line for each user, with the user's items in time order. It is read into a table of
events, whose rows `interactions` declare (`Amazon.table`): the last item of a user is for testing,
the one before it for validation, the others are for training. `negatives` are rows of label 0.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from runner.config_key import Key
from runner.data.core.argument_types import (
    Count,
    FromZero,
    Prefetch,
    Rest,
    Seed,
    WindowRows,
    Workers,
    check_names,
    check_settings,
)
from runner.data.core.columns import CategoricalColumn, Columns, LabelColumn, SequenceColumn
from runner.data.core.source_files import check_path, fingerprint_path
from runner.data.interactions.partitions import PARTITION_ROWS
from runner.data.interactions.rewrite import rewrite_events
from runner.data.prepare.progress import Advance
from runner.data.prepare.recipe import SPLITS, PreparedFiles, Recipe, open_recipe
from runner.data.tabular.table_recipe import TableRecipe
from runner.errors import DataError
from runner.parts import dataset_option

if TYPE_CHECKING:
    from runner.data.read.parquet_dataset import ParquetDataset

VERSION = 1  # to be raised when the same file gives other rows
REVIEWS_FILE = "Beauty.txt"
DOWNLOAD_HINT = (
    "get Beauty.txt (user, then item ids in time order, a user a line) from "
    "https://github.com/pmixer/SASRec.pytorch or make it from https://jmcauley.ucsd.edu/data/amazon"
)
MIN_ITEMS = 3  # of a user: one for each split


@dataset_option
def amazon_beauty(
    *,
    window_rows: WindowRows,
    prefetch: Prefetch,
    workers: Workers,
    rest: Rest = "short",
    **settings: Any,
) -> ParquetDataset:
    """Open the dataset of the option `amazon_beauty`; settings are the fields of `Amazon`."""
    return open_recipe(
        recipe(**settings), window_rows=window_rows, prefetch=prefetch, workers=workers, rest=rest
    )


@dataclass(frozen=True)
class Amazon(Recipe):
    """Settings of the data set; a recipe, see `runner.data.prepare.recipe`."""

    path: str | None  # the folder with Beauty.txt, or a file like it
    # every: all items of a user from the second on; last: the last one
    train_on: Annotated[str, Key(choices=("every", "last"))]
    max_length: Count  # of a history, whose newest items are kept
    negatives: Mapping[str, FromZero]  # split -> rows with label 0 for each row with label 1
    data_seed: Seed  # for drawing the negatives

    name = "amazon_beauty"

    def check(self) -> None:
        check_settings(self)
        check_names("negatives", self.negatives, SPLITS)
        self._file()

    def _file(self) -> Path:
        if self.path and Path(os.path.expanduser(self.path)).is_file():
            return Path(os.path.expanduser(self.path))
        folder = check_path(
            self.path, example="data/beauty", files=(REVIEWS_FILE,), download_hint=DOWNLOAD_HINT
        )
        return folder / REVIEWS_FILE

    def content_fields(self) -> Mapping[str, Any]:
        """Return what the rows depend on; rows that version 1 wrote otherwise have version 2."""
        settings = {k: v for k, v in vars(self).items() if k not in ("path", "negatives")}
        negatives = [self.negatives[split] for split in SPLITS]
        content = fingerprint_path(self._file())[1:]
        users, items, _ = read_user_items(self._file())
        is_same = not any(negatives) and len(items) <= PARTITION_ROWS
        version = VERSION if is_same and (np.diff(users) > 0).all() else VERSION + 1
        return {"amazon": version, "file": content, "negatives": negatives, **settings}

    def num_progress_units(self) -> int:
        return 3

    def table(self, path: Path, num_rows: Mapping[str, int]) -> TableRecipe:
        """Return the declaration of a table of events, in a file of `user`, `item` and `place`."""
        events = {"user": "user", "item": "item", "time": "place", "train_on": self.train_on}
        more = {"max_length": self.max_length, "negatives": dict(self.negatives)}
        schema = {
            "interactions": {**events, **more},
            "categorical": {name: {"num_rows": num_rows[name]} for name in ("user", "item")},
        }
        split, seed = "leave_one_out", self.data_seed
        return TableRecipe("parquet", str(path), schema, split=split, split_seed=seed, mix=False)

    def make(self, folder: Path, advance: Advance) -> PreparedFiles:
        users, items, lengths = read_user_items(self._file())
        sizes = {"user": int(users.max()) + 1, "item": int(items.max()) + 1}
        starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
        has_split = np.repeat(lengths >= MIN_ITEMS, lengths)  # others have no rows
        columns = {
            "user": np.repeat(users, lengths),
            "item": items,
            "place": np.arange(len(items)) - starts,
        }
        events = folder / "events.parquet"
        pq.write_table(
            pa.table({name: values[has_split] for name, values in columns.items()}), events
        )
        names, fitted, _ = rewrite_events(self.table(events, sizes), folder, lambda _: None)
        events.unlink()
        advance(3)
        mean_length = fitted.mean_length["history"]
        return PreparedFiles(names, {"num_rows": sizes, "mean_length": mean_length}, {})

    def columns(self, fitted: Mapping[str, Any]) -> Columns:
        sizes = fitted["num_rows"]
        history = SequenceColumn(
            "history", sizes["item"], self.max_length, "item", overlaps=self.train_on == "every"
        )
        return Columns(
            labels=(LabelColumn("label"),),
            categorical=tuple(CategoricalColumn(name, sizes[name]) for name in ("user", "item")),
            sequences=(history,),
            groups=("user",),
        )


def read_user_items(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Read a file whose lines have a user and the user's items in time order.

    Returns:
        The user of every line, the items of all lines, and how many items each line has.

    Raises:
        DataError: naming the line that has something else than whole numbers, has no item, or has
            the user of another line.
    """
    lines = pa.array(path.read_text(encoding="utf-8", errors="replace").splitlines(), pa.string())
    lines = pc.utf8_trim_whitespace(lines)
    is_wrong = pc.invert(pc.match_substring_regex(lines, r"^(\d{1,9}(\s+\d{1,9})+)?$"))
    if (wrong := np.flatnonzero(is_wrong.to_numpy(zero_copy_only=False))).size:
        raise DataError(
            f"{path}: line {wrong[0] + 1}: expected a user and items, whole numbers from 0 on: "
            f"{lines[int(wrong[0])].as_py()[:60]!r}"
        )
    words = pc.utf8_split_whitespace(lines.filter(pc.not_equal(lines, "")))
    if not len(words):
        raise DataError(f"{path}: has no rows")
    lengths = pc.list_value_length(words).to_numpy()
    numbers = pc.cast(words.flatten(), pa.int32()).to_numpy()
    first = np.cumsum(lengths) - lengths
    users = numbers[first]
    values, counts = np.unique(users, return_counts=True)
    if counts.max() > 1:
        raise DataError(f"{path}: user {values[counts.argmax()]} has several lines; expected one")
    return users, np.delete(numbers, first), lengths - 1


recipe = Amazon
