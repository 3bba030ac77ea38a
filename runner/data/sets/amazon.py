"""Amazon reviews as next-item prediction, split leave-one-out (SASRec, arXiv:1808.09781).

The file has a line for each user. Of a user's items in time order, the last one is for testing, the
one before it for validation, and the others are for training. A row with label 1 is a history and
the item that follows it. For each of them there are rows with label 0, whose items the user never
touched; `negatives` is their number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import pyarrow as pa

from runner.config_key import Key
from runner.data.core.argument_types import (
    Count,
    FromZero,
    Prefetch,
    Rest,
    Seed,
    WindowRows,
    Workers,
)
from runner.data.core.columns import CategoricalColumn, Columns, LabelColumn, SequenceColumn
from runner.data.core.setting_checks import (
    check_numbers,
    check_setting_types,
)
from runner.data.core.source_files import check_path, fingerprint_path
from runner.data.prepare.progress import Advance
from runner.data.prepare.recipe import SPLITS, PreparedFiles, open_recipe
from runner.data.prepare.shards import ShardWriter
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
CHUNK_USERS = 1024


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
class Amazon:
    """Settings of the data set; a recipe, see `runner.data.prepare.recipe`."""

    path: str | None  # the folder with Beauty.txt, or a file like it
    # every: all items of a user from the second on; last: the last one
    train_on: Annotated[str, Key(choices=("every", "last"))]
    max_length: Count  # of a history, whose newest items are kept
    negatives: Mapping[str, FromZero]  # split -> rows with label 0 for each row with label 1
    data_seed: Seed  # for drawing the negatives

    name = "amazon_beauty"

    def check(self) -> None:
        check_setting_types(self)
        check_numbers("negatives", self.negatives, SPLITS, int)
        self._file()

    def _file(self) -> Path:
        if self.path and Path(self.path).expanduser().is_file():
            return Path(self.path).expanduser()
        folder = check_path(
            self.path, example="data/beauty", files=(REVIEWS_FILE,), download_hint=DOWNLOAD_HINT
        )
        return folder / REVIEWS_FILE

    def content_fields(self) -> Mapping[str, Any]:
        settings = {k: v for k, v in vars(self).items() if k not in ("path", "negatives")}
        negatives = [self.negatives[split] for split in SPLITS]
        content = fingerprint_path(self._file())[1:]
        return {"amazon": VERSION, "file": content, "negatives": negatives, **settings}

    def reading_fields(self) -> Mapping[str, Any]:
        return {}

    def num_progress_units(self) -> int:
        return 3

    def make(self, folder: Path, advance: Advance) -> PreparedFiles:
        users, items, offsets = read_user_items(self._file())
        names, mean_length = {}, 0.0
        for number, split in enumerate(SPLITS):
            writer = ShardWriter(folder, split)
            rng = np.random.default_rng([self.data_seed, number])
            num_rows = num_values = 0
            for first in range(0, len(users), CHUNK_USERS):
                chunk = np.arange(first, min(first + CHUNK_USERS, len(users)))
                lines, at = _find_targets(split, chunk, offsets, every=self.train_on == "every")
                if len(at):
                    table = self._make_rows(split, users, items, offsets, lines, at, rng)
                    writer.write(table)
                    num_rows += table.num_rows
                    num_values += len(table["history"].combine_chunks().flatten())
            names[split] = writer.close()
            if not names[split]:
                raise DataError(f"{self._file()}: no user has enough items for the {split} split")
            mean_length = num_values / num_rows if split == "train" else mean_length
            advance(1)
        sizes = {"user": int(users.max()) + 1, "item": int(items.max()) + 1}
        return PreparedFiles(names, {"num_rows": sizes, "mean_length": mean_length}, {})

    def _make_rows(
        self,
        split: str,
        users: np.ndarray,
        items: np.ndarray,
        offsets: np.ndarray,
        lines: np.ndarray,
        at: np.ndarray,
        rng: np.random.Generator,
    ) -> pa.Table:
        """Make the rows of some targets: `lines` they are in, `at` their indices in `items`."""
        copies = 1 + self.negatives[split]
        lines, at = np.repeat(lines, copies), np.repeat(at, copies)
        label = np.tile(np.arange(copies) == 0, len(lines) // copies)
        target = items[at].copy()
        target[~label] = _draw_negatives(rng, items, offsets, lines[~label])
        length = np.minimum(at - offsets[lines], self.max_length)
        ends = np.concatenate([[0], np.cumsum(length)])
        indices = np.repeat(at - length - ends[:-1], length) + np.arange(ends[-1])
        values = pa.array(items[indices])
        history = pa.ListArray.from_arrays(pa.array(ends.astype(np.int32)), values)
        return pa.table(
            {
                "label": pa.array(label.astype(np.int8)),
                "user": pa.array(users[lines]),
                "item": pa.array(target),
                "history": history,
            }
        )

    def columns(self, fitted: Mapping[str, Any]) -> Columns:
        sizes = fitted["num_rows"]
        return Columns(
            labels=(LabelColumn("label"),),
            categorical=(
                CategoricalColumn("user", sizes["user"]),
                CategoricalColumn("item", sizes["item"]),
            ),
            sequences=(SequenceColumn("history", sizes["item"], self.max_length, "item"),),
            groups=("user",),
        )


def read_user_items(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Read a file whose lines have a user and the user's items in time order.

    Returns:
        The user of every line, the items of all lines, and their offsets: [lines + 1].

    Raises:
        DataError: naming the line that has something else than whole numbers, or has no item.
    """
    users, lengths, parts = [], [], []
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            words = line.split()
            if not words:
                continue
            try:
                values = np.array(words, dtype=np.int32)
            except (ValueError, OverflowError):
                raise DataError(
                    f"{path}: line {number}: not whole numbers: {line[:60]!r}"
                ) from None
            if len(values) < 2 or values.min() < 0:
                raise DataError(f"{path}: line {number}: expected a user and items, all from 0 on")
            users.append(int(values[0]))
            parts.append(values[1:])
            lengths.append(len(values) - 1)
    if not parts:
        raise DataError(f"{path}: has no rows")
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return np.array(users, np.int32), np.concatenate(parts), offsets


def _find_targets(
    split: str, lines: np.ndarray, offsets: np.ndarray, *, every: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return the line and the index of every target; a target has at least one item before it."""
    first, stop = offsets[lines], offsets[lines + 1]
    if split != "train" or not every:
        at = stop - {"test": 1, "validation": 2, "train": 3}[split]
        long_enough = (at > first) & (stop - first >= 3)
        return lines[long_enough], at[long_enough]
    count = np.maximum(stop - 2 - (first + 1), 0)
    ends = np.cumsum(count)
    at = np.repeat(first + 1 - (ends - count), count) + np.arange(count.sum())
    return np.repeat(lines, count), at


def _draw_negatives(
    rng: np.random.Generator, items: np.ndarray, offsets: np.ndarray, lines: np.ndarray
) -> np.ndarray:
    """Draw a uniform item for each of `lines`, again while the line itself has the item."""
    num_items = int(items.max()) + 1
    pairs = [
        line * num_items + items[offsets[line] : offsets[line + 1]].astype(np.int64)
        for line in np.unique(lines)
    ]
    touched = np.sort(np.concatenate(pairs)) if pairs else np.empty(0, np.int64)
    drawn = rng.integers(1, num_items, len(lines))
    to_draw = np.arange(len(lines))
    for _ in range(100):
        pair = lines[to_draw].astype(np.int64) * num_items + drawn[to_draw]
        index = np.minimum(np.searchsorted(touched, pair), len(touched) - 1)
        to_draw = to_draw[touched[index] == pair]
        if not len(to_draw):
            break
        drawn[to_draw] = rng.integers(1, num_items, len(to_draw))
    return drawn.astype(np.int32)


recipe = Amazon
