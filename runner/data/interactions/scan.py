"""The first pass over a table of events: which ones are kept, and the split of each.

Shape legend: R rows of a chunk, E events of a partition, N rows of all files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from runner.data.columns.column_specs import Declared
from runner.data.columns.encode import find_places, read_numbers
from runner.data.columns.raw_ids import read_ids
from runner.data.columns.split_setting import with_spellings
from runner.data.columns.times import parse_times
from runner.data.columns.vocabulary import ValueCounter
from runner.data.files.bad_rows import SKIP_HINT, BadRows, RowValidator
from runner.data.files.read_files import RowChunk, as_texts, single_array
from runner.data.interactions.declaration import Interactions
from runner.data.interactions.partitions import PartitionWriter, read_arrays
from runner.data.interactions.protocols import assign_protocol, find_core
from runner.data.prepare.recipe import SPLITS
from runner.data.tabular.parts import RewritableTable, check_num_rows, iterate_split_chunks
from runner.errors import DataError

LEFT_OUT = -1  # instead of the split of a row


@dataclass(frozen=True)
class RawEvents:
    """The events of a chunk before encoding."""

    users_R: np.ndarray  # int64
    items_R: np.ndarray  # int64
    times_R: np.ndarray  # float64, seconds
    positive_R: np.ndarray  # bool, allowed in histories
    target_R: np.ndarray  # bool: of a type of which rows are made

    def columns(self) -> dict[str, np.ndarray]:
        """Return the columns on which the history of an event depends.

        Flags take a byte each, so that they are read from a file without a copy.
        """
        flags = {"positive": self.positive_R, "target": self.target_R}
        return {"time": self.times_R, **{n: flag_R.astype(np.int8) for n, flag_R in flags.items()}}


def read_events(
    chunk: RowChunk, declared: Declared, settings: Interactions, validator: RowValidator
) -> RawEvents:
    """Read user, item and time of the rows of a chunk.

    Raises:
        DataError: for a row without a user, an item, a time or a rating, unless bad rows are
            skipped.
    """
    table = chunk.table
    assert table is not None
    by_name = {spec.name: spec for spec in declared.ids}
    keys = []
    for name in (settings.user, settings.item):
        ids = read_ids(by_name[name], table, validator)
        validator.reject(name, ids.missing, lambda _: "is missing: an event has a user and an item")
        keys.append(ids.values)
    times_R = parse_times(single_array(table, settings.time), settings.time_unit)
    validator.reject(settings.time, ~np.isfinite(times_R), lambda _: "is missing, or no time")
    positive_R, target_R = np.ones((2, table.num_rows), bool)
    if settings.rating is not None:
        ratings_R, missing_R = read_numbers(table, settings.rating, None, validator)
        validator.reject(settings.rating, missing_R, lambda _: "is missing")
        positive_R = ratings_R >= float(settings.positive or 0)
    if settings.event is not None:
        types = as_texts(single_array(table, settings.event))
        wanted_R = find_places(types, with_spellings(settings.predict)).is_valid()
        target_R = wanted_R.to_numpy(zero_copy_only=False)
    return RawEvents(keys[0], keys[1], times_R, positive_R, target_R)


def scan_events(
    table: RewritableTable,
    declared: Declared,
    settings: Interactions,
    folder: Path,
    split_starts: dict[str, float],
    bad: BadRows,
    advance: Callable[[int], None],
) -> np.ndarray:
    """Return the split of every row of all files, an index of SPLITS or LEFT_OUT: [N] int8.

    Memory holds one byte per row, with `min_count` eight more, and one partition.

    Args:
        declared: the columns of events.
        folder: for temporary files.
        split_starts: as `iterate_split_chunks` takes them.
        bad: counts the rows that cannot be used.

    Raises:
        DataError: for the first bad row, or too many skipped ones, and if no event is left.
    """
    writer = PartitionWriter(folder, "scan", num_rows=table.num_rows_estimate())
    items = ValueCounter()
    num_rows = 0
    keys = [spec for spec in declared.ids if spec.name in (settings.user, settings.item)]
    columns = list(dict.fromkeys([*(c for spec in keys for c in spec.columns), *settings.columns]))
    for chunk, masks in iterate_split_chunks(table, columns, split_starts):
        bad.add_unreadable(chunk)
        if chunk.table is not None:
            validator = RowValidator.for_chunk(chunk, table.skips_bad_rows, SKIP_HINT)
            events = read_events(chunk, declared, settings, validator)
            bad.add_rejected(validator.bad_R, validator.messages)
            _write(writer, items, settings, events, masks, ~validator.bad_R, num_rows)
        num_rows += chunk.num_rows
        advance(chunk.num_rows)
    paths = writer.close()
    split_N = np.full(num_rows, LEFT_OUT, np.int8)
    kept_by_path = _find_kept(paths, items, settings)
    for path, kept_E in zip(paths, kept_by_path):
        users, times, rows, positive, target, splits = (
            column[kept_E]
            for column in read_arrays(path, ("user", "time", "row", "positive", "target", "split"))
        )
        order_E = np.lexsort((times, users))  # stable: rows with equal times keep their order
        target_E = (target & positive)[order_E]
        split_N[rows[order_E]] = assign_protocol(
            table.row_split, table.split_seed, users[order_E], target_E, splits[order_E]
        )
        path.unlink()
    if not any(map(np.any, kept_by_path)):
        first = (
            f"; {bad.count:,} bad rows are skipped, first {bad.examples[0]}" if bad.count else ""
        )
        raise DataError(
            f"no event is left{explain_left_out(settings)}{first}; change the settings that leave "
            "events out, or give more events"
        )
    return split_N


def explain_left_out(settings: Interactions) -> str:
    """Return, for a message, the settings by which events are left out."""
    parts = [f"min_count {settings.min_count}"] if settings.min_count else []
    if settings.rating is not None:
        parts.append(f"{settings.rating} from {settings.positive:g}")
    if settings.predict:
        parts.append(f"{settings.event} in {list(settings.predict)}")
    return f" (interactions: {', '.join(parts)})" if parts else ""


def _write(
    writer: PartitionWriter,
    items: ValueCounter,
    settings: Interactions,
    events: RawEvents,
    masks: dict[str, np.ndarray],
    usable_R: np.ndarray,
    first_row: int,
) -> None:
    """Write the usable events of a chunk; rows of no split are left out."""
    split_R = np.full(len(usable_R), LEFT_OUT, np.int8)
    for name, mask_R in masks.items():
        split_R[mask_R[: len(usable_R)]] = SPLITS.index(name)
    usable_R = usable_R & (split_R >= 0)
    if settings.below == "drop":
        usable_R &= events.positive_R
    rows = np.flatnonzero(usable_R)
    columns = {
        "user": events.users_R,
        "item": events.items_R,
        **events.columns(),
        "split": split_R,
        "row": first_row + np.arange(len(split_R)),
    }
    items.add(events.items_R[rows])
    writer.write(pa.table({n: c[rows] for n, c in columns.items()}), events.users_R[rows])


def _find_kept(paths: list[Path], items: ValueCounter, settings: Interactions) -> list[np.ndarray]:
    """Return for each partition which events have a user and an item with enough events."""
    least = dict(settings.min_count)
    if not least:
        return [np.ones(len(next(read_arrays(path, ["split"]))), bool) for path in paths]
    known = items.frequent_values(1)
    users_of, items_of = [], []
    for path in paths:
        users_E, items_E = read_arrays(path, ("user", "item"))
        users_of.append(np.unique(users_E, return_inverse=True)[1].astype(np.int32))
        items_of.append(np.searchsorted(known, items_E).astype(np.int32))
    return find_core(users_of, items_of, least.get("user", 1), least.get("item", 1))


def iterate_kept_chunks(
    table: RewritableTable, columns: list[str], split_N: np.ndarray, bad: BadRows | None = None
) -> Iterator[tuple[RowChunk, np.ndarray]]:
    """Yield all readable chunks, and the split of each of their rows: [R] int8.

    Args:
        split_N: as `scan_events` returns it.
        bad: counts the kept events in all other chunks; None: another pass counts them.

    Raises:
        DataError: for too many bad rows, and if the rows differ from those of `scan_events`.
    """
    first = 0
    files = [file for split_files in table.files.values() for file in split_files]
    for file in files:
        for chunk in table.read_chunks(file, columns):
            split_R = split_N[first : first + chunk.num_rows]
            first += chunk.num_rows
            if chunk.table is not None:
                yield chunk, split_R
            elif bad is not None and (kept_R := split_R >= 0).any():
                bad.add(int(kept_R.sum()), [chunk.problem])
    ends = dict.fromkeys([str(files[0]), str(files[-1])])
    check_num_rows(" to ".join(ends), first, len(split_N))
