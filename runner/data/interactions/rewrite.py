"""Rewrites a table of events into the cache as rows with histories.

Three passes over the files: one decides which events are kept and splits them, one fits the
transforms, and one encodes each event once. Histories are then gathered from encoded events,
partition by partition.

Shape legend: R rows of a chunk, E events of a partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa

from runner.data.columns.column_specs import Declared, IdSpec
from runner.data.columns.column_types import id_types
from runner.data.columns.encode import encode_chunk
from runner.data.columns.split_setting import describe_split
from runner.data.core.fitted import FittedTransforms
from runner.data.files.bad_rows import SKIP_HINT, BadRows, RowValidator
from runner.data.files.read_files import decode_dictionaries
from runner.data.interactions.build_rows import (
    OWN,
    RowBuilder,
    build_in_order,
    find_sources,
    raw_sources,
)
from runner.data.interactions.declaration import (
    GAP_BUCKETS,
    HISTORY,
    LABEL,
    TIME_GAP,
    Interactions,
    with_histories,
)
from runner.data.interactions.negatives import Catalogue, DrawnItems
from runner.data.interactions.partitions import PartitionWriter
from runner.data.interactions.scan import (
    explain_left_out,
    iterate_kept_chunks,
    read_events,
    scan_events,
)
from runner.data.interactions.seen import SeenWriter
from runner.data.prepare.recipe import SPLITS
from runner.data.prepare.shards import ShardWriter
from runner.data.prepare.shuffle import ShuffleWriter
from runner.data.tabular.encode_parts import MeanLengths
from runner.data.tabular.fit import TransformFitter
from runner.data.tabular.fit_parts import find_split_starts
from runner.data.tabular.parts import RewritableTable
from runner.errors import DataError


def event_declaration(declared: Declared) -> Declared:
    """Return the columns of a schema that events contain: no histories, and no made label.

    A sequence with a separate table is read as ids of the sequence's name.
    """
    settings = declared.interactions
    assert settings is not None
    histories, known = set(settings.sequence_names), {spec.name for spec in declared.ids}
    ids: list[IdSpec] = [spec for spec in declared.ids if spec.name not in histories]
    by_name = {spec.name: spec for spec in declared.ids}
    ids += [
        replace(by_name[f"{HISTORY}_{name}"], column=name, max_length=0)
        for name in settings.sequences
        if name not in known
    ]
    labels = () if settings.makes_label else declared.labels
    return replace(declared, labels=labels, ids=tuple(ids), places={})


def rewrite_events(
    table: RewritableTable, folder: Path, advance: Callable[[int], None]
) -> tuple[dict[str, list[str]], FittedTransforms, BadRows]:
    """Write the rows of all splits, with histories, and the fitted transforms, into a folder.

    Args and Returns are those of `runner.data.tabular.rewrite.rewrite_table`.

    Raises:
        DataError: for the first bad row, or too many skipped ones, and for a split without a row.
    """
    settings = table.declared.interactions
    assert settings is not None
    declared = event_declaration(table.declared)
    bad = BadRows(table.max_bad_rows if table.skips_bad_rows else 0)
    trained = FittedTransforms.load(Path(table.learnt)) if table.learnt else None
    if trained is not None:
        starts = trained.times
    else:
        with TemporaryDirectory(dir=folder) as parts:
            starts = find_split_starts(table, Path(parts), advance=advance)
    split_N = scan_events(table, declared, settings, folder, starts, bad, advance)
    fitted = trained or _fit(table, declared, settings, split_N, advance)
    fitted.times = starts
    paths, draws = _encode(table, declared, settings, fitted, split_N, folder, bad, advance)
    sources = find_sources(settings, {spec.name for spec in declared.ids})
    left_out = set(sources.values()) - {s.name for s in table.declared.ids if not s.is_sequence}
    builder = RowBuilder(settings, sources, frozenset(left_out), with_seen=True, draws=draws)
    lengths = MeanLengths()
    writers: dict[str, ShuffleWriter | ShardWriter] = {
        name: ShardWriter(folder, name)
        if name != "train" or not table.mix
        else ShuffleWriter(folder, name, num_rows=len(split_N), seed=table.split_seed)
        for name in SPLITS
        if name in {*table.row_split.splits, *table.files}
    }
    pools = SeenWriter(folder, writers.keys() - {"train"})
    for blocks in build_in_order(builder, paths):
        for name, block in pools.take_pools(blocks):
            lengths.update(name, np.ones(block.num_rows, bool), block)
            writers[name].write(block)
    pools.close()
    names = {name: writer.close() for name, writer in writers.items()}
    for name, files in names.items():
        if not files:
            split, least = table.row_split, settings.min_history
            needed = f"a row needs {least} event{'s' * (least != 1)} at earlier times"
            if split.kind == "leave_out":
                fewer = 2 * int(split.of["test"]) + 1
                needed += f", and users with fewer than {fewer} events are for training"
            raise DataError(
                f"the {name} split has no rows ({describe_split(split)}); {needed}"
                f"{explain_left_out(settings)}"
            )
    fitted.mean_length = lengths.compute()
    fitted.save(folder)
    return names, fitted, bad


def iterate_raw_rows(
    table: RewritableTable, fitted: FittedTransforms, split: str, folder: Path
) -> Iterator[pa.Table]:
    """Yield the rows of a split with their raw columns, and histories of raw ids.

    They are the rows that `rewrite_events` writes, in the same order.

    Args:
        table: of events.
        folder: an empty folder for temporary files.

    Raises:
        DataError: as `rewrite_events` does.
    """
    settings = table.declared.interactions
    assert settings is not None
    declared, advance = event_declaration(table.declared), lambda _: None
    bad = BadRows(table.max_bad_rows if table.skips_bad_rows else 0)
    split_N = scan_events(table, declared, settings, folder, fitted.times, bad, advance)
    paths, draws = _encode(
        table, declared, settings, fitted, split_N, folder, bad, advance, raw=True
    )
    builder = RowBuilder(settings, raw_sources(settings), splits=(split,), draws=draws)
    for blocks in build_in_order(builder, paths):
        yield from (block for _, block in blocks)


def _fit(
    table: RewritableTable,
    declared: Declared,
    settings: Interactions,
    split_N: np.ndarray,
    advance: Callable[[int], None],
) -> FittedTransforms:
    """Fit the transforms to the train split; the vocabulary has every kept item."""
    fitter = TransformFitter(
        declared,
        split_seed=table.split_seed,
        skip_bad_rows=table.skips_bad_rows,
        fit_to_all=(settings.item,),
    )
    for chunk, split_R in iterate_kept_chunks(table, fitter.columns_to_read(), split_N):
        fitter.update(chunk, {name: split_R == code for code, name in enumerate(SPLITS)})
        advance(chunk.num_rows)
    fitted = fitter.compute()
    if settings.time_gap:
        fitted.num_rows[f"{HISTORY}_{TIME_GAP}"] = GAP_BUCKETS
    return fitted


def _encode(
    table: RewritableTable,
    declared: Declared,
    settings: Interactions,
    fitted: FittedTransforms,
    split_N: np.ndarray,
    folder: Path,
    bad: BadRows,
    advance: Callable[[int], None],
    *,
    raw: bool = False,
) -> tuple[list[Path], DrawnItems | None]:
    """Encode every kept event, and write it to the partition of its user.

    Returns:
        The partitions, and the sampler of items for rows with label 0, if any.

    Args:
        raw: write the raw columns of the features instead of the encoded ones.
    """
    features = declared.features
    writer = PartitionWriter(folder, "events", num_rows=len(split_N))
    catalogue = Catalogue() if any(settings.negatives.values()) else None
    columns = list(dict.fromkeys([*declared.columns, *settings.columns]))
    schema: pa.Schema | None = None
    for chunk, split_R in iterate_kept_chunks(table, columns, split_N, bad):
        assert chunk.table is not None
        validator = RowValidator.for_chunk(chunk, table.skips_bad_rows, SKIP_HINT)
        events = read_events(chunk, declared, settings, validator)
        found_R = validator.bad_R.copy()  # which the first pass has counted
        encoded = encode_chunk(chunk, declared, fitted, validator)
        bad.add_rejected(validator.bad_R & ~found_R & (split_R >= 0), validator.messages)
        if raw:
            encoded = decode_dictionaries(chunk.table.select(list(features.columns)))
        rows = np.flatnonzero((split_R >= 0) & ~validator.bad_R)
        own_columns = {"user": events.users_R, **events.columns(), "split": split_R}
        if catalogue is not None:
            catalogue.add(events.items_R[rows], encoded[settings.item].take(pa.array(rows)))
            own_columns["item"] = events.items_R
        for name, values_R in own_columns.items():
            encoded = encoded.append_column(OWN + name, pa.array(values_R))
        if settings.makes_label:
            encoded = encoded.append_column(LABEL, pa.array(events.positive_R.astype(np.int8)))
        writer.write(encoded.take(pa.array(rows)), events.users_R[rows])
        advance(chunk.num_rows)
        schema = schema or chunk.table.schema
    if schema is not None and not table.learnt and not raw:  # a prediction may lack such a file
        fitted.id_types = id_types(table.declared, with_histories(schema, settings))
    draws = catalogue.draws(settings.negatives, table.split_seed) if catalogue else None
    return writer.close(), draws
