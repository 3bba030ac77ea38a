"""Columns that say the same as another one are left out of a proposed schema."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from runner.data.proposal.columns.schema_hints import Hints
from runner.data.proposal.schema import propose_schema

ROWS = 4_000


@pytest.fixture
def columns():
    rng = np.random.default_rng(0)
    item_R, user_R = rng.integers(1, 60, ROWS), rng.integers(1, 200, ROWS)
    return {
        "click": rng.integers(0, 2, ROWS),
        "item_id": item_R,
        "title": pa.array([f"the {number}" if number % 9 else None for number in item_R]),
        "genre": pa.array([f"genre {number % 5}" for number in item_R]),
        "user_id": user_R,
        "user_name": pa.array([f"name {number}" for number in user_R]).dictionary_encode(),
        "email": pa.array([f"{row}@x.org" for row in range(ROWS)]),
        "email2": pa.array([f"{row}@y.org" for row in range(ROWS)]),
    }


def propose(folder, columns, hints=None):
    pq.write_table(pa.table(columns), folder / "rows.parquet")
    proposal = propose_schema(str(folder / "rows.parquet"), hints=hints)
    roles = {f.name: role for f, role in proposal.columns}
    copies = {name: role.reason for name, role in roles.items() if "says the same" in role.reason}
    return roles, copies


def test_a_column_with_one_value_for_each_of_another_is_left_out(tmp_path, columns):
    del columns["title"]
    columns["name"] = pa.array([f"the {number}" for number in columns["item_id"]])
    roles, copies = propose(tmp_path, columns)
    assert copies == {
        "name": "says the same as item_id; --categorical name makes a feature of it",
        "user_name": "says the same as user_id; --categorical user_name makes a feature of it",
    }
    assert {roles[name].name for name in ("item_id", "genre", "user_id")} == {"categorical"}


def test_a_missing_value_that_stands_for_several_ids_is_another_thing_to_say(tmp_path, columns):
    assert "title" not in propose(tmp_path, columns)[1]


def test_one_row_of_another_value_suffices_to_keep_a_column(tmp_path, columns):
    names = columns["user_name"].to_pylist()
    columns["user_name"] = pa.array([*names[:-1], "somebody else"])
    assert "user_name" not in propose(tmp_path, columns)[1]


def test_a_user_stays_and_not_its_name_before_it(tmp_path, columns):
    names = columns.pop("user_name")
    assert propose(tmp_path, {"member": names, **columns})[1].keys() == {"member"}


def test_a_copy_that_is_asked_for_stays_in_place_of_the_other(tmp_path, columns):
    roles, copies = propose(tmp_path, columns, Hints(categorical=("user_name",)))
    assert roles["user_name"].name == "categorical"
    assert copies["user_id"].startswith("says the same as user_name;")
