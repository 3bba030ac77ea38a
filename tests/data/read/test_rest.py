"""Policies for the rows of an epoch that fill no batch, on 1 to 4 ranks."""

from __future__ import annotations

import json
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from runner.batch import DataPosition
from runner.config.settings import TrainerSettings
from runner.data.core.columns import Columns, LabelColumn, NumericColumn
from runner.errors import ConfigError
from runner.training.builder import count_steps_per_epoch
from runner.training.steps import count_examples
from tests.conftest import TINY
from tests.data.tables import dataset, read, rows_of, table, write

ROWS = 100
BATCH = 12  # rows of a global batch: 100 rows make 8 of them, and 4 rows fill none


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Return two files, one of which has three rows only."""
    return write(tmp_path_factory.mktemp("rest"), table(ROWS), file_rows=(97, 3))


def updates(data, world_size, epoch=0, offset=0, seed=0):
    """Return, for each update, a list of the batches of all ranks."""
    ranks = [
        data.batches(
            "train",
            batch_size=BATCH // world_size,
            seed=seed,
            start=DataPosition(epoch, offset),
            rank=rank,
            world_size=world_size,
        )
        for rank in range(world_size)
    ]
    return [list(together) for together in zip(*ranks, strict=True)]


def trained_rows(together):
    return [row for batch in together for row in batch.rows_B.tolist() if row >= 0]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 12])
@pytest.mark.parametrize("rest", ["short", "drop", "pad"])
@pytest.mark.parity("E17")
def test_all_ranks_make_the_same_updates_under_each_policy(paths, rest, world_size):
    data = dataset(paths, rest=rest)
    every = updates(data, world_size)
    assert len(every) == count_steps_per_epoch(data, BATCH)
    assert len(every) == (8 if rest == "drop" else 9)
    order = rows_of(dataset(paths).batches("train", batch_size=ROWS, seed=0))
    seen = [row for together in every for row in trained_rows(together)]
    assert seen == order[: 96 if rest == "drop" else ROWS]
    assert all(batch.cursor == DataPosition(1, 0) for batch in every[-1])
    if rest == "pad":
        assert {batch.size for together in every for batch in together} == {BATCH // world_size}
    for batch in every[-1]:
        weight, empty = batch.weights_B, batch.rows_B < 0
        assert (weight[empty] == 0).all()
        lengths = batch.sparse.lengths().view(len(batch.sparse.keys()), -1)
        assert (lengths[:, empty] == 0).all(), "a row of padding touches a table"


@pytest.mark.parametrize("rest", ["short", "pad"])
def test_a_table_without_ids_ends_as_others_do(tmp_path, rest):
    columns = Columns(labels=(LabelColumn("click"),), numeric=(NumericColumn("age"),))
    data = dataset(write(tmp_path, table(BATCH + 1)), columns, rest=rest)
    last = updates(data, 2)[-1]
    size = BATCH // 2 if rest == "pad" else 1
    assert [batch.size for batch in last] == [size] * 2
    assert sum(batch.weights_B.sum() for batch in last) == 1
    assert all(batch.sparse.stride() == size for batch in last)


@pytest.mark.parametrize("rest", ["short", "drop", "pad"])
def test_a_resume_at_every_update_goes_on_alike(paths, rest):
    data = dataset(paths, rest=rest)
    every = updates(data, 2)
    for step, (before, after) in enumerate(pairwise(every)):
        rest_of_epoch = updates(data, 2, offset=before[0].cursor.offset)
        assert len(rest_of_epoch) == len(every) - step - 1
        for one, two in zip(rest_of_epoch[0], after, strict=True):
            assert one.rows_B.equal(two.rows_B) and one.weights_B.equal(two.weights_B)
            assert one.sparse.values().equal(two.sparse.values())


def test_other_rows_are_dropped_in_every_epoch(paths):
    data = dataset(paths, rest="drop")
    left_out = [
        set(range(ROWS)) - {row for t in updates(data, 1, epoch) for row in trained_rows(t)}
        for epoch in range(5)
    ]
    assert all(len(rows) == 4 for rows in left_out)
    assert len(set.union(*left_out)) > 10


@pytest.mark.parametrize("rest", ["drop", "pad"])
def test_without_a_seed_and_in_other_splits_every_row_is_read_as_it_is(paths, rest):
    data = dataset(paths, rest=rest)
    batches = read(data, batch_size=BATCH, seed=None)
    assert rows_of(batches) == list(range(ROWS)) and batches[-1].size == 4


def test_padding_changes_no_value_of_the_others(paths):
    short, padded = (updates(dataset(paths, rest=rest), 1)[-1][0] for rest in ("short", "pad"))
    assert padded.dense_BD[:4].equal(short.dense_BD)
    assert padded.labels_BT[:4].equal(short.labels_BT)
    assert padded.sparse.values().equal(short.sparse.values())
    ids = padded.sparse["tags"].to_dense()
    assert [row.tolist() for row in ids[:4]] == [
        row.tolist() for row in short.sparse["tags"].to_dense()
    ]
    assert all(len(row) == 0 for row in ids[4:])
    assert torch.equal(padded.rows_B[4:], torch.full((8,), -1))


def test_a_split_smaller_than_a_batch_that_would_be_dropped_is_refused(tmp_path):
    data = dataset(write(tmp_path, table(5)), rest="drop")
    with pytest.raises(ConfigError, match="5 rows, fewer than the 12 of one update"):
        count_steps_per_epoch(data, BATCH)


def test_an_unknown_policy_names_the_nearest(tmp_path):
    with pytest.raises(ConfigError, match=r"dataset\.rest=padd: .*nearest: 'pad'"):
        dataset(write(tmp_path, table(5)), rest="padd")


@pytest.mark.parametrize(("rest", "wanted"), [("short", 200), ("drop", 192), ("pad", 200)])
def test_examples_are_counted_alike_on_any_number_of_ranks(paths, rest, wanted):
    """The examples of two epochs are counted, without the padding."""
    data = dataset(paths, rest=rest)
    for world_size in (1, 2, 3):
        ranks = SimpleNamespace(is_distributed=world_size > 1, world_size=world_size)
        job = SimpleNamespace(
            dataset=data,
            context=SimpleNamespace(ranks=ranks),
            trainer=TrainerSettings(batch_size=BATCH // world_size),
        )
        counted, at = 0, DataPosition(0, 0)
        for epoch in range(2):
            for together in updates(data, world_size, epoch):
                counted += count_examples(job, at, together[0])
                at = together[0].cursor
        assert counted == wanted


@pytest.mark.slow
def test_policies_give_other_runs_and_the_same_one_on_two_ranks(runner, tmp_path):
    """3,000 rows in batches of 64: 46 updates, and 56 rows; two epochs."""
    signatures, results = set(), {}
    settings = [s for s in TINY if not s.startswith(("trainer.max_steps", "trainer.batch_size"))]
    for rest, size in [("short", 1), ("drop", 1), ("pad", 1), ("pad", 2), ("drop", 2)]:
        run = tmp_path / f"{rest}-{size}"
        runner.run(
            *settings,
            "trainer.max_epochs=2",
            f"trainer.batch_size={64 // size}",
            f"trainer.num_processes={size}",
            f"dataset.rest={rest}",
            f"hydra.run.dir={run}",
        ).check()
        signatures.add(json.loads((run / "meta.json").read_text())["signature"])
        results[rest, size] = json.loads((run / "result.json").read_text())
    steps = {key: (r["step"], r["examples"]) for key, r in results.items()}
    assert steps["short", 1] == steps["pad", 1] == steps["pad", 2] == (94, 6000)
    assert steps["drop", 1] == steps["drop", 2] == (92, 92 * 64)
    assert len(signatures) == 3
    aucs = {key: r["metrics"]["test/auc"] for key, r in results.items()}
    assert aucs["pad", 1] == pytest.approx(aucs["short", 1], abs=1e-5)  # weights of 0 count nothing
    assert aucs["pad", 2] == pytest.approx(aucs["pad", 1], abs=1e-4)
    assert aucs["drop", 2] == pytest.approx(aucs["drop", 1], abs=1e-4)
    assert aucs["drop", 1] != aucs["short", 1]
