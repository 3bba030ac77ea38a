"""MovieLens-1M as click prediction: GroupLens' three files, the context protocol of RecBole.

A rating over 3 counts as a click, one under 3 as none, and a 3 is left out: 739,012 rows remain of
1,000,209. The features are user, item, gender, age, occupation, year of release and genres, not the
timestamp. The rows are split 8:1:1 at random, by `split_seed`.
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

from runner.data.core.argument_types import (
    Prefetch,
    Rest,
    Seed,
    WindowRows,
    Workers,
    check_settings,
)
from runner.data.core.columns import CategoricalColumn, Columns, LabelColumn
from runner.data.core.source_files import check_path, fingerprint_path
from runner.data.prepare.progress import Advance
from runner.data.prepare.recipe import SPLITS, PreparedFiles, Recipe, open_recipe
from runner.data.prepare.shards import ShardWriter
from runner.errors import DataError, first_line
from runner.parts import dataset_option

if TYPE_CHECKING:
    from runner.data.read.parquet_dataset import ParquetDataset

VERSION = 1  # to be raised when the same files give other rows
RATINGS, USERS, MOVIES = "ratings.dat", "users.dat", "movies.dat"
DOWNLOAD_HINT = "get ml-1m.zip from https://grouplens.org/datasets/movielens/1m/ and unpack it"
SINGLE_ID_COLUMNS = ("user", "item", "gender", "age", "occupation", "year")


@dataset_option
def movielens_1m(
    *,
    window_rows: WindowRows,
    prefetch: Prefetch,
    workers: Workers,
    rest: Rest = "short",
    **settings: Any,
) -> ParquetDataset:
    """Open the dataset of the option `movielens_1m`; settings are the fields of `MovieLens`."""
    return open_recipe(
        recipe(**settings), window_rows=window_rows, prefetch=prefetch, workers=workers, rest=rest
    )


@dataclass(frozen=True)
class MovieLens(Recipe):
    """Settings of the data set; a recipe, see `runner.data.prepare.recipe`."""

    path: str | None  # the folder with ratings.dat, users.dat and movies.dat
    split_seed: Seed

    name = "movielens_1m"

    def check(self) -> None:
        check_settings(self)
        self._folder()

    def content_fields(self) -> Mapping[str, Any]:
        files = [fingerprint_path(self._folder() / name) for name in (RATINGS, USERS, MOVIES)]
        return {"movielens": VERSION, "files": files, "split_seed": self.split_seed}

    def num_progress_units(self) -> int:
        return 1

    def make(self, folder: Path, advance: Advance) -> PreparedFiles:
        columns, genres = self._join_files()
        num_rows = len(columns["label"])
        num_held_out = num_rows // 10
        # The rows are stored in this order too: as the files are sorted by user, they mix badly.
        order = np.random.default_rng(self.split_seed).permutation(num_rows)
        edges = [0, num_rows - 2 * num_held_out, num_rows - num_held_out, num_rows]
        names = {}
        for split, start, stop in zip(SPLITS, edges, edges[1:]):
            writer = ShardWriter(folder, split)
            rows = order[start:stop]
            arrays = {name: pa.array(values[rows]) for name, values in columns.items()}
            arrays["genres"] = genres.take(pa.array(columns["item"][rows]))
            writer.write(pa.table(arrays))
            names[split] = writer.close()
        advance(1)
        test_genres = arrays["genres"]
        sizes = {name: int(columns[name].max()) + 1 for name in SINGLE_ID_COLUMNS}
        sizes["genres"] = int(max(genres.flatten().to_numpy())) + 1
        mean_length = len(test_genres.flatten()) / len(test_genres)
        return PreparedFiles(names, {"num_rows": sizes, "mean_length": mean_length}, {})

    def columns(self, fitted: Mapping[str, Any]) -> Columns:
        sizes = fitted["num_rows"]
        genres = CategoricalColumn(
            "genres", sizes["genres"], is_list=True, mean_length=fitted["mean_length"]
        )
        singles = (CategoricalColumn(name, sizes[name]) for name in SINGLE_ID_COLUMNS)
        return Columns(
            labels=(LabelColumn("label"),), categorical=(*singles, genres), groups=("user",)
        )

    def _folder(self) -> Path:
        return check_path(
            self.path,
            example="data/ml-1m",
            files=(RATINGS, USERS, MOVIES),
            download_hint=DOWNLOAD_HINT,
        )

    def _join_files(self) -> tuple[dict[str, np.ndarray], pa.ListArray]:
        """Return the columns of all rows, int32, and a list of genres for every item id.

        Raises:
            DataError: naming the file, and the line or the id that is wrong.
        """
        folder = self._folder()
        ratings = _read_columns(folder / RATINGS, ("user", "item", "rating", "time"), pa.int32())
        rating = ratings["rating"]
        if bad := np.flatnonzero((rating < 1) | (rating > 5)).tolist():
            raise DataError(
                f"{folder / RATINGS}: line {bad[0] + 1}: rating {rating[bad[0]]} is not 1 to 5"
            )
        users = _read_columns(
            folder / USERS, ("user", "gender", "age", "occupation", "zip"), pa.string()
        )
        item_ids, years, genres = _read_movies(folder / MOVIES)
        used = rating != 3
        columns = {
            "label": (rating[used] > 3).astype(np.int8),
            "user": ratings["user"][used],
            "item": ratings["item"][used],
        }
        user_ids = _to_integers(users["user"], folder / USERS)
        user_rows = _find_rows(columns["user"], user_ids, folder / USERS, "user")
        for name in ("gender", "age", "occupation"):
            values = users[name]
            if name != "gender":
                values = _to_integers(values, folder / USERS)
            columns[name] = np.unique(values, return_inverse=True)[1].astype(np.int32)[user_rows]
        movie_rows = _find_rows(columns["item"], item_ids, folder / MOVIES, "movie")
        columns["year"] = np.unique(years, return_inverse=True)[1].astype(np.int32)[movie_rows]
        genres_by_id: list[Sequence[int]] = [[] for _ in range(int(item_ids.max()) + 1)]
        for item, item_genres in zip(item_ids.tolist(), genres):
            genres_by_id[item] = item_genres
        return columns, pa.array(genres_by_id, pa.list_(pa.int32()))


def _read_columns(path: Path, names: Sequence[str], type_: pa.DataType) -> dict[str, np.ndarray]:
    """Read columns of a file whose separator is a double colon.

    Arrow takes single characters only, so it sees a colon, and an empty field after every field.

    Raises:
        DataError: naming the file and the line that cannot be read.
    """
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


def _to_integers(values: np.ndarray, path: Path) -> np.ndarray:
    try:
        return values.astype(np.int32)
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error


def _read_movies(path: Path) -> tuple[np.ndarray, np.ndarray, list[list[int]]]:
    """Read the ids, years and genre numbers of all movies.

    Titles have colons in them, so that Arrow cannot read this file.

    Raises:
        DataError: naming the line that cannot be read.
    """
    items, years, names = [], [], []
    for number, line in enumerate(path.read_text(encoding="latin-1").splitlines(), start=1):
        match = re.fullmatch(r"(\d+)::.*\((\d{4})\)\s*::(.*)", line)
        if not match:
            raise DataError(f"{path}: line {number}: not `number::title (year)::genres`: {line!r}")
        items.append(int(match[1]))
        years.append(int(match[2]))
        names.append(match[3].split("|"))
    all_names = sorted({name for item_names in names for name in item_names})
    numbers = {name: n for n, name in enumerate(all_names)}
    genres = [[numbers[name] for name in item_names] for item_names in names]
    return np.array(items), np.array(years), genres


def _find_rows(ids: np.ndarray, ids_of_file: np.ndarray, path: Path, kind: str) -> np.ndarray:
    """Return the row of every id in a file.

    Raises:
        DataError: naming an id that is not in the file.
    """
    row_of_id = np.full(max(int(ids_of_file.max()), int(ids.max())) + 1, -1)
    row_of_id[ids_of_file] = np.arange(len(ids_of_file))
    rows: np.ndarray = row_of_id[ids]
    if (rows < 0).any():
        raise DataError(f"{path}: no {kind} {ids[np.argmin(rows)]}, though it is rated")
    return rows


recipe = MovieLens
