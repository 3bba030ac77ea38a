"""Builds rows from partitions of encoded events; threads work one partition ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from runner.data.core.look_ahead import look_ahead
from runner.data.interactions.declaration import HISTORY, LABEL, TIME_GAP, Interactions
from runner.data.interactions.histories import Events, Rows, history_columns, make_rows
from runner.data.interactions.negatives import DrawnItems
from runner.data.interactions.partitions import read_partition
from runner.data.interactions.seen import find_seen
from runner.data.prepare.recipe import SPLITS
from runner.data.prepare.shards import BLOCK_ROWS
from runner.data.read.seen_items import ITEM, pool_name
from runner.machine.cores import usable_cores

OWN = ".event "  # prefix of the columns of a partition that are not features
MAX_THREADS = 8


@dataclass(frozen=True)
class RowBuilder:
    """Builds the rows of a partition.

    Args:
        sources: sequence -> the column with its values.
        left_out: columns that rows do not have.
        with_seen: also return, before held-out rows and by `pool_name`, their users' seen items.
        draws: of items for rows with label 0.
        find_rows: finds the events of a split that become rows, and the history of each.
    """

    settings: Interactions
    sources: Mapping[str, str]
    left_out: frozenset[str] = frozenset()
    splits: Sequence[str] = SPLITS
    with_seen: bool = False
    draws: DrawnItems | None = None
    find_rows: Callable[[Events, int, Interactions], Rows] = make_rows

    def build(self, path: Path) -> list[tuple[str, pa.Table]]:
        """Return split and rows, in blocks, of all users of a partition; its file is removed."""
        encoded = read_partition(path)
        event_columns = [n for n in encoded.column_names if n.startswith(OWN)]
        columns = {n.removeprefix(OWN): encoded[n].to_numpy() for n in event_columns}
        # stable: rows with equal times keep their order
        order_E = np.lexsort((columns["time"], columns["user"]))
        columns = {name: values[order_E] for name, values in columns.items()}
        is_positive_E, is_target_E = columns["positive"] > 0, columns["target"] > 0
        users_E, times_E, split_E = (columns[name] for name in ("user", "time", "split"))
        events = Events(users_E, times_E, split_E, is_positive_E, is_target_E)
        order = pa.array(order_E)
        ids = {
            n: encoded[source].take(order).combine_chunks() for n, source in self.sources.items()
        }
        touched = self.draws.touched(users_E, columns["item"]) if self.draws else None
        encoded = encoded.select(
            [n for n in encoded.column_names if n not in {*event_columns, *self.left_out}]
        )
        gap_name = f"{HISTORY}_{TIME_GAP}" if self.settings.time_gap else None
        blocks = []
        for name in self.splits:
            code = SPLITS.index(name)
            rows = self.find_rows(events, code, self.settings)
            has_seen = self.with_seen and name != "train"
            seen = find_seen(events, code, rows.row_R) if has_seen else None
            if seen is not None and len(rows.row_R):
                items = pa.array(ids[HISTORY]).take(pa.array(seen.pool))
                blocks.append((pool_name(name), pa.table({ITEM: items})))
            for first in range(0, len(rows.row_R), 4 * BLOCK_ROWS):
                part = rows.take(slice(first, first + 4 * BLOCK_ROWS))
                block = encoded.take(pa.array(order_E[part.row_R]))
                for column, lists in history_columns(part, times_E, ids, gap_name).items():
                    block = block.append_column(column, lists)
                if seen is not None:
                    block = seen.append_slices(block, first)
                if self.draws is not None and touched is not None:
                    chosen = (self.settings.item, LABEL)
                    block = self.draws.append(
                        block, chosen, name, part.row_R, users_E[part.row_R], touched
                    )
                blocks.append((name, block))
        path.unlink()
        return blocks


def find_sources(settings: Interactions, encoded: set[str]) -> dict[str, str]:
    """Return sequence -> the encoded column with its ids."""
    raw = raw_sources(settings)
    return {column: name if name in encoded else column for column, name in raw.items()}


def raw_sources(settings: Interactions) -> dict[str, str]:
    """Return sequence -> the raw column with its ids."""
    return {HISTORY: settings.item} | {f"{HISTORY}_{name}": name for name in settings.sequences}


def build_in_order(builder: RowBuilder, paths: list[Path]) -> Iterator[list[tuple[str, pa.Table]]]:
    """Yield the rows of each partition in order, made by threads that are one partition ahead."""
    num_threads = min(usable_cores(), MAX_THREADS)
    with ThreadPoolExecutor(num_threads) as pool:
        futures = (pool.submit(builder.build, path) for path in paths)
        for future in look_ahead(futures, num_threads + 1):
            yield future.result()
