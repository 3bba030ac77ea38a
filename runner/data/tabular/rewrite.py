"""Rewrites a user's table into the cache: fits transforms, then encodes every row.

The work is done part by part, here or by several workers. Finished parts are kept in a folder
until the end, so that a killed preparation continues, with bit-identical files.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from runner.data.columns.split_setting import describe_split
from runner.data.core.cache import PARTS_FOLDER, drop_parts
from runner.data.core.fitted import FittedTransforms
from runner.data.files.bad_rows import BadRows
from runner.data.prepare.engine import Engine, InProcess
from runner.data.prepare.part_folders import is_done, read_facts
from runner.data.prepare.progress import Advance
from runner.data.prepare.recipe import SPLITS
from runner.data.prepare.shuffle import (
    SPILL_BYTES,
    BucketDraws,
    group_shards,
    plan_shards,
    write_shards,
)
from runner.data.tabular.encode_parts import (
    EncodeTask,
    MeanLengths,
    encode_part,
    load_for_parts,
    save_for_parts,
    spilled_rows,
)
from runner.data.tabular.fit import needs_fitting, with_declared_sizes
from runner.data.tabular.fit_parts import count_parts, find_split_starts, fit_table
from runner.data.tabular.parts import Part, RewritableTable, find_parts
from runner.errors import DataError

SHARD_COPIES = 3  # size of the rows of a file, which are in memory while it is written


def rewrite_table(
    table: RewritableTable, folder: Path, advance: Advance, engine: Engine | None = None
) -> tuple[dict[str, list[str]], FittedTransforms, BadRows]:
    """Write the rows of all splits, and the fitted transforms, into a folder.

    Args:
        folder: a folder that is empty, except for parts left by a killed process.
        advance: is called with the number of rows that were processed, in every pass.
        engine: processes the parts; None: this process does.

    Returns:
        The names of every split's files, the fitted transforms, and the skipped bad rows.

    Raises:
        DataError: for the first bad row, or too many skipped ones, and for a split without a row.
    """
    engine = engine or InProcess()
    work_folder = folder / PARTS_FOLDER
    if work_folder.is_dir():
        print("going on with the parts that are done already", file=sys.stderr, flush=True)
    work_folder.mkdir(exist_ok=True)
    table.find_parts_of_texts(work_folder, engine)
    fitted, train_rows = _fit_transforms(table, work_folder, engine, advance)
    if not is_done(work_folder / "fitted"):
        save_for_parts(fitted, work_folder / "fitted")
    rows = _EncodedRows(table, fitted.times, work_folder, engine, train_rows)
    bad, lengths = rows.encode(advance)
    if not table.learnt:
        fitted.id_types = next((f["id_types"] for f in rows.facts if f["id_types"]), {})
    names = {}
    for split in SPLITS:
        if split in table.splits:
            names[split] = rows.write_shards(split, folder, advance)
            if not names[split]:
                unlisted = bad.values_of_no_split
                raise DataError(_describe_empty_split(table, split, fitted.times, unlisted))
    if "train" in table.splits:  # otherwise the transforms are those of the run
        fitted.mean_length = lengths.compute()
    fitted.save(folder)
    load_for_parts.cache_clear()  # it maps files that are removed now
    drop_parts(folder)
    return names, fitted, bad


def _fit_transforms(
    table: RewritableTable, work_folder: Path, engine: Engine, advance: Advance
) -> tuple[FittedTransforms, list[int] | None]:
    """Return the transforms, and the number of train rows of each part if they were counted."""
    parts, train_rows = find_parts(table), None
    if table.learnt:
        fitted = with_declared_sizes(FittedTransforms.load(Path(table.learnt)), table.declared)
    else:
        starts = find_split_starts(table, work_folder, engine, advance)
        fitting = parts if needs_fitting(table.declared) else []
        fitted, train_rows = fit_table(table, fitting, starts, work_folder, engine, advance)
        fitted.times = starts
    if not train_rows and engine.num_workers > 1 and _make_draws(table) is not None:
        # parallel workers need the number of rows before theirs
        train_rows = count_parts(table, parts, fitted.times, work_folder, engine)
    return fitted, train_rows


def _make_draws(table: RewritableTable) -> BucketDraws | None:
    """Return the draws for the order in which train rows are stored; None: they are not mixed."""
    if not table.mix:
        return None
    return BucketDraws(num_rows=table.num_rows_estimate(), seed=table.split_seed)


class _EncodedRows:
    """The encoded rows of a table, part by part.

    Args:
        split_starts: as `iterate_part` takes them.
        work_folder: of the parts; the transforms are in its folder `fitted`.
        train_rows: the number of train rows of each part; None: counted during encoding.
    """

    def __init__(
        self,
        table: RewritableTable,
        split_starts: dict[str, float],
        work_folder: Path,
        engine: Engine,
        train_rows: list[int] | None,
    ) -> None:
        self._table, self._starts, self._work = table, split_starts, work_folder
        self._engine, self._train_rows = engine, train_rows
        self._parts = find_parts(table)
        self._draws = _make_draws(table)  # once all is encoded, as they are after all rows
        self.facts: list[dict[str, Any]] = []
        self._folders: list[Path] = []

    def encode(self, advance: Advance) -> tuple[BadRows, MeanLengths]:
        """Encode all unfinished parts; count the bad rows, and the ids of lists.

        Raises:
            DataError: for the first bad row, or too many skipped ones.
        """
        while True:
            for _ in self._engine.map(encode_part, self._tasks(), advance):
                pass
            bad = BadRows(self._table.max_bad_rows if self._table.skips_bad_rows else 0)
            lengths = MeanLengths()
            if self._take_stock(bad, lengths):
                return bad, lengths

    def _tasks(self) -> Iterator[EncodeTask]:
        draws, before = copy.deepcopy(self._draws), 0
        for part in self._parts:
            folder = self._folder(part, before)
            if not is_done(folder):
                yield EncodeTask(
                    self._table,
                    part,
                    folder,
                    self._engine.task_bytes,
                    self._starts,
                    self._work / "fitted",
                    copy.deepcopy(draws),
                )
            if draws is not None:
                # this process has encoded the part by now; workers rely on the earlier count
                if self._train_rows is None or is_done(folder):
                    count = read_facts(folder)["train_rows"]
                else:
                    count = self._train_rows[part.number]
                draws.skip(count)
                before += count

    def _folder(self, part: Part, before: int) -> Path:
        """Return the folder of a part; its rows depend on how many train rows come before."""
        return self._work / f"rows-{part.number:05d}-{before}"

    def _take_stock(self, bad: BadRows, lengths: MeanLengths) -> bool:
        """Sum up the parts in order; return whether each has begun at the right row.

        A row that was counted may be unreadable in other columns, and so be in another split. Then
        the parts after it are encoded again, with the counts of the encoded rows.

        Raises:
            DataError: for too many bad rows.
        """
        self.facts, self._folders = [], []
        draws, before = copy.deepcopy(self._draws), 0
        for part in self._parts:
            folder = self._folder(part, before)
            if not is_done(folder):
                return False
            facts = read_facts(folder)
            for count, messages in facts["bad"]:
                bad.add(count, messages)
            bad.add_in_no_split(*facts.get("in_no_split", (0, [])))
            lengths.add(*facts["lengths"])
            self.facts.append(facts)
            self._folders.append(folder)
            if draws is not None:
                draws.skip(facts["train_rows"])
                before += facts["train_rows"]
        self._draws = draws
        return True

    def write_shards(self, split: str, folder: Path, advance: Advance) -> list[str]:
        """Write the files of a split into a folder; return their names.

        Raises:
            DataError: if the rows of one file exceed the memory limit.
        """
        spilled = [spilled_rows(f, facts, split) for f, facts in zip(self._folders, self.facts)]
        shards_folder = self._work / "shards"
        shards_folder.mkdir(exist_ok=True)
        shards = plan_shards(
            shards_folder, split, spilled, self._draws if split == "train" else None
        )
        unwritten = [shard for shard in shards if not shard.path.exists()]
        most = SHARD_COPIES * max((shard.num_bytes for shard in shards), default=1)
        at_once = self._shards_at_once(most)
        num_bytes = min(SPILL_BYTES, self._engine.task_bytes - most)
        tasks = group_shards(
            unwritten, spilled, num_bytes=num_bytes, num_workers=self._engine.num_workers
        )
        for _ in self._engine.map(write_shards, tasks, advance, at_once=at_once):
            pass
        for shard in shards:
            shard.path.rename(folder / shard.path.name)
        return [shard.path.name for shard in shards]

    def _shards_at_once(self, most: int) -> int:
        """Return how many files, of so many bytes at most, the memory limit allows at once.

        Raises:
            DataError: if there is not enough for one.
        """
        engine = self._engine
        fit = engine.num_workers * engine.task_bytes // most
        if not fit and engine.is_bounded:
            raise DataError(
                f"--memory: the rows of a file take {most / 1e6:.0f}MB while they are shuffled, "
                f"and {engine.num_workers * engine.task_bytes / 1e6:.0f}MB are left for them"
            )
        return max(1, min(fit, engine.num_workers))


def _describe_empty_split(
    table: RewritableTable, split: str, starts: Mapping[str, float], unlisted: Sequence[str]
) -> str:
    """Return a message; `unlisted` are values of the split column that the split does not list."""
    files = table.files.get(split)
    if files and (split != "train" or table.row_split.kind == "whole"):
        return f"the {split} split has no rows: {files[0]}; name a file with rows"
    if table.learnt and starts:
        listed = ", ".join(
            f"{name} at {datetime.fromtimestamp(start, UTC):%Y-%m-%d %H:%M:%S}"
            for name, start in sorted(starts.items(), key=lambda item: item[1])
        )
        return (
            f"{table.files['train'][0]}: has no rows of the {split} split: these are not "
            "the data of the training, in "
            f"which the splits began by {table.row_split.column}: {listed}; "
            "dataset.test_path=FILE evaluates all rows of a file; to train on these rows, divide "
            "them otherwise: dataset.split={random: ...}"
        )
    if unlisted:
        listed = ", ".join(map(repr, unlisted))
        return (
            f"the {split} split has no rows ({describe_split(table.row_split)}); the column has "
            f"values that `split` does not list: {listed}"
        )
    return (
        f"the {split} split has no rows ({describe_split(table.row_split)}); a larger table, or a "
        "`split` in the schema that gives it more, fills it"
    )
