"""A folder as a stream of Parquet files with ascending names, each moved there when complete."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from runner.data.columns.column_specs import Declared
from runner.data.columns.column_types import id_types
from runner.data.core.argument_types import Count, Seconds, SecondsOrNone, check_settings
from runner.data.core.blocks import open_blocks
from runner.data.core.columns import Columns
from runner.data.core.file_hashes import hash_file_anew
from runner.data.core.fitted import FittedTransforms
from runner.data.core.source_files import nearest_path
from runner.data.files.file_columns import cast_columns
from runner.data.files.file_list import DataFile
from runner.data.files.read_files import read_parquet_schema
from runner.data.read.decode import BlockReader
from runner.data.read.index import BlockIndex, build_block_index
from runner.data.streaming.encoded_files import FileEncoder, encoded_columns, fit_to_first_rows
from runner.data.streaming.settings import (
    Poller,
    declaration_identity,
    expected_types,
    fill_empty_types,
    load_declaration,
    plain_columns,
    plain_transforms,
)
from runner.errors import DataError
from runner.parts import dataset_option

if TYPE_CHECKING:
    from runner.data.streaming.dataset import StreamChunk, StreamDataset, StreamPosition

PARQUET_SUFFIXES = (".parquet", ".pq", ".parq")


@dataclass(frozen=True)
class FolderRecipe:
    """The settings of `dataset=folder`, documented in conf/dataset/folder.yaml."""

    path: str | None
    schema: Any
    poll_s: Seconds
    idle_timeout_s: SecondsOrNone
    incomplete_timeout_s: Seconds
    fit_rows: Count = 100_000
    learnt: str | None = None

    @cached_property
    def declared(self) -> Declared:
        return load_declaration(self.schema)

    @property
    def columns(self) -> Columns:
        """The columns of batches; tables filled by a vocabulary have any size here."""
        return plain_columns(self.declared) or encoded_columns(self.declared)

    @cached_property
    def is_encoded(self) -> bool:
        """Whether rows need the encoder of tables, also if all ids are integers."""
        return plain_columns(self.declared) is None

    def make_encoder(self) -> FileEncoder | None:
        """Return the encoder, with the transforms of `learnt` or fitted to the first rows.

        It is None if rows are read unchanged: where nothing is transformed, and no id is a text.

        Raises:
            ConfigError: if there are no rows yet to fit them to.
            DataError: for transforms that cannot be read, and bad rows.
        """
        if self.learnt:
            fitted = FittedTransforms.load(Path(self.learnt))
        else:
            folder = Path(str(self.path))
            paths = [folder / name for name in list_names(folder)]
            fitted = fit_to_first_rows(self.declared, paths, self.fit_rows)
        if not self.is_encoded and "string" not in fitted.id_types.values():
            return None
        return FileEncoder(self.declared, fitted)

    def check(self) -> None:
        check_settings(self)
        if not self.path:
            place = self.declared.places.get("path", "") if self.schema is not None else ""
            hint = f"; the schema names one: dataset.path={place}" if place else ""
            raise DataError(f"dataset.path is not set: the folder into which the files come{hint}")
        if not Path(self.path).is_dir():
            raise DataError(
                f"dataset.path={self.path}: no such folder{nearest_path(Path(self.path))}"
            )
        assert self.columns

    def content_fields(self) -> Mapping[str, Any]:
        """Return the fields that identify the stream, whose content is not known yet."""
        return {
            "stream": "folder",
            "folder": os.path.realpath(str(self.path)),
            "declared": declaration_identity(self.declared),
            **(self._fitted_identity() if self.is_encoded else {}),
        }

    def _fitted_identity(self) -> Mapping[str, Any]:
        if self.learnt:
            return {"learnt": FittedTransforms.load(Path(self.learnt)).digest()}
        return {"fit_rows": self.fit_rows}

    def reading_fields(self) -> Mapping[str, Any]:
        return {}


recipe = FolderRecipe


@dataset_option
def folder(**settings: Any) -> StreamDataset:
    """Return the dataset of the option `folder`."""
    from runner.data.streaming.dataset import StreamDataset  # imports torch

    folder_recipe = recipe(**settings)
    folder_recipe.check()
    encoder = folder_recipe.make_encoder()
    source = FolderSource(folder_recipe, encoder)
    if encoder is None:
        plain = plain_transforms(folder_recipe.declared)
        return StreamDataset(source, folder_recipe.columns, plain)
    return StreamDataset(source, encoder.columns, encoder.fitted)


def list_names(folder: Path) -> list[str]:
    """Return the names of the stream's existing files, in order."""
    names = (entry.name for entry in os.scandir(folder) if entry.is_file())
    return sorted(n for n in names if n.endswith(PARQUET_SUFFIXES) and not n.startswith((".", "_")))


class FolderSource:
    """Yields the rows of one file after another.

    A position has the `file`, the `row` after the last one used in it, its number of `rows`, the
    hash `xxh3` of its content, and the number of `files` up to it; of encoded rows also the
    `id_types`, which a run that began in an empty folder knows only from its first file.
    """

    def __init__(self, settings: FolderRecipe, encoder: FileEncoder | None = None) -> None:
        self._settings = settings
        self._encoder = encoder
        self._folder = Path(str(settings.path))
        self._columns = settings.columns
        self._visited: set[str] = set()  # names of the files read so far

    def read_chunks(
        self, position: StreamPosition | None, first_row: int, should_stop: Callable[[], bool]
    ) -> Iterator[StreamChunk]:
        """Yield the rows from a position on, see `StreamSource.read_chunks`.

        Raises:
            DataError: for a file that stays incomplete, cannot be read, has changed since the
                checkpoint, or came too late, with a name before that of a file already read.
                If older files are removed meanwhile, a late file may go unnoticed.
        """
        settings = self._settings
        poller = Poller(settings.poll_s, settings.idle_timeout_s, should_stop)
        last = ""
        if position is not None:
            last = position["file"]
            if self._encoder is not None:
                self._encoder.fitted.id_types |= position.get("id_types", {})
            self._visited = {name for name in list_names(self._folder) if name <= last}
            self._check_none_is_late(last, position.get("files"))  # older runs have no count
            if position["row"] < position["rows"]:
                index = self._reopen(position)
                yield from self._read_file(index, position["row"], first_row)
                first_row += index.num_rows - position["row"]
        while True:
            last = self._wait_for_next(last, poller)
            complete = self._open_when_complete(self._folder / last, should_stop)
            if complete is not None:
                yield from self._read_file(complete, 0, first_row)
                first_row += complete.num_rows
            poller.reset()

    def _check_none_is_late(self, last: str, num_files: int | None) -> None:
        """Check that no file before `last` arrived while the run was stopped.

        Raises:
            DataError: if there are more files than the run had read.
        """
        if num_files is None or len(self._visited) <= num_files:
            return
        newest = max(self._visited, key=lambda name: (self._folder / name).stat().st_mtime)
        raise DataError(
            f"{self._folder}: has {len(self._visited)} files up to {last}, of which the run had "
            f"read {num_files}; the newest is {newest}: names must ascend in the order in which "
            "files come; give those that came late names behind it"
        )

    def _wait_for_next(self, last: str, poller: Poller) -> str:
        """Return the first name after `last`, once there is one.

        Raises:
            DataError: if a file arrived late, with a name before `last`.
        """
        while True:
            names = list_names(self._folder)
            late = [name for name in names if name <= last and name not in self._visited]
            if late:
                raise DataError(
                    f"{self._folder / late[0]}: came after {last} had been read, but its name "
                    "sorts before it: names must ascend in the order in which files come"
                )
            if after := [name for name in names if name > last]:
                self._visited.add(after[0])
                return after[0]
            poller.wait(f"new file in {self._folder}")

    def _open_when_complete(self, path: Path, should_stop: Callable[[], bool]) -> BlockIndex | None:
        """Return the blocks of a file, once it is complete; None if it has no rows.

        Raises:
            DataError: if it stays unreadable for too long.
        """
        limit_s = self._settings.incomplete_timeout_s
        poller = Poller(min(self._settings.poll_s, limit_s), None, should_stop)
        waited_s = 0.0
        while True:
            try:
                with closing(open_blocks(path)) as file:
                    num_rows = sum(file.rows_per_block)
            except DataError as error:
                if waited_s >= limit_s:
                    raise DataError(
                        f"{error}; waited {limit_s:g} s for it to be complete"
                    ) from error
                poller.wait(f"end of {path}")
                waited_s += min(self._settings.poll_s, limit_s)
                continue
            return self._index(path) if num_rows else None

    def _index(self, path: Path) -> BlockIndex:
        if self._encoder is not None:
            return self._encoder.index(path)
        self._refuse_texts(path)
        return build_block_index([path], self._columns, self._as_read)

    def _refuse_texts(self, path: Path) -> None:
        """Refuse ids that are texts, which the rows of this stream are not encoded for.

        Raises:
            DataError: naming the first such column, and how it is declared.
        """
        schema, _ = read_parquet_schema(DataFile(str(path)))
        declared = self._settings.declared
        # otherwise the column that is missing, or there twice, is told
        has_all = all(schema.get_field_index(name) >= 0 for name in declared.columns)
        for column, type_ in id_types(declared, schema).items() if has_all else ():
            if type_ == "string":
                raise DataError(
                    f"{path}: the ids of column {column!r} are texts, and this stream began with "
                    "integers or in an empty folder; `input: string` for the column in "
                    "dataset.schema declares texts"
                )

    def _as_read(self, schema: pa.Schema) -> pa.Schema:
        return fill_empty_types(schema, expected_types(self._settings.declared))

    def _reopen(self, position: StreamPosition) -> BlockIndex:
        """Return the blocks of the file in which a checkpoint stopped.

        Raises:
            DataError: if it is missing or has changed.
        """
        path = self._folder / position["file"]
        row, num_rows = position["row"], position["rows"]
        if not path.exists():
            raise DataError(
                f"{path}: is gone, and the run had used {row} of its {num_rows} rows; put it back"
            )
        index = self._index(path)
        if index.num_rows != num_rows:
            raise DataError(
                f"{path}: has {index.num_rows} rows, and had {num_rows} before; put the old file "
                "back, and give new rows a file of their own"
            )
        digest = hash_file_anew(path)
        if position.get("xxh3", digest) != digest:  # older runs have not stored it
            raise DataError(
                f"{path}: has other content than when the run used {row} of its {num_rows} rows; "
                "put the old file back, and give new rows a file of their own"
            )
        return index

    def _read_file(self, index: BlockIndex, row: int, first_row: int) -> Iterator[StreamChunk]:
        """Yield a chunk for each row group, from row `row` of the file on.

        That row is number `first_row` of the stream.
        """
        from runner.data.streaming.dataset import StreamChunk

        place = {
            "file": index.files[0].name,
            "rows": index.num_rows,
            "files": len(self._visited),
            "xxh3": hash_file_anew(index.files[0]),
        }
        if self._encoder is not None:
            place["id_types"] = dict(self._encoder.fitted.id_types)
            for first, rows in self._encoder.read(index.files[0], row, first_row):
                yield StreamChunk(rows, _positions_in_file(place, first))
            return
        starts_N = index.start_N
        index_in_stream = replace(index, start_N=starts_N + (first_row - row))
        reader = _CastingReader(index_in_stream, self._columns, self._as_read)
        try:
            for block in np.flatnonzero(starts_N + index.rows_N > row):
                skipped = max(0, row - int(starts_N[block]))
                rows = reader.read_rows(np.array([block]), slice(skipped, int(index.rows_N[block])))
                first = int(starts_N[block]) + skipped
                yield StreamChunk(rows, _positions_in_file(place, first))
        finally:
            reader.close()


class _CastingReader(BlockReader):
    """Reads columns without any value as the type of their role."""

    def __init__(
        self, index: BlockIndex, columns: Columns, as_read: Callable[[pa.Schema], pa.Schema]
    ) -> None:
        super().__init__(index, columns)
        self._as_read = as_read

    def read_table(self, blocks: np.ndarray, names: Collection[str]) -> pa.Table:
        table = super().read_table(blocks, names)
        return cast_columns(table, self._as_read(table.schema))


def _positions_in_file(place: StreamPosition, first: int) -> Callable[[int], StreamPosition]:
    return lambda n: {**place, "row": first + n}
