from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor

from runner.batch import SparseFeature
from runner.data.read import decode
from runner.data.read.index import build_block_index
from tests.data.tables import COLUMNS, by_key, dataset, read, table, write

KEYS = ["item", "user", "tags", "shops"]


@pytest.fixture(scope="module")
def whole():
    return table(150)


@pytest.fixture(scope="module")
def data(whole, tmp_path_factory):
    return dataset(write(tmp_path_factory.mktemp("rows"), whole, file_rows=(70, 80)))


def test_schema_has_single_ids_before_lists(data):
    assert data.schema.dense == ("price", "age")
    assert [f.name for f in data.schema.sparse] == KEYS
    assert data.schema.sparse[0] == SparseFeature("item", 1000)
    assert data.schema.groups == ("user",)
    assert data.num_rows == {"train": 150}


@pytest.mark.parametrize("seed", [None, 0])
@pytest.mark.parametrize("batch_size", [11, 100])
def test_batches_hold_what_the_table_holds(data, whole, seed, batch_size):
    """The table is read row by row for comparison; batches of 100 span windows of 64 rows."""
    rows = whole.to_pylist()
    for batch in read(data, batch_size=batch_size, seed=seed):
        expected = [rows[n] for n in batch.rows_B.tolist()]
        assert batch.labels_BT[:, 0].tolist() == [row["click"] for row in expected]
        price = [np.log1p(max(row["price"] or 0.0, 0.0)) for row in expected]
        np.testing.assert_allclose(batch.dense_BD[:, 0], price, rtol=1e-6)
        assert batch.dense_BD[:, 1].tolist() == [row["age"] for row in expected]
        assert batch.weights_B.tolist() == np.float32([r["importance"] for r in expected]).tolist()
        assert batch.groups_BG[:, 0].tolist() == [row["user"] for row in expected]
        ids = by_key(batch)
        for key in ("item", "user"):
            assert ids[key] == [[row[key]] for row in expected]
        for key in ("tags", "shops"):
            assert ids[key] == [row[key] for row in expected]


def test_the_kjt_equals_the_one_built_from_jagged_tensors(data, whole):
    rows = whole.to_pylist()
    batch = read(data, batch_size=90)[0]
    expected = [rows[n] for n in batch.rows_B.tolist()]
    twin = KeyedJaggedTensor.from_jt_dict(
        {
            key: JaggedTensor.from_dense(
                [torch.tensor(np.atleast_1d(row[key]), dtype=torch.int64) for row in expected]
            )
            for key in KEYS
        }
    )
    kjt = batch.sparse
    assert kjt.keys() == twin.keys()
    assert kjt.values().equal(twin.values())
    assert kjt.lengths().equal(twin.lengths())
    assert kjt.offsets().equal(twin.offsets())
    assert kjt.length_per_key() == twin.length_per_key()
    assert kjt.offset_per_key() == twin.offset_per_key()
    assert kjt.stride() == twin.stride()


def test_types_are_those_that_need_no_conversion(data):
    batch = read(data, batch_size=40)[0]
    kjt = batch.sparse
    assert {t.dtype for t in (kjt.values(), kjt.lengths(), kjt.offsets())} == {torch.int64}
    assert batch.rows_B.dtype == batch.groups_BG.dtype == torch.int64
    floats = (batch.dense_BD, batch.labels_BT, batch.weights_B)
    assert {t.dtype for t in floats} == {torch.float32}
    assert all(t.is_contiguous() for t in (*floats, batch.rows_B, kjt.values()))


def test_columns_may_be_absent_altogether(tmp_path, whole):
    from runner.data.core.columns import CategoricalColumn, Columns

    columns = Columns(
        labels=COLUMNS.labels, categorical=(CategoricalColumn("tags", 50, is_list=True),)
    )
    batch = read(dataset(write(tmp_path, whole), columns), batch_size=20)[0]
    assert batch.dense_BD.shape == (20, 0)
    assert batch.groups_BG.shape == (20, 0)
    assert batch.weights_B.tolist() == [1.0] * 20
    assert by_key(batch)["tags"] == [whole["tags"][n].as_py() for n in batch.rows_B.tolist()]


def test_an_epoch_of_empty_lists_only(tmp_path):
    import pyarrow as pa

    from runner.data.core.columns import CategoricalColumn, Columns

    empty = pa.table({"click": [0, 1] * 10, "tags": pa.array([[]] * 20, pa.list_(pa.int32()))})
    columns = Columns(
        labels=COLUMNS.labels, categorical=(CategoricalColumn("tags", 50, is_list=True),)
    )
    for batch in read(dataset(write(tmp_path, empty), columns), batch_size=6):
        assert len(batch.sparse.values()) == 0
        assert batch.sparse.lengths().tolist() == [0] * batch.size


@pytest.mark.parametrize(
    ("available", "chunks"), [(0.0, 1 << 17), (64 * 900 * 500_000, 500_000), (np.inf, 1 << 20)]
)
def test_footers_take_a_small_share_of_the_memory(tmp_path, monkeypatch, available, chunks):
    monkeypatch.setattr(decode, "available_memory_bytes", lambda: available)
    index = build_block_index(write(tmp_path, table(8)), COLUMNS)
    assert decode.BlockReader(index, COLUMNS)._max_chunks == chunks


@pytest.mark.parametrize(("files", "chunks", "largest"), [(3, 1 << 17, 3), (32, 8 * 4 * 2, 2)])
@pytest.mark.parity("T14")
def test_open_files_are_bounded_by_their_number_and_by_their_footers(
    tmp_path, monkeypatch, files, chunks, largest
):
    """A file has 8 columns and 4 row groups; one that alone exceeds the limit is still read."""
    columns, whole = replace(COLUMNS, weight=None), table(320)
    paths = write(tmp_path, whole, file_rows=[64] * 5)
    index = build_block_index(paths, columns)
    blocks = np.random.default_rng(0).permutation(index.num_blocks)
    monkeypatch.setattr(decode, "MAX_OPEN_FILES", files)
    for limit, most in ((chunks, largest), (1, 1)):
        monkeypatch.setattr(decode, "MAX_OPEN_CHUNKS", limit)
        reader, held = decode.BlockReader(index, columns), []
        for block in blocks:
            rows = reader.read_rows(np.array([block]), slice(None))
            start, count = index.start_N[block], index.rows_N[block]
            wanted = whole["item"].to_numpy()[start : start + count]
            assert rows.ids_FW[0].tolist() == wanted.tolist()
            held.append(len(reader._open_files))
        assert max(held) == most
        reader.close()


def test_numbers_of_every_batch_begin_at_a_multiple_of_64_bytes(tmp_path):
    data = dataset(write(tmp_path, table(100)))
    batches = read(data, batch_size=7)
    assert len(batches) > 10
    assert {batch.dense_BD.data_ptr() % 64 for batch in batches} == {0}
