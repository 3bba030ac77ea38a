"""Amazon reviews as next-item prediction: a user a line, leave-one-out (SASRec, arXiv:1808.09781).

Of a user's items in time order the last is for test, the one before for validation, the others are
for training. A row is a history and the item that follows it, label 1; and as many rows as asked
for with an item that the user never touched, label 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from runner.data.core.columns import CategoricalColumn, Columns, LabelColumn, SequenceColumn
from runner.data.core.setting_checks import (
    check_choice,
    check_numbers,
    check_range,
    check_setting_types,
)
from runner.data.core.source_files import check_path, fingerprint_path
from runner.data.prepare.progress import Advance
from runner.data.prepare.recipe import SPLITS, PreparedFiles, open_recipe
from runner.data.prepare.shards import ShardWriter
from runner.errors import DataError

if TYPE_CHECKING:
    from runner.data.read.parquet_dataset import ParquetDataset

VERSION = 1  # raise it when the same file gives other rows
REVIEWS_FILE = "Beauty.txt"
DOWNLOAD_HINT = (
    "get Beauty.txt (user, then item ids in time order, a user a line) from "
    "https://github.com/pmixer/SASRec.pytorch or make it of https://jmcauley.ucsd.edu/data/amazon"
)
CHUNK_USERS = 1024


def amazon_beauty(
    *, window_rows: int, prefetch: int, workers: int, rest: str = "short", **settings: Any
) -> ParquetDataset:
    """The dataset option `amazon_beauty`; settings are the fields of `Amazon`."""
    made_of = recipe(**settings)
    return open_recipe(
        made_of, window_rows=window_rows, prefetch=prefetch, workers=workers, rest=rest
    )


@dataclass(frozen=True)
class Amazon:
    path: str | None  # the folder with Beauty.txt, or a file like it
    train_on: str  # every item from the second on, or the last one a user
    max_length: int  # of a history; the newest are kept
    negatives: Mapping[str, int]  # rows with label 0 for every row with 1, per split
    data_seed: int  # of the negatives

    name = "amazon_beauty"

    def check(self) -> None:
        check_setting_types(self)
        check_choice("train_on", self.train_on, ("every", "last"))
        check_range("max_length", self.max_length, 1)
        check_range("data_seed", self.data_seed, 0)
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
        names, lengths = {}, 0.0
        for number, split in enumerate(SPLITS):
            writer = ShardWriter(folder, split)
            rng = np.random.default_rng([self.data_seed, number])
            num_rows = length = 0
            for first in range(0, len(users), CHUNK_USERS):
                own = np.arange(first, min(first + CHUNK_USERS, len(users)))
                user, at = _targets(split, own, offsets, every=self.train_on == "every")
                if len(at):
                    table = self._rows(split, users, items, offsets, user, at, rng)
                    writer.write(table)
                    num_rows += table.num_rows
                    length += len(table["history"].combine_chunks().flatten())
            names[split] = writer.close()
            if not names[split]:
                raise DataError(f"{self._file()}: no user has items enough for the {split} split")
            lengths = length / num_rows if split == "train" else lengths
            advance(1)
        sizes = {"user": int(users.max()) + 1, "item": int(items.max()) + 1}
        return PreparedFiles(names, {"num_rows": sizes, "mean_length": lengths}, {})

    def _rows(
        self,
        split: str,
        users: np.ndarray,
        items: np.ndarray,
        offsets: np.ndarray,
        user: np.ndarray,
        at: np.ndarray,
        rng: np.random.Generator,
    ) -> pa.Table:
        """`user`: number of the line, `at`: place of the target among all items."""
        copies = 1 + self.negatives[split]
        user, at = np.repeat(user, copies), np.repeat(at, copies)
        label = np.tile(np.arange(copies) == 0, len(user) // copies)
        target = items[at].copy()
        target[~label] = _never_touched(rng, items, offsets, user[~label])
        length = np.minimum(at - offsets[user], self.max_length)
        ends = np.concatenate([[0], np.cumsum(length)])
        places = np.repeat(at - length - ends[:-1], length) + np.arange(ends[-1])
        history = pa.ListArray.from_arrays(pa.array(ends.astype(np.int32)), pa.array(items[places]))
        return pa.table(
            {
                "label": pa.array(label.astype(np.int8)),
                "user": pa.array(users[user]),
                "item": pa.array(target),
                "history": history,
            }
        )

    def columns(self, learnt: Mapping[str, Any]) -> Columns:
        sizes = learnt["num_rows"]
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
    """User of every line, all items end to end, and where each line's begin.

    Raises: DataError naming the line that is not whole numbers, or has no item.
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
                raise DataError(f"{path}: line {number}: needed are a user and items from 0 on")
            users.append(int(values[0]))
            parts.append(values[1:])
            lengths.append(len(values) - 1)
    if not parts:
        raise DataError(f"{path}: has no rows")
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return np.array(users, np.int32), np.concatenate(parts), offsets


def _targets(
    split: str, own: np.ndarray, offsets: np.ndarray, *, every: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Lines and places of the targets of a split; a target has at least one item before it."""
    first, stop = offsets[own], offsets[own + 1]
    if split != "train" or not every:
        at = stop - {"test": 1, "validation": 2, "train": 3}[split]
        enough = (at > first) & (stop - first >= 3)
        return own[enough], at[enough]
    count = np.maximum(stop - 2 - (first + 1), 0)
    line = np.repeat(own, count)
    ends = np.cumsum(count)
    return line, np.repeat(first + 1 - (ends - count), count) + np.arange(count.sum())


def _never_touched(
    rng: np.random.Generator, items: np.ndarray, offsets: np.ndarray, user: np.ndarray
) -> np.ndarray:
    """A uniform item for every line in `user`, drawn again while it is one of the line's own."""
    size = int(items.max()) + 1
    lines = np.unique(user)
    pairs = [
        line * size + items[offsets[line] : offsets[line + 1]].astype(np.int64) for line in lines
    ]
    touched = np.sort(np.concatenate(pairs)) if pairs else np.empty(0, np.int64)
    drawn = rng.integers(1, size, len(user))
    again = np.arange(len(user))
    for _ in range(100):
        key = user[again].astype(np.int64) * size + drawn[again]
        place = np.minimum(np.searchsorted(touched, key), len(touched) - 1)
        again = again[touched[place] == key]
        if not len(again):
            break
        drawn[again] = rng.integers(1, size, len(again))
    return drawn.astype(np.int32)


recipe = Amazon
