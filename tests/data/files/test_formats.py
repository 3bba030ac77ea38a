"""Arrow, Feather, ORC, Avro, a pyarrow.dataset and generators give the batches of Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.dataset as pads
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from runner.batch import DataPosition
from runner.data import table_of_rows
from runner.data.proposal.schema import propose_schema
from runner.errors import ConfigError, DataError, UserError
from tests.conftest import Zygote
from tests.data.clicks import SCHEMA, clicks, open_dataset, write_parquet
from tests.whole.compare_runs import fingerprint, newest_checkpoint

ROWS = 700
AVRO_TYPES = {"int64": "long", "int32": "int", "double": "double", "string": "string"}


def write_arrow(path: Path, table: pa.Table) -> None:
    with pa.ipc.new_file(str(path), table.schema) as file:
        file.write_table(table, max_chunksize=100)


def write_stream(path: Path, table: pa.Table) -> None:
    with pa.ipc.new_stream(str(path), table.schema) as file:
        file.write_table(table, max_chunksize=100)


def write_feather(path: Path, table: pa.Table) -> None:
    feather.write_feather(table, str(path), compression="zstd", chunksize=100)


def write_orc(path: Path, table: pa.Table) -> None:
    orc.write_table(table, str(path), stripe_size=1 << 14, batch_size=64)


def avro_type(type_: pa.DataType) -> Any:
    if pa.types.is_list(type_):
        return {"type": "array", "items": avro_type(type_.value_type)}
    if pa.types.is_timestamp(type_):
        return {"type": "long", "logicalType": "local-timestamp-millis"}
    return AVRO_TYPES[str(type_)]


def write_avro(path: Path, table: pa.Table, **more: Any) -> None:
    fastavro = pytest.importorskip("fastavro")
    fields = [{"name": f.name, "type": ["null", avro_type(f.type)]} for f in table.schema]
    schema = {"type": "record", "name": "click", "fields": [*fields, *more.get("fields", [])]}
    rows = [{**row, **more.get("values", {})} for row in table.to_pylist()]
    with path.open("wb") as file:
        fastavro.writer(file, schema, rows, codec="deflate")


WRITERS = {
    ".arrow": ("arrow", write_arrow),
    ".arrows": ("arrow", write_stream),
    ".feather": ("arrow", write_feather),
    ".orc": ("orc", write_orc),
    ".avro": ("avro", write_avro),
}


@pytest.mark.parametrize("suffix", [".arrow", ".arrows", ".feather", ".orc", ".parquet"])
def test_objects_within_objects_are_columns_in_every_format(tmp_path, suffix):
    rng = np.random.default_rng(0)
    places = [{"land": "NOR"[n % 3], "x": n / 4} for n in range(300)]
    users = [{"id": int(rng.integers(9)), "place": place} for place in places]
    table = pa.table({"click": rng.integers(0, 2, 300), "user": users, "z": rng.random(300)})
    path = tmp_path / f"x{suffix}"
    format_, write = WRITERS.get(
        suffix, ("parquet", lambda path, table: pq.write_table(table, path))
    )
    write(path, table)
    proposed = propose_schema(str(path))
    assert {f.name: role.name for f, role in proposed.columns} == {
        "click": "labels",
        "user.id": "categorical",
        "user.place.land": "categorical",
        "user.place.x": "numeric",
        "z": "numeric",
    }
    schema = {"labels": ["click"], "numeric": ["user.place.x"], "carried": ["user.id"]}
    data = open_dataset(path=str(path), format=format_, schema=schema, mix=False)
    batch = next(data.batches("train", batch_size=300))
    assert batch.dense_BD[:, 0].tolist() == [place["x"] for place in places]
    assert batch.labels_BT[:, 0].tolist() == table["click"].to_pylist()


def batch_values(data: Any, **more: Any) -> list[list[Any]]:
    return [
        [
            batch.dense_BD.tolist(),
            batch.labels_BT.tolist(),
            batch.weights_B.tolist(),
            batch.groups_BG.tolist(),
            batch.sparse.values().tolist(),
            batch.sparse.lengths().tolist(),
            batch.sparse.weights().tolist(),
            batch.sequences.values().tolist(),
            batch.cursor,
        ]
        for batch in data.batches("train", batch_size=64, seed=3, **more)
    ]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    folder = tmp_path_factory.mktemp("parquet")
    path = write_parquet(folder / "x", clicks(ROWS), 2)
    return batch_values(open_dataset(path=path, rewrite="always", mix=False))


def write_parts(folder: Path, suffix: str) -> str:
    folder.mkdir()
    for n in range(2):
        part = clicks(ROWS).slice(n * ROWS // 2, ROWS // 2)
        WRITERS[suffix][1](folder / f"part-{n}{suffix}", part)
    return str(folder)


@pytest.mark.parity("E13")
@pytest.mark.parametrize("suffix", WRITERS)
def test_every_format_gives_the_batches_of_parquet_from_any_position(tmp_path, expected, suffix):
    path = write_parts(tmp_path / "x", suffix)
    data = open_dataset(format=WRITERS[suffix][0], path=path, mix=False)
    assert batch_values(data) == expected
    assert batch_values(data, start=DataPosition(0, 192)) == expected[3:]


@pytest.mark.parity("E13")
@pytest.mark.parametrize("suffix", WRITERS)
def test_schema_proposes_the_same_for_every_format(tmp_path, suffix):
    proposed = propose_schema(write_parts(tmp_path / "x", suffix), None, None)
    parquet = propose_schema(write_parquet(tmp_path / "y", clicks(ROWS), 2), None, None)
    assert proposed.format == WRITERS[suffix][0]
    roles, wanted = ({c.name: role.name for c, role in p.columns} for p in (proposed, parquet))
    assert roles == wanted


SMALL_PARTS = {
    **{suffix: write for suffix, (_, write) in WRITERS.items()},
    ".parquet": lambda path, table: pq.write_table(table, path, row_group_size=50),
    ".csv": lambda path, table: pacsv.write_csv(table, path),
}


@pytest.mark.parametrize("num_files", [1, 20])
@pytest.mark.parametrize("suffix", SMALL_PARTS)
def test_a_schema_is_proposed_from_all_rows_of_small_files_and_groups(tmp_path, suffix, num_files):
    table = pa.table({"click": [n % 2 for n in range(600)], "when": range(600)})
    table = table.append_column("late", pa.array([None] * 400 + [0.5] * 200))
    rows = 600 // num_files
    for n in range(num_files):
        SMALL_PARTS[suffix](tmp_path / f"part-{n:02d}{suffix}", table.slice(n * rows, rows))
    columns = {f.name: f for f, _ in propose_schema(str(tmp_path)).columns}
    assert {name: f.num_distinct for name, f in columns.items()} == {
        "click": 2,
        "when": 600,
        "late": 1,
    }
    assert columns["late"].missing_share == pytest.approx(2 / 3)


@pytest.mark.parametrize("suffix", [".arrow", ".arrows", ".orc"])
def test_parts_without_rows_are_passed_over_whatever_their_columns(tmp_path, suffix):
    """pandas gives columns without values the type null, and may have no columns at all."""
    format_, write = WRITERS[suffix]
    full = pa.table({"click": [0, 1] * 20, "city": ["Oslo", "Rome"] * 20})
    types = {name: pa.string() if suffix == ".orc" else pa.null() for name in full.schema.names}
    for n, part in enumerate((pa.schema(types).empty_table(), pa.table({}), full)):
        write(tmp_path / f"{n}{suffix}", part)
    assert {f.num_rows for f, _ in propose_schema(str(tmp_path)).columns} == {40}
    schema = {"labels": ["click"], "categorical": {"city": {"encode": "vocabulary"}}}
    data = open_dataset(format=format_, path=str(tmp_path), schema=schema, mix=False)
    ids = next(data.batches("train", batch_size=40)).sparse.values().tolist()
    assert ids == ids[:2] * 20 and set(ids) == {2, 3}
    (tmp_path / f"2{suffix}").unlink()
    with pytest.raises(DataError, match=rf"0\{suffix}: has no rows"):
        open_dataset(format=format_, path=str(tmp_path), schema=schema)


@pytest.mark.parametrize("suffix", WRITERS)
def test_a_damaged_file_is_named_and_never_read_with_success(tmp_path, suffix):
    format_, write = WRITERS[suffix]
    whole = tmp_path / f"whole{suffix}"
    write(whole, clicks(ROWS))
    content = whole.read_bytes()
    damaged = tmp_path / f"damaged{suffix}"
    ends = (500, 800, 2000) if suffix == ".arrows" else ()
    for size in (*ends, 4, len(content) // 3, len(content) // 2, len(content) - 40):
        damaged.write_bytes(content[:size])
        with pytest.raises(DataError, match=f"damaged{suffix}"):
            open_dataset(format=format_, path=str(damaged), mix=False)
    damaged.write_bytes(b"user,click\n1,0\n" * 50)
    with pytest.raises(DataError, match=f"damaged{suffix}: not a readable"):
        open_dataset(format=format_, path=str(damaged))


@pytest.mark.parametrize("suffix", [".arrow", ".orc", ".avro"])
def test_a_bad_row_is_named_with_its_file_and_place(tmp_path, suffix):
    format_, write = WRITERS[suffix]
    table = clicks(ROWS)
    values = table["click"].to_pylist()
    values[342] = 7
    table = table.set_column(table.schema.names.index("click"), "click", pa.array(values))
    path = tmp_path / f"x{suffix}"
    write(path, table)
    place = {".arrow": "record batch 3, row 42", ".orc": r"stripe \d+, row \d+", ".avro": "row 342"}
    with pytest.raises(DataError, match=rf"x{suffix}: {place[suffix]}"):
        open_dataset(format=format_, path=str(path))
    data = open_dataset(format=format_, path=str(path), on_bad_rows="skip", mix=False)
    assert data.bad_rows["count"] == 1
    assert data.num_rows == {"train": ROWS}


def test_a_type_that_no_column_can_have_is_refused_only_where_it_is_declared(tmp_path):
    field = {"name": "extra", "type": {"type": "map", "values": "long"}}
    write_avro(tmp_path / "x.avro", clicks(50), fields=[field], values={"extra": {"a": 1}})
    settings: dict[str, Any] = {"format": "avro", "path": str(tmp_path / "x.avro")}
    assert open_dataset(
        **settings,
        schema={"labels": ["click"], "numeric": ["price"]} | {"numeric": {"price": {"default": 0}}},
    ).num_rows == {"train": 50}
    with pytest.raises(UserError, match="extra"):
        open_dataset(**settings, schema={"labels": ["click"], "numeric": ["extra"]})
    roles = {f.name: role for f, role in propose_schema(settings["path"]).columns}
    assert roles["extra"].name == "" and "no role" in roles["extra"].reason


def test_a_missing_library_is_named_with_its_extra(tmp_path, monkeypatch):
    write_avro(tmp_path / "x.avro", clicks(5))
    monkeypatch.setattr("runner.machine.imports.is_installed", lambda module: False)
    with pytest.raises(DataError, match=r"avro: needs fastavro: pip install 'runner\[avro\]'"):
        open_dataset(format="avro", path=str(tmp_path / "x.avro"))


def of_rows(rows: Any, **settings: Any) -> Any:
    return table_of_rows(rows, **{"schema": SCHEMA, "mix": False, **settings})


def test_fields_of_structs_are_columns_of_own_rows_as_of_files(tmp_path):
    users = [{"id": 3, "at": {"k": 1}}, {"id": 5, "at": {"k": 2}}]
    rows = [{"y": n, "c": user, "d.e": 7 + n} for n, user in enumerate(users)]
    ids = {name: {"num_rows": 9} for name in ("c.id", "c.at.k", "d.e")}
    schema, table = {"labels": ["y"], "categorical": ids}, pa.Table.from_pylist(rows)
    path = tmp_path / "x.parquet"
    pq.write_table(table, path)
    for data in (
        open_dataset(path=str(path), schema=schema, mix=False),
        of_rows(lambda: iter([table]), schema=schema, identity="tables"),
        of_rows(lambda: iter(rows), schema=schema, identity="mappings"),
        of_rows(pads.dataset(path), schema=schema),
    ):
        sparse = next(data.batches("train", batch_size=2)).sparse
        found = {name: sparse[name].values().tolist() for name in ids}
        assert found == {"c.id": [3, 5], "c.at.k": [1, 2], "d.e": [7, 8]}


@pytest.mark.parity("E13")
def test_a_pyarrow_dataset_and_generators_give_the_batches_of_parquet(tmp_path, expected):
    whole = clicks(ROWS)
    path = write_parquet(tmp_path / "x", whole, 2)
    files = [f"{path}/part-{n}.parquet" for n in range(2)]
    assert batch_values(of_rows(pads.dataset(files))) == expected

    def record_batches():
        yield from whole.to_batches(max_chunksize=90)

    def tables():
        yield whole.slice(0, 1)
        yield whole.slice(1)

    def rows():
        yield from whole.to_pylist()

    for number, function in enumerate((record_batches, tables, rows)):
        assert batch_values(of_rows(function, identity=f"clicks {number}")) == expected
    mixed = of_rows(record_batches, identity="clicks 0", mix=True)
    numbers = [n for b in mixed.batches("train", batch_size=64) for n in b.groups_BG[:, 0].tolist()]
    assert sorted(numbers) == sorted(whole["user"].to_pylist())


def test_rows_are_prepared_once_for_an_identity(tmp_path):
    calls = []

    def rows():
        calls.append(1)
        yield clicks(100)

    first = of_rows(rows, identity="one")
    count = len(calls)
    assert of_rows(rows, identity="one").num_rows == first.num_rows
    assert len(calls) == count + 1  # its types
    of_rows(rows, identity="two")
    assert len(calls) == 2 * count + 1


@pytest.mark.parametrize(
    ("rows", "settings", "told"),
    [
        (lambda: iter([clicks(9)]), {}, "identity is not set"),
        (iter([clicks(9)]), {"identity": "x"}, "must be a pyarrow.dataset, or a function"),
        (clicks(9), {"identity": "x"}, "must be a pyarrow.dataset, or a function .* not Table"),
        (lambda: None, {"identity": "x"}, "a function that returns an iterator .* not NoneType"),
        (
            lambda: iter([clicks(9).append_column("user", clicks(9)["user"])]),
            {"identity": "x"},
            "2 columns are called 'user'; give each a name of its own",
        ),
        (
            lambda: iter([{**row, "user": 2**63} for row in clicks(9).to_pylist()]),
            {"identity": "x"},
            "after 0 rows: an integer is outside of 64 bits .* column of uint64 takes",
        ),
        (lambda: iter([3]), {"identity": "x"}, "must bring a pyarrow.RecordBatch, .* not int"),
        (lambda: iter([]), {"identity": "x"}, "rows of .*: has no rows"),
        (lambda: iter([clicks(9).drop(["user"])]), {"identity": "x"}, "no column 'user'"),
        (
            lambda: iter([clicks(9), clicks(9).drop(["user"])]),
            {"identity": "x"},
            "rows of .*: row 9: .*user",
        ),
        (lambda: iter([clicks(9)]), {"identity": "x", "mixx": 1}, "dataset.mixx: .* 'mix'"),
        (
            lambda: iter([{"click": 1, "price": 2.0}, {"click": "no", "price": 1.0}]),
            {"identity": "x", "schema": {"labels": ["click"], "numeric": ["price"]}},
            "rows of .*: after 0 rows",
        ),
    ],
)
def test_what_is_wrong_with_rows_of_ones_own_is_told(tmp_path, rows, settings, told):
    with pytest.raises((ConfigError, DataError), match=told):
        of_rows(rows, **settings)


@pytest.mark.parametrize(("value", "shown"), [(2.5, "2.5"), ([1, 2.5], r"\[1, 2.5\]")])
def test_a_fraction_behind_whole_numbers_is_refused_not_cut_off(monkeypatch, value, shown):
    monkeypatch.setattr("runner.data.tabular.own_rows.CHUNK_ROWS", 4)
    is_list = isinstance(value, list)
    whole = [1, 2] if is_list else 2
    schema = {"labels": ["click"], "categorical": {"x": {"num_rows": 9, "list": is_list}}}

    def rows(last):
        return lambda: ({"click": n % 2, "x": last if n == 6 else whole} for n in range(8))

    assert of_rows(rows(whole), identity="whole", schema=schema).num_rows["train"] == 8
    told = f"rows of .*: after 4 rows: column 'x': value {shown} is not of type .*int64"
    with pytest.raises(DataError, match=told):
        of_rows(rows(value), identity="with a fraction", schema=schema)


def test_filtered_and_projected_datasets_need_a_name_and_the_order_of_files_counts(tmp_path):
    path = write_parquet(tmp_path / "x", clicks(ROWS), 2)
    files = [f"{path}/part-{n}.parquet" for n in range(2)]
    filtered = pads.dataset(files).filter(pads.field("user") < 9)
    with pytest.raises(ConfigError, match=r"identity is not set: a dataset with a filter"):
        of_rows(filtered)
    of_rows(filtered, identity="users below 9")
    first, second = (batch_values(of_rows(pads.dataset(own))) for own in (files, files[::-1]))
    assert first != second


def test_rows_that_another_pass_does_not_bring_again_are_told():
    counts = iter((100, 100, 90))  # for the types, to fit the vocabulary, to write the rows
    with pytest.raises(DataError, match=r"rows of .*: a pass .* 100 and the next one 90"):
        of_rows(lambda: iter([clicks(next(counts))]), identity="x")


MODULE = """
import pyarrow as pa

from runner import dataset_option
from runner.data import table_of_rows


@dataset_option
def numbers(*, count, learnt=None):
    def rows():
        for n in range(count):
            yield {"click": n % 2, "user": n % 9, "city": "abc"[n % 3]}

    schema = {
        "labels": ["click"],
        "categorical": {"user": {"num_rows": 9}, "city": {"encode": "vocabulary"}},
    }
    split = {"random": {"train": 0.8, "validation": 0.2}}
    return table_of_rows(
        rows, schema=schema, split=split, identity=f"numbers {count}", learnt=learnt
    )
"""


@pytest.mark.long
@pytest.mark.parity("E13", "C7")
def test_a_generator_trains_by_the_command_line_and_resumes_bit_for_bit(tmp_path, runner: Zygote):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "rows.py").write_text(MODULE)
    (tmp_path / "conf" / "dataset").mkdir(parents=True)
    node = "_target_: mine.rows.numbers\ncount: 800\nlearnt: null\n"
    (tmp_path / "conf" / "dataset" / "numbers.yaml").write_text(node)
    words = ("--config-dir", "conf", "--allow", "mine", "dataset=numbers", "report=false")
    small = ("trainer.batch_size=64", "trainer.num_threads=1", "model.net.dropout=0.1")
    for run, steps in (("whole", 25), ("parts", 12)):
        more = (f"trainer.max_steps={steps}", f"hydra.run.dir={run}", "model=dcn")
        runner.run(*words, *small, *more, cwd=tmp_path).check()
    runner.run("resume", "parts", "--allow", "mine", "trainer.max_steps=25", cwd=tmp_path).check()
    whole, parts = (fingerprint(newest_checkpoint(tmp_path / run)) for run in ("whole", "parts"))
    names = [n for n in whole if n.startswith(("tables/", "dense"))]
    assert names and all(whole[n] == parts[n] for n in names)


def test_files_of_a_folder_that_are_not_read_are_told(tmp_path):
    pq.write_table(clicks(ROWS), tmp_path / "0.parquet")
    for n in (1, 2):
        (tmp_path / f"{n}.csv").write_text("click,user\n1,2\n")
    (tmp_path / "README.txt").write_text("clicks of a week")
    (told,) = [note for note in propose_schema(str(tmp_path)).notes if "not read" in note]
    assert told.startswith("2 files of another format than parquet in ")
    assert told.endswith(", such as 1.csv, are not read")
    for n in (1, 2):
        (tmp_path / f"{n}.csv").unlink()
    assert not any("not read" in note for note in propose_schema(str(tmp_path)).notes)
