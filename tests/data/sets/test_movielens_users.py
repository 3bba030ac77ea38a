"""MovieLens as episodes: what a user's row has, and that no user is in two splits."""

from __future__ import annotations

import random

import pytest

from runner.errors import ConfigError
from tests.data.sets.synthetic_settings import dataset_settings, instantiate

pytestmark = pytest.mark.usefixtures("own_cache")
SUPPORT, QUERY = 3, 4


@pytest.fixture
def rated(tmp_path):
    """Make user -> item -> rating; user u rates 1 + u % 12 items that are not rated 3."""
    rng = random.Random(0)
    found = {
        u: {i: rng.choice((1, 2, 4, 5)) for i in rng.sample(range(1, 20), 1 + u % 12)}
        for u in range(1, 41)
    }
    lines = [f"{u}::{i}::{r}::0" for u, own in found.items() for i, r in own.items()]
    lines += [f"{u}::20::3::0" for u in found]
    rng.shuffle(lines)
    users = [f"{u}::{'FM'[u % 2]}::{18 + 7 * (u % 3)}::{u % 4}::1" for u in found]
    movies = [f"{i}::Film ({1980 + i})::Drama" for i in range(1, 21)]
    for name, rows in (("ratings", lines), ("users", users), ("movies", movies)):
        (tmp_path / f"{name}.dat").write_text("\n".join(rows) + "\n")
    return tmp_path, found


def episodes(folder, **changes):
    """Return split -> rows: gender, support, query, label; items are mapped to 0 or 1."""
    settings = {"support": SUPPORT, "query": QUERY, **changes}
    data = instantiate(dataset_settings("movielens_users", path=str(folder), **settings))
    found = {}
    for split in ("train", "validation", "test"):
        rows = []
        for batch in data.batches(split, batch_size=1000):
            parts = {}
            for part in ("support", "query"):
                items, liked = batch.sparse[f"{part}_item"], batch.sparse[f"{part}_liked"]
                pairs = zip(items.to_dense(), liked.to_dense())
                parts[part] = [dict(zip(i.tolist(), y.tolist())) for i, y in pairs]
            gender = batch.sparse["gender"].values().tolist()
            rows += list(zip(gender, parts["support"], parts["query"], batch.labels_BT[:, 0]))
        found[split] = rows
    return found


def test_an_episode_is_one_users_ratings_cut_in_two_and_users_are_in_one_split(rated):
    folder, ratings = rated
    known = {frozenset((i, int(r > 3)) for i, r in own.items()): u for u, own in ratings.items()}
    by_split = episodes(folder, query=100)
    seen = []
    for rows in by_split.values():
        for gender, support, query, label in rows:
            assert len(support) == SUPPORT
            assert not support.keys() & query.keys()
            user = known[frozenset((support | query).items())]
            assert gender == user % 2
            assert label == next(iter(query.values()))
            seen.append(user)
    assert len(seen) == len(set(seen))
    assert set(seen) == {u for u, own in ratings.items() if len(own) > SUPPORT}
    assert {split: len(rows) for split, rows in by_split.items()} == {
        "train": len(seen) - 2 * (len(seen) // 10),
        "validation": len(seen) // 10,
        "test": len(seen) // 10,
    }


def test_queries_are_cut_and_another_split_seed_makes_other_episodes(rated):
    folder, _ = rated
    cut = episodes(folder)
    assert max(len(query) for _, _, query, _ in cut["train"]) == QUERY
    assert episodes(folder) == cut
    assert episodes(folder, split_seed=1)["test"] != cut["test"]


def test_a_setting_out_of_range_is_named(rated):
    folder, _ = rated
    with pytest.raises(ConfigError, match="support"):
        episodes(folder, support=0)
