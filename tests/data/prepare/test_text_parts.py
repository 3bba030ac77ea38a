"""Large text files that workers share block by block: the same files as in one pass."""

from __future__ import annotations

import json

import numpy as np
import pytest

from runner.data.core.cache import PARTS_FOLDER
from runner.data.files.file_list import DataFile
from runner.data.files.text_blocks import TextBlocks, find_blocks, read_blocks
from runner.data.prepare.engine import InProcess
from runner.data.tabular.table import prepare_table
from runner.data.tabular.table_recipe import TableRecipe
from runner.errors import DataError
from tests.data.clicks import recipe_settings
from tests.data.prepare.test_prepare import (
    SHARES,
    Backwards,
    DiesAfter,
    KilledError,
    prepared_files,
    small_parts,  # noqa: F401
)

ROWS = 400
SCHEMA = {
    "labels": ["y"],
    "numeric": {"x": {"standardise": True}},
    "categorical": {"city": {"encode": "vocabulary"}},
    "carried": ["city"],
}


class Killed(DiesAfter):
    """Several workers, one task after another."""

    num_workers = 3


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch, small_parts):  # noqa: F811
    for module in ("files.read_text", "files.read_json_lines", "tabular.text_parts"):
        monkeypatch.setattr(f"runner.data.{module}.BLOCK_BYTES", 600)


def rows():
    rng = np.random.default_rng(5)
    for n in range(ROWS):
        yield n % 2, round(rng.normal(), 6), f"city {rng.integers(40)}"


def csv_lines():
    quoted = [f'{y},{x},"{city}, by the sea"' for y, x, city in rows()]
    return ["y,x,city", *quoted]


def json_lines():
    return [json.dumps({"y": y, "x": x, "city": city}) for y, x, city in rows()]


def with_malformed(lines):
    """Lines with a value too many, without any, and with a missing number, all over the file."""
    for number in range(9, len(lines), 83):
        lines[number] += ",1"
    for number in range(30, len(lines), 97):
        lines[number] = f"1,none,{number}"
    for number in range(50, len(lines), 120):
        lines[number] = ""
    return lines


def with_wrong_types(lines):
    """Lines whose number is a text, and blank ones."""
    for number in range(50, len(lines), 83):
        lines[number] = lines[number].replace('"x": ', '"x": "none", "z": ')
    lines[120] += "\n\n"
    return lines


def with_line_breaks(lines):
    return [line.replace(", by", ",\nby") if n % 3 else line for n, line in enumerate(lines)]


SKIPPING = {"on_bad_rows": "skip", "max_bad_rows": 100}


@pytest.mark.parametrize(
    ("format_", "lines", "ends", "settings"),
    [
        ("csv", csv_lines(), "\n", {}),
        ("csv", csv_lines()[1:], "\r\n", {"mix": False, "column_names": ["y", "x", "city"]}),
        ("csv", csv_lines(), "\r", {"split": {"column": "y", "train": [0], "test": [1]}}),
        ("csv", with_malformed(csv_lines()), "\n", SKIPPING),
        ("csv", with_line_breaks(csv_lines()), "\n", {}),
        ("jsonl", json_lines(), "\n", {}),
        ("jsonl", with_wrong_types(json_lines()), "\n", SKIPPING),
    ],
    ids=[
        "plain",
        "in order without names",
        "by a column",
        "malformed lines",
        "line breaks",
        "JSON",
        "JSON with malformed lines",
    ],
)
def test_the_files_are_those_of_one_pass(tmp_path, monkeypatch, format_, lines, ends, settings):
    path = tmp_path / f"x.{format_}"
    path.write_bytes(ends.join(lines).encode())
    given = {"format": format_, "path": str(path), "schema": SCHEMA, "split": SHARES}
    recipe = TableRecipe(**recipe_settings(**given | settings))
    plain = prepared_files(recipe, tmp_path / "one", monkeypatch)
    shared = TableRecipe(**recipe_settings(**given | settings))
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "several"))
    folder, _ = prepare_table(shared, Backwards())
    parts = shared.rows_of_groups(shared.files["train"][0])
    # a value with a line break may lie across two blocks: such a file is read in one pass
    assert (
        parts is None if any('\n"' in line or ",\n" in line for line in lines) else len(parts) > 9
    )
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == plain


def test_a_killed_preparation_goes_on_with_the_parts_it_had(tmp_path, monkeypatch):
    path = tmp_path / "x.csv"
    path.write_text("\n".join(csv_lines()))
    recipe = TableRecipe(**recipe_settings(format="csv", path=str(path), schema=SCHEMA))
    plain = prepared_files(recipe, tmp_path / "one", monkeypatch)
    for first, second in ((Killed(8), InProcess()), (DiesAfter(1), Backwards())):
        cache = tmp_path / type(first).__name__
        with pytest.raises(KilledError):
            prepared_files(recipe, cache, monkeypatch, first)
        [parts] = cache.glob(f"*.tmp/{PARTS_FOLDER}")
        assert any(parts.iterdir())
        assert prepared_files(recipe, cache, monkeypatch, second) == plain


def test_a_bad_value_is_told_with_its_line_whoever_finds_one(tmp_path, monkeypatch):
    lines = csv_lines()
    lines[300] = "1,nothing,a"
    lines[220] = "1,0.5,a,more"
    path = tmp_path / "x.csv"
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))
    for problem in (r"Row #221: Expected 3 columns, got 4", r"column 'x': Row #301: .*'nothing'"):
        path.write_text("\n".join(lines))
        for engine in (InProcess(), Backwards()):
            recipe = TableRecipe(**recipe_settings(format="csv", path=str(path), schema=SCHEMA))
            with pytest.raises(DataError, match=problem):
                prepare_table(recipe, engine)
        lines[220] = "1,0.5,a"


@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r", "\n\n\n"])
def test_blocks_are_found_where_they_are_read(tmp_path, ends):
    lines = [*csv_lines(), "1,2," + 500 * "long ", *csv_lines(), 700 * "\n", "0,1,end"]
    path = tmp_path / "x.csv"
    path.write_bytes(ends.join(lines).encode())
    file = DataFile(str(path))
    for num_bytes in (64, 300, 1024, 10**6):
        blocks = TextBlocks(tuple(find_blocks(file, num_bytes)))
        assert list(read_blocks(file, num_bytes, blocks)) == list(read_blocks(file, num_bytes))
