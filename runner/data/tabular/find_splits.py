"""Finds the splits of a folder whose files or folders are called train, validation and test."""

from __future__ import annotations

import glob
import os
import re
import shlex
from collections.abc import Sequence

from runner.data.tabular.file_list import SUFFIXES, DataFile, find_files

SPLIT_WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing"),
}
_WORDS = {"path" if s == "train" else f"{s}_path": words for s, words in SPLIT_WORDS.items()}


def find_split_paths(folder: str, format_: str) -> tuple[dict[str, str], list[str]]:
    """Find a path for each split of a folder, as in train.csv and test.csv, or train/ and test/.

    Returns:
        the setting of each split -> its path, and a note; nothing unless every file is of a split.
    """
    is_url = "://" in folder
    root = folder.rstrip("/") if is_url else os.path.abspath(os.path.expanduser(folder))
    is_file = folder.lower().endswith(SUFFIXES[format_]) or any(c in folder for c in "*?[")
    if is_file if is_url else not os.path.isdir(root):
        return {}, []
    files = find_files(folder, format_, key="")
    found: dict[str, list[DataFile]] = {}
    for file in files:
        found.setdefault(_split_of(str(file).removeprefix(f"{root}/")), []).append(file)
    if "" in found or "path" not in found or len(found) < 2:
        return {}, []
    paths = {key: _path_of(root, found[key]) for key in _WORDS if key in found}
    if not all(paths.values()) or any(
        find_files(path, format_, key=key) != found[key] for key, path in paths.items()
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
    """Return the setting of the split that a path below the folder is of; empty for none."""
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
