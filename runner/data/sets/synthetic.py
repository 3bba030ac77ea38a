"""Criteo-shaped rows drawn from a known model, whose best reachable metrics are known."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import pyarrow as pa

from runner.config_key import Key
from runner.data.core.argument_types import (
    Count,
    Few,
    FromZero,
    MeanLength,
    Prefetch,
    Rest,
    Seed,
    Share,
    Spread,
    WindowRows,
    Workers,
    check_names,
    check_settings,
)
from runner.data.core.blocks import ArrowWriter
from runner.data.core.columns import (
    CategoricalColumn,
    Columns,
    LabelColumn,
    NumericColumn,
    SequenceColumn,
    narrowest_id_type,
)
from runner.data.prepare.export import export_dataset
from runner.data.prepare.progress import Advance
from runner.data.prepare.recipe import SPLITS, PreparedFiles, Recipe, open_recipe
from runner.data.prepare.shards import BLOCK_ROWS, SHARD_ROWS, shard_name
from runner.data.sets.oracle_metrics import OracleMetrics
from runner.data.sets.planted_model import PlantedModel, PlantedRows, build_planted_model, calibrate
from runner.errors import ConfigError
from runner.parts import dataset_option

if TYPE_CHECKING:
    from runner.data.read.parquet_dataset import ParquetDataset

VERSION = 1  # to be raised when the same settings give other rows
CHUNK_ROWS = 8 * BLOCK_ROWS  # drawn at once, each chunk by its own generator
LOGIT_PARTS = ("dense", "ids", "pairs")


@dataset_option
def synthetic(
    *,
    window_rows: WindowRows,
    prefetch: Prefetch,
    workers: Workers,
    write_to: str | None,
    rest: Rest = "short",
    **settings: Any,
) -> ParquetDataset:
    """Open the dataset of the option `synthetic`; settings are the fields of `Synthetic`."""
    planted = recipe(**settings)
    if write_to:
        export_dataset(planted, Path(os.path.expanduser(write_to)))
    return open_recipe(
        planted, window_rows=window_rows, prefetch=prefetch, workers=workers, rest=rest
    )


@dataclass(frozen=True)
class Synthetic(Recipe):
    """Settings of the rows and of the model that draws them (`runner.data.prepare.recipe`).

    No setting is a path. The item of a row is the id of its last column with one id a row.
    """

    rows: Mapping[str, FromZero]  # by split
    num_numeric: Few
    num_single: Few  # categorical columns with one id a row
    num_lists: Few  # categorical columns with lists; lengths are uniform from 0 to 2 x mean_length
    mean_length: MeanLength
    mean_lengths: Sequence[MeanLength]  # of every list column; empty: mean_length for all
    num_sequences: Few  # columns S1, ...: ids in time order
    sequence_length: Count  # the mean; lengths are uniform from 0 to twice as much
    interest: Spread  # standard deviation of the logit's part of the item's cluster in the history
    order: Spread  # standard deviation of the logit's part of the history's last item
    # labels `label`, `label_2`, ..., each with a logit of its own
    num_tasks: Annotated[int, Key(ge=1, le=10_000)]
    conflict: Spread  # standard deviation of an id part whose sign depends on the task and the row
    drift: Spread  # the logit moves from minus this to plus this over the rows of a split
    min_cardinality: Count  # of the categorical columns, which are evenly spaced in logarithm
    max_cardinality: Count
    zipf: Annotated[float, Key(ge=0, le=4)]
    missing: Share  # share of missing numeric values
    positive_rate: Annotated[float, Key(ge=0.001, le=0.999)]
    signal: Mapping[str, Spread]  # standard deviation of each part of the logit
    num_pairs: Few
    data_seed: Seed

    name = "synthetic"

    def check(self) -> None:
        check_settings(self)
        check_names("rows", self.rows, SPLITS)
        check_names("signal", self.signal, LOGIT_PARTS)
        if self.rows["train"] < 1:
            raise ConfigError("dataset.rows.train=0: the train split needs at least one row")
        if self.conflict and (self.num_tasks < 2 or not self.num_single):
            raise ConfigError(
                f"dataset.conflict={self.conflict}: needs several tasks and a column with one id a "
                "row, that is dataset.num_tasks from 2 and dataset.num_single from 1"
            )
        for key in ("interest", "order"):
            if getattr(self, key) and not (self.num_sequences and self.num_single):
                raise ConfigError(
                    f"dataset.{key}={getattr(self, key)}: needs a history and an item, "
                    "that is dataset.num_sequences and dataset.num_single from 1"
                )
        if self.mean_lengths and len(self.mean_lengths) != self.num_lists:
            raise ConfigError(
                f"dataset.mean_lengths={list(self.mean_lengths)}: expected none, or one for each "
                f"list column, dataset.num_lists={self.num_lists}"
            )
        if self.num_single + self.num_lists < 1:
            raise ConfigError(
                "dataset.num_single=0 and dataset.num_lists=0: at least one column is needed"
            )
        if self.max_cardinality < self.min_cardinality:
            raise ConfigError(
                f"dataset.max_cardinality={self.max_cardinality}: must be at least "
                f"dataset.min_cardinality={self.min_cardinality}"
            )

    def content_fields(self) -> Mapping[str, Any]:
        settings = asdict(self)
        if not self._has_history:  # their rows are those of versions without these settings
            settings = {k: v for k, v in settings.items() if k not in ("interest", "order")}
        if not self.conflict:
            del settings["conflict"]
        return {"synthetic": VERSION, **settings}

    def num_progress_units(self) -> int:
        return sum(self.rows.values())

    def make(self, folder: Path, advance: Advance) -> PreparedFiles:
        """Write the shards in several threads: NumPy releases Python's lock."""
        model = self._planted_model
        names: dict[str, list[str]] = {split: [] for split in SPLITS if self.rows[split]}
        oracles = {split: [OracleMetrics() for _ in self._label_names] for split in names}
        with ThreadPoolExecutor(min(os.cpu_count() or 1, 4)) as pool:
            futures = []
            for split in names:
                for first in range(0, self.rows[split], SHARD_ROWS):
                    names[split].append(shard_name(split, len(names[split])))
                    path = folder / names[split][-1]
                    count = min(self.rows[split] - first, SHARD_ROWS)
                    args = (model, split, first, count, path)
                    futures.append((split, pool.submit(self._write_shard, *args, advance)))
            try:
                for split, future in futures:
                    for total, part in zip(oracles[split], future.result()):
                        total.merge(part)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        reachable = {split: self._reachable_metrics(parts) for split, parts in oracles.items()}
        return PreparedFiles(names, {}, reachable)

    def _reachable_metrics(self, oracles: Sequence[OracleMetrics]) -> dict[str, float]:
        if len(oracles) == 1:
            return oracles[0].compute()
        return {
            f"{metric}/{label}": value
            for label, oracle in zip(self._label_names, oracles)
            for metric, value in oracle.compute().items()
        }

    def _write_shard(
        self, model: PlantedModel, split: str, first: int, count: int, path: Path, advance: Advance
    ) -> list[OracleMetrics]:
        """Draw and write `count` rows of a split, from its row `first` on."""
        oracles = [OracleMetrics() for _ in self._label_names]
        with ArrowWriter(path, self._arrow_schema) as writer:
            for start in range(0, count, CHUNK_ROWS):
                chunk = (first + start) // CHUNK_ROWS
                rng = np.random.default_rng([self.data_seed, 1 + SPLITS.index(split), chunk])
                size = min(CHUNK_ROWS, count - start)
                age_R = (first + start + np.arange(size)) / self.rows[split] if self.drift else None
                rows = model.draw_rows(rng, size, age_R)
                for oracle, *task in zip(oracles, rows.labels_TR, rows.probability_TR):
                    oracle.update(*task)
                arrays = list(self._iterate_arrays(rows))
                table = pa.Table.from_arrays(arrays, schema=self._arrow_schema)
                for first_row in range(0, size, BLOCK_ROWS):
                    writer.write(table.slice(first_row, BLOCK_ROWS))
                advance(size)
        return oracles

    def columns(self, fitted: Mapping[str, Any]) -> Columns:
        # a history shares the table of its items
        tables = {"S1": f"C{self.num_single}"} if self._has_history else {}
        return Columns(
            labels=tuple(LabelColumn(name) for name in self._label_names),
            numeric=tuple(
                NumericColumn(name, log1p=True, default=0.0) for name in self._numeric_names
            ),
            categorical=tuple(
                CategoricalColumn(
                    name, size, is_list=mean_length is not None, mean_length=mean_length or 1.0
                )
                for name, size, mean_length in self._id_columns
                if name.startswith("C")
            ),
            sequences=tuple(
                SequenceColumn(name, size, 2 * self.sequence_length, tables.get(name, ""))
                for name, size, _ in self._id_columns
                if name.startswith("S")
            ),
        )

    @property
    def _label_names(self) -> list[str]:
        return ["label", *(f"label_{k + 1}" for k in range(1, self.num_tasks))]

    @property
    def _numeric_names(self) -> list[str]:
        return [f"I{d + 1}" for d in range(self.num_numeric)]

    @property
    def _id_columns(self) -> list[tuple[str, int, float | None]]:
        """Name, cardinality and mean length of every column; None for one id a row.

        Cardinalities of list columns are spread over the whole range.
        """
        count = self.num_single + self.num_lists
        sizes = np.geomspace(self.min_cardinality, self.max_cardinality, count).round().astype(int)
        is_list = np.zeros(count, bool)
        list_indices = (np.arange(self.num_lists) + 0.5) * count / max(self.num_lists, 1)
        is_list[list_indices.astype(int)] = True
        ordered = [*sizes[~is_list], *sizes[is_list]]
        mean_lengths = list(self.mean_lengths) or [self.mean_length] * self.num_lists
        lengths = [None] * self.num_single + mean_lengths
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

    @cached_property
    def _planted_model(self) -> PlantedModel:
        rng = np.random.default_rng([self.data_seed, 0])
        model = build_planted_model(
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
            model,
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
        probabilities = [name.replace("label", "probability") for name in self._label_names]
        return pa.schema(
            [
                *(pa.field(name, pa.int8(), nullable=False) for name in self._label_names),
                # the truth, which is never a feature
                *(pa.field(name, pa.float32(), nullable=False) for name in probabilities),
                *(pa.field(name, pa.int32()) for name in self._numeric_names),
                *(
                    pa.field(name, _id_type(size, is_list=length is not None), nullable=False)
                    for name, size, length in self._id_columns
                ),
            ]
        )

    def _iterate_arrays(self, rows: PlantedRows) -> Iterator[pa.Array]:
        yield from map(pa.array, rows.labels_TR)
        yield from map(pa.array, rows.probability_TR)
        for numeric_R, missing_R in zip(rows.numeric_DR, rows.missing_DR):
            yield pa.array(numeric_R, mask=missing_R if missing_R.any() else None)
        for wide, offsets, (_, size, _) in zip(rows.ids, rows.offsets, self._id_columns):
            ids = pa.array(wide.astype(narrowest_id_type(size)))
            if offsets is None:
                yield ids
            else:
                yield pa.ListArray.from_arrays(pa.array(offsets), ids, _id_type(size, is_list=True))


def _id_type(size: int, *, is_list: bool) -> pa.DataType:
    type_ = pa.from_numpy_dtype(narrowest_id_type(size))
    return pa.list_(pa.field("item", type_, nullable=False)) if is_list else type_


recipe = Synthetic
