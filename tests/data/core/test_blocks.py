"""Files of blocks: what is read is what was written, or an error."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from runner.data.core import blocks
from runner.data.core.blocks import ArrowWriter, open_blocks, read_blocks, read_parquet
from runner.errors import DataError

BLOCK_ROWS = 20


def rows(count: int = 3 * BLOCK_ROWS - 7) -> pa.Table:
    rng = random.Random(0)
    return pa.table(
        {
            "id": pa.array([rng.randrange(1000) for _ in range(count)], pa.int32()),
            "price": pa.array([None if n % 5 == 0 else n / 7 for n in range(count)], pa.float32()),
            "tags": pa.array(
                [[rng.randrange(9)] * rng.randrange(4) for _ in range(count)],
                pa.list_(pa.field("item", pa.int32(), nullable=False)),
            ),
            "name": pa.array([f"name {n}" if n % 3 else None for n in range(count)]),
        }
    )


def write(path: Path, table: pa.Table) -> Path:
    with ArrowWriter(path, table.schema) as writer:
        for start in range(0, table.num_rows, BLOCK_ROWS):
            writer.write(table.slice(start, BLOCK_ROWS))
    return path


def test_rows_come_back_as_they_were(tmp_path):
    path = write(tmp_path / "x.arrow", rows())
    opened = open_blocks(path)
    assert opened.rows_per_block == [20, 20, 13]
    assert opened.schema.equals(rows().schema)
    assert opened.read([0, 1, 2], ["id", "price", "tags", "name"]).equals(rows())
    some = rows().select(["name", "id"])
    assert opened.read([2, 0], ["name", "id"]).equals(
        pa.concat_tables([some.slice(40), some.slice(0, 20)])
    )
    assert opened.read([1], ["tags"]).equals(rows().select(["tags"]).slice(20, 20))
    opened.close()
    assert read_blocks(path, ["price"]).equals(rows().select(["price"]))


def test_parquet_is_read_alike(tmp_path):
    pq.write_table(rows(), tmp_path / "x.parquet", row_group_size=BLOCK_ROWS)
    assert read_blocks(tmp_path / "x.parquet", ["tags", "id"]).equals(rows().select(["tags", "id"]))
    assert open_blocks(tmp_path / "x.parquet").rows_per_block == [20, 20, 13]


def test_slices_of_a_table_take_the_room_of_their_rows(tmp_path):
    whole = pa.table({"x": pa.array(range(100_000), pa.int64())})
    one, many = tmp_path / "one.arrow", tmp_path / "many.arrow"
    with ArrowWriter(one, whole.schema) as writer:
        writer.write(whole.slice(50_000, 10))
    with ArrowWriter(many, whole.schema) as writer:
        writer.write(whole)
    assert one.stat().st_size < 2000 < 800_000 < many.stat().st_size
    assert read_blocks(one)["x"].to_pylist() == list(range(50_000, 50_010))


def read_or_none(path: Path) -> pa.Table | None:
    """Return the rows of a file, or None if it is refused."""
    try:
        opened = open_blocks(path)
    except DataError:
        return None
    try:
        if len(set(opened.schema.names)) < len(opened.schema.names):
            return None
        return opened.read(range(len(opened.rows_per_block)), opened.schema.names)
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        return None
    finally:
        opened.close()


@pytest.mark.long
def test_no_flipped_bit_changes_a_value_without_a_word(tmp_path):
    """The footer, with column types and names, is covered by the hash in the cache instead."""
    path = write(tmp_path / "x.arrow", rows())
    raw = path.read_bytes()
    data = len(raw) - 10 - int.from_bytes(raw[-10:-6], "little")
    rng, refused = random.Random(1), 0
    for at in range(data):
        changed = bytearray(raw)
        changed[at] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
        table = read_or_none(path)
        refused += table is None
        assert table is None or table.equals(rows()), f"byte {at} of {data}"
    assert refused > data / 3  # the rest is padding, or a schema that the footer repeats


@pytest.mark.parametrize("size", [0, 5, 100, 1000, -1, -8, -200])
def test_a_file_that_is_cut_is_refused_by_name(tmp_path, size):
    path = write(tmp_path / "x.arrow", rows())
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(DataError, match=r"x\.arrow: not a readable Arrow file"):
        open_blocks(path)


def test_other_files_are_refused_by_name(tmp_path):
    with pytest.raises(DataError, match=r"none\.arrow: no such file"):
        open_blocks(tmp_path / "none.arrow")
    foreign = tmp_path / "foreign.arrow"
    with pa.OSFile(str(foreign), "wb") as sink, pa.ipc.new_file(sink, rows().schema) as file:
        file.write_table(rows())
    with pytest.raises(DataError, match=r"foreign\.arrow: not a readable Arrow file"):
        open_blocks(foreign)


def test_a_small_file_of_more_rows_than_memory_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "same.parquet"
    pq.write_table(
        pa.table({"id": pa.repeat(7, 1_000_000), "list": pa.repeat([1, 2], 1_000_000)}), path
    )
    assert path.stat().st_size < 50_000
    assert read_parquet(path).num_rows == 1_000_000
    monkeypatch.setattr(blocks, "available_memory_bytes", lambda: 23e6)
    with pytest.raises(DataError, match=r"same\.parquet: refused: its 1,000,000 rows take"):
        read_parquet(path)
