"""A user's own table: Parquet, CSV or TSV files, with their columns declared in one YAML.

Files are read as they are where that is as good; else they are rewritten once into the cache, with
all transforms applied, in blocks of the size that the exact order likes. See `Table.is_direct`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pt

from runner.data.core import cache
from runner.data.core.columns import Columns
from runner.data.core.fitted import FittedTransforms, with_fitted_transforms
from runner.data.core.setting_checks import check_choice, check_range, check_setting_types
from runner.data.core.source_files import nearest_path
from runner.data.prepare.recipe import PreparedFiles, cache_key, prepare
from runner.data.tabular.column_types import (
    check_column_types,
    direct_columns,
    rewritten_columns,
    text_column_types,
)
from runner.data.tabular.file_list import DataFile, find_files
from runner.data.tabular.read_files import (
    RowChunk,
    TextFormat,
    check_same_schema,
    infer_text_schema,
    read_parquet_chunks,
    read_parquet_schema,
    read_text_chunks,
)
from runner.data.tabular.rewrite import rewrite_table
from runner.data.tabular.schema_file import Declared, parse_schema
from runner.data.tabular.splits import Split, parse_split
from runner.errors import ConfigError, DataError

if TYPE_CHECKING:
    from runner.data.read.parquet_dataset import ParquetDataset

VERSION = 1  # raise it when the same files and settings give other rows
DIRECT_ROWS = 1 << 17  # of a row group that is read as it is; larger ones make a seek slow
SPLIT_PATHS = {"train": "path", "validation": "validation_path", "test": "test_path"}


def table(
    *, window_rows: int, prefetch: int, workers: int = 0, rest: str = "short", **settings: Any
) -> ParquetDataset:
    """The dataset options `parquet`, `csv` and `tsv`; settings are the fields of `Table`."""
    made_of = recipe(**settings)
    return open_table(
        made_of, window_rows=window_rows, prefetch=prefetch, workers=workers, rest=rest
    )


@dataclass(frozen=True)
class TableRecipe:
    format: str  # parquet, csv, tsv
    path: Any  # a file, a folder, a glob, a URL, or a list of them
    schema: Any  # a YAML file, or its content
    validation_path: Any = None
    test_path: Any = None
    split: Mapping[str, Any] | None = None  # of the rows of `path`
    split_seed: int = 0
    on_bad_rows: str = "error"  # or skip
    max_bad_rows: int = 1000  # of skip; more are an error
    rewrite: str = "auto"  # or always: read from the cache even where the files would do
    mix: bool = True  # rewritten train rows are stored in random order, once
    delimiter: str | None = None  # of text files; None: by the format
    quote: str = '"'
    column_names: Any = None  # of text files without a first line that has them
    learnt: str | None = None  # folder of a run: use what it learnt instead of learning again

    name = "table"

    @cached_property
    def declared(self) -> Declared:
        """Raises: ConfigError for a schema that is not there or wrong."""
        if self.schema is None:
            raise ConfigError(
                "dataset.schema is not set: a YAML that declares the columns; "
                "`python -m runner schema PATH --out FILE` proposes one"
            )
        if isinstance(self.schema, Mapping):
            return parse_schema(self.schema)
        import yaml

        path = Path(str(self.schema)).expanduser()
        if not path.is_file():
            raise ConfigError(f"dataset.schema={self.schema}: no such file{nearest_path(path)}")
        try:
            loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: not a YAML file: {error}") from error
        if not isinstance(loaded, Mapping):
            raise ConfigError(f"{path}: needed is a mapping with `labels:` and other columns")
        return parse_schema(loaded, str(path))

    @cached_property
    def row_split(self) -> Split:
        given = self.split if self.split is not None else self.declared.places.get("split")
        split = parse_split(given)
        for name in split.splits:
            if name != "train" and name in self.files:
                raise ConfigError(
                    f"dataset.split gives rows to {name}, and dataset.{name}_path is set as well"
                )
        return split

    @cached_property
    def files(self) -> dict[str, list[DataFile]]:
        """Split -> its own files; those of `path` are dealt out by `dealt`."""
        found = {}
        for split, key in SPLIT_PATHS.items():
            paths, named = getattr(self, key), f"dataset.{key}"
            if paths is None and key in self.declared.places:
                paths, named = self._beside_schema(self.declared.places[key]), f"schema's {key}"
            if paths is not None:
                found[split] = find_files(paths, self.format, key=named)
        if "train" not in found:
            raise DataError(
                f"dataset.path is not set, for example dataset.path=data/clicks.{self.format}"
            )
        return found

    @cached_property
    def schemas(self) -> dict[str, pa.Schema]:
        """Of every file, by its name. Raises: DataError as `check_same` does."""
        found = {}
        for file in [file for files in self.files.values() for file in files]:
            if self.format == "parquet":
                found[str(file)], counts = read_parquet_schema(file)
                if not sum(counts):
                    raise DataError(f"{file}: has no rows")
                self._counts[str(file)] = counts
            else:
                if not file.size():
                    raise DataError(f"{file}: has no rows")
                found[str(file)] = infer_text_schema(file, self.text_format)
        if self.format != "parquet":  # types are what the declaration says
            types = text_column_types(self.declared, self.row_split)
            for name in found:
                given = [pa.field(f.name, types.get(f.name, f.type)) for f in found[name]]
                found[name] = pa.schema(given)
        check_same_schema(found, self.columns_read)
        return found

    @cached_property
    def _counts(self) -> dict[str, list[int]]:
        return {}

    @property
    def columns_read(self) -> list[str]:
        split = [self.row_split.column] if self.row_split.column else []
        return list(dict.fromkeys([*self.declared.columns, *split]))

    @property
    def text_format(self) -> TextFormat:
        delimiter = self.delimiter or {"csv": ",", "tsv": "\t"}.get(self.format, ",")
        return TextFormat(delimiter, self.quote, tuple(self.column_names or ()))

    @property
    def skips_bad_rows(self) -> bool:
        return self.on_bad_rows == "skip"

    def check(self) -> None:
        check_setting_types(self)
        check_choice("format", self.format, ("parquet", "csv", "tsv"))
        check_choice("on_bad_rows", self.on_bad_rows, ("error", "skip"))
        check_choice("rewrite", self.rewrite, ("auto", "always"))
        check_range("max_bad_rows", self.max_bad_rows, 1)
        check_range("split_seed", self.split_seed, 0)
        first = next(iter(self.schemas))
        check_column_types(self.declared, self.schemas[first], first)
        if self.declared.places.get("split") is None and self.split is None:
            return
        if self.row_split.column and self.row_split.column in self.schemas[first].names:
            type_ = self.schemas[first].field(self.row_split.column).type
            if self.row_split.kind == "time" and not _is_time(type_):
                raise DataError(
                    f"{first}: column {self.row_split.column!r} has type {type_}, needed is a time"
                )

    def content_fields(self) -> Mapping[str, Any]:
        """Everything but where the files are, and settings that change nothing."""
        places = ("path", "validation_path", "test_path")
        skips = {"max_bad_rows": self.max_bad_rows} if self.skips_bad_rows else {}
        return {
            "table": VERSION,
            "files": {s: [f.fingerprint() for f in files] for s, files in self.files.items()},
            "declared": [repr(replace(self.declared, places={})), repr(self.row_split)],
            "settings": {
                k: v
                for k, v in vars(self).items()
                if k in ("format", "split_seed", "on_bad_rows", "mix", "delimiter", "quote")
                and k not in places
            },
            "names": list(self.column_names or ()),
            "direct": self.is_direct,
            **skips,
            **({"learnt": _content(Path(self.learnt))} if self.learnt else {}),
        }

    def reading_fields(self) -> Mapping[str, Any]:
        return {}

    def num_progress_units(self) -> int:
        if self.is_direct:
            return 1
        passes = 1 if self.learnt else 2
        if self.format == "parquet":
            return passes * sum(sum(counts) for counts in self._counts.values())
        return passes * sum(f.size() // 100 for files in self.files.values() for f in files)

    @cached_property
    def is_direct(self) -> bool:
        """Whether the files are read as they are: Parquet on this machine, in small row groups, a
        split a file, and nothing declared that is not done as quickly while reading."""
        if self.format != "parquet" or self.rewrite == "always" or self.skips_bad_rows:
            return False
        first = next(iter(self.schemas.values()))
        files = [file for files in self.files.values() for file in files]
        return (
            self.row_split.kind == "whole"
            and all(file.filesystem is None for file in files)
            and all(count <= DIRECT_ROWS for counts in self._counts.values() for count in counts)
            and direct_columns(self.declared, first) is not None
        )

    def make(self, folder: Path, advance: Any) -> PreparedFiles:
        if self.is_direct:
            FittedTransforms().save(folder)
            return PreparedFiles(dict.fromkeys(self.files, ()), {"direct": True}, {})
        splits, learnt, bad = rewrite_table(self, folder, advance)
        kept = {"direct": False, "mean_length": learnt.mean_length}
        # by name: the files may lie elsewhere the next time, and where they lie may be a secret
        files = [file for files in self.files.values() for file in files]
        names = {str(file): file.name for file in files}
        examples = [_renamed(example, names) for example in bad.examples]
        return PreparedFiles(splits, {**kept, "bad_rows": {**vars(bad), "examples": examples}}, {})

    def columns(self, learnt: Mapping[str, Any]) -> Columns:
        """Of direct files; those of rewritten ones need the folder too, see `open_table`."""
        first = next(iter(self.schemas.values()))
        columns = direct_columns(self.declared, first)
        assert columns is not None
        return columns

    def read_chunks(self, file: DataFile, columns: list[str]) -> Iterator[RowChunk]:
        if self.format == "parquet":
            return read_parquet_chunks(file, columns, skip_bad_rows=self.skips_bad_rows)
        types = self.schemas[str(file)]
        wanted = {name: types.field(name).type for name in columns}
        return read_text_chunks(file, wanted, self.text_format, skip_bad_rows=self.skips_bad_rows)

    def _beside_schema(self, paths: Any) -> Any:
        """Paths in a schema file count from its folder."""
        if isinstance(self.schema, Mapping):
            return paths
        folder = Path(str(self.schema)).expanduser().parent
        many = [paths] if isinstance(paths, str) else list(paths)
        return [p if "://" in p else str(folder / Path(p).expanduser()) for p in many]


recipe = TableRecipe


def open_table(
    table_recipe: TableRecipe,
    *,
    window_rows: int,
    prefetch: int,
    workers: int = 0,
    rest: str = "short",
) -> ParquetDataset:
    """The dataset of a table, rewritten if need be."""
    folder, made = _prepared(table_recipe)
    report_bad_rows(made.learnt.get("bad_rows"))
    learnt = FittedTransforms.load(folder)
    learnt.mean_length = dict(made.learnt.get("mean_length", {}))
    if made.learnt["direct"]:
        columns = table_recipe.columns(made.learnt)
        files = {s: [Path(f.path) for f in own] for s, own in table_recipe.files.items()}
    else:
        columns = rewritten_columns(
            table_recipe.declared, learnt, has_weights=table_recipe.skips_bad_rows
        )
        files = {s: [folder / n for n in names] for s, names in made.splits.items()}
    from runner.data.read.parquet_dataset import ParquetDataset  # torch enters here

    return ParquetDataset(
        files,
        columns,
        window_rows=window_rows,
        prefetch=prefetch,
        workers=workers,
        rest=rest,
        transforms_dir=folder,
        bad_rows=made.learnt.get("bad_rows"),
    )


def report_bad_rows(bad: Mapping[str, Any] | None) -> None:
    """On stderr and in the log, at every start."""
    if not bad or not bad["count"]:
        return
    shown = "".join(f"\n  {example}" for example in bad["examples"])
    more = bad["count"] - len(bad["examples"])
    text = f"{bad['count']:,} bad rows are skipped:{shown}" + (
        f"\n  ... {more:,} more" * (more > 0)
    )
    print(text, file=sys.stderr, flush=True)
    logging.getLogger("runner").warning(text)


def _prepared(made_of: TableRecipe) -> tuple[Path, PreparedFiles]:
    """With what a run learnt: the files that are there, if they were made with the same."""
    if made_of.learnt:
        own = replace(made_of, learnt=None)
        own.check()
        folder = cache.cache_root() / f"{own.name}-{cache_key(own)}"
        if cache.is_complete(folder) and _content(folder) == _content(Path(made_of.learnt)):
            return folder, PreparedFiles(**cache.read_contents(folder))
    return prepare(made_of)


def _renamed(text: str, names: Mapping[str, str]) -> str:
    for old, new in names.items():
        if text.startswith(f"{old}: "):
            return new + text[len(old) :]
    return text


def _content(folder: Path) -> str:
    return FittedTransforms.load(folder).digest()


def _is_time(type_: pa.DataType) -> bool:
    return (
        pt.is_timestamp(type_) or pt.is_date(type_) or pt.is_integer(type_) or pt.is_floating(type_)
    )


__all__ = ["TableRecipe", "open_table", "recipe", "table", "with_fitted_transforms"]
