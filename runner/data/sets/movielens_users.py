"""MovieLens-1M, a row a user: ratings to learn from and ratings to be predicted.

For meta-learning. Ratings as in `movielens.py`: over 3 is liked, under 3 is not, a 3 is left out. A
user's rated items, in random order by `split_seed`, are cut into support and query. Users are split
8:1:1, so those of validation and test are new.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from runner.data.core.columns import CategoricalColumn, Columns, LabelColumn
from runner.data.core.setting_checks import check_range
from runner.data.prepare.progress import Advance
from runner.data.prepare.recipe import SPLITS, PreparedFiles, open_recipe
from runner.data.prepare.shards import ShardWriter
from runner.data.sets.movielens import MovieLens

if TYPE_CHECKING:
    from runner.data.read.parquet_dataset import ParquetDataset

VERSION = 1  # raise it when the same files give other rows
USER_COLUMNS = ("gender", "age", "occupation")


def movielens_users(
    *, window_rows: int, prefetch: int, workers: int, **settings: Any
) -> ParquetDataset:
    """The dataset option `movielens_users`; settings are the fields of `MovieLensUsers`."""
    made_of = recipe(**settings)
    return open_recipe(made_of, window_rows=window_rows, prefetch=prefetch, workers=workers)


@dataclass(frozen=True)
class MovieLensUsers(MovieLens):
    support: int  # ratings of a user to learn from
    query: int  # ratings to be predicted, at most; a user needs one

    name = "movielens_users"

    def check(self) -> None:
        super().check()
        check_range("support", self.support, 1)
        check_range("query", self.query, 1)

    def content_fields(self) -> Mapping[str, Any]:
        sizes = {"support": self.support, "query": self.query, "users": VERSION}
        return {**super().content_fields(), **sizes}

    def make(self, folder: Path, advance: Advance) -> PreparedFiles:
        columns, _ = self._joined()
        dice = np.random.default_rng(self.split_seed)
        mixed = dice.permutation(len(columns["user"]))
        by_user = mixed[np.argsort(columns["user"][mixed], kind="stable")]
        users = columns["user"][by_user]
        starts = np.flatnonzero(np.diff(users, prepend=users[0] - 1))
        counts = np.diff(starts, append=len(users))
        episodes = [
            by_user[start : start + min(count, self.support + self.query)]
            for start, count in zip(starts, counts)
            if count > self.support
        ]
        order = dice.permutation(len(episodes))
        held_out = len(episodes) // 10
        bounds = [0, len(order) - 2 * held_out, len(order) - held_out, len(order)]
        names = {}
        for split, low, high in zip(SPLITS, bounds, bounds[1:]):
            writer = ShardWriter(folder, split)
            writer.write(self._table(columns, [episodes[i] for i in order[low:high]]))
            names[split] = writer.close()
        advance(1)
        sizes = {name: int(columns[name].max()) + 1 for name in (*USER_COLUMNS, "item")}
        query = float(np.mean([len(rows) - self.support for rows in episodes]))
        return PreparedFiles(names, {"num_rows": sizes, "query": query}, {})

    def _table(self, columns: Mapping[str, np.ndarray], episodes: list[np.ndarray]) -> pa.Table:
        first = np.array([rows[0] for rows in episodes], dtype=np.int64)
        arrays = {name: pa.array(columns[name][first]) for name in USER_COLUMNS}
        # of the first query: every row has a label; the queries' own are in `query_liked`
        asked = np.array([rows[self.support] for rows in episodes], dtype=np.int64)
        arrays["label"] = pa.array(columns["label"][asked])
        parts = {"support": slice(0, self.support), "query": slice(self.support, None)}
        for part, cut in parts.items():
            for name, column in (("item", "item"), ("liked", "label")):
                values = [columns[column][rows[cut]].astype(np.int32) for rows in episodes]
                arrays[f"{part}_{name}"] = pa.array(values, pa.list_(pa.int32()))
        return pa.table(arrays)

    def columns(self, learnt: Mapping[str, Any]) -> Columns:
        sizes = learnt["num_rows"]
        lists = [
            CategoricalColumn(
                f"{part}_{name}",
                sizes["item"] if name == "item" else 2,
                is_list=True,
                mean_length=length,
                table=name,
            )
            for part, length in (("support", float(self.support)), ("query", learnt["query"]))
            for name in ("item", "liked")
        ]
        people = [CategoricalColumn(name, sizes[name]) for name in USER_COLUMNS]
        return Columns(labels=(LabelColumn("label"),), categorical=(*people, *lists))


recipe = MovieLensUsers
