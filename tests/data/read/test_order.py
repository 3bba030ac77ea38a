from __future__ import annotations

import itertools

import numpy as np
import pytest

from runner.batch import DataPosition
from runner.errors import DataError
from tests.data.tables import dataset, read, rows_of, table, write


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Return 491 rows in three files, in blocks of at most 16 rows and windows of four blocks."""
    folder = tmp_path_factory.mktemp("read_rows")
    return dataset(write(folder, table(491), file_rows=(200, 91, 200)))


def sequence(data, seed, epoch=0):
    return rows_of(data.batches("train", batch_size=491, seed=seed, start=DataPosition(epoch, 0)))


@pytest.mark.parity("T14")
def test_every_example_comes_exactly_once_an_epoch(data):
    for seed, epoch in [(0, 0), (0, 1), (7, 0)]:
        assert sorted(sequence(data, seed, epoch)) == list(range(491))


def test_without_a_seed_the_order_is_that_of_the_files(data):
    assert sequence(data, None) == list(range(491))
    assert sequence(data, None, epoch=3) == list(range(491))


def test_seed_and_epoch_each_make_another_order(data):
    orders = [sequence(data, seed, epoch) for seed, epoch in [(0, 0), (0, 1), (1, 0), (1, 1)]]
    assert all(a != b for a, b in itertools.combinations(orders, 2))
    assert orders[0] == sequence(data, 0, 0)


@pytest.mark.parametrize("batch_size", [1, 7, 64, 100, 491, 1000])
def test_batch_size_does_not_change_the_order(data, batch_size):
    batches = read(data, batch_size=batch_size)
    assert rows_of(batches) == sequence(data, 0)
    assert [b.size for b in batches[:-1]] == [batch_size] * (len(batches) - 1)


@pytest.mark.parametrize(("batch_size", "world_size"), [(10, 2), (7, 3), (64, 4), (100, 8)])
def test_ranks_take_their_parts_of_the_same_global_batches(data, batch_size, world_size):
    parts = [
        list(data.batches("train", batch_size=batch_size, seed=0, rank=rank, world_size=world_size))
        for rank in range(world_size)
    ]
    assert len({len(batches) for batches in parts}) == 1
    merged = []
    for together in zip(*parts, strict=True):
        assert len({batch.cursor for batch in together}) == 1
        rows = [row for batch in together for row in batch.rows_B.tolist() if row >= 0]
        merged += rows
        assert together[0].cursor in (DataPosition(0, len(merged)), DataPosition(1, 0))
    assert merged == sequence(data, 0)


def test_a_rank_without_a_row_in_the_last_batch_gets_one_of_weight_zero(tmp_path):
    data = dataset(write(tmp_path, table(13)))
    last = [
        list(data.batches("train", batch_size=3, seed=0, rank=rank, world_size=4))[-1]
        for rank in range(4)
    ]
    assert sum(b.weights_B.sum().item() > 0 for b in last) == 1
    padding = [b for b in last if b.rows_B.tolist() == [-1]]
    assert len(padding) == 3
    assert all(b.weights_B.tolist() == [0] and b.sparse.stride() == 1 for b in padding)


@pytest.mark.parametrize("seed", [None, 5])
def test_seek_at_every_step_of_forty_equals_the_uninterrupted_order(data, seed):
    batches = read(data, batch_size=12, seed=seed)
    assert len(batches) == 41
    for step in range(40):
        cursor = batches[step].cursor
        rest = read(data, batch_size=12, seed=seed, at=(cursor.epoch, cursor.offset))
        assert rows_of(rest) == rows_of(batches[step + 1 :])
        assert rest[0].sparse.values().equal(batches[step + 1].sparse.values())
        assert rest[0].dense_BD.equal(batches[step + 1].dense_BD)


@pytest.mark.long
def test_seek_to_every_offset_with_another_batch_size_and_two_ranks(data):
    whole = sequence(data, 3, epoch=2)
    for offset in range(0, 491, 13):
        start = DataPosition(2, offset)
        parts = [
            data.batches("train", batch_size=9, seed=3, start=start, rank=rank, world_size=2)
            for rank in range(2)
        ]
        rows = [row for pair in zip(*parts, strict=True) for b in pair for row in b.rows_B.tolist()]
        assert [row for row in rows if row >= 0] == whole[offset:]


def test_cursor_after_the_last_batch_is_the_start_of_the_next_epoch(data):
    cursors = [b.cursor for b in read(data, batch_size=100, at=(4, 0))]
    assert cursors == [*(DataPosition(4, o) for o in (100, 200, 300, 400)), DataPosition(5, 0)]


def test_a_seek_reads_no_window_before_it(data, monkeypatch):
    from runner.data.read.decode import BlockReader

    opened = []
    read_rows = BlockReader.read_rows
    monkeypatch.setattr(
        BlockReader,
        "read_rows",
        lambda self, blocks, order: opened.append(1) or read_rows(self, blocks, order),
    )
    next(data.batches("train", batch_size=1, seed=0, start=DataPosition(0, 480)))
    assert len(opened) == 1


@pytest.mark.parity("N9")
def test_prefetch_and_the_order_of_the_arguments_change_nothing(data, tmp_path):
    paths = write(tmp_path, table(491), file_rows=(200, 91, 200))
    again = dataset(paths[::-1], prefetch=3)
    assert rows_of(again.batches("train", batch_size=50, seed=0)) == sequence(data, 0)


def test_a_position_beyond_the_data_is_refused(data):
    with pytest.raises(DataError, match="position 491 is outside the 491 rows"):
        data.batches("train", batch_size=8, start=DataPosition(0, 491))


def test_an_unknown_split_names_the_nearest(data):
    with pytest.raises(DataError, match="nearest: 'train'"):
        data.batches("trian", batch_size=8)


def test_the_shuffle_is_close_to_a_full_one(tmp_path):
    """64 blocks of 32 rows in windows of 16 blocks are compared with what a full shuffle gives."""
    num_rows, block = 2048, 32
    data = dataset(write(tmp_path, table(num_rows), block_rows=block), window_rows=16 * block)
    moved, neighbours, halves = [], [], []
    for seed in range(10):
        order = np.array(rows_of(data.batches("train", batch_size=num_rows, seed=seed)))
        moved.append(np.abs(order - np.arange(num_rows)).mean() / num_rows)
        neighbours.append((order[1:] // block == order[:-1] // block).mean())
        halves.append((order[: num_rows // 4] < num_rows / 2).mean())
    assert np.mean(moved) == pytest.approx(1 / 3, abs=0.03)  # a full shuffle: 1/3
    assert np.mean(neighbours) == pytest.approx(31 / 511, abs=0.01)  # 16 blocks share a window
    assert np.std(halves) < 0.2  # the first quarter of the epoch comes from everywhere
