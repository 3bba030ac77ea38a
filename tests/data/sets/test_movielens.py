"""MovieLens-1M, against rows that are joined by hand."""

from __future__ import annotations

import pytest

from runner.errors import DataError
from tests.conftest import shared_data
from tests.data.sets.synthetic_settings import dataset_settings, instantiate
from tests.data.tables import by_key

pytestmark = pytest.mark.usefixtures("own_cache")
USERS = """1::F::1::10::48067
2::M::56::16::70072
4::M::25::10::55117-1234
"""
MOVIES = """1::Toy Story (1995)::Animation|Comedy
3::Star Wars: Episode IV (1977)::Action
9::Café :: Noir (1995)::Drama|Action
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "users.dat").write_text(USERS, encoding="latin-1")
    (tmp_path / "movies.dat").write_text(MOVIES, encoding="latin-1")
    ratings = [
        f"{user}::{item}::{1 + (user + item) % 5}::0" for user in (1, 2, 4) for item in (1, 3, 9)
    ]
    (tmp_path / "ratings.dat").write_text("\n".join(ratings * 10) + "\n")
    return tmp_path


def batch_of(folder, split="train", **changes):
    data = instantiate(dataset_settings("movielens_1m", path=str(folder), **changes))
    (batch,) = data.batches(split, batch_size=100_000)
    return data, batch


def test_rows_are_joined_by_hand(folder):
    """Ages 1, 25, 56 and years 1977, 1995 become 0, 1, ..; genres are numbered by name."""
    data, batch = batch_of(folder)
    people = {1: [0, 0, 0], 2: [1, 2, 1], 4: [1, 1, 0]}  # gender, age, occupation
    movies = {1: (1, [1, 2]), 3: (0, [0]), 9: (1, [3, 0])}  # year, genres
    found = by_key(batch)
    seen = set()
    for n in range(batch.size):
        (user,), (item,) = found["user"][n], found["item"][n]
        seen.add((user, item))
        assert [found[key][n][0] for key in ("gender", "age", "occupation")] == people[user]
        assert (found["year"][n][0], found["genres"][n]) == movies[item]
        assert batch.labels_BT[n].tolist() == [1 + (user + item) % 5 > 3]
        assert batch.groups_BG[n].tolist() == [user]
    assert seen == {(u, i) for u in (1, 2, 4) for i in (1, 3, 9) if 1 + (u + i) % 5 != 3}
    sizes = {feature.name: feature.num_rows for feature in data.schema.sparse}
    assert sizes == {
        "user": 5,
        "item": 10,
        "gender": 2,
        "age": 3,
        "occupation": 2,
        "year": 2,
        "genres": 4,
    }


def test_the_split_is_eight_to_one_to_one_by_its_own_seed(folder):
    data, batch = batch_of(folder)
    total = sum(data.num_rows.values())
    assert total == 10 * sum(1 + (u + i) % 5 != 3 for u in (1, 2, 4) for i in (1, 3, 9))
    assert data.num_rows["validation"] == data.num_rows["test"] == total // 10
    _, other = batch_of(folder, split_seed=1)
    assert not other.sparse.values().equal(batch.sparse.values())


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("ratings.dat", "1::1::3::0", "1::1::6::0", r"ratings\.dat: line 1: rating 6"),
        ("ratings.dat", "1::1::3::0", "1::1::x::0", r"ratings\.dat: .*x"),
        ("ratings.dat", "1::1::3::0", "1::1::0", r"ratings\.dat: .*Expected 7 columns"),
        ("ratings.dat", "1::3::5::0", "7::3::5::0", r"users\.dat: no user 7"),
        ("ratings.dat", "1::3::5::0", "1::2::5::0", r"movies\.dat: no movie 2"),
        ("movies.dat", "(1977)", "(77)", r"movies\.dat: line 2: not"),
        ("users.dat", "::25::", "::old::", r"users\.dat: .*old"),
    ],
)
def test_bad_files_are_named(folder, file, old, new, message):
    text = (folder / file).read_text(encoding="latin-1")
    assert old in text
    (folder / file).write_text(text.replace(old, new), encoding="latin-1")
    with pytest.raises(DataError, match=message):
        batch_of(folder)


@pytest.mark.data
def test_the_real_files_give_the_rows_of_the_protocol():
    data, batch = batch_of(shared_data("ml-1m"), "test")
    assert data.num_rows == {"train": 591_210, "validation": 73_901, "test": 73_901}
    sizes = {feature.name: feature.num_rows for feature in data.schema.sparse}
    assert sizes == {
        "user": 6041,
        "item": 3953,
        "gender": 2,
        "age": 7,
        "occupation": 21,
        "year": 81,
        "genres": 18,
    }
    assert 0.7 < batch.labels_BT.mean() < 0.85
