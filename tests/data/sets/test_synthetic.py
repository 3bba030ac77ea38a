"""Synthetic rows: their shape, their distributions and their best reachable metrics."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from runner.data.core import cache
from runner.data.core.blocks import read_blocks
from runner.data.prepare.fingerprint import build_recipe
from runner.data.prepare.recipe import prepare
from runner.data.sets.oracle_metrics import OracleMetrics
from runner.errors import ConfigError, DataError
from tests.data.sets.synthetic_settings import dataset_settings, instantiate, small_synthetic


@pytest.fixture(autouse=True, scope="module")
def root(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RUNNER_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def files(**changes):
    folder, made = prepare(build_recipe(small_synthetic(**changes)))
    return {split: [folder / name for name in names] for split, names in made.splits.items()}


def rows_of(split, names=(), **changes):
    return pa.concat_tables([read_blocks(path, names) for path in files(**changes)[split]])


@pytest.fixture(scope="module")
def rows_of_test():
    return rows_of("test")


def test_it_has_the_shape_of_criteo():
    data = instantiate(small_synthetic())
    assert data.num_rows == {"train": 20_000, "validation": 3_000, "test": 5_000}
    assert len(data.schema.dense) == 13
    assert len(data.schema.sparse) == 26
    assert [f.name for f in data.schema.sparse if f.mean_length != 1] == ["C24", "C25", "C26"]
    batch = next(data.batches("train", batch_size=1000, seed=0))
    assert batch.labels_BT.mean().item() == pytest.approx(0.25, abs=0.05)
    lengths = batch.sparse["C25"].lengths()
    assert set(lengths.tolist()) == {0, 1, 2, 3, 4}
    assert batch.sparse["C1"].lengths().tolist() == [1] * 1000


def test_reachable_is_the_score_of_the_true_probabilities(rows_of_test):
    labels, truth = rows_of_test["label"].to_numpy(), rows_of_test["probability"].to_numpy()
    reachable = instantiate(small_synthetic()).reachable["test"]
    assert reachable["auc"] == pytest.approx(roc_auc_score(labels, truth), abs=1e-5)
    assert reachable["log_loss"] == pytest.approx(log_loss(labels, truth), abs=1e-6)


def test_labels_follow_the_true_probabilities(rows_of_test):
    labels, truth = rows_of_test["label"].to_numpy(), rows_of_test["probability"].to_numpy()
    spread = np.sqrt((truth * (1 - truth)).sum())
    assert abs(labels.sum() - truth.sum()) < 4 * spread
    high = truth > np.quantile(truth, 0.9)
    assert labels[high].mean() == pytest.approx(truth[high].mean(), abs=0.08)


def test_ids_are_zipf_distributed():
    rows = rows_of("train", ["C1"], zipf=1.2, min_cardinality=300, max_cardinality=300)
    ids = rows["C1"].to_numpy()
    counts = np.sort(np.bincount(ids, minlength=300))[::-1]
    edges = np.arange(1, 302) ** -0.2  # the density that is drawn from, integrated over each rank
    law = (edges[:-1] - edges[1:]) / (edges[0] - edges[-1])
    np.testing.assert_allclose(counts[:10] / counts.sum(), law[:10], rtol=0.15)


def test_the_same_settings_give_the_same_bytes(tmp_path, monkeypatch):
    first = [path.read_bytes() for path in files()["train"]]
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path))
    assert [path.read_bytes() for path in files()["train"]] == first
    other = [path.read_bytes() for path in files(data_seed=1)["train"]]
    assert other != first


def test_splits_share_no_rows():
    splits = [rows_of(split, ["probability"]) for split in files()]
    values = [set(split["probability"].to_pylist()) for split in splits]
    assert len(values[1] & values[2]) < 10


@pytest.mark.parametrize(
    ("changes", "dense", "sparse"),
    [
        ({"num_numeric": 0}, 0, 26),
        ({"num_numeric": 1, "num_lists": 0}, 1, 23),
        ({"num_single": 0, "num_pairs": 0}, 13, 3),
        ({"num_single": 0}, 13, 3),
        ({"num_lists": 30, "mean_length": 0.5}, 13, 53),
        ({"zipf": 1.0, "missing": 0.0}, 13, 26),
        ({"zipf": 0.0, "missing": 1.0}, 13, 26),
        ({"min_cardinality": 1, "max_cardinality": 1}, 13, 26),
        ({"min_cardinality": 2**31 - 1, "max_cardinality": 2**31 - 1, "num_single": 2}, 13, 5),
        ({"signal": {"dense": 0, "ids": 0, "pairs": 0}}, 13, 26),
        ({"positive_rate": 0.02}, 13, 26),
    ],
)
def test_every_setting_works(changes, dense, sparse):
    rows = {"train": 500, "validation": 0, "test": 200}
    data = instantiate(small_synthetic(rows=rows, **changes))
    assert data.num_rows == {"train": 500, "test": 200}
    batches = list(data.batches("train", batch_size=200, seed=0))
    assert [b.size for b in batches] == [200, 200, 100]
    assert batches[0].dense_BD.shape == (200, dense)
    assert len(batches[0].sparse.keys()) == sparse


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"zipf": "x"}, r"dataset\.zipf=x: expected number, got text 'x'"),
        ({"num_lists": 1.5}, r"dataset\.num_lists=1\.5: expected whole number"),
        ({"positive_rate": 1.5}, "at least 0.001 and at most 0.999"),
        ({"rows": {"train": 0, "validation": 1, "test": 1}}, "train split needs"),
        ({"rows": {"train": 5, "validation": 1, "tset": 1}}, r"rows\.tset.*nearest: 'test'"),
        ({"rows": {"train": 5, "validation": 1}}, r"dataset\.rows\.test is not set"),
        ({"max_cardinality": 2}, "max_cardinality=2: must be at least dataset.min_cardinality=4"),
        ({"num_single": 0, "num_lists": 0}, "at least one column"),
    ],
)
def test_wrong_settings_are_named(changes, message):
    with pytest.raises(ConfigError, match=message):
        build_recipe(small_synthetic(**changes)).check()


def test_oracle_metrics_can_be_merged(root):
    rng = np.random.default_rng(0)
    truth = rng.random(3000).astype(np.float32)
    labels = (rng.random(3000) < truth).astype(np.int8)
    whole, merged = OracleMetrics(), OracleMetrics()
    whole.update(labels, truth)
    for part in np.array_split(np.arange(3000), 7):
        other = OracleMetrics()
        other.update(labels[part], truth[part])
        merged.merge(other)
    assert merged.compute()["auc"] == whole.compute()["auc"]
    assert merged.compute()["auc"] == pytest.approx(roc_auc_score(labels, truth), abs=1e-5)
    assert "auc" not in OracleMetrics().compute()


def test_preparing_leaves_only_what_is_listed():
    folder, made = prepare(build_recipe(small_synthetic()))
    names = {name for names in made.splits.values() for name in names}
    assert {path.name for path in folder.iterdir()} == names | {cache.PREPARED_FILE}


def test_tasks_sequences_and_pooling_factors_are_options():
    changes = {"num_tasks": 3, "num_sequences": 2, "sequence_length": 4, "mean_lengths": [1, 2, 6]}
    data = instantiate(small_synthetic(**changes))
    assert [task.name for task in data.schema.tasks] == ["label", "label_2", "label_3"]
    assert [(f.name, f.max_length) for f in data.schema.sequences] == [("S1", 8), ("S2", 8)]
    assert [f.mean_length for f in data.schema.sparse[-3:]] == [1, 2, 6]
    batch = next(data.batches("test", batch_size=5000))
    assert batch.labels_BT.mean(0).tolist() == pytest.approx([0.25] * 3, abs=0.04)
    assert batch.sequences["S2"].lengths().float().mean().item() == pytest.approx(4, abs=0.2)
    assert batch.sparse["C26"].lengths().float().mean().item() == pytest.approx(6, abs=0.3)
    table = rows_of("test", **changes)
    labels, truth = table["label_3"].to_numpy(), table["probability_3"].to_numpy()
    reachable = data.reachable["test"]
    assert reachable["auc/label_3"] == pytest.approx(roc_auc_score(labels, truth), abs=1e-5)
    correlation = np.corrcoef(table["probability"], truth)[0, 1]
    assert abs(correlation) < 0.99


def test_drift_moves_the_rate_along_the_rows():
    labels = rows_of("train", ["label"], drift=2.0)["label"].to_numpy()
    assert labels[:2000].mean() < 0.12 and labels[-2000:].mean() > 0.5


def test_new_options_leave_the_default_rows_as_they_were(rows_of_test):
    """Earlier runs know the data by its fingerprint; this sum stands for the rows."""
    assert rows_of_test["label"].to_numpy().sum() == LABELS


LABELS = 1247


def test_it_can_be_written_out_and_read_like_any_table(tmp_path):
    (tmp_path / ".out.tmp" / "written" / "train").mkdir(parents=True)  # by a run that was killed
    own = instantiate(small_synthetic(write_to=str(tmp_path / "out"), num_sequences=1))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    read = instantiate(
        dataset_settings("parquet", schema=str(tmp_path / "out" / "schema.yaml"), mix=False)
    )
    assert read.num_rows == own.num_rows
    one, two = (next(d.batches("test", batch_size=999)) for d in (own, read))
    assert one.dense_BD.equal(two.dense_BD) and one.labels_BT.equal(two.labels_BT)
    assert one.sparse.values().equal(two.sparse.values())
    assert one.sequences.values().equal(two.sequences.values())
    with pytest.raises(ConfigError, match="is not empty"):
        instantiate(small_synthetic(write_to=str(tmp_path / "out")))
    with pytest.raises(ConfigError, match=r"schema\.yaml: is not a folder; nothing was written"):
        instantiate(small_synthetic(write_to=str(tmp_path / "out" / "schema.yaml")))


def test_what_was_written_out_and_is_no_longer_whole_is_not_taken_for_it(tmp_path):
    words = {"write_to": str(tmp_path / "out")}
    instantiate(small_synthetic(**words))
    instantiate(small_synthetic(**words))  # all is there
    lost = next((tmp_path / "out" / "train").iterdir())
    lost.unlink()
    with pytest.raises(ConfigError, match=f"{lost.name} is no longer there; nothing was written"):
        instantiate(small_synthetic(**words))
    (tmp_path / "out" / "schema.yaml").write_bytes(b"\xff")  # of somebody else
    with pytest.raises(ConfigError, match="is not empty; nothing was written"):
        instantiate(small_synthetic(**words))


@pytest.mark.parametrize("mask", [0o077, 0o002])
def test_what_is_written_out_has_the_modes_of_the_umask(tmp_path, mask):
    before = os.umask(mask)
    try:
        instantiate(small_synthetic(write_to=str(tmp_path / "out")))
    finally:
        os.umask(before)
    for path in (tmp_path / "out", *(tmp_path / "out").rglob("*")):
        assert path.stat().st_mode & 0o777 == (0o777 if path.is_dir() else 0o666) & ~mask, path


def test_prepared_data_that_cannot_be_opened_says_what_helps(tmp_path, monkeypatch):
    """The cache does not check the metadata of each block before it is used."""
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path))
    [path] = files()["test"]
    raw = path.read_bytes()
    at = raw.rindex(b"rows")
    path.write_bytes(raw[:at] + b"rowz" + raw[at + 4 :])
    with pytest.raises(
        DataError, match=r"not a readable Arrow file.*made again after .* is deleted"
    ):
        instantiate(small_synthetic())
