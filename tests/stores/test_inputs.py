"""Tables in an object store and on a web server, read from a real server whose requests count."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from runner.cli.schema import schema as schema_verb
from runner.data.files.file_list import find_files
from runner.data.files.read_files import read_parquet_chunks
from runner.errors import DataError, UserError
from runner.object_store import store_errors
from tests.data.clicks import SCHEMA, clicks, open_dataset, write_parquet
from tests.stores.server import CREDENTIALS
from tests.whole.compare_runs import differences

PLAIN = {
    "labels": ["click"],
    "numeric": {"price": {"log1p": True, "clip": [0, None], "default": 0.0}},
    "categorical": {"user": {"num_rows": 100}},
    "carried": ["id"],
}
FITTED = {k: v for k, v in SCHEMA.items() if k != "labels"} | {"labels": ["click"]}


def put_files(store, folder: Path, name: str = "table") -> str:
    for path in sorted(folder.iterdir()):
        store.put(f"{store.folder}/{name}/{path.name}", path.read_bytes())
    return f"{store.url}/{name}"


def wide_file(tmp_path) -> Path:
    """Nine columns of 8 bytes a row that do not compress, in four row groups of 5,000 rows."""
    rng = np.random.default_rng(0)
    table = pa.table({f"c{n}": rng.random(20_000) for n in range(9)})
    path = tmp_path / "wide" / "part.parquet"
    path.parent.mkdir()
    pq.write_table(table, path, row_group_size=5000, use_dictionary=False)
    return path


def address(store, url: str, scheme: str) -> str:
    return url if scheme == "s3" else url.replace("s3:/", store.address)


@pytest.mark.parametrize("scheme", ["s3", "http"])
def test_only_the_columns_and_row_groups_asked_for_are_read(tmp_path, store, scheme):
    path = wide_file(tmp_path)
    url = address(store, put_files(store, path.parent), scheme)
    [file] = find_files(f"{url}/part.parquet", "parquet", key="dataset.path")
    store.set_faults()
    chunks = list(read_parquet_chunks(file, ["c2"], skip_bad_rows=False, row_groups=[1, 3]))
    wanted = pq.read_table(path, columns=["c2"])["c2"].to_numpy()
    read = [chunk.table["c2"].to_numpy() for chunk in chunks]
    assert np.array_equal(
        np.concatenate(read), np.concatenate([wanted[5000:10000], wanted[15000:]])
    )
    sent = sum(entry["bytes"] for entry in store.log() if entry["method"] == "GET")
    footers = 2 * 65_536  # the schema is read, and then the rows
    assert 2 * 5000 * 8 <= sent <= footers + 2 * (5000 * 8 + 65_536) < path.stat().st_size / 4


@pytest.mark.parametrize("scheme", ["s3", "http"])
@pytest.mark.parametrize("fault", [503, "cut", "drop"])
def test_a_request_that_fails_twice_is_sent_again(tmp_path, store, scheme, fault):
    path = wide_file(tmp_path)
    url = address(store, put_files(store, path.parent), scheme) + "/part.parquet"

    def read(faults) -> list[bytes]:
        store.set_faults(faults)
        [file] = find_files(url, "parquet", key="dataset.path")
        chunks = read_parquet_chunks(file, ["c2"], skip_bad_rows=False)
        return [chunk.table["c2"].to_numpy().tobytes() for chunk in chunks]

    wanted = read({})
    log = store.log()
    kinds = [entry["method"] for entry in log if fault != "cut" or entry["bytes"]]
    # each request that has an answer to be cut fails twice, and then succeeds
    number, faults = 0, {}
    for entry in log:
        if fault != "cut" or entry["bytes"]:
            faults |= {number: fault, number + 1: fault}
            number += 2
        number += 1
    assert read(faults) == wanted
    assert len(store.log()) == number == len(log) + 2 * len(kinds) > len(log)


@pytest.mark.parametrize("scheme", ["s3", "http"])
def test_a_file_that_is_changed_while_it_is_read_is_noticed(tmp_path, store, scheme):
    path = wide_file(tmp_path)
    url = address(store, put_files(store, path.parent), scheme)
    [file] = find_files(f"{url}/part.parquet", "parquet", key="dataset.path")
    chunks = read_parquet_chunks(file, ["c2"], skip_bad_rows=False)
    next(chunks)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    store.put(f"{store.folder}/table/part.parquet", bytes(content))
    with pytest.raises(DataError, match=r"part\.parquet: was changed while it was read"):
        file.check_unchanged()


def test_a_changed_object_is_another_table(tmp_path, store):
    """In its middle, with its size kept: the ends, which count for local files, are the same."""
    path = tmp_path / "wide" / "big.csv"
    path.parent.mkdir()
    path.write_text("click,user\n" + "0,11\n" * 500_000)
    url = put_files(store, path.parent) + "/big.csv"
    [before] = find_files(url, "csv", key="dataset.path")
    first = before.fingerprint()
    assert first == find_files(url, "csv", key="dataset.path")[0].fingerprint()
    content = bytearray(path.read_bytes())
    content[len(content) // 2 // 5 * 5 + 11] ^= 1
    store.put(f"{store.folder}/table/big.csv", bytes(content))
    [after] = find_files(url, "csv", key="dataset.path")
    assert after.fingerprint()[:2] == first[:2]
    assert after.fingerprint() != first


@pytest.mark.parametrize("schema", [PLAIN, FITTED], ids=["as it is", "rewritten"])
def test_a_table_in_a_store_gives_the_batches_of_a_local_copy(tmp_path, store, schema):
    folder = tmp_path / "data"
    write_parquet(folder, clicks(900), 3)
    url = put_files(store, folder)
    http = address(store, url, "http")
    places = [url, f"{url}/part-[0-2].parquet", [f"{http}/part-{n}.parquet" for n in (2, 0, 1)]]

    def batches(path):
        data = open_dataset(path=path, schema=schema)
        made = data.batches("train", batch_size=64, seed=3)
        return [
            [t.numpy().tobytes() for t in (b.dense_BD, b.sparse.values(), b.labels_BT, b.rows_B)]
            for b in made
        ]

    wanted = batches(str(folder))
    for place in places:
        assert batches(place) == wanted, place


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("{url}/table/part-7.parquet", "no such path, or no file matches; nearest: 'part-0.parq"),
        ("{url}/table/prt-*.parquet", "no file matches; nearest: 'part-0.parquet'"),
        ("s3://buckett/table", "there is no bucket 'buckett'; nearest: 'bucket'"),
        ("s3:///table", "s3:///table: has no bucket: write s3://BUCKET/FOLDER"),
        ("s3://key:hush-hush@bucket/table", "without credentials or a host: credentials come from"),
    ],
)
def test_a_url_of_nothing_is_named_with_the_nearest(tmp_path, store, url, says):
    write_parquet(tmp_path / "data", clicks(20))
    put_files(store, tmp_path / "data")
    with pytest.raises(UserError) as refused:
        open_dataset(path=url.format(url=store.url), schema=PLAIN)
    assert says in str(refused.value)
    assert "hush" not in str(refused.value)


def test_a_store_that_does_not_answer_is_said_to_be_where_the_environment_says():
    told = "AWS Error NETWORK_CONNECTION during ListObjectsV2 operation: curlCode: 7"
    answerless = pytest.raises(UserError, match="s3://b/k: the store does not answer; AWS_ENDPOINT")
    with answerless, store_errors("s3://b/k"):
        raise OSError(told)


def test_missing_credentials_are_named(tmp_path, store, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    store.set_faults(dict.fromkeys(range(20), 403))  # as a store answers that knows nobody
    with pytest.raises(UserError, match="access is denied; credentials come from AWS_ACCESS_KEY"):
        open_dataset(path=f"{store.url}/table", schema=PLAIN)


def test_a_schema_is_proposed_from_a_folder_of_a_store(tmp_path, store, capsys):
    write_parquet(tmp_path / "data", clicks(200), 2)
    url = put_files(store, tmp_path / "data")
    out = tmp_path / "clicks.yaml"
    for path in (url, f"{url}/*.parquet"):
        assert schema_verb([path, "--label", "click", "--out", str(out)], ()) == 0
        proposed = yaml.safe_load(out.read_text())
        assert (proposed["path"], list(proposed["labels"])) == (path, ["click"])
        out.unlink()
    with pytest.raises(UserError, match=r"nearest: 'part-0\.parquet'"):
        schema_verb([f"{url}/prt-0.parquet"], ())
    capsys.readouterr()


@pytest.mark.slow
@pytest.mark.parity("E13")
def test_a_run_over_a_store_equals_one_over_a_local_copy(tmp_path, store, runner):
    """On two ranks, which are forked after the store was asked for its files."""
    write_parquet(tmp_path / "data", clicks(400), 2)
    url = put_files(store, tmp_path / "data")
    split = {"random": {"train": 0.8, "validation": 0.2}}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump({**FITTED, "split": split}, sort_keys=False))
    env = {**store.environment, "RUNNER_CACHE": str(tmp_path / "cache")}

    def train(path: str, name: str) -> Path:
        folder = tmp_path / name
        runner.run(
            f"dataset.path={path}",
            *("dataset=parquet", f"dataset.schema={tmp_path / 's.yaml'}", "report=false"),
            *("trainer.batch_size=16", "trainer.num_processes=2", "trainer.max_steps=8"),
            *("trainer.num_threads=1", f"hydra.run.dir={folder}"),
            env=env,
        ).check()
        return folder

    local, far = train(str(tmp_path / "data"), "local"), train(url, "far")
    assert differences(local, far) == ["values: signature"]  # which has the ETags
    for path in far.rglob("*"):
        if path.is_file():
            assert CREDENTIALS["AWS_SECRET_ACCESS_KEY"].encode() not in path.read_bytes(), path
