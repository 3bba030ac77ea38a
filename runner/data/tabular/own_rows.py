"""Makes a table of rows from a `pyarrow.dataset`, or from a function of the user."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa

from runner.config_key import Key
from runner.data.core.blocks import READ_ERRORS
from runner.data.core.source_files import fingerprint_path
from runner.data.files.file_columns import check_same_schema
from runner.data.files.file_list import DataFile
from runner.data.files.mapping_rows import table_of_mappings
from runner.data.files.read_files import CHUNK_ROWS, RowChunk, flatten_structs, unpack_columns
from runner.data.tabular.table import open_table
from runner.data.tabular.table_recipe import TableRecipe
from runner.errors import ConfigError, DataError, first_line, nearest_hint

if TYPE_CHECKING:
    from runner.data.read.parquet_dataset import ParquetDataset

ASSUMED_ROWS = 10_000_000  # of a function, for the number of parts that mix its rows out of memory


def table_of_rows(
    rows: Any,
    *,
    schema: Any,
    identity: str | None = None,
    window_rows: int = 131_072,
    prefetch: int = 0,
    workers: int | None = None,
    rest: str = "short",
    **settings: Any,
) -> ParquetDataset:
    """Return a dataset of rows that are rewritten once into the cache, like those of a table.

    So their order is exact, a run can resume anywhere in it, and ranks share them.

    Args:
        rows: a `pyarrow.dataset.Dataset`, or a function without arguments that returns an iterator
            of `pyarrow.RecordBatch`, `pyarrow.Table` or mappings, which are rows. It is called
            again for each pass, and must yield the same rows in the same order each time.
        schema: a YAML file that declares the columns, or its content.
        identity: names the content for the cache: other rows need another one. None: derived from
            the files of a `pyarrow.dataset` without filters and projections.
        window_rows, prefetch, workers, rest: as in `BlockDataset`.
        settings: `split`, `split_seed`, `on_bad_rows`, `max_bad_rows`, `mix` and `learnt` of a
            table, see conf/dataset/parquet.yaml.

    Raises:
        ConfigError: if the content has no identity, and for wrong settings.
        DataError: for rows that cannot be read, or do not have the declared columns.
    """
    known = ("split", "split_seed", "on_bad_rows", "max_bad_rows", "mix", "learnt")
    for name in settings:
        if name not in known:
            raise ConfigError(f"dataset.{name}: no such setting{nearest_hint(name, known)}")
    source = RowSource(identity or _identity_of_files(rows), rows=rows)
    recipe = OwnRowsRecipe(schema=schema, source=source, **settings)
    dataset = open_table(
        recipe, window_rows=window_rows, prefetch=prefetch, workers=workers, rest=rest
    )
    dataset.own_table = recipe
    return dataset


def _identity_of_files(rows: Any) -> str:
    """Return the identity of the files of a `pyarrow.dataset`, in their order.

    Raises:
        ConfigError: for rows without files, and for a selection of rows or columns.
    """
    files = getattr(rows, "files", None)
    if not files or not all(Path(name).is_file() for name in files):
        raise ConfigError(
            "table_of_rows: identity is not set: it names the content of rows that come from no "
            "files on this machine, such as 'clicks of 2026-11-01'"
        )
    try:
        rows.get_fragments()
    except ValueError as error:  # pyarrow does not expose filters and projections
        raise ConfigError(
            "table_of_rows: identity is not set: a dataset with a filter or a projection has other "
            "rows than its files, so that a text has to name them, such as 'clicks of 2026-11-01'"
        ) from error
    return repr([fingerprint_path(Path(name)) for name in files])


@dataclass(frozen=True)
class RowSource(DataFile):
    """The source of the rows, used like a file; `path` is their identity."""

    rows: Any = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"rows of {getattr(self.rows, '__qualname__', type(self.rows).__qualname__)}"

    @property
    def name(self) -> str:
        return str(self)

    def size(self) -> int:
        """Return 100 bytes per row, the size that other estimates use."""
        known = hasattr(self.rows, "count_rows")
        return 100 * int(self.rows.count_rows() if known else ASSUMED_ROWS)

    def fingerprint(self) -> list[Any]:
        return [self.path]

    def batches(self, columns: list[str] | None = None) -> Iterator[pa.Table]:
        """Yield the rows as tables, from the first one on.

        Raises:
            DataError: for values that are not rows, and as raised by the source.
        """
        number = 0
        try:
            for table in map(flatten_structs, self._tables(columns)):
                yield table
                number += table.num_rows
        except READ_ERRORS as error:
            raise DataError(f"{self}: after {number:,} rows: {first_line(error)}") from error

    def _tables(self, columns: list[str] | None) -> Iterator[pa.Table]:
        if hasattr(self.rows, "get_fragments"):
            if columns is not None:  # with whole structs, whose fields have their names only so
                columns = [
                    name
                    for name in self.rows.schema.names
                    if any(f"{column}.".startswith(f"{name}.") for column in columns)
                ]
            for batch in self.rows.to_batches(columns=columns, use_threads=False):
                yield pa.Table.from_batches([batch])
            return
        returned = self.rows() if callable(self.rows) else self.rows
        if not callable(self.rows) or not isinstance(returned, Iterable):
            raise ConfigError(
                f"table_of_rows: rows must be a pyarrow.dataset, or a function that returns an "
                f"iterator anew for each pass, not {type(returned).__name__}"
            )
        items = iter(returned)
        for item in items:
            if isinstance(item, pa.RecordBatch):
                yield pa.Table.from_batches([item])
            elif isinstance(item, pa.Table):
                yield item
            elif isinstance(item, Mapping):  # the following ones must be rows, too
                rows, schema = chain([item], items), None
                while chunk := list(islice(rows, CHUNK_ROWS)):
                    table = table_of_mappings(chunk, schema)
                    schema = table.schema  # all tables have the types of the first one
                    yield table
            else:
                raise DataError(
                    f"{self}: must bring a pyarrow.RecordBatch, pyarrow.Table or mapping, not "
                    f"{type(item).__name__}"
                )


@dataclass(frozen=True)
class OwnRowsRecipe(TableRecipe):
    """The recipe of a table whose rows come from the user's function or dataset."""

    format: Annotated[str, Key(choices=("rows",))] = "rows"
    path: Any = None
    schema: Any = None
    source: RowSource = field(default_factory=lambda: RowSource(""))

    name = "rows"

    @cached_property
    def files(self) -> dict[str, list[DataFile]]:
        return {"train": [self.source]}

    @cached_property
    def schemas(self) -> dict[str, pa.Schema]:
        first = next(self.source.batches(), None)
        if first is None:
            raise DataError(f"{self.source}: has no rows")
        schemas = {str(self.source): first.schema}
        check_same_schema(schemas, self.columns_read)
        return schemas

    def read_chunks(
        self, file: DataFile, columns: list[str], row_groups: Container[int] | None = None
    ) -> Iterator[RowChunk]:
        """Yield the rows of the source, each table with the types of the first one.

        Raises:
            DataError: for rows that lack a column, or whose values do not have its type.
        """
        [schema] = self.schemas.values()
        types = pa.schema([schema.field(name) for name in columns])
        num_read = 0
        for batch in self.source.batches(columns):
            num_rows = batch.num_rows
            try:
                table = unpack_columns(batch.select(columns).cast(types))
            except (KeyError, *READ_ERRORS) as error:
                raise DataError(f"{file}: row {num_read}: {first_line(error)}") from error
            for first in range(0, num_rows, CHUNK_ROWS):
                rows = table.slice(first, CHUNK_ROWS)
                count = min(CHUNK_ROWS, num_rows - first)
                yield RowChunk(file, 0, num_read, count, rows, part_name="")
                num_read += count
