"""Fault 7: damage to Parquet files of users and of our own cache is never silent.

What can be noticed depends on the file. Pages with checksums, which our files have and those that
pyarrow writes by default have not, give the same values or an error. Without them, a flipped bit
may give another value of the same type, as with any reader; such cases are counted separately.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch

from runner.data.read.parquet_dataset import ParquetDataset
from runner.errors import DataError
from tests.data.clicks import SCHEMA, clicks, open_dataset
from tests.fault_table import Table

ROWS, GROUP_ROWS = 200, 50
PLAIN: dict[str, Any] = {  # such files are read as they are
    "labels": ["click"],
    "numeric": {"price": {"log1p": True, "clip": [0, None], "default": 0.0}, "rating": {}},
    "categorical": {"user": {"num_rows": 100}, "history": {"num_rows": 40, "list": True}},
}
UNSCALED = {  # if rows were left out, a fitted mean and all values would change
    **SCHEMA,
    "numeric": {**SCHEMA["numeric"], "age": {"default": 30}},
}
FILES = {  # how a file is written, and whether its pages have checksums
    "checksums": ({"write_page_checksum": True}, True),
    "checksums, pages v2": ({"write_page_checksum": True, "data_page_version": "2.0"}, True),
    "foreign, snappy": ({}, False),
    "foreign, zstd": ({"compression": "zstd"}, False),
    "foreign, plain": ({"compression": "none", "use_dictionary": False}, False),
}


def flip(rng: random.Random, raw: bytearray) -> str:
    at, bit = rng.randrange(len(raw)), rng.randrange(8)
    raw[at] ^= 1 << bit
    return f"bit {bit} of byte {at} of {len(raw)}"


def flip_in_footer(rng: random.Random, raw: bytearray) -> str:
    length = int.from_bytes(raw[-8:-4], "little") + 8
    at = len(raw) - 1 - rng.randrange(length)
    raw[at] ^= 1 << rng.randrange(8)
    return f"a bit of byte {at} of {len(raw)}, in the footer"


def cut(rng: random.Random, raw: bytearray) -> str:
    size = rng.randrange(len(raw))
    del raw[size:]
    return f"cut to {size} bytes"


def cut_footer(rng: random.Random, raw: bytearray) -> str:
    count = rng.randrange(1, int.from_bytes(raw[-8:-4], "little") + 8)
    del raw[len(raw) - count :]
    return f"the last {count} bytes cut"


def lose(rng: random.Random, raw: bytearray) -> str:
    at, count = rng.randrange(4, len(raw) - 8), rng.randrange(1, 64)
    del raw[at : at + count]
    return f"{count} bytes lost at {at}"


def zeros(rng: random.Random, raw: bytearray) -> str:
    """Write zeros, as if a page had never reached the disk."""
    at = rng.randrange(0, len(raw), 512)
    raw[at : at + 512] = bytes(len(raw[at : at + 512]))
    return f"zeros from byte {at}"


def empty(rng: random.Random, raw: bytearray) -> str:
    raw.clear()
    return "empty"


DAMAGES: tuple[Callable[[random.Random, bytearray], str], ...] = (
    flip, flip, flip_in_footer, cut, cut_footer, lose, zeros, empty,
)  # fmt: skip


@dataclass(frozen=True)
class Values:
    """What a model would see of a split, in the order of the files."""

    tensors: tuple[torch.Tensor, ...]
    weights_B: torch.Tensor

    def same(self, other: Values) -> bool:
        pairs = zip(self.tensors, other.tensors, strict=True)
        return all(a.shape == b.shape and bool((a == b).all()) for a, b in pairs)

    def same_in(self, other: Values, rows_B: np.ndarray) -> bool:
        """Compare some rows, without their lists."""
        pairs = zip(self.tensors[:2], other.tensors[:2])
        return all(a.shape == b.shape and bool((a[rows_B] == b[rows_B]).all()) for a, b in pairs)


def values(data: ParquetDataset) -> Values:
    [batch] = data.batches("train", batch_size=10 * ROWS)
    tensors = [batch.dense_BD, batch.labels_BT, batch.sparse.values(), batch.sparse.lengths()]
    if batch.sequences is not None:
        tensors += [batch.sequences.values(), batch.sequences.lengths()]
    return Values(tuple(tensors), batch.weights_B)


def write_clicks(path: Path, **how: Any) -> bytes:
    pq.write_table(clicks(ROWS), path, row_group_size=GROUP_ROWS, **how)
    return path.read_bytes()


def damaged_files(table: Table, top: Path, *, short: bool) -> None:
    """Damage files in 150 ways: files that are read as they are, or rewritten, or with bad rows."""
    table.fault = "7: damaged files"
    path = top / "x.parquet"
    modes: list[dict[str, Any]] = [
        {"schema": PLAIN},
        {"schema": SCHEMA, "mix": False},
        {"schema": UNSCALED, "mix": False, "on_bad_rows": "skip"},
    ]
    good: dict[tuple[str, int], tuple[bytes, Values]] = {}
    for number in range(15 if short else 150):
        kind, mode = list(FILES)[number % len(FILES)], number % len(modes)
        how, has_checksums = FILES[kind]
        settings = {"path": str(path), **modes[mode]}
        if (kind, mode) not in good:
            clean = write_clicks(path, **how)
            good[kind, mode] = clean, values(open_dataset(**settings))
        clean, expected = good[kind, mode]
        raw = bytearray(clean)
        damage = DAMAGES[number % len(DAMAGES)](random.Random(number), raw)
        path.write_bytes(raw)

        def outcome(settings=settings, expected=expected, has_checksums=has_checksums) -> str:
            try:
                data = open_dataset(**settings)
                found = values(data)
            except DataError as error:
                assert "x.parquet" in str(error), f"the file is not named: {error}"
                return "row group named" if "row group" in str(error) else "file named"
            if count := data.bad_rows["count"]:
                left_out = (found.weights_B == 0).numpy()
                assert left_out.sum() == count and len(left_out) == ROWS, "not counted"
                rest = found.same_in(expected, ~left_out)
                assert rest or not has_checksums, "other values beside the bad rows"
                return (
                    "rows left out" if rest else "rows left out, and others changed (no checksum)"
                )
            if found.same(expected):
                return "nothing that is read was hit"
            assert not has_checksums, "other values without a word"
            return "changed (no checksum)"

        table.judge(f"{kind}, {damage}, mode {mode}", outcome)


def empty_files(table: Table, top: Path, *, short: bool) -> None:
    """Open 20 files without rows or row groups, alone or with good ones."""
    table.fault = "7: files without rows"
    for number in range(4 if short else 20):
        folder = top / str(number)
        folder.mkdir()
        whole, rng = clicks(ROWS), random.Random(number)
        for part in range(number % 3):
            pq.write_table(whole, folder / f"{'az'[part]}.parquet", row_group_size=50)
        path, kind = folder / "hollow.parquet", number % 4
        if kind == 0:  # a row group of no rows
            pq.write_table(whole.slice(0, 0), path)
        elif kind == 1:  # no row group
            pq.ParquetWriter(path, whole.schema).close()
        elif kind == 2:
            path.write_bytes(b"")
        else:
            path.write_bytes(rng.choice([b"PAR1", b"PAR1PAR1", b"PAR1\0\0\0\0PAR1"]))
        settings = {"schema": rng.choice([PLAIN, SCHEMA]), "path": str(folder)}

        def outcome(settings=settings, number=number, kind=kind) -> str:
            try:
                data = open_dataset(**settings)
            except DataError as error:
                assert "hollow.parquet" in str(error), error
                return "no rows" if "has no rows" in str(error) else "not readable"
            assert kind < 2 and sum(data.num_rows.values()) == number % 3 * ROWS > 0, "not noticed"
            return "passed over"

        table.judge(f"file {number}", outcome)


def damaged_cache(table: Table, top: Path, *, short: bool) -> None:
    """Damage prepared files in 40 ways: they are made again, or it is an error."""
    table.fault = "7: damaged cache"
    path = top / "x.parquet"
    write_clicks(path)
    settings = {"path": str(path), "schema": SCHEMA, "mix": False}
    data = open_dataset(**settings)
    expected = values(data)
    folder = data.indexes["train"].files[0].parent
    clean = top / "clean"
    shutil.copytree(folder, clean)
    for number in range(8 if short else 40):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(clean, folder)
        rng = random.Random(number)
        hit = rng.choice(sorted(folder.iterdir()))
        raw = bytearray(hit.read_bytes())
        damage = rng.choice([d for d in DAMAGES if d not in (flip_in_footer, cut_footer)])(rng, raw)
        hit.write_bytes(raw)

        def outcome() -> str:
            before = {p.name: p.stat().st_ino for p in folder.iterdir()}
            try:
                found = values(open_dataset(**settings))
            except DataError as error:
                assert "record batch" in str(error) and "made again" in str(error), error
                return "record batch named"
            assert found.same(expected), "other values without a word"
            after = {p.name: p.stat().st_ino for p in folder.iterdir()}
            return "the same values" if before == after else "made again"

        table.judge(f"{hit.name}: {damage}", outcome)
