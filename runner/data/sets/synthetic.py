"""Criteo-shaped rows drawn from a planted model: as many as asked for, with a known best result."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from runner.data.core.blocks import ArrowWriter
from runner.data.core.columns import (
    CategoricalColumn,
    Columns,
    LabelColumn,
    NumericColumn,
    SequenceColumn,
)
from runner.data.core.setting_checks import check_numbers, check_range, check_setting_types
from runner.data.prepare.export import export_dataset
from runner.data.prepare.progress import Advance
from runner.data.prepare.recipe import SPLITS, PreparedFiles, open_recipe
from runner.data.prepare.shards import BLOCK_ROWS, SHARD_ROWS, shard_name
from runner.data.sets.oracle_metrics import OracleMetrics
from runner.data.sets.planted_model import PlantedModel, PlantedRows, build_planted_model, calibrate
from runner.errors import ConfigError

if TYPE_CHECKING:
    from runner.data.read.parquet_dataset import ParquetDataset

VERSION = 1  # raise it when the same settings give other rows
CHUNK_ROWS = 8 * BLOCK_ROWS  # made at once, by a generator of its own
LOGIT_PARTS = ("dense", "ids", "pairs")


def synthetic(
    *,
    window_rows: int,
    prefetch: int,
    workers: int,
    write_to: str | None,
    rest: str = "short",
    **settings: Any,
) -> ParquetDataset:
    """The dataset option `synthetic`; settings are the fields of `Synthetic`."""
    made_of = recipe(**settings)
    if write_to:
        export_dataset(made_of, Path(write_to).expanduser())
    return open_recipe(
        made_of, window_rows=window_rows, prefetch=prefetch, workers=workers, rest=rest
    )


@dataclass(frozen=True)
class Synthetic:
    """Settings of the planted model and of the rows drawn from it. No setting is a path."""

    rows: Mapping[str, int]  # per split
    num_numeric: int
    num_single: int  # categorical columns with one id a row
    num_lists: int  # with a list of ids; lengths are uniform from 0 to twice mean_length
    mean_length: float
    mean_lengths: Sequence[float]  # of every list column; empty: mean_length for all
    num_sequences: int  # columns S1, ...: ids in time order
    sequence_length: int  # the mean; lengths are uniform from 0 to twice as much
    interest: float  # standard deviation of what the item's cluster in the history S1 adds
    order: float  # and of what the last item of S1 adds; the item is the last single column
    num_tasks: int  # labels `label`, `label_2`, ..., each with a logit of its own
    conflict: (
        float  # standard deviation of an id part that tasks turn round, each in rows of its own
    )
    drift: float  # added to the logits over the rows of a split, from minus to plus this much
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
        check_setting_types(self)
        check_numbers("rows", self.rows, SPLITS, int)
        check_numbers("signal", self.signal, LOGIT_PARTS, float)
        if self.rows["train"] < 1:
            raise ConfigError("dataset.rows.train=0: the train split needs at least one row")
        for key in ("num_numeric", "num_single", "num_lists", "num_pairs", "data_seed"):
            check_range(key, getattr(self, key), 0)
        check_range("num_sequences", self.num_sequences, 0)
        check_range("sequence_length", self.sequence_length, 1)
        check_range("num_tasks", self.num_tasks, 1)
        check_range("drift", self.drift, 0)
        check_range("conflict", self.conflict, 0)
        if self.conflict and (self.num_tasks < 2 or not self.num_single):
            raise ConfigError(
                f"dataset.conflict={self.conflict}: needs several tasks and a column of one id a "
                "row, dataset.num_tasks from 2 and dataset.num_single from 1"
            )
        for key in ("interest", "order"):
            check_range(key, getattr(self, key), 0)
            if getattr(self, key) and not (self.num_sequences and self.num_single):
                raise ConfigError(
                    f"dataset.{key}={getattr(self, key)}: needs a history and an item, "
                    "dataset.num_sequences and dataset.num_single from 1"
                )
        if self.mean_lengths and len(self.mean_lengths) != self.num_lists:
            raise ConfigError(
                f"dataset.mean_lengths={list(self.mean_lengths)}: needed is one a list column, "
                f"dataset.num_lists={self.num_lists}, or none"
            )
        for length in self.mean_lengths:
            check_range("mean_lengths", length, 0.5)
        if self.num_single + self.num_lists < 1:
            raise ConfigError("dataset.num_single=0 and dataset.num_lists=0: needed is a column")
        check_range("mean_length", self.mean_length, 0.5)
        check_range("min_cardinality", self.min_cardinality, 1)
        check_range("max_cardinality", self.max_cardinality, self.min_cardinality, 2**31 - 1)
        check_range("zipf", self.zipf, 0, 4)
        check_range("missing", self.missing, 0, 1)
        check_range("positive_rate", self.positive_rate, 0.001, 0.999)

    def content_fields(self) -> Mapping[str, Any]:
        settings = asdict(self)
        if not self._has_history:  # rows are as they were before there were histories
            settings = {k: v for k, v in settings.items() if k not in ("interest", "order")}
        if not self.conflict:
            del settings["conflict"]
        return {"synthetic": VERSION, **settings}

    def reading_fields(self) -> Mapping[str, Any]:
        return {}

    def num_progress_units(self) -> int:
        return sum(self.rows.values())

    def make(self, folder: Path, advance: Advance) -> PreparedFiles:
        """Shards are made side by side: NumPy works outside Python's lock."""
        world = self._world
        names: dict[str, list[str]] = {split: [] for split in SPLITS if self.rows[split]}
        ceilings = {split: [OracleMetrics() for _ in self._labels] for split in names}
        with ThreadPoolExecutor(min(os.cpu_count() or 1, 4)) as pool:
            waiting = []
            for split in names:
                for first in range(0, self.rows[split], SHARD_ROWS):
                    names[split].append(shard_name(split, len(names[split])))
                    path, count = folder / names[split][-1], self.rows[split] - first
                    args = (world, split, first, min(count, SHARD_ROWS), path)
                    waiting.append((split, pool.submit(self._shard, *args, advance)))
            try:
                for split, shard in waiting:
                    for whole, part in zip(ceilings[split], shard.result()):
                        whole.merge(part)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        return PreparedFiles(
            names, {}, {split: self._reachable(own) for split, own in ceilings.items()}
        )

    def _reachable(self, ceilings: Sequence[OracleMetrics]) -> dict[str, float]:
        if len(ceilings) == 1:
            return ceilings[0].compute()
        return {
            f"{metric}/{label}": value
            for label, ceiling in zip(self._labels, ceilings)
            for metric, value in ceiling.compute().items()
        }

    def _shard(
        self, world: PlantedModel, split: str, first: int, count: int, path: Path, advance: Advance
    ) -> list[OracleMetrics]:
        ceilings = [OracleMetrics() for _ in self._labels]
        with ArrowWriter(path, self._arrow_schema) as writer:
            for start in range(0, count, CHUNK_ROWS):
                chunk = (first + start) // CHUNK_ROWS
                rng = np.random.default_rng([self.data_seed, 1 + SPLITS.index(split), chunk])
                own = min(CHUNK_ROWS, count - start)
                age_R = (first + start + np.arange(own)) / self.rows[split] if self.drift else None
                rows = world.draw_rows(rng, own, age_R)
                for ceiling, *task in zip(ceilings, rows.labels_TR, rows.probability_TR):
                    ceiling.update(*task)
                table = self._table(rows)
                for first_row in range(0, own, BLOCK_ROWS):
                    writer.write(table.slice(first_row, BLOCK_ROWS))
                advance(own)
        return ceilings

    def columns(self, learnt: Mapping[str, Any]) -> Columns:
        return Columns(
            labels=tuple(LabelColumn(name) for name in self._labels),
            numeric=tuple(
                NumericColumn(name, log1p=True, default=0.0) for name in self._numeric_names
            ),
            categorical=tuple(
                CategoricalColumn(
                    name,
                    size,
                    is_list=mean_length is not None,
                    mean_length=mean_length or 1.0,
                )
                for name, size, mean_length in self._id_columns
                if name.startswith("C")
            ),
            sequences=tuple(
                SequenceColumn(name, size, 2 * self.sequence_length, self._table_of(name))
                for name, size, _ in self._id_columns
                if name.startswith("S")
            ),
        )

    @property
    def _labels(self) -> list[str]:
        return ["label", *(f"label_{k + 1}" for k in range(1, self.num_tasks))]

    @property
    def _truths(self) -> list[str]:
        return [name.replace("label", "probability") for name in self._labels]

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
        means = list(self.mean_lengths) or [self.mean_length] * self.num_lists
        lengths = [None] * self.num_single + means
        pooled = [(f"C{f + 1}", int(size), lengths[f]) for f, size in enumerate(ordered)]
        length = float(self.sequence_length)
        names = [f"S{n + 1}" for n in range(self.num_sequences)]
        sequences = [(name, self.max_cardinality, length) for name in names]
        if self._has_history:
            sequences[0] = (names[0], pooled[self.num_single - 1][1], length)
        return [*pooled, *sequences]

    @property
    def _has_history(self) -> bool:
        return bool(self.interest or self.order)

    def _table_of(self, name: str) -> str:
        """The first sequence reads the table of the item whose history it is."""
        return f"C{self.num_single}" if self._has_history and name == "S1" else ""

    @cached_property
    def _world(self) -> PlantedModel:
        rng = np.random.default_rng([self.data_seed, 0])
        world = build_planted_model(
            rng,
            num_ids=[size for _, size, _ in self._id_columns],
            mean_lengths=[mean_length for _, _, mean_length in self._id_columns],
            zipf=self.zipf,
            num_numeric=self.num_numeric,
            num_pairs=self.num_pairs,
            item=self.num_single - 1 if self._has_history else None,
            sequence=self.num_single + self.num_lists if self._has_history else None,
        )
        return calibrate(
            world,
            rng,
            signal=(self.signal["dense"], self.signal["ids"], self.signal["pairs"]),
            positive_rate=self.positive_rate,
            missing=self.missing,
            num_tasks=self.num_tasks,
            drift=self.drift,
            history=(self.interest, self.order),
            conflict=self.conflict,
        )

    @property
    def _arrow_schema(self) -> pa.Schema:
        ids = pa.field("item", pa.int32(), nullable=False)
        return pa.schema(
            [
                *(pa.field(name, pa.int8(), nullable=False) for name in self._labels),
                # the truth; never an input
                *(pa.field(name, pa.float32(), nullable=False) for name in self._truths),
                *(pa.field(name, pa.int32()) for name in self._numeric_names),
                *(
                    pa.field(name, pa.int32() if length is None else pa.list_(ids), nullable=False)
                    for name, _, length in self._id_columns
                ),
            ]
        )

    def _table(self, rows: PlantedRows) -> pa.Table:
        return pa.Table.from_arrays(list(self._arrays(rows)), schema=self._arrow_schema)

    def _arrays(self, rows: PlantedRows) -> Iterator[pa.Array]:
        yield from map(pa.array, rows.labels_TR)
        yield from map(pa.array, rows.probability_TR)
        for numeric_R, missing_R in zip(rows.numeric_DR, rows.missing_DR):
            yield pa.array(numeric_R, mask=missing_R if missing_R.any() else None)
        for ids, offsets in zip(rows.ids, rows.offsets):
            if offsets is None:
                yield pa.array(ids)
            else:
                item = pa.field("item", pa.int32(), nullable=False)
                yield pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids), pa.list_(item))


recipe = Synthetic
