"""Criteo-shaped rows drawn from a planted model: as many as asked for, with a known best result."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from runner.data.ceiling import Ceiling
from runner.data.columns import Categorical, Columns, Label, Numeric
from runner.data.planted import Rows, World, calibrate, plant
from runner.data.progress import Advance
from runner.data.recipe import SPLITS, Made, open_recipe
from runner.data.settings import check_numbers, check_range, check_types
from runner.data.shards import BLOCK_ROWS, SHARD_ROWS, open_shard
from runner.errors import ConfigError

if TYPE_CHECKING:
    from runner.data.parquet import ParquetDataset

VERSION = 1  # raise it when the same settings give other rows
CHUNK_ROWS = 8 * BLOCK_ROWS  # made at once, by a generator of its own
PARTS = ("dense", "ids", "pairs")


def synthetic(*, window_rows: int, prefetch: int, **settings: Any) -> ParquetDataset:
    """The dataset option `synthetic`; settings are the fields of `Synthetic`."""
    return open_recipe(recipe(**settings), window_rows=window_rows, prefetch=prefetch)


@dataclass(frozen=True)
class Synthetic:
    """Settings of the planted model and of the rows drawn from it. No setting is a path."""

    rows: Mapping[str, int]  # per split
    num_numeric: int
    num_single: int  # categorical columns with one id a row
    num_lists: int  # with a list of ids; lengths are uniform from 0 to twice mean_length
    mean_length: float
    min_cardinality: int  # of the categorical columns; the others lie between, evenly in logarithm
    max_cardinality: int
    zipf: float
    missing: float  # share of missing numeric values
    positive_rate: float
    signal: Mapping[str, float]  # standard deviation of each part of the logit
    num_pairs: int
    data_seed: int

    name = "synthetic"

    def check(self) -> None:
        check_types(self)
        check_numbers("rows", self.rows, SPLITS, int)
        check_numbers("signal", self.signal, PARTS, float)
        if self.rows["train"] < 1:
            raise ConfigError("dataset.rows.train=0: the train split needs at least one row")
        for key in ("num_numeric", "num_single", "num_lists", "num_pairs", "data_seed"):
            check_range(key, getattr(self, key), 0)
        if self.num_single + self.num_lists < 1:
            raise ConfigError("dataset.num_single=0 and dataset.num_lists=0: needed is a column")
        check_range("mean_length", self.mean_length, 0.5)
        check_range("min_cardinality", self.min_cardinality, 1)
        check_range("max_cardinality", self.max_cardinality, self.min_cardinality, 2**31 - 1)
        check_range("zipf", self.zipf, 0, 4)
        check_range("missing", self.missing, 0, 1)
        check_range("positive_rate", self.positive_rate, 0.001, 0.999)

    def source(self) -> Mapping[str, Any]:
        return {"synthetic": VERSION, **asdict(self)}

    def reading(self) -> Mapping[str, Any]:
        return {}

    def num_units(self) -> int:
        return sum(self.rows.values())

    def make(self, folder: Path, advance: Advance) -> Made:
        """Shards are made side by side: NumPy works outside Python's lock."""
        world = self._world
        names: dict[str, list[str]] = {split: [] for split in SPLITS if self.rows[split]}
        ceilings = {split: Ceiling() for split in names}
        with ThreadPoolExecutor(min(os.cpu_count() or 1, 4)) as pool:
            waiting = []
            for split in names:
                for first in range(0, self.rows[split], SHARD_ROWS):
                    names[split].append(f"{split}-{len(names[split]):05d}.parquet")
                    path, count = folder / names[split][-1], self.rows[split] - first
                    args = (world, split, first // CHUNK_ROWS, min(count, SHARD_ROWS), path)
                    waiting.append((split, pool.submit(self._shard, *args, advance)))
            try:
                for split, shard in waiting:
                    ceilings[split].merge(shard.result())
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        return Made(names, {}, {split: ceiling.metrics() for split, ceiling in ceilings.items()})

    def _shard(
        self, world: World, split: str, first_chunk: int, count: int, path: Path, advance: Advance
    ) -> Ceiling:
        ceiling = Ceiling()
        with open_shard(path, self._arrow_schema) as writer:
            for start in range(0, count, CHUNK_ROWS):
                chunk = first_chunk + start // CHUNK_ROWS
                rng = np.random.default_rng([self.data_seed, 1 + SPLITS.index(split), chunk])
                rows = world.rows(rng, min(CHUNK_ROWS, count - start))
                ceiling.add(rows.labels_R, rows.probability_R)
                writer.write_table(self._table(rows), row_group_size=BLOCK_ROWS)
                advance(len(rows.labels_R))
        return ceiling

    def columns(self, learnt: Mapping[str, Any]) -> Columns:
        return Columns(
            labels=(Label("label"),),
            numeric=tuple(Numeric(name, log1p=True, default=0.0) for name in self._numeric_names),
            categorical=tuple(
                Categorical(
                    name,
                    size,
                    is_list=mean_length is not None,
                    mean_length=mean_length or 1.0,
                )
                for name, size, mean_length in self._id_columns
            ),
        )

    @property
    def _numeric_names(self) -> list[str]:
        return [f"I{d + 1}" for d in range(self.num_numeric)]

    @property
    def _id_columns(self) -> list[tuple[str, int, float | None]]:
        """Name, cardinality and mean length; lists get cardinalities from the whole range."""
        count = self.num_single + self.num_lists
        sizes = np.geomspace(self.min_cardinality, self.max_cardinality, count).round().astype(int)
        is_list = np.zeros(count, bool)
        places = (np.arange(self.num_lists) + 0.5) * count / max(self.num_lists, 1)
        is_list[places.astype(int)] = True
        ordered = [*sizes[~is_list], *sizes[is_list]]
        lengths = [None] * self.num_single + [self.mean_length] * self.num_lists
        return [(f"C{f + 1}", int(size), lengths[f]) for f, size in enumerate(ordered)]

    @cached_property
    def _world(self) -> World:
        rng = np.random.default_rng([self.data_seed, 0])
        world = plant(
            rng,
            num_ids=[size for _, size, _ in self._id_columns],
            mean_lengths=[mean_length for _, _, mean_length in self._id_columns],
            zipf=self.zipf,
            num_numeric=self.num_numeric,
            num_pairs=self.num_pairs,
        )
        return calibrate(
            world,
            rng,
            signal=(self.signal["dense"], self.signal["ids"], self.signal["pairs"]),
            positive_rate=self.positive_rate,
            missing=self.missing,
        )

    @property
    def _arrow_schema(self) -> pa.Schema:
        ids = pa.field("item", pa.int32(), nullable=False)
        return pa.schema(
            [
                pa.field("label", pa.int8(), nullable=False),
                pa.field("probability", pa.float32(), nullable=False),  # the truth; never an input
                *(pa.field(name, pa.int32()) for name in self._numeric_names),
                *(
                    pa.field(name, pa.int32() if length is None else pa.list_(ids), nullable=False)
                    for name, _, length in self._id_columns
                ),
            ]
        )

    def _table(self, rows: Rows) -> pa.Table:
        return pa.Table.from_arrays(list(self._arrays(rows)), schema=self._arrow_schema)

    def _arrays(self, rows: Rows) -> Iterator[pa.Array]:
        yield pa.array(rows.labels_R)
        yield pa.array(rows.probability_R)
        for numeric_R, missing_R in zip(rows.numeric_DR, rows.missing_DR):
            yield pa.array(numeric_R, mask=missing_R if missing_R.any() else None)
        for ids, offsets in zip(rows.ids, rows.offsets):
            if offsets is None:
                yield pa.array(ids)
            else:
                item = pa.field("item", pa.int32(), nullable=False)
                yield pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids), pa.list_(item))


recipe = Synthetic
