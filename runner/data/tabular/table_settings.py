"""The settings of a user's own table: its files, its columns, and how its rows are split."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa

from runner.config_key import Key
from runner.data.columns.column_specs import Declared
from runner.data.columns.column_types import text_column_types
from runner.data.columns.schema_file import parse_schema
from runner.data.columns.schema_yaml import read_schema_file
from runner.data.columns.split_setting import EVENT_SPLITS, Split, parse_split
from runner.data.columns.times import TEXT_DATES
from runner.data.core.argument_types import Count, Seed
from runner.data.files.arrow_files import ARROW_FORMATS
from runner.data.files.file_list import DataFile, check_apart, find_files
from runner.data.files.read_text import TextFormat, default_text_format
from runner.data.interactions.rewrite import event_declaration
from runner.errors import ConfigError, DataError

TEXT_FORMATS = ("csv", "tsv", "jsonl")
SPLIT_PATHS = {"train": "path", "validation": "validation_path", "test": "test_path"}


@dataclass(frozen=True)
class TableSettings:
    """The settings of a table, and the files that they name."""

    format: Annotated[str, Key(choices=("parquet", *TEXT_FORMATS, *ARROW_FORMATS))]
    path: Any  # a file, a folder, a glob, a URL, or a list of them
    schema: Any  # a YAML file, or its content
    validation_path: Any = None
    test_path: Any = None
    split: Mapping[str, Any] | str | None = None  # how the rows of `path` are split
    split_seed: Seed = 0
    on_bad_rows: Annotated[str, Key(choices=("error", "skip"))] = "error"
    max_bad_rows: Count = 1000  # with skip, more are an error
    rewrite: Annotated[str, Key(choices=("auto", "always"))] = "auto"  # always: even good files
    mix: bool = True  # rewritten train rows are stored in random order, once
    delimiter: Annotated[str | None, Key(pattern=".", note="one character")] = None
    quote: Annotated[str, Key(pattern=".?", note="one character, or none")] = '"'
    decimal: Annotated[str | None, Key(choices=(".", ","))] = None  # before a fraction
    column_names: Any = None  # names for text files without a header
    learnt: str | None = None  # folder with a run's fitted transforms, used instead of fitting
    judged: Sequence[str] | None = None  # splits with separate files; only these are prepared

    @cached_property
    def declared(self) -> Declared:
        """The columns that the schema declares.

        Raises:
            ConfigError: for a schema that is not set, does not exist or is wrong.
        """
        if isinstance(self.schema, Mapping):
            return parse_schema(self.schema)
        return parse_schema(self.schema_content, os.path.expanduser(str(self.schema)))

    @cached_property
    def schema_content(self) -> Mapping[str, Any]:
        """The content of the schema's file, or the schema itself.

        Raises:
            ConfigError: for a schema that is not set, does not exist or is no YAML.
        """
        if self.schema is None:
            path = shlex.quote(str(self.path)) if self.path else "PATH"
            raise ConfigError(
                "dataset.schema is not set: a YAML that declares the columns; "
                f"`python -m runner schema {path} --out schema.yaml` proposes one"
            )
        if isinstance(self.schema, Mapping):
            return self.schema
        return read_schema_file(Path(os.path.expanduser(str(self.schema))))

    @cached_property
    def declared_in_files(self) -> Declared:
        """The columns of the files: those of events, if rows are made of events."""
        if self.declared.interactions is None:
            return self.declared
        return replace(event_declaration(self.declared), places=self.declared.places)

    @cached_property
    def row_split(self) -> Split:
        """The split of the rows of `path`.

        Raises:
            ConfigError: for a wrong setting, and for a split that has a path as well.
        """
        where = "dataset.split" if self.split is not None else "the schema's split"
        split = parse_split(self._split_setting, where)
        if split.kind in EVENT_SPLITS and self.declared.interactions is None:
            raise ConfigError(
                f"{where}={self._split_setting!r}: splits the events of users, which a schema "
                "declares by `interactions: {user: ..., item: ..., time: ...}`"
            )
        events = self.declared.interactions
        if events is not None and split.kind == "time" and split.column == events.time:
            # shares need only the order of times; with `input` older runs would be signed otherwise
            needs_seconds = {kind for kind, _ in split.of.values()} != {"share"}
            is_read_otherwise = needs_seconds or events.time_unit in TEXT_DATES
            if is_read_otherwise and not split.input and events.time_unit != "seconds":
                split = replace(split, input=events.time_unit)
        for name in split.splits:
            if name == "train" or name not in self.files:
                continue
            key = f"{name}_path"
            is_set = f"dataset.{key}" if getattr(self, key) is not None else f"the schema's {key}"
            raise ConfigError(
                f"{where} gives rows to {name}, and {is_set} is set as well; leave one of them "
                f"out, or say how the rows of dataset.path are split without {name}: "
                "dataset.split={...}"
            )
        return split

    @property
    def _split_setting(self) -> Mapping[str, Any] | str | None:
        return self.split if self.split is not None else self.declared.places.get("split")

    @cached_property
    def files(self) -> dict[str, list[DataFile]]:
        """The files of every split that has a path; `row_split` divides the rows of `path` further.

        Raises:
            DataError: for a path that is not set, and as `find_files` and `check_apart` do.
        """
        files: dict[str, list[DataFile]] = {}
        for split, key in SPLIT_PATHS.items():
            paths, origin = getattr(self, key), f"dataset.{key}"
            if paths is None and key in self.declared.places:
                paths = self.resolve_path(self.declared.places[key])
                origin = f"schema's {key}"
            if paths is not None:
                files[split] = find_files(paths, self.format, key=origin)
        if "train" not in files:
            raise DataError(
                f"dataset.path is not set, for example dataset.path=data/clicks.{self.format}"
            )
        check_apart(files)
        return files

    @property
    def splits(self) -> Collection[str]:
        """The splits that are prepared."""
        return self.judged or {*self.row_split.splits, *self.files}

    @property
    def files_prepared(self) -> dict[str, list[DataFile]]:
        """The files whose rows are prepared; of the others only the columns are read."""
        return {split: files for split, files in self.files.items() if split in self.splits}

    @property
    def _all_files(self) -> list[DataFile]:
        return [file for files in self.files.values() for file in files]

    @property
    def text_types(self) -> dict[str, pa.DataType]:
        """Column -> the type that it is read as from text files."""
        return text_column_types(self.declared_in_files, self.row_split)

    @property
    def columns_read(self) -> list[str]:
        split = [self.row_split.column] if self.row_split.column else []
        events = self.declared.interactions
        event_columns = events.columns if events is not None else ()
        return list(dict.fromkeys([*self.declared_in_files.columns, *event_columns, *split]))

    @property
    def text_format(self) -> TextFormat:
        default, places = default_text_format(self.format), self.declared.places
        delimiter = self.delimiter or places.get("delimiter") or default.delimiter
        quote = places.get("quote", default.quote) if self.quote == default.quote else self.quote
        names = self.column_names or places.get("column_names") or ()
        decimal = self.decimal or places.get("decimal") or default.decimal
        return TextFormat(delimiter, quote, tuple(names), default.json_lines, decimal)

    @property
    def skips_bad_rows(self) -> bool:
        return self.on_bad_rows == "skip"

    def resolve_path(self, paths: Any) -> Any:
        """Resolve the paths of a schema file relative to its folder."""
        if isinstance(self.schema, Mapping):
            return paths
        folder = Path(os.path.expanduser(str(self.schema))).parent
        several = [paths] if isinstance(paths, str) else list(paths)
        return [p if "://" in p else str(folder / os.path.expanduser(p)) for p in several]
