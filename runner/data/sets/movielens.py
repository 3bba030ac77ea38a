"""MovieLens-1M as click prediction: GroupLens' three files, the context protocol of RecBole.

A rating over 3 is a click, one under 3 is none, a 3 is left out (739,012 rows of 1,000,209).
Fields: user, item, gender, age, occupation, year of release, genres. Random 8:1:1 split by
`split_seed`. The timestamp is no feature.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from runner.data.core.blocks import first_line
from runner.data.core.columns import CategoricalColumn, Columns, LabelColumn
from runner.data.core.setting_checks import check_range, check_setting_types
from runner.data.core.source_files import check_path, fingerprint_path
from runner.data.prepare.progress import Advance
from runner.data.prepare.recipe import SPLITS, PreparedFiles, open_recipe
from runner.data.prepare.shards import ShardWriter
from runner.errors import DataError

if TYPE_CHECKING:
    from runner.data.read.parquet_dataset import ParquetDataset

VERSION = 1  # raise it when the same files give other rows
RATINGS, USERS, MOVIES = "ratings.dat", "users.dat", "movies.dat"
DOWNLOAD_HINT = "get ml-1m.zip from https://grouplens.org/datasets/movielens/1m/ and unpack it"
SINGLE_ID_COLUMNS = ("user", "item", "gender", "age", "occupation", "year")


def movielens_1m(
    *, window_rows: int, prefetch: int, workers: int, rest: str = "short", **settings: Any
) -> ParquetDataset:
    """The dataset option `movielens_1m`; settings are the fields of `MovieLens`."""
    made_of = recipe(**settings)
    return open_recipe(
        made_of, window_rows=window_rows, prefetch=prefetch, workers=workers, rest=rest
    )


@dataclass(frozen=True)
class MovieLens:
    path: str | None  # the folder with ratings.dat, users.dat and movies.dat
    split_seed: int

    name = "movielens_1m"

    def check(self) -> None:
        check_setting_types(self)
        check_range("split_seed", self.split_seed, 0)
        self._folder()

    def content_fields(self) -> Mapping[str, Any]:
        files = [fingerprint_path(self._folder() / name) for name in (RATINGS, USERS, MOVIES)]
        return {"movielens": VERSION, "files": files, "split_seed": self.split_seed}

    def reading_fields(self) -> Mapping[str, Any]:
        return {}

    def num_progress_units(self) -> int:
        return 1

    def make(self, folder: Path, advance: Advance) -> PreparedFiles:
        columns, genres = self._joined()
        num_rows = len(columns["label"])
        num_held_out = num_rows // 10
        # Stored in this order too: the files come sorted by user, which mixes badly.
        order = np.random.default_rng(self.split_seed).permutation(num_rows)
        bounds = [0, num_rows - 2 * num_held_out, num_rows - num_held_out, num_rows]
        names = {}
        for split, start, stop in zip(SPLITS, bounds, bounds[1:]):
            writer = ShardWriter(folder, split)
            rows = order[start:stop]
            arrays = {name: pa.array(values[rows]) for name, values in columns.items()}
            arrays["genres"] = genres.take(pa.array(columns["item"][rows]))
            writer.write(pa.table(arrays))
            names[split] = writer.close()
        advance(1)
        lists = arrays["genres"]
        learnt = {
            "num_rows": {name: int(columns[name].max()) + 1 for name in SINGLE_ID_COLUMNS}
            | {"genres": int(max(genres.flatten().to_numpy())) + 1},
            "mean_length": len(lists.flatten()) / len(lists),
        }
        return PreparedFiles(names, learnt, {})

    def columns(self, learnt: Mapping[str, Any]) -> Columns:
        sizes = learnt["num_rows"]
        genres = CategoricalColumn(
            "genres", sizes["genres"], is_list=True, mean_length=learnt["mean_length"]
        )
        return Columns(
            labels=(LabelColumn("label"),),
            categorical=(
                *(CategoricalColumn(name, sizes[name]) for name in SINGLE_ID_COLUMNS),
                genres,
            ),
            groups=("user",),
        )

    def _folder(self) -> Path:
        return check_path(
            self.path,
            example="data/ml-1m",
            files=(RATINGS, USERS, MOVIES),
            download_hint=DOWNLOAD_HINT,
        )

    def _joined(self) -> tuple[dict[str, np.ndarray], pa.ListArray]:
        """Columns of the rated rows, int32, and the genres of every item number."""
        folder = self._folder()
        ratings = _read(folder / RATINGS, ("user", "item", "rating", "time"), pa.int32())
        rating = ratings["rating"]
        if bad := np.flatnonzero((rating < 1) | (rating > 5)).tolist():
            raise DataError(
                f"{folder / RATINGS}: line {bad[0] + 1}: rating {rating[bad[0]]} is not 1 to 5"
            )
        users = _read(folder / USERS, ("user", "gender", "age", "occupation", "zip"), pa.string())
        item_ids, years, genres = _movies(folder / MOVIES)
        rated = rating != 3
        columns = {
            "label": (rating[rated] > 3).astype(np.int8),
            "user": ratings["user"][rated],
            "item": ratings["item"][rated],
        }
        user_ids = _integers(users["user"], folder / USERS)
        of_row = _rows_of(columns["user"], user_ids, folder / USERS, "user")
        for name in ("gender", "age", "occupation"):
            values = users[name]
            if name != "gender":
                values = _integers(values, folder / USERS)
            columns[name] = np.unique(values, return_inverse=True)[1].astype(np.int32)[of_row]
        of_row = _rows_of(columns["item"], item_ids, folder / MOVIES, "movie")
        columns["year"] = np.unique(years, return_inverse=True)[1].astype(np.int32)[of_row]
        by_item: list[Sequence[int]] = [[] for _ in range(int(item_ids.max()) + 1)]
        for item, own in zip(item_ids.tolist(), genres):
            by_item[item] = own
        return columns, pa.array(by_item, pa.list_(pa.int32()))


def _read(path: Path, names: Sequence[str], type_: pa.DataType) -> dict[str, np.ndarray]:
    """Fields between double colons: to Arrow, fields between colons, every second one empty."""
    fields = [part for name in names for part in (name, f"empty after {name}")][:-1]
    try:
        table = pacsv.read_csv(
            path,
            read_options=pacsv.ReadOptions(column_names=fields, encoding="latin-1"),
            parse_options=pacsv.ParseOptions(delimiter=":", quote_char=False),
            convert_options=pacsv.ConvertOptions(
                column_types=dict.fromkeys(names, type_), include_columns=list(names)
            ),
        )
    except pa.ArrowInvalid as error:
        raise DataError(f"{path}: {first_line(error)}") from error
    return {name: table[name].to_numpy() for name in names}


def _integers(values: np.ndarray, path: Path) -> np.ndarray:
    try:
        return values.astype(np.int32)
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error


def _movies(path: Path) -> tuple[np.ndarray, np.ndarray, list[list[int]]]:
    """Item numbers, years, and genre numbers. Titles hold colons, so Arrow cannot read it."""
    items, years, names = [], [], []
    for number, line in enumerate(path.read_text(encoding="latin-1").splitlines(), start=1):
        found = re.fullmatch(r"(\d+)::.*\((\d{4})\)\s*::(.*)", line)
        if not found:
            raise DataError(f"{path}: line {number}: not `number::title (year)::genres`: {line!r}")
        items.append(int(found[1]))
        years.append(int(found[2]))
        names.append(found[3].split("|"))
    known = {name: n for n, name in enumerate(sorted({g for own in names for g in own}))}
    return np.array(items), np.array(years), [[known[g] for g in own] for own in names]


def _rows_of(ids: np.ndarray, known: np.ndarray, path: Path, what: str) -> np.ndarray:
    """Row of every id in a file. Raises: DataError naming an id that is not in it."""
    row_of_id = np.full(max(int(known.max()), int(ids.max())) + 1, -1)
    row_of_id[known] = np.arange(len(known))
    rows = row_of_id[ids]
    if (rows < 0).any():
        raise DataError(f"{path}: no {what} {ids[np.argmin(rows)]}, though it is rated")
    return rows


recipe = MovieLens
