"""Finds splits: of a folder with files called train, validation and test, or by a column."""

from __future__ import annotations

import glob
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from runner.data.columns.schema_yaml import format_value
from runner.data.files.file_list import SUFFIXES, DataFile, find_files
from runner.data.files.read_files import single_array, unpacked_type
from runner.data.proposal.columns.column_names import split_words
from runner.data.proposal.columns.column_statistics import ColumnStatistics, has_fractions
from runner.data.proposal.columns.guess_roles import Role
from runner.data.proposal.columns.schema_hints import Hints

SPLIT_WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing"),
}
_WORDS = {"path" if s == "train" else f"{s}_path": words for s, words in SPLIT_WORDS.items()}
_SPLIT_OF = {word: split for split, words in SPLIT_WORDS.items() for word in words}
_MARKED = "|".join(sorted(_SPLIT_OF.keys() - {"dev"}))  # one of `is_dev` may be a developer
_MARK = re.compile(rf"(?:is|in)_({_MARKED})(_set|_split|_sample)?|({_MARKED})_(set|mask)")
_YES_AND_NO = (("true", "false"), ("yes", "no"), ("t", "f"), ("y", "n"))
_TEXTS = (pa.string(), pa.large_string())
REASON = "says of which split a row is"


def find_split_paths(folder: str, format_: str) -> tuple[dict[str, str], list[str]]:
    """Find a path for each split of a folder, as in train.csv and test.csv, or train/ and test/.

    Returns:
        The setting of each split -> its path, and a note; empty unless every file is of a split.
    """
    is_url = "://" in folder
    root = folder.rstrip("/") if is_url else os.path.abspath(os.path.expanduser(folder))
    is_file = folder.lower().endswith(SUFFIXES[format_]) or any(c in folder for c in "*?[")
    if is_file if is_url else not os.path.isdir(root):
        return {}, []
    files = find_files(folder, format_, key="")
    by_key: dict[str, list[DataFile]] = {}
    for file in files:
        by_key.setdefault(_split_of(str(file).removeprefix(f"{root}/")), []).append(file)
    if "" in by_key or "path" not in by_key or len(by_key) < 2:
        return {}, []
    paths = {key: _path_of(root, by_key[key]) for key in _WORDS if key in by_key}
    if not all(paths.values()) or any(
        find_files(path, format_, key=key) != by_key[key] for key, path in paths.items()
    ):
        return {}, []
    ending = next(e for e in SUFFIXES[format_] if files[0].name.lower().endswith(e))
    pooled = shlex.quote(f"{folder.rstrip('/')}/**/*{ending}")
    names = [(path.rpartition("/")[2], _WORDS[key]) for key, path in paths.items()]
    listed = ", ".join(f"{name} is {word}" for name, (word, *_) in names)
    return paths, [
        f"splits: taken from the names in {folder}: {listed}; python -m runner schema {pooled} "
        "makes one table of them, with a split of its own"
    ]


def _split_of(name: str) -> str:
    """Return the setting of the split that a path below the folder belongs to, or empty."""
    word = re.split(r"[\W\d_]", name, maxsplit=1)[0].lower()
    return next((key for key, words in _WORDS.items() if word in words), "")


def _path_of(root: str, files: Sequence[DataFile]) -> str:
    """Return the file, the folder or the glob that names the files; empty if none does."""
    names = [str(file).removeprefix(f"{root}/") for file in files]
    tops = {name.partition("/")[0] for name in names}
    if len(tops) == 1:
        return f"{root}/{tops.pop()}"
    if any("/" in name for name in names):
        return ""
    first, last = min(names), max(names)
    same = next((n for n, (a, b) in enumerate(zip(first, last)) if a != b), len(first))
    return f"{glob.escape(root)}/{first[:same]}*{os.path.splitext(first)[1]}"


@dataclass(frozen=True)
class SplitColumns:
    """The columns that say of which split a row is."""

    roles: Mapping[str, Role]  # roles of those columns, which are no features
    split: Mapping[str, Any]  # the settings of a split by one of them; empty: none is used
    notes: tuple[str, ...]


def find_split_columns(
    sample: pa.Table,
    columns: Sequence[ColumnStatistics],
    hints: Hints,
    missing: Sequence[str],
    *,
    is_whole: bool,
) -> SplitColumns:
    """Find the columns that say of which split a row is, among those that no hint names.

    Args:
        missing: the splits other than train that have no path.
        is_whole: whether the sample has all rows.
    """
    singles = (hints.weight, hints.time, hints.user, hints.item)
    hinted = {*hints.labels, *hints.numeric, *hints.categorical, *hints.drop, *singles}
    ready: dict[str, dict[str, list[str]]] = {}
    roles, marks, notes = {}, [], []
    for f in (f for f in columns if f.name not in hinted):
        if values := _read_splits(sample, f):
            if len(values) > 1:
                ready[f.name] = values
                roles[f.name] = Role("", REASON)
            elif not is_whole:
                notes.append(_describe_train_alone(f.name, values["train"]))
        elif split := _find_marked_split(f):
            roles[f.name] = Role("", f"marks the {split} rows")
            marks.append(_describe_mark(f, split))
    name = max(ready, key=lambda name: len(ready[name]), default="")
    of = {s: v for s, v in ready.get(name, {}).items() if s in ("train", *missing)}
    if is_without := "validation" in missing and "validation" not in of and "test" in of:
        of["validation"] = of.pop("test")
    if len(of) < 2 or hints.time:
        notes += [_describe_unused(name, ready[name]["train"], hints)] if name else marks
        return SplitColumns(roles, {}, tuple(notes))
    notes.append(
        f"split: the column {name} says it; --drop {name} proposes another, --categorical "
        f"{name} makes a feature of it"
    )
    if is_without:
        notes.append(_describe_no_validation(name, of))
    return SplitColumns(roles, {"split": {"column": name, **of}}, tuple(notes))


def train_share(f: ColumnStatistics, train: Sequence[str]) -> float:
    """Return the share of rows that a split by a column with these train values trains on."""
    known = {value.strip() for value in train}
    rows = sum(count for value, count in f.values if value in known)
    return rows / max(1, sum(count for _, count in f.values))


def _read_splits(sample: pa.Table, f: ColumnStatistics) -> dict[str, list[str]]:
    """Return split -> the texts of a column that name it, as they are written.

    Empty unless every text names a split, and one of them train.
    """
    if unpacked_type(f.type) not in _TEXTS or f.missing_share or not f.values:
        return {}
    texts = single_array(sample, f.name).cast(pa.string()).unique().to_pylist()
    splits = {text: _SPLIT_OF.get(text.strip().lower(), "") for text in texts}
    if "" in splits.values() or "train" not in splits.values():
        return {}
    by_split = {split: sorted(t for t in texts if splits[t] == split) for split in SPLIT_WORDS}
    return {split: words for split, words in by_split.items() if words}


def _find_marked_split(f: ColumnStatistics) -> str:
    """Return the split that a column of 0 and 1, or yes and no, marks; empty if it marks none."""
    match = _MARK.fullmatch("_".join(split_words(f.name)))
    return _SPLIT_OF[match[1] or match[3]] if match and _read_mark(f) else ""


def _read_mark(f: ColumnStatistics) -> tuple[str, str] | None:
    """Return the values for yes and for no as YAML lists; None for a column of other values."""
    if pt.is_boolean(f.type):
        return ("[true]", "[false]") if f.num_distinct == 2 else None
    if dict(f.counts).keys() == {0, 1}:  # a text file may have 1.0
        return ("[1, 1.0]", "[0, 0.0]") if has_fractions(f.type) else ("[1]", "[0]")
    texts = {text.strip().lower(): format_value([text]) for text in f.two_texts}
    pairs = [(texts[yes], texts[no]) for yes, no in _YES_AND_NO if texts.keys() == {yes, no}]
    return pairs[0] if pairs else None


def _describe_mark(f: ColumnStatistics, split: str) -> str:
    """Return a note that says how rows are split by a mark."""
    yes, no = _read_mark(f) or ("", "")
    train, held_out = (yes, no) if split == "train" else (no, yes)
    return (
        f"{f.name}: marks the {split} rows, and is left out; split: {{column: "
        f"{format_value(f.name)}, train: {train}, validation: {held_out}}} in the YAML splits by "
        f"it; --categorical {f.name} makes a feature of it, --label {f.name} the label"
    )


def _describe_train_alone(name: str, train: Sequence[str]) -> str:
    """Return a note on a split column whose sample has train rows only, as in a sorted file."""
    setting = f"{{column: {format_value(name)}, train: {format_value(train)}, test: [...]}}"
    return (
        f"{name}: is {train[0]} in all sampled rows; if other rows are for validation or test, "
        f"split: {setting} in the YAML, with their values, splits by it"
    )


def _describe_unused(name: str, train: Sequence[str], hints: Hints) -> str:
    """Return a note on a split column that is not used, since the user has said otherwise."""
    if hints.time:
        return f"{name}: {REASON}, and is left out; --time {hints.time} splits the rows"
    return (
        f"{name}: {REASON}, and is left out; splits have files of their own, beside which split: "
        f"{{column: {format_value(name)}, train: {format_value(train)}}} in the YAML trains on its "
        "train rows alone"
    )


def _describe_no_validation(name: str, of: Mapping[str, Sequence[str]]) -> str:
    """Return a note that says how some train rows become those of validation."""
    column = f"t[{name!r}]"
    return (
        f"split: {name} names no rows for validation, which choose the weights and end a training "
        f"in time, so that those of {of['validation'][0]} do, and their metrics are a little too "
        f"good; with pandas, `{column} = {column}.astype(str); t.loc[t[{column}.isin("
        f"{list(of['train'])})].sample(frac=0.1, random_state=0).index, {name!r}] = 'validation'` "
        "takes a tenth of the train rows for it"
    )
