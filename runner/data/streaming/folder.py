"""A folder into which Parquet files come, each renamed into place, with ascending names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from runner.data.core.blocks import open_blocks
from runner.data.core.columns import Columns
from runner.data.core.source_files import nearest_path
from runner.data.read.decode import BlockReader
from runner.data.read.index import BlockIndex, build_block_index
from runner.data.streaming.settings import (
    Poller,
    check_seconds,
    declaration_identity,
    load_declaration,
    stream_columns,
)
from runner.data.tabular.schema_file import Declared
from runner.errors import DataError

if TYPE_CHECKING:
    from runner.data.streaming.dataset import StreamChunk, StreamDataset, StreamPosition

PARQUET_SUFFIXES = (".parquet", ".pq", ".parq")


@dataclass(frozen=True)
class FolderRecipe:
    """Settings; see conf/dataset/folder.yaml."""

    path: str | None
    schema: Any
    poll_s: float
    idle_timeout_s: float | None
    incomplete_timeout_s: float

    @cached_property
    def declared(self) -> Declared:
        return load_declaration(self.schema)

    @property
    def columns(self) -> Columns:
        return stream_columns(self.declared)

    def check(self) -> None:
        if not self.path:
            raise DataError("dataset.path is not set: the folder into which the files come")
        if not Path(self.path).is_dir():
            raise DataError(
                f"dataset.path={self.path}: no such folder{nearest_path(Path(self.path))}"
            )
        check_seconds("poll_s", self.poll_s)
        check_seconds("idle_timeout_s", self.idle_timeout_s, may_be_null=True)
        check_seconds("incomplete_timeout_s", self.incomplete_timeout_s)
        assert self.columns

    def content_fields(self) -> Mapping[str, Any]:
        """Which stream it is: its content is not known yet."""
        place = os.path.realpath(str(self.path))
        return {
            "stream": "folder",
            "folder": place,
            "declared": declaration_identity(self.declared),
        }

    def reading_fields(self) -> Mapping[str, Any]:
        return {}


recipe = FolderRecipe


def folder(**settings: Any) -> StreamDataset:
    """The dataset option `folder`."""
    from runner.data.streaming.dataset import StreamDataset  # torch enters here

    made_of = recipe(**settings)
    made_of.check()
    return StreamDataset(FolderSource(made_of), made_of.columns)


class FolderSource:
    """Rows of one file after another. Place: file, row in it after the last one used, its rows."""

    def __init__(self, settings: FolderRecipe) -> None:
        self._settings = settings
        self._folder = Path(str(settings.path))
        self._columns = settings.columns
        self._passed: set[str] = set()  # names that were there when their turn came

    def read_chunks(
        self, position: StreamPosition | None, first_row: int, should_stop: Callable[[], bool]
    ) -> Iterator[StreamChunk]:
        """See `Source.chunks`. Raises: DataError for a file that stays cut short, is bad, has
        changed since the checkpoint, or came too late: its name lies before one already read."""
        settings = self._settings
        wait = Poller(settings.poll_s, settings.idle_timeout_s, should_stop)
        last = ""
        if position is not None:
            last = position["file"]
            self._passed = {name for name in self._names() if name <= last}
            if position["row"] < position["rows"]:
                index = self._again(position)
                for chunk in self._rows(index, position["row"], first_row):
                    yield chunk
                    first_row += len(chunk.rows)
        while True:
            last = self._next(last, wait)
            opened = self._opened(self._folder / last, should_stop)
            if opened is not None:
                for chunk in self._rows(opened, 0, first_row):
                    yield chunk
                    first_row += len(chunk.rows)
            wait.reset()

    def _names(self) -> list[str]:
        names = (entry.name for entry in os.scandir(self._folder) if entry.is_file())
        return sorted(
            n for n in names if n.endswith(PARQUET_SUFFIXES) and not n.startswith((".", "_"))
        )

    def _next(self, last: str, wait: Poller) -> str:
        """The name that comes after `last`; waits for it."""
        while True:
            names = self._names()
            late = [name for name in names if name <= last and name not in self._passed]
            if late:
                raise DataError(
                    f"{self._folder / late[0]}: came after {last} had been read, and its name lies "
                    "before it: names must ascend in the order in which files come"
                )
            if after := [name for name in names if name > last]:
                self._passed.add(after[0])
                return after[0]
            wait.wait(f"new file in {self._folder}")

    def _opened(self, path: Path, stopped: Callable[[], bool]) -> BlockIndex | None:
        """The blocks of a file; None if it has no rows. One that is cut short is waited for."""
        limit_s = self._settings.incomplete_timeout_s
        wait = Poller(min(self._settings.poll_s, limit_s), None, stopped)
        waited_s = 0.0
        while True:
            try:
                with closing(open_blocks(path)) as opened:
                    num_rows = sum(opened.rows_per_block)
            except DataError as error:
                if waited_s >= limit_s:
                    raise DataError(f"{error}; waited {limit_s:g} s for it to be whole") from error
                wait.wait(f"end of {path}")
                waited_s += min(self._settings.poll_s, limit_s)
                continue
            return build_block_index([path], self._columns) if num_rows else None

    def _again(self, place: StreamPosition) -> BlockIndex:
        """The file in which a checkpoint stopped. Raises: DataError if it is not what it was."""
        path = self._folder / place["file"]
        if not path.exists():
            raise DataError(
                f"{path}: is gone, and the run had used {place['row']} of its {place['rows']} rows"
            )
        index = build_block_index([path], self._columns)
        if index.num_rows != place["rows"]:
            raise DataError(f"{path}: has {index.num_rows} rows, and had {place['rows']} before")
        return index

    def _rows(self, index: BlockIndex, row: int, first_row: int) -> Iterator[StreamChunk]:
        """A chunk a row group, from a row of the file on, which is number `first_row` of all."""
        from runner.data.streaming.dataset import StreamChunk

        name, total = index.files[0].name, index.num_rows
        starts_N = index.start_N
        numbered = replace(index, start_N=starts_N + (first_row - row))
        reader = BlockReader(numbered, self._columns)
        try:
            for block in np.flatnonzero(starts_N + index.rows_N > row):
                skipped = max(0, row - int(starts_N[block]))
                rows = reader.read_rows(np.array([block]), slice(skipped, int(index.rows_N[block])))
                yield StreamChunk(rows, _place_in(name, int(starts_N[block]) + skipped, total))
        finally:
            reader.close()


def _place_in(name: str, first: int, total: int) -> Callable[[int], StreamPosition]:
    return lambda count: {"file": name, "row": first + count, "rows": total}
