"""MovieLens-1M for meta-learning: a row has a user's ratings to learn from and to be predicted.

A rating over 3 counts as liked, one under 3 as not, and a 3 is left out, as in `movielens.py`. A
user's rated items are put in random order, by `split_seed`, and cut into support and query. Users
are split 8:1:1, so that the users of validation and test are new.

`interactions` with `split: {user: ...}` cannot declare these rows: a row there is one event with
one label and the history before its time. A row here has the labels of up to `query` ratings of a
user at once, those under 3 are in the support too, and users are drawn so that shares are exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from runner.data.core.argument_types import Count, Prefetch, WindowRows, Workers
from runner.data.core.columns import CategoricalColumn, Columns, LabelColumn
from runner.data.prepare.progress import Advance
from runner.data.prepare.recipe import SPLITS, PreparedFiles, open_recipe
from runner.data.prepare.shards import ShardWriter
from runner.data.sets.movielens import MovieLens
from runner.parts import dataset_option

if TYPE_CHECKING:
    from runner.data.read.parquet_dataset import ParquetDataset

VERSION = 1  # to be raised when the same files give other rows
USER_COLUMNS = ("gender", "age", "occupation")


@dataset_option
def movielens_users(
    *, window_rows: WindowRows, prefetch: Prefetch, workers: Workers, **settings: Any
) -> ParquetDataset:
    """Open the dataset of the option `movielens_users`; settings: fields of `MovieLensUsers`."""
    return open_recipe(
        recipe(**settings), window_rows=window_rows, prefetch=prefetch, workers=workers
    )


@dataclass(frozen=True)
class MovieLensUsers(MovieLens):
    """Settings of the data set; a recipe, see `runner.data.prepare.recipe`."""

    support: Count  # ratings of a user to learn from
    query: Count  # at most so many ratings of a user are predicted; users with none are left out

    name = "movielens_users"

    def content_fields(self) -> Mapping[str, Any]:
        sizes = {"support": self.support, "query": self.query, "users": VERSION}
        return {**super().content_fields(), **sizes}

    def make(self, folder: Path, advance: Advance) -> PreparedFiles:
        columns, _ = self._join_files()
        rng = np.random.default_rng(self.split_seed)
        shuffled = rng.permutation(len(columns["user"]))
        by_user = shuffled[np.argsort(columns["user"][shuffled], kind="stable")]
        users = columns["user"][by_user]
        starts = np.flatnonzero(np.diff(users, prepend=users[0] - 1))
        counts = np.diff(starts, append=len(users))
        episodes = [
            by_user[start : start + min(count, self.support + self.query)]
            for start, count in zip(starts, counts)
            if count > self.support
        ]
        order = rng.permutation(len(episodes))
        num_held_out = len(episodes) // 10
        edges = [0, len(order) - 2 * num_held_out, len(order) - num_held_out, len(order)]
        names = {}
        for split, start, stop in zip(SPLITS, edges, edges[1:]):
            writer = ShardWriter(folder, split)
            writer.write(self._make_table(columns, [episodes[i] for i in order[start:stop]]))
            names[split] = writer.close()
        advance(1)
        sizes = {name: int(columns[name].max()) + 1 for name in (*USER_COLUMNS, "item")}
        query = float(np.mean([len(rows) - self.support for rows in episodes]))
        return PreparedFiles(names, {"num_rows": sizes, "query": query}, {})

    def _make_table(
        self, columns: Mapping[str, np.ndarray], episodes: list[np.ndarray]
    ) -> pa.Table:
        first = np.array([rows[0] for rows in episodes], dtype=np.int64)
        arrays = {name: pa.array(columns[name][first]) for name in USER_COLUMNS}
        # every row must have a label: it is that of the first query; `query_liked` has all of them
        first_query = np.array([rows[self.support] for rows in episodes], dtype=np.int64)
        arrays["label"] = pa.array(columns["label"][first_query])
        parts = {"support": slice(0, self.support), "query": slice(self.support, None)}
        for part, section in parts.items():
            for name, column in (("item", "item"), ("liked", "label")):
                values = [columns[column][rows[section]].astype(np.int32) for rows in episodes]
                arrays[f"{part}_{name}"] = pa.array(values, pa.list_(pa.int32()))
        return pa.table(arrays)

    def columns(self, fitted: Mapping[str, Any]) -> Columns:
        sizes = fitted["num_rows"]
        lists = [
            CategoricalColumn(
                f"{part}_{name}",
                sizes["item"] if name == "item" else 2,
                is_list=True,
                mean_length=length,
                table=name,
            )
            for part, length in (("support", float(self.support)), ("query", fitted["query"]))
            for name in ("item", "liked")
        ]
        singles = [CategoricalColumn(name, sizes[name]) for name in USER_COLUMNS]
        return Columns(labels=(LabelColumn("label"),), categorical=(*singles, *lists))


recipe = MovieLensUsers
