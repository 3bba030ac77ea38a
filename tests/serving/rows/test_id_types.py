"""An id is scored as the id of the training, whatever the format of its file and its type there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import roc_auc_score

import runner as public
from runner.data.columns.column_types import id_types
from runner.data.columns.hash_text import hash_texts
from runner.data.columns.schema_file import parse_schema
from runner.data.core.fitted import FittedTransforms
from runner.data.files.read_files import RowChunk, unpack_columns
from runner.errors import DataError
from runner.serving import Scorer
from runner.serving.artifact.folder import GraphSpec, LookupGroup
from runner.serving.artifact.raw_rows import encode_rows
from runner.serving.items.item_table import item_ids
from runner.serving.predict.plan import make_plan
from runner.serving.predict.run import predict_files
from runner.serving.rows.encode import PartEncoder, Transforms
from runner.serving.rows.input import MEMORY, InputPart
from runner.serving.server.columns import (
    describe_columns,
    example_request,
    make_table,
    served_columns,
)
from runner.serving.server.tensors import parse_request, write_answer
from tests.conftest import Zygote
from tests.data.files.test_formats import write_arrow, write_avro, write_orc
from tests.tiers import fast

SCHEMA = {
    "labels": {"click": {}},
    "categorical": {
        "user": {"encode": "vocabulary"},
        "shop": {"encode": "hash", "num_rows": 500},
        "item": {"num_rows": 40},
        "hour": {"column": "time", "encode": "hour"},
        "both": {"cross": ["shop", "user"], "num_rows": 900},
    },
}
IDS = ("user", "shop")
NUM_ROWS = 900


def near(value: float) -> object:
    return pytest.approx(value, rel=1e-12)  # one pair of rows in another order is 5e-6


def write_csv(path: Path, table: pa.Table) -> None:
    pacsv.write_csv(table, path)


def write_jsonl(path: Path, table: pa.Table) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))


WRITERS = {
    "parquet": lambda path, table: pq.write_table(table, path),
    "csv": write_csv,
    "jsonl": write_jsonl,
    "arrow": write_arrow,
    "orc": write_orc,
    "avro": write_avro,
}


def clicks(seed: int = 0) -> pa.Table:
    random = np.random.default_rng(seed)
    user, shop = random.integers(0, 50, NUM_ROWS), random.integers(0, 300, NUM_ROWS)
    chance = 1 / (1 + np.exp(2 - (user % 5) - (shop % 2)))
    return pa.table(
        {
            "click": (random.random(NUM_ROWS) < chance).astype(int),
            "user": pa.array(user, mask=user == 7),
            "shop": shop,
            "item": random.integers(0, 40, NUM_ROWS),
            "time": 1_700_000_000 + 3600 * random.integers(0, 24, NUM_ROWS),
        }
    )


def with_ids(table: pa.Table, type_: pa.DataType) -> pa.Table:
    for name in IDS:
        at = table.column_names.index(name)
        is_packed = pa.types.is_dictionary(type_)
        values = table[name].cast(type_.value_type if is_packed else type_)
        table = table.set_column(at, name, values.dictionary_encode() if is_packed else values)
    return table


@pytest.fixture(scope="module")
def trained(runner: Zygote, tmp_path_factory: pytest.TempPathFactory):
    """Trains on files of a format, whose ids have some type; once for each."""
    runs: dict[tuple[str, pa.DataType], Path] = {}

    def train(format_: str, type_: pa.DataType) -> Path:
        if (format_, type_) in runs:
            return runs[format_, type_]
        folder = tmp_path_factory.mktemp(format_)
        for seed, split in enumerate(("train", "validation", "test")):
            WRITERS[format_](folder / f"{split}.{format_}", with_ids(clicks(seed), type_))
        paths = {"path": "train", "validation_path": "validation", "test_path": "test"}
        places = [f"dataset.{key}={folder / name}.{format_}" for key, name in paths.items()]
        (folder / "schema.yaml").write_text(json.dumps(SCHEMA))
        runner.run(
            f"dataset={format_}",
            *places,
            f"dataset.schema={folder / 'schema.yaml'}",
            f"hydra.run.dir={folder / 'run'}",
            "trainer.num_threads=1",
            "trainer.batch_size=64",
            "trainer.max_epochs=2",
            "optimizer.sparse.lr=0.2",
            "model=mlp",
            "model.net.deep=[8]",
            "report=false",
        ).check()
        for name in paths.values():
            (folder / f"{name}.{format_}").unlink()  # what is needed is in the run
        return runs.setdefault((format_, type_), folder / "run")

    return train


TRAININGS = [(format_, pa.int64()) for format_ in WRITERS] + [("parquet", pa.string())]


@pytest.mark.long
@pytest.mark.parametrize(("format_", "type_"), fast(*TRAININGS[:2], of=TRAININGS), ids=str)
def test_rows_of_every_format_have_the_auc_of_the_evaluation(trained, tmp_path, format_, type_):
    run, test = trained(format_, type_), clicks(2)
    expected = public.load(run).metrics["test/auc"]
    assert expected > 0.65
    for other, write in WRITERS.items():
        path = tmp_path / f"rows.{other}"
        write(path, test)
        predict_files(make_plan(run, [str(path)], out=tmp_path / other))
        scores = pq.read_table(tmp_path / other)["score_click"].to_numpy()
        assert roc_auc_score(test["click"].to_numpy(), scores) == near(expected), other


TYPES = [pa.int64(), pa.int32(), pa.float64(), pa.string(), pa.large_string()]
TYPES += [pa.dictionary(pa.int32(), pa.string())]


@pytest.mark.parametrize(("format_", "type_"), fast(*TRAININGS[:2], of=TRAININGS), ids=str)
def test_tables_in_memory_have_the_same_scores_whatever_the_type_of_their_ids(
    trained, format_, type_
):
    run, test = public.load(trained(format_, type_)), clicks(2)
    expected = run.predict(test)["score_click"]
    assert roc_auc_score(test["click"].to_numpy(), expected.to_numpy()) == near(
        run.metrics["test/auc"]
    )
    for given in TYPES:
        assert run.predict(with_ids(test, given))["score_click"].equals(expected), given


@pytest.mark.long
@pytest.mark.parametrize("type_", [pa.int64(), pa.string()], ids=str)
def test_an_export_scores_ids_of_every_type_as_the_run_does(trained, tmp_path, type_):
    run, test = public.load(trained("parquet", type_)), clicks(2)
    for split in ("train", "validation", "test"):  # the artifact is checked against them
        table = with_ids(clicks(["train", "validation", "test"].index(split)), type_)
        pq.write_table(table, run.dir.parent / f"{split}.parquet")
    scorer = Scorer.load(run.export(tmp_path / "model").path)
    expected = run.predict(test)["score_click"].to_numpy()
    for given in TYPES:
        scores = scorer.score(with_ids(test, given))["click"]
        np.testing.assert_allclose(scores, expected, rtol=1e-6, err_msg=str(given))
    row = {"user": ["17"], "shop": [17.0], "item": ["3"], "time": [0]}
    plain = {"user": [17], "shop": [17], "item": [3], "time": [0]}
    assert scorer.score(row)["click"] == scorer.score(plain)["click"]
    with pytest.raises(DataError, match=r"row 0, column 'shop': value 17\.5: not an integer"):
        scorer.score({**row, "shop": [17.5]})
    problem = "not a text" if type_ == pa.string() else "'b' is not an integer"
    wrong = [True] if type_ == pa.string() else ["b"]
    with pytest.raises(DataError, match=f"row 0, column 'user': .*{problem}"):
        scorer.score({**row, "user": wrong})


@pytest.mark.parametrize(
    "words", [("true", "false"), ("True", "False"), ("TRUE", "FALSE"), ("t", "f")]
)
def test_a_boolean_is_the_word_or_the_integer_that_the_training_had(words):
    """pandas writes True into CSV, where JSON and Parquet have a type of booleans."""
    columns = {"new": {"encode": "vocabulary"}, "both": {"cross": ["new", "shop"], "num_rows": 99}}
    declared = replace(parse_schema({"labels": ["x"], "categorical": columns}), labels=())
    texts = pa.array([words[0], None, words[1]])

    def encode(kind: str, known: np.ndarray, values: pa.Array) -> list[list[int]]:
        fitted = FittedTransforms(
            num_rows={"new": 4, "both": 99},
            vocabularies={"new": np.sort(known)},
            id_types={"new": kind, "shop": "integer"},
        )
        rows = pa.table({"new": values, "shop": [5, 5, 6]})
        transforms = Transforms(declared, fitted)
        ids = encode_rows(transforms, rows, ["new", "both"]).ids
        found = [ids[name].values.tolist() for name in columns]
        encoder = PartEncoder(transforms, ["new"], rows[:0], skip_bad_rows=False)
        chunk = RowChunk(MEMORY, 0, 0, 3, rows)
        part = encoder.encode(InputPart(0, 0, (chunk,)))
        assert [part.rows[name].to_pylist() for name in columns] == found
        assert part.kept["new"].type == values.type
        return found

    hashes, booleans = hash_texts(texts.drop_null()), pa.array([True, None, False])
    as_texts = encode("string", hashes, texts)
    assert 0 not in as_texts[0]
    assert encode("string", hashes, booleans) == as_texts
    as_integers = encode("integer", np.array([0, 1]), booleans)
    assert as_integers[0] == [3, 1, 2]
    assert encode("integer", np.array([0, 1]), texts) == as_integers
    other = hash_texts(pa.array(["yes", "no"]))
    with pytest.raises(DataError, match="column 'new': value True: not a text, as in the training"):
        encode("string", other, booleans)


@pytest.mark.parametrize("learnt", [str, lambda uuid: uuid.bytes], ids=["texts", "bytes"])
def test_a_uuid_is_the_text_or_the_bytes_that_the_training_had(tmp_path, learnt):
    """Drivers of Postgres give objects of UUIDs, its CSV and JSON texts, and Parquet bytes."""
    declared = parse_schema({"labels": ["x"], "categorical": {"user": {"encode": "vocabulary"}}})
    uuids = [UUID(int=n << 70 | 5) for n in range(4)]
    hashes = hash_texts(pa.array([learnt(uuid) for uuid in uuids[:3]]))
    known = {"vocabularies": {"user": np.sort(hashes)}, "num_rows": {"user": 5}}
    raw = Transforms(
        replace(declared, labels=()), FittedTransforms(**known, id_types={"user": "string"})
    )
    rows = [{"user": uuid} for uuid in (*uuids, None)]
    expected = [2 + np.sort(hashes).tolist().index(h) for h in hashes.tolist()] + [0, 1]
    for given in (rows, pa.Table.from_pylist(rows).to_pandas(), pa.Table.from_pylist(rows)):
        assert encode_rows(raw, given, ["user"]).ids["user"].values.tolist() == expected
    as_texts = [{"user": uuid and str(uuid)} for uuid in (*uuids, None)]
    assert encode_rows(raw, as_texts, ["user"]).ids["user"].values.tolist() == expected
    others = encode_rows(raw, [{"user": "guest"}, *as_texts], ["user"]).ids["user"]
    assert others.values.tolist() == [0, *expected]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    table = unpack_columns(pq.read_table(tmp_path / "x.parquet"))
    encoder = PartEncoder(raw, ["user"], table[:0], skip_bad_rows=False)
    part = encoder.encode(InputPart(0, 0, (RowChunk(MEMORY, 0, 0, 5, table),)))
    assert part.rows["user"].to_pylist() == expected
    assert part.kept["user"].type == pa.uuid()


def test_unsigned_ids_are_unsigned_in_metadata_examples_and_items():
    declared = parse_schema(
        {"labels": ["click"], "categorical": {"item": {"encode": "vocabulary"}}}
    )
    ids = np.array([2**63, 2**64 - 1], np.uint64)
    types = id_types(declared, pa.schema({"click": pa.int64(), "item": pa.uint64()}))
    known = {"num_rows": {"item": 4}, "vocabularies": {"item": ids.view(np.int64)}}
    fitted = FittedTransforms(**known, id_types=types)
    raw, graph = Transforms(declared, fitted), GraphSpec("m", (), (LookupGroup(("item",)),), (), ())
    columns = served_columns(raw, [graph])
    assert describe_columns(columns) == [{"name": "item", "datatype": "UINT64", "shape": [-1]}]
    request = json.dumps(example_request(raw, [graph])).encode()
    sent = make_table(columns, parse_request(request, None).inputs)
    assert sent["item"].to_pylist() == [2**63]
    found, first = item_ids(declared.ids, fitted, "item")
    assert found[first:].tolist() == ids.tolist()
    answer, _ = write_answer({}, {"top_items": found}, {"top_items": False})
    assert json.loads(answer)["outputs"][0] == {
        **{"name": "top_items", "datatype": "UINT64", "shape": [4]},
        "data": [0, 1, 2**63, 2**64 - 1],
    }
    # a run of an earlier version, which called them integers, has the same transforms
    assert FittedTransforms(**known, id_types={"item": "integer"}).digest() == fitted.digest()
