from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from runner.data.core.blocks import read_footer
from runner.data.core.columns import CategoricalColumn, Columns, LabelColumn, NumericColumn
from runner.data.core.fitted import FITTED_FILE, FittedTransforms
from runner.errors import DataError
from tests.data.tables import COLUMNS, dataset, read, rows_of, table, write


def changed(whole: pa.Table, column: str, row: int, value: object) -> pa.Table:
    values = whole[column].to_pylist()
    values[row] = value
    type_ = pa.float64() if isinstance(value, float) else whole[column].type
    index = whole.schema.get_field_index(column)
    return whole.set_column(index, column, pa.array(values, type_))


@pytest.mark.parametrize(
    ("column", "value", "shown"),
    [
        ("item", -1, "-1"),
        ("item", 1000, "1000"),
        ("item", 2**63 - 1, "9223372036854775807"),
        ("user", 100, "100"),
        ("tags", [3, 50], "50"),
        ("tags", [-4], "-4"),
        ("shops", [2, 2**40], "1099511627776"),
        ("click", 2, "2"),
        ("click", -1, "-1"),
        ("click", float("nan"), "nan"),
        ("click", float("inf"), "inf"),
        ("age", float("nan"), "nan"),
        ("age", float("-inf"), "-inf"),
        ("importance", float("nan"), "nan"),
        ("importance", -0.5, "-0.5"),
        ("click", None, "missing"),
        ("age", None, "missing"),
        ("item", None, "missing"),
        ("user", None, "missing"),
        ("tags", [1, None], "missing"),
    ],
)
@pytest.mark.parametrize("seed", [None, 0])
def test_a_bad_value_is_named_by_file_row_group_row_and_column(
    tmp_path, column, value, shown, seed
):
    """Row 37 + 40 is row 5 of row group 2 in the second file."""
    whole = changed(table(100), column, 77, value)
    data = dataset(write(tmp_path, whole, file_rows=(40, 60)))
    with pytest.raises(DataError) as caught:
        read(data, batch_size=10, seed=seed)
    message = str(caught.value)
    assert f"b.parquet: row group 2, row 5, column {column!r}" in message
    assert shown in message


@pytest.mark.parametrize(("type_", "num_rows"), [(pa.int8(), 1000), (pa.int16(), 100_000)])
@pytest.mark.parametrize("is_list", [False, True])
def test_a_negative_id_of_a_type_that_is_narrower_than_its_table_is_refused(
    tmp_path, type_, num_rows, is_list
):
    column = CategoricalColumn("item", num_rows, is_list=is_list)
    columns = Columns(labels=(LabelColumn("y"),), categorical=(column,))
    ids = pa.array([[3], [-1]], pa.list_(type_)) if is_list else pa.array([3, -1], type_)
    data = dataset(write(tmp_path, pa.table({"y": [0, 1], "item": ids})), columns)
    with pytest.raises(DataError, match=f"row 1, column 'item': value -1: .* 0 to {num_rows - 1}"):
        read(data, batch_size=2)


def test_log1p_of_minus_one_is_refused_where_nothing_clips(tmp_path):
    columns = Columns(labels=(LabelColumn("y"),), numeric=(NumericColumn("x", log1p=True),))
    data = dataset(write(tmp_path, pa.table({"y": [0, 1], "x": [3.0, -1.0]})), columns)
    with pytest.raises(DataError, match=r"row 1, column 'x': value -1.0: not .*; log1p takes"):
        read(data, batch_size=2)


def test_regression_labels_take_any_finite_number(tmp_path):
    columns = Columns(labels=(LabelColumn("y", "regression"), LabelColumn("z", allowed=(1.0, 2.0))))
    paths = write(tmp_path, pa.table({"y": [-3.5, 1e9], "z": [1, 2]}))
    assert read(dataset(paths, columns), batch_size=2, seed=None)[0].labels_BT.tolist() == [
        [-3.5, 1],
        [1e9, 2],
    ]
    paths = write(tmp_path, pa.table({"y": [-3.5, 1e9], "z": [1, 3]}))
    with pytest.raises(DataError, match="value 3: allowed is 1 or 2"):
        read(dataset(paths, columns), batch_size=2)


def test_defaults_fill_what_is_missing(tmp_path):
    columns = Columns(
        labels=(LabelColumn("y"),),
        numeric=(NumericColumn("x", default=2.5),),
        categorical=(
            CategoricalColumn("a", 5, default=4),
            CategoricalColumn("h", 7, encode="hash", default=6),
            CategoricalColumn("l", 9, is_list=True, default=8),
        ),
    )
    whole = pa.table(
        {
            "y": [0, 1],
            "x": pa.array([1, None], pa.int32()),
            "a": pa.array([1, None], pa.int16()),
            "h": pa.array([123456789, None], pa.int64()),
            "l": pa.array([[1, None], None], pa.list_(pa.int32())),
        }
    )
    batch = read(dataset(write(tmp_path, whole), columns), batch_size=2, seed=None)[0]
    assert batch.dense_BD.tolist() == [[1.0], [2.5]]
    assert batch.sparse["a"].values().tolist() == [1, 4]
    assert batch.sparse["h"].values().tolist()[1] == 6
    assert batch.sparse["l"].values().tolist() == [1, 8]
    assert batch.sparse["l"].lengths().tolist() == [2, 0]


def test_a_default_may_be_beyond_what_the_type_of_its_column_holds(tmp_path):
    columns = Columns(
        labels=(LabelColumn("y"),),
        numeric=(NumericColumn("x", default=-1.0), NumericColumn("b", default=2.0)),
        categorical=(CategoricalColumn("a", 1000, default=300),),
    )
    small = pa.array([3, None], pa.uint8())
    whole = pa.table({"y": [0, 1], "x": small, "b": pa.array([True, None]), "a": small})
    batch = read(dataset(write(tmp_path, whole), columns), batch_size=2, seed=None)[0]
    assert batch.dense_BD.tolist() == [[3.0, 1.0], [-1.0, 2.0]]
    assert batch.sparse["a"].values().tolist() == [3, 300]


def test_a_missing_column_names_the_nearest(tmp_path):
    paths = write(
        tmp_path,
        table(20).rename_columns(
            ["click", "price", "age", "tags", "itm", "shops", "user", "importance"]
        ),
    )
    with pytest.raises(DataError, match=r"a\.parquet: no column 'item'; nearest: 'itm'"):
        dataset(paths)


@pytest.mark.parametrize(
    ("column", "values", "needed"),
    [
        ("item", pa.array(["x"] * 20), "it must be an integer"),
        ("item", pa.array([1.0] * 20), "it must be an integer"),
        ("tags", pa.array([1] * 20), "it must be a list of integers"),
        ("age", pa.array(["x"] * 20), "it must be a number"),
        ("click", pa.array(["x"] * 20), "it must be a number"),
    ],
)
def test_a_wrong_type_is_found_before_the_first_batch(tmp_path, column, values, needed):
    whole = table(20)
    whole = whole.set_column(whole.schema.get_field_index(column), column, values)
    with pytest.raises(DataError, match=f"column '{column}' has type .*{needed}"):
        dataset(write(tmp_path, whole))


def test_a_type_that_changes_between_files_is_found_before_the_first_batch(tmp_path):
    first = write(tmp_path / "one", table(20))
    other = table(20).set_column(4, "item", pa.array(np.arange(20), pa.int16()))
    second = write(tmp_path / "two", other)[0].rename(tmp_path / "one" / "b.parquet")
    with pytest.raises(DataError, match=r"b\.parquet: column 'item' has type int16, but int64 in"):
        dataset([*first, second])


@pytest.mark.parametrize("size", [0, 3, 100, -1])
def test_a_cut_file_is_named(tmp_path, size):
    path = write(tmp_path, table(50))[0]
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(DataError, match=r"a\.parquet: not a readable Parquet file"):
        dataset([path])


def test_a_file_without_rows_is_named(tmp_path):
    path = write(tmp_path, table(5).slice(0, 0))[0]
    with pytest.raises(DataError, match=r"a\.parquet: has no rows"):
        dataset([path])


def test_a_part_without_rows_beside_others_is_passed_over(tmp_path):
    parts = [write(tmp_path / n, table(num))[0] for n, num in (("one", 5), ("two", 7))]
    empty = write(tmp_path, table(5).slice(0, 0))[0]
    assert dataset([*parts, empty]).num_rows["train"] == 12


def test_a_split_without_files_is_named(tmp_path):
    with pytest.raises(DataError, match="the train split has no files"):
        dataset([])


def test_flipped_bits_are_never_silent(tmp_path):
    """Every flip is noticed, or hit bytes that no declared value is made of."""
    path = write(tmp_path, table(200), block_rows=50)[0]
    clean, good = path.read_bytes(), read(dataset([path]), batch_size=200)[0]
    rng = np.random.default_rng(0)
    noticed = 0
    for _ in range(40):
        raw = bytearray(clean)
        place = int(rng.integers(4, len(raw) - 3000))
        raw[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(raw)
        try:
            batch = read(dataset([path]), batch_size=200)[0]
        except DataError as error:
            noticed += "a.parquet" in str(error)
            continue
        assert batch.sparse.values().equal(good.sparse.values())
        assert batch.dense_BD.equal(good.dense_BD)
        assert batch.labels_BT.equal(good.labels_BT)
    assert noticed > 20


def test_a_broken_page_names_its_row_group(tmp_path):
    import pyarrow.parquet as pq

    path = write(tmp_path, table(200), block_rows=50)[0]
    names = pq.ParquetFile(path).schema_arrow.names
    place = pq.ParquetFile(path).metadata.row_group(2).column(names.index("age")).data_page_offset
    raw = bytearray(path.read_bytes())
    raw[place + 60] ^= 1
    path.write_bytes(raw)
    with pytest.raises(DataError, match=r"a\.parquet: row group 2: .*CRC"):
        read(dataset([path]), batch_size=200)


def test_a_file_that_has_other_rows_than_when_it_was_opened_is_named(tmp_path):
    paths = write(tmp_path, table(40))
    data = dataset(paths)
    write(tmp_path, table(39))
    with pytest.raises(DataError, match=r"a\.parquet: was changed while it was read: 39 rows, not"):
        read(data, batch_size=40)


def test_a_file_that_was_replaced_by_one_of_as_many_rows_is_named(tmp_path):
    [path] = write(tmp_path, table(40))
    data = dataset([path])
    write(tmp_path, table(40))  # the same rows again
    assert len(rows_of(data.batches("train", batch_size=40))) == 40
    for other in (table(40, seed=1), table(40).drop_columns(["age"])):
        write(tmp_path, other)
        changed = r"a\.parquet: was changed while it was read: 40 rows, not the 40 of before"
        with pytest.raises(DataError, match=changed):
            read(data, batch_size=40)


def test_a_footer_that_contradicts_itself_is_refused():
    group = SimpleNamespace(num_rows=4)
    metadata = SimpleNamespace(num_row_groups=2, num_rows=9, row_group=lambda _: group)
    opened = SimpleNamespace(schema_arrow=pa.schema([]), metadata=metadata)
    with pytest.raises(DataError, match="damaged footer: 9 rows, but 8 in its row groups; write"):
        read_footer(opened, "a.parquet")


def test_fitted_transforms_that_were_edited_are_refused(tmp_path):
    FittedTransforms(num_rows={"user": 7}).save(tmp_path)
    path = tmp_path / FITTED_FILE
    path.write_text(path.read_text().replace("7", "8"))
    with pytest.raises(DataError, match="cannot be read: damaged: it is not what was written"):
        FittedTransforms.load(tmp_path)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Columns(labels=()), "no label"),
        (lambda: Columns(COLUMNS.labels, (NumericColumn("click"),)), "'click' is declared 2 times"),
        (lambda: Columns(COLUMNS.labels, (), (CategoricalColumn("a", 0),)), "at least 1"),
        (lambda: Columns(COLUMNS.labels, (), (CategoricalColumn("a", 3, default=3),)), "default 3"),
        (
            lambda: Columns(
                COLUMNS.labels,
                (),
                (CategoricalColumn("a", 3, table="t"), CategoricalColumn("b", 4, table="t")),
            ),
            "table 't'",
        ),
    ],
)
def test_wrong_declarations_are_refused(make, message):
    with pytest.raises(DataError, match=message):
        make()
