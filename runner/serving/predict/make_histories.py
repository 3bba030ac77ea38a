"""Makes a row with the history of each user of some events, to predict their next items.

R rows of a chunk.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from runner.config.targets import allowed_packages
from runner.data.columns.column_specs import Declared
from runner.data.columns.encode import encode_chunk
from runner.data.columns.vocabulary import FIRST_VALUE_ID
from runner.data.files.bad_rows import SKIP_HINT, BadRows, RowValidator, report_bad_rows
from runner.data.files.read_files import RowChunk, decode_dictionaries
from runner.data.interactions.build_rows import OWN, RowBuilder, build_in_order, raw_sources
from runner.data.interactions.declaration import INTERACTIONS, Interactions
from runner.data.interactions.histories import latest_rows
from runner.data.interactions.partitions import PartitionWriter
from runner.data.interactions.rewrite import event_declaration
from runner.data.interactions.scan import explain_left_out, read_events
from runner.errors import DataError, UserError, already_exists, system_errors
from runner.launch import print_status
from runner.rundir.find_run import find_run
from runner.rundir.json_files import sync_path
from runner.serving.predict.plan import compose_for_prediction, describe_unread, text_settings
from runner.serving.rows.encode import Transforms
from runner.serving.rows.input import InputTable
from runner.serving.rows.transforms import read_transforms
from runner.serving.write_aside import private_folder_beside


@dataclass(frozen=True)
class EventTable(InputTable):
    """Files of events, read as the training reads its own."""

    @property
    def events(self) -> Interactions:
        assert self.features.interactions is not None
        return self.features.interactions

    @property
    def columns_read(self) -> list[str]:
        return list(dict.fromkeys([*self.features.columns, *self.events.columns]))

    def needed_by(self, column: str) -> str:
        return "the events that the run has learnt from have"


def write_histories(
    run: str | Path,
    inputs: Sequence[str],
    out: Path,
    *,
    overrides: Sequence[str] = (),
    allow: Sequence[str] = (),
) -> int:
    """Write a row for each user of some events, with the columns that `predict` reads.

    As in the run, a history is the newest `max_length` positive events with known items, of the
    last session if there are sessions. Other columns are those of the user's last event; the item
    is empty, since it is to be predicted.

    Args:
        run: a run on interactions, or a folder in which `find_run` finds one.
        inputs: files, folders, globs or URLs of events with the columns of the training.
        out: the new Parquet file.
        overrides: settings that differ from the run's, such as `dataset.on_bad_rows=skip`.
        allow: packages that a `_target_` may name besides ours.

    Returns:
        The number of rows.

    Raises:
        UserError: for a run whose rows were not made of events, an `out` that exists or cannot be
            written, and for events that cannot be read.
    """
    if out.exists():
        raise UserError(already_exists("--out", out))
    folder = find_run(run)
    dataset = compose_for_prediction(folder, overrides, allowed_packages(allow)).config["dataset"]
    transforms = read_transforms(dataset, folder)
    if transforms.declared.interactions is None:
        raise UserError(
            f"{folder}: its rows were not made of events, so there are no histories to make; "
            "`predict` scores rows with the columns of its training"
        )
    declared, places = event_declaration(transforms.declared), transforms.declared.places
    features = replace(declared.features, places={INTERACTIONS: places[INTERACTIONS]})
    table = EventTable(
        path=list(inputs),
        schema=None,
        features=features,
        **text_settings(dataset, transforms.declared.places, inputs),
    )
    table.check()
    for note in describe_unread(inputs, table.format):
        print_status(note)
    with system_errors(f"--out {out}: cannot be written"), private_folder_beside(out) as scratch:
        return _write(_iterate_rows(table, transforms, scratch), scratch, out)


def _write(blocks: Iterator[pa.Table], scratch: Path, out: Path) -> int:
    """Write blocks of rows to a file, which appears when complete; return its number of rows.

    Raises:
        UserError: if something has that name by then.
    """
    path, writer, num_rows = scratch / "rows.parquet", None, 0
    for block in blocks:
        writer = writer or pq.ParquetWriter(path, block.schema)
        writer.write_table(block)
        num_rows += block.num_rows
    assert writer is not None  # or there was an error
    writer.close()
    sync_path(path)
    if os.path.lexists(out):  # another command has written it meanwhile
        raise UserError(f"--out {out}: exists by now; nothing was written. Name another")
    os.rename(path, out)
    sync_path(out.parent)
    return num_rows


def _iterate_rows(table: EventTable, transforms: Transforms, folder: Path) -> Iterator[pa.Table]:
    """Yield the rows of all users in blocks.

    Raises:
        DataError: for the first bad row or too many skipped ones, and if no row is left.
    """
    bad = BadRows(table.max_bad_rows if table.skips_bad_rows else 0)
    num_read, num_unknown, users = 0, 0, np.empty(0, np.int64)
    writer = PartitionWriter(folder, "events", num_rows=table.num_rows_estimate())
    for file in table.files["train"]:
        for chunk in table.read_chunks(file, table.columns_read):
            bad.add_unreadable(chunk)
            if chunk.table is not None:
                num_read += chunk.table.num_rows
                unknown, chunk_users = _write_events(writer, chunk, table, transforms, bad)
                num_unknown += unknown
                users = np.union1d(users, chunk_users)
    builder = RowBuilder(
        table.events, raw_sources(table.events), splits=("train",), find_rows=latest_rows
    )
    num_rows, item = 0, table.events.item
    for blocks in build_in_order(builder, writer.close()):
        for _, rows in blocks:
            place = rows.column_names.index(item)
            no_items = pa.nulls(rows.num_rows, rows.schema.field(item).type)
            num_rows += rows.num_rows
            yield rows.set_column(place, item, no_items)
    report_bad_rows(vars(bad))
    if num_unknown:
        print(
            f"events of items that the run does not know, which are left out: {num_unknown:,}",
            file=sys.stderr,
        )
    if num_without := len(users) - num_rows:
        counts = f"that counts{explain_left_out(table.events)} is of any {item} that the run knows"
        owner = "theirs" if table.events.session_gap_s is None else "their last session"
        print(
            f"users without a row: {num_without:,} of {len(users):,}, since no event of {owner} "
            f"{counts}",
            file=sys.stderr,
        )
    if not num_read and not bad.count:
        raise DataError(f"{', '.join(map(str, table.files['train']))}: has no rows")
    if not num_rows:
        left_out = explain_left_out(table.events)
        raise DataError(
            f"no event has a {item} that the run knows{left_out}, so there are no histories"
        )


def _write_events(
    writer: PartitionWriter,
    chunk: RowChunk,
    table: EventTable,
    transforms: Transforms,
    bad: BadRows,
) -> tuple[int, np.ndarray]:
    """Write the events of a chunk with their raw columns to the partitions of their users.

    Returns:
        The number of events left out since the run does not know their items, and the distinct
        users of all good rows.
    """
    assert chunk.table is not None
    settings, features = table.events, table.features
    validator = RowValidator.for_chunk(chunk, table.skips_bad_rows, SKIP_HINT)
    events = read_events(chunk, features, settings, validator)
    only_item = Declared(labels=(), ids=(next(s for s in features.ids if s.name == settings.item),))
    ids = encode_chunk(chunk, only_item, transforms.fitted, validator)[settings.item].to_numpy()
    bad.add_rejected(validator.bad_R, validator.messages)
    is_known_R = ids >= FIRST_VALUE_ID if only_item.ids[0].encode == "vocabulary" else ids >= 0
    num_unknown = int((~is_known_R & ~validator.bad_R).sum())
    usable_R = is_known_R & ~validator.bad_R
    if settings.below == "drop":
        usable_R &= events.positive_R
    raw = decode_dictionaries(chunk.table.select(list(features.columns)))
    columns = {"user": events.users_R, **events.columns(), "split": np.zeros(len(ids), np.int8)}
    for name, values_R in columns.items():
        raw = raw.append_column(OWN + name, pa.array(values_R))
    rows = np.flatnonzero(usable_R)
    writer.write(raw.take(pa.array(rows)), events.users_R[rows])
    return num_unknown, np.unique(events.users_R[~validator.bad_R])
