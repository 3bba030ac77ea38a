"""The recipe of a user's own table: how its files become files that are read in the exact order.

Files are read directly where that is as fast. Otherwise they are rewritten once into the cache,
with all transforms applied, in blocks that suit the exact order. See `TableRecipe.is_direct`.
Parquet files of object stores that need no rewriting are copied with their row groups, so that the
order of examples is that of local files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from runner.data.columns.column_types import direct_columns, id_types
from runner.data.core.blocks import READ_ERRORS
from runner.data.core.columns import Columns
from runner.data.core.fitted import FittedTransforms
from runner.data.files.file_list import DataFile
from runner.data.files.read_files import is_nested, open_parquet_file
from runner.data.files.read_text import TextFormat
from runner.data.interactions.rewrite import rewrite_events
from runner.data.prepare.engine import Engine
from runner.data.prepare.recipe import LAYOUT_VERSION, PreparedFiles, Recipe
from runner.data.tabular.rewrite import rewrite_table
from runner.data.tabular.table_files import TableFiles
from runner.data.tabular.table_settings import TEXT_FORMATS
from runner.errors import DataError, first_line

VERSION = 1  # raise it when the same files and settings give other rows
DIRECT_ROWS = 1 << 17  # a file with larger row groups is not read directly: seeks would be slow


@dataclass(frozen=True)
class TableRecipe(TableFiles, Recipe):
    """A table as a recipe, see `runner.data.prepare.recipe`."""

    name = "table"

    def content_fields(self) -> Mapping[str, Any]:
        """Return all settings except the paths of files, and those that change no row."""
        skips = {"max_bad_rows": self.max_bad_rows} if self.skips_bad_rows else {}
        delimiter, text = self.declared.places.get("delimiter"), self.text_format
        return {
            "table": VERSION,
            "files": {s: [f.fingerprint() for f in files] for s, files in self.files.items()},
            "declared": [repr(replace(self.declared, places={})), repr(self.row_split)],
            "settings": {
                k: v
                for k, v in vars(self).items()
                if k in ("format", "split_seed", "on_bad_rows", "mix", "delimiter", "quote")
            }
            | ({} if self.delimiter or not delimiter else {"delimiter": delimiter})
            | ({} if text.quote == self.quote else {"quote": text.quote})
            | ({} if text.decimal == TextFormat.decimal else {"decimal": text.decimal}),
            "names": list(self.column_names or self.declared.places.get("column_names") or ()),
            "direct": self.is_direct,
            **skips,
            **({"partitions": self.partitions_read} if self.partitions_read else {}),
            **(events.content_fields() if (events := self.declared.interactions) else {}),
            **({"learnt": fitted_digest(Path(self.learnt))} if self.learnt else {}),
            **({"judged": sorted(self.judged)} if self.judged else {}),
        }

    @property
    def layout_version(self) -> str | int:
        """Version of the layout of the cache.

        It differs from LAYOUT_VERSION where files are fetched, where they hold the items that users
        have seen, where rows without a time or a listed value are judged, for texts, of which an
        open quote or one of several passes took rows before, for rows of a user's own, which were
        filtered or lost fractions unseen, for lists in texts, of which NumPy's were one id, for
        matches of ids, of which large ones had not all digits, for labels whose values are named,
        of which 1.00 and True were none, and for standardised numbers, whose means were subtracted
        in float32, so that a cache that was made otherwise is not used.
        """
        if self.is_direct and self.is_elsewhere:
            return f"{LAYOUT_VERSION} fetched"
        is_judged = self.row_split.kind in ("time", "column")
        has_events = self.declared.interactions is not None
        words = ["seen"] if has_events else ["judged"] if is_judged else []
        words += ["whole"] if self.format in (*TEXT_FORMATS, "rows") else []
        words += ["arrays"] if any(spec.separator == "json" for spec in self.declared.ids) else []
        words += ["named"] if any(spec.is_text for spec in self.declared.labels) else []
        words += ["double"] if any(spec.standardise for spec in self.declared.numeric) else []
        words += ["digits"] if any(spec.of for spec in self.declared.numeric) else []
        return " ".join([str(LAYOUT_VERSION), *words]) if words else LAYOUT_VERSION

    def num_progress_units(self) -> int:
        if self.is_direct and not self.is_elsewhere:
            return 1
        passes = 1 if self.is_direct else 2  # one encodes the rows, one writes them in their order
        if not self.learnt and not self.is_direct:  # times are read, and what is fitted
            passes += 1 + (self.row_split.kind == "time")
        return passes * self.num_rows_estimate()

    @cached_property
    def is_direct(self) -> bool:
        """Whether the files, or copies of remote ones, are read without being rewritten.

        That requires Parquet files with small row groups, separate files for every split, and
        declarations that cost no time while reading.
        """
        if self.format != "parquet" or self.rewrite == "always" or self.skips_bad_rows:
            return False
        if self.declared.interactions is not None:
            return False
        first = next(iter(self.schemas.values()))
        return (
            self.row_split.kind == "whole"
            and all(
                count <= DIRECT_ROWS for counts in self.rows_per_group.values() for count in counts
            )
            and direct_columns(self.declared, first) is not None
            and not any(is_nested(first, name) for name in self.columns_read)
            and not self.partitions_read
            and not self.has_cast_columns
        )

    @property
    def is_elsewhere(self) -> bool:
        """Whether a file is remote; then all are copied or rewritten."""
        return any(file.remote is not None for file in self._all_files)

    def make(self, folder: Path, advance: Any, engine: Engine | None = None) -> PreparedFiles:
        prepared = self._make(folder, advance, engine)
        for file in self._all_files:
            file.check_unchanged()
        return prepared

    def _make(self, folder: Path, advance: Any, engine: Engine | None) -> PreparedFiles:
        if self.is_direct:
            types = id_types(self.declared, next(iter(self.schemas.values())))
            FittedTransforms(id_types=types).save(folder)
            copies: Mapping[str, Any] = dict.fromkeys(self.files_prepared, ())
            if self.is_elsewhere:
                copies = _fetch_files(self.files_prepared, self.columns_read, folder, advance)
            return PreparedFiles(copies, {"direct": True}, {})
        if self.declared.interactions is None:
            splits, fitted, bad = rewrite_table(self, folder, advance, engine)
        else:
            splits, fitted, bad = rewrite_events(self, folder, advance)
        names = {str(file): file.name for file in self._all_files}
        facts = {"direct": False, "mean_length": fitted.mean_length}
        return PreparedFiles(splits, {**facts, "bad_rows": bad.json_fields(names)}, {})

    def columns(self, fitted: Mapping[str, Any]) -> Columns:
        """Return the columns of direct files. `open_table` has those of rewritten ones."""
        columns = direct_columns(self.declared, next(iter(self.schemas.values())))
        assert columns is not None
        return columns


def fitted_digest(folder: Path) -> str:
    """Return a hash of the transforms in a folder."""
    return FittedTransforms.load(folder).digest()


def _fetch_files(
    files: Mapping[str, Sequence[DataFile]],
    columns: Sequence[str],
    folder: Path,
    advance: Callable[[int], None],
) -> dict[str, list[str]]:
    """Copy columns of Parquet files into a folder, and return the names of every split's copies.

    Raises:
        DataError: naming the file, and the row group that cannot be read.
    """
    names: dict[str, list[str]] = {}
    for split, split_files in files.items():
        # numbered in the order of `own`, since files are read in the order of their names
        names[split] = [f"{split}-{number:05d}.parquet" for number in range(len(split_files))]
        for name, file in zip(names[split], split_files):
            _fetch(file, columns, folder / name, advance)
    return names


def _fetch(
    file: DataFile, columns: Sequence[str], copy: Path, advance: Callable[[int], None]
) -> None:
    with open_parquet_file(file) as opened:
        schema = pa.schema([opened.schema_arrow.field(name) for name in columns])
        with pq.ParquetWriter(copy, schema, write_page_checksum=True) as writer:
            for group in range(opened.num_row_groups):
                try:
                    rows = opened.read_row_group(group, columns=list(columns), use_threads=False)
                except READ_ERRORS as error:
                    raise DataError(f"{file}: row group {group}: {first_line(error)}") from error
                if rows.num_rows:
                    writer.write_table(rows.select(list(columns)), row_group_size=rows.num_rows)
                advance(rows.num_rows)
