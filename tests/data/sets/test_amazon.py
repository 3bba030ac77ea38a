"""Amazon reviews as next-item prediction, against rows that are worked out by hand."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from runner.errors import DataError
from tests.conftest import shared_data
from tests.data.sets.synthetic_settings import dataset_settings, instantiate

pytestmark = pytest.mark.usefixtures("own_cache")
LINES = {7: [3, 1, 4, 2, 6], 2: [5, 6, 3], 9: [8, 9], 4: [1, 2, 3, 4]}


def settings(tmp_path, lines=LINES, **changes):
    text = "".join(f"{user} {' '.join(map(str, items))}\n" for user, items in lines.items())
    (tmp_path / "Beauty.txt").write_text(text)
    return dataset_settings("amazon_beauty", path=str(tmp_path), **changes)


def rows(data, split):
    (batch,) = data.batches(split, batch_size=10_000)
    history = [ids.tolist() for ids in batch.sequences["history"].to_dense()]
    ids = (batch.sparse[name].values().tolist() for name in ("user", "item"))
    return list(zip(batch.labels_BT[:, 0].int().tolist(), *ids, history))


def positives(data, split):
    return [row[1:] for row in rows(data, split) if row[0]]


def test_the_last_item_is_for_test_and_the_one_before_for_validation(tmp_path):
    data = instantiate(settings(tmp_path))
    assert positives(data, "test") == [(2, 3, [5, 6]), (4, 4, [1, 2, 3]), (7, 6, [3, 1, 4, 2])]
    assert positives(data, "validation") == [(2, 6, [5]), (4, 3, [1, 2]), (7, 2, [3, 1, 4])]
    assert positives(data, "train") == [(4, 2, [1]), (7, 1, [3]), (7, 4, [3, 1])]


def test_one_row_a_user_and_short_histories(tmp_path):
    data = instantiate(settings(tmp_path, train_on="last", max_length=2))
    assert positives(data, "train") == [(4, 2, [1]), (7, 4, [3, 1])]
    assert positives(data, "test")[2] == (7, 6, [4, 2])
    assert data.schema.sequences[0].max_length == 2


def test_negatives_are_items_that_the_user_never_touched(tmp_path):
    negatives = {"train": 20, "validation": 0, "test": 60}
    data = instantiate(settings(tmp_path, negatives=negatives))
    for split, count in negatives.items():
        found = rows(data, split)
        assert len(found) == len(positives(data, split)) * (1 + count)
        drawn = [row for row in found if not row[0]]
        assert all(item not in LINES[user] and 1 <= item <= 6 for _, user, item, _ in drawn)
    drawn = [item for label, user, item, _ in rows(data, "test") if not label and user == 2]
    assert set(drawn) == {1, 2, 4}  # of the items 1 to 6, which users with rows have touched


def test_the_item_and_its_history_share_a_table(tmp_path):
    schema = instantiate(settings(tmp_path)).schema
    assert [(f.name, f.num_rows, f.table_name) for f in (*schema.sparse, *schema.sequences)] == [
        ("user", 10, "user"),
        ("item", 10, "item"),
        ("history", 10, "item"),
    ]


@pytest.mark.parametrize("line", ["7 3 x", "7", "7 -3 2 1", "7 99999999999 2 1"])
def test_a_bad_line_is_named(tmp_path, line):
    made = settings(tmp_path)
    with (tmp_path / "Beauty.txt").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(DataError, match=r"Beauty\.txt: line 5"):
        instantiate(made)


def test_a_user_of_two_lines_is_refused(tmp_path):
    made = settings(tmp_path)
    with (tmp_path / "Beauty.txt").open("a") as file:
        file.write("7 1 2 3\n")
    with pytest.raises(DataError, match="user 7 has several lines"):
        instantiate(made)


@pytest.mark.data
def test_the_real_file_has_the_rows_of_the_protocol(tmp_path):
    path = str(shared_data("amazon-beauty"))
    data = instantiate(
        dataset_settings("amazon_beauty", path=path, negatives=dict.fromkeys(SPLITS, 0))
    )
    users, events = 22_363, 198_502
    assert data.num_rows == {"train": events - 3 * users, "validation": users, "test": users}
    batch = next(data.batches("test", batch_size=users))
    assert np.unique(batch.sparse["user"].values()).size == users
    assert batch.sequences.lengths().max() == 50


SPLITS = ("train", "validation", "test")


# sha256 of labels, users, items and histories, in order, that the code before `interactions` gave
REAL = {"every": "7176433a902e3d18", "last": "262c49b47869af8d"}


@pytest.mark.data
@pytest.mark.parametrize("train_on", ["every", "last"])
def test_the_published_rows_are_those_of_the_first_version(tmp_path, train_on):
    path = str(shared_data("amazon-beauty"))
    none = dict.fromkeys(SPLITS, 0)
    changes = {"negatives": none, "train_on": train_on, "max_length": 20}
    data = instantiate(dataset_settings("amazon_beauty", path=path, **changes))
    digest = hashlib.sha256()
    for split in SPLITS:
        for batch in data.batches(split, batch_size=4096):
            history = batch.sequences["history"]
            ids = (batch.sparse[name].values() for name in ("user", "item"))
            for part in (batch.labels_BT, *ids, history.values(), history.lengths()):
                digest.update(part.numpy().tobytes())
    assert digest.hexdigest()[:16] == REAL[train_on]
