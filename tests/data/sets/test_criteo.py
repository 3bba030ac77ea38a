"""The Criteo file, against a reading in plain Python."""

from __future__ import annotations

import math
from collections import Counter
from itertools import chain

import numpy as np
import pyarrow as pa
import pytest

from runner.data.core.blocks import read_blocks
from runner.data.prepare.count_rows import count_rows, prepare_files
from runner.data.prepare.engine import InProcess, Processes
from runner.data.prepare.fingerprint import build_recipe
from runner.data.prepare.recipe import prepare
from runner.data.sets import criteo
from runner.data.sets.criteo import CATEGORICAL, NUMERIC, parse_hexadecimal
from runner.data.tabular import text_parts
from runner.errors import ConfigError, DataError
from tests.conftest import shared_data
from tests.data.sets.synthetic_settings import dataset_settings, instantiate

pytestmark = pytest.mark.usefixtures("own_cache")


def lines(num_rows: int) -> list[list[str]]:
    rng = np.random.default_rng(0)
    made = []
    for _ in range(num_rows):
        numbers = ["" if rng.random() < 0.2 else str(rng.integers(-3, 100)) for _ in NUMERIC]
        ids = [
            "" if rng.random() < 0.2 else f"{rng.integers(12) * 400_000_000:08x}"[:8]
            for _ in CATEGORICAL
        ]
        made.append([str(rng.integers(2)), *numbers, *ids])
    return made


def settings(tmp_path, rows, **changes):
    path = tmp_path / "train.txt"
    path.write_text("".join("\t".join(row) + "\n" for row in rows))
    return dataset_settings("criteo", path=str(path), **changes)


@pytest.mark.parametrize("block_bytes", [4000, 1 << 24])
def test_it_reads_every_row_as_python_would(tmp_path, monkeypatch, block_bytes):
    """Splits by a generator of the test's own, vocabulary by a dictionary, numbers by `math`."""
    monkeypatch.setattr(criteo, "BLOCK_BYTES", block_bytes)
    rows = lines(300)
    data = instantiate(settings(tmp_path, rows, min_count=15))
    draws = np.random.default_rng([0, 0, 2]).random(300)
    parts = {
        "train": [row for row, u in zip(rows, draws) if u < 0.8],
        "validation": [row for row, u in zip(rows, draws) if 0.8 <= u < 0.9],
        "test": [row for row, u in zip(rows, draws) if u >= 0.9],
    }
    vocabularies = []
    for f in range(14, 40):
        counts = Counter(int(row[f], 16) for row in parts["train"] if row[f])
        known = sorted(value for value, count in counts.items() if count >= 15)
        vocabularies.append({value: n + 2 for n, value in enumerate(known)})
    assert any(len(v) < 12 for v in vocabularies)
    for split, own in parts.items():
        (batch,) = data.batches(split, batch_size=300)
        assert batch.labels_BT[:, 0].tolist() == [int(row[0]) for row in own]
        expected = [[math.log1p(max(int(x or 0), 0)) for x in row[1:14]] for row in own]
        np.testing.assert_allclose(batch.dense_BD, expected, rtol=1e-6)
        for name, f in zip(CATEGORICAL, range(14, 40)):
            known = vocabularies[f - 14]
            ids = [known.get(int(row[f], 16), 0) if row[f] else 1 for row in own]
            assert batch.sparse[name].values().tolist() == ids
    sizes = [feature.num_rows for feature in data.schema.sparse]
    assert sizes == [len(v) + 2 for v in vocabularies]


@pytest.mark.long
def test_workers_that_share_the_file_write_each_row_once(tmp_path, monkeypatch):
    monkeypatch.setattr("runner.data.tabular.parts.PART_ROWS", 100)
    for module in (criteo, text_parts):
        monkeypatch.setattr(module, "BLOCK_BYTES", 4000)
    rows = lines(600)
    recipe = build_recipe(settings(tmp_path, rows, min_count=15))
    wrong = [*rows[:550], [*rows[550][:39], "xyz"], *rows[551:]]
    contents = []
    engines = {"one": InProcess(), "two": Processes(2)}
    try:
        for name, engine in engines.items():
            monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / name))
            (tmp_path / "train.txt").write_text("".join("\t".join(row) + "\n" for row in rows))
            folder, files = prepare_files(recipe, engine)
            contents.append({path.name: path.read_bytes() for path in folder.iterdir()})
            assert sum(map(count_rows, chain(*files.values()))) == 600
            (tmp_path / "train.txt").write_text("".join("\t".join(row) + "\n" for row in wrong))
            with pytest.raises(DataError, match=r"line 551, column C26: b'xyz'"):
                prepare_files(recipe, engine)
    finally:
        engines["two"].close()
    assert contents[0] == contents[1]


def test_hashing_keeps_equal_values_together_and_missing_ones(tmp_path):
    rows = lines(200)
    data = instantiate(settings(tmp_path, rows, encode="hash", hash_rows=10**6))
    assert {feature.num_rows for feature in data.schema.sparse} == {10**6}
    draws = np.random.default_rng([0, 0, 2]).random(200)
    own = [row for row, u in zip(rows, draws) if u < 0.8]
    (batch,) = data.batches("train", batch_size=200)
    ids = batch.sparse["C3"].values().tolist()
    pairs = {(row[16], id_) for row, id_ in zip(own, ids)}
    assert len(pairs) == len({text for text, _ in pairs}) == len({id_ for _, id_ in pairs})
    assert "" in {text for text, _ in pairs}


@pytest.mark.parametrize(
    ("column", "text", "message"),
    [
        (0, "2", r"line 38: label 2 is not 0 or 1"),
        (0, "", r"line 38: label None is not 0 or 1"),
        (14, "xyz", r"line 38, column C1: b'xyz' is not hexadecimal"),
        (39, "123456789", r"line 38, column C26: b'123456789' is not hexadecimal"),
        (1, "1.5", r"train\.txt: .*Row #38: .*1\.5"),
        (3, "7\t8", r"train\.txt: .*Row #38: Expected 40 columns, got 41"),
    ],
)
def test_a_bad_line_is_named(tmp_path, column, text, message):
    rows = lines(50)
    rows[37][column] = text
    with pytest.raises(DataError, match=message):
        instantiate(settings(tmp_path, rows))


def test_a_split_that_gets_no_row_is_named(tmp_path):
    with pytest.raises(DataError, match=r"the (validation|test) split has no rows"):
        instantiate(settings(tmp_path, lines(3)))


def test_fractions_must_add_up(tmp_path):
    fractions = {"train": 0.7, "validation": 0.1, "test": 0.1}
    wrong = settings(tmp_path, lines(3), fractions=fractions)
    with pytest.raises(ConfigError, match=r"fractions add up to 0\.9"):
        instantiate(wrong)


def test_a_split_of_size_zero_is_left_out(tmp_path):
    fractions = {"train": 0.5, "validation": 0.5, "test": 0.0}
    data = instantiate(settings(tmp_path, lines(50), fractions=fractions))
    assert list(data.num_rows) == ["train", "validation"]
    assert sum(data.num_rows.values()) == 50


def test_hexadecimal_equals_python():
    texts = ["68fd1e64", "", "0", "ffffffff", None, "FfFf", "a", ""]
    expected = [int(t, 16) if t else None for t in texts]
    for array in (pa.array(texts, pa.binary()), pa.array(["zz", *texts], pa.binary())[1:]):
        values, wrong = parse_hexadecimal(array)
        assert values.to_pylist() == expected
        assert len(wrong) == 0
    wrong = parse_hexadecimal(pa.array(["g", "1", " 1", "-1", "0x1", "123456789"], pa.binary()))[1]
    assert wrong.tolist() == [0, 2, 3, 4, 5]
    assert parse_hexadecimal(pa.array([None, ""], pa.binary()))[0].to_pylist() == [None] * 2


@pytest.mark.data
def test_the_real_file_is_read_whole():
    path = shared_data("criteo10k") / "train.txt"
    folder, made = prepare(build_recipe(dataset_settings("criteo", path=str(path))))
    tables = [read_blocks(folder / name) for names in made.splits.values() for name in names]
    assert sum(t.num_rows for t in tables) == 10_000
    assert sum(int(np.sum(t["label"].to_numpy())) for t in tables) == 2_182
    read = path.read_text().splitlines()
    first, second = ([line.split("\t")[n] for line in read] for n in (1, 2))
    assert min(int(x or 0) for x in second) < 0 and "" in first
    for name, texts in (("I1", first), ("I2", second)):
        found = np.sort(np.concatenate([t[name].to_numpy() for t in tables]))
        expected = np.sort([math.log1p(max(int(x or 0), 0)) for x in texts])
        np.testing.assert_allclose(found, expected, rtol=1e-6)
