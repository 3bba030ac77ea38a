"""Roles that `schema` proposes, checked against tables whose roles are known."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from runner.cli.schema import _read_hints, make_parser
from runner.cli.schema import schema as schema_verb
from runner.data.columns.schema_file import parse_schema
from runner.data.columns.schema_yaml import read_schema_yaml
from runner.data.proposal.columns.column_names import guess_kind
from runner.data.proposal.format_schema import format_schema_yaml
from runner.data.proposal.schema import SchemaProposal, propose_schema
from runner.data.tabular.table import open_table
from runner.data.tabular.table_recipe import TableRecipe
from tests.conftest import ROOT
from tests.data.shapes import SHAPES, Column, Shape, find_mistakes, make

pytestmark = pytest.mark.usefixtures("own_cache")
SHARED = ROOT.parent / "shared" / "data"
CRITEO = ("label", *(f"I{n}" for n in range(1, 14)), *(f"C{n}" for n in range(1, 27)))


def propose(path: str, *flags: str) -> SchemaProposal:
    given = make_parser().parse([path, *flags])
    return propose_schema(path, hints=_read_hints(given))


def roles_of(proposal: SchemaProposal) -> dict[str, str]:
    return {f.name: role.name or "left out" for f, role in proposal.columns}


@pytest.mark.long
def test_no_id_is_a_number_and_nearly_all_roles_are_right(tmp_path):
    assert len(SHAPES) >= 30
    wrong, as_numbers, count = [], [], 0
    for name, shape in SHAPES.items():
        roles = roles_of(propose(make(name, tmp_path / name, 2000), *shape.flags))
        mistakes, ids = find_mistakes(shape, roles)
        wrong += [f"{name}.{column}: {roles[column]}" for column in mistakes]
        as_numbers += ids
        count += len(roles)
    print(f"{len(SHAPES)} tables, {count - len(wrong)} of {count} columns right; wrong: {wrong}")
    assert not as_numbers
    assert len(wrong) <= 0.05 * count


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
def test_the_roles_do_not_hang_on_the_draw_or_the_number_of_rows(tmp_path, seed):
    wrong, as_numbers, count = [], [], 0
    for name, shape in SHAPES.items():
        path = make(name, tmp_path / name, 4000 if seed == 1 else 700, seed)
        mistakes, ids = find_mistakes(shape, roles_of(propose(path, *shape.flags)))
        wrong, as_numbers, count = wrong + mistakes, as_numbers + ids, count + len(shape.columns)
    assert not as_numbers
    assert len(wrong) <= 0.05 * count, wrong


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(SHAPES))
def test_what_is_proposed_can_be_read(tmp_path, name, capsys):
    shape, out = SHAPES[name], tmp_path / "s.yaml"
    path = make(name, tmp_path, 2000)
    assert schema_verb([path, *shape.flags, "--out", str(out)], ()) == 0
    words = capsys.readouterr().out.split()
    format_ = next(w for w in words if w.startswith("dataset=")).partition("=")[2]
    assert not [word for word in words if word.startswith("dataset.on_bad_rows")]
    recipe = TableRecipe(format=format_, path=None, schema=str(out))
    recipe.check()
    data = open_table(recipe, window_rows=1 << 17, prefetch=0)
    assert min(data.num_rows.values()) > 100 and sum(data.num_rows.values()) == 2000
    batch = next(data.batches("train", batch_size=500))
    assert set(batch.labels_BT.unique().tolist()) == {0, 1}


@pytest.mark.long
@pytest.mark.parametrize("name", ["criteo", "avazu", "taobao_display", "frappe_bars", "adult"])
def test_the_labels_of_the_shapes_can_be_learnt(tmp_path, name):
    """The tables are of use as a test only if their columns tell something of the label."""
    out = tmp_path / "s.yaml"
    path = make(name, tmp_path, 6000)
    schema_verb([path, *SHAPES[name].flags, "--out", str(out)], ())
    format_ = "tsv" if path.endswith(".tsv") else "csv"
    data = open_table(TableRecipe(format_, None, str(out)), window_rows=1 << 17, prefetch=0)

    def features(split: str) -> tuple[np.ndarray, np.ndarray]:
        batch = next(data.batches(split, batch_size=data.num_rows[split]))
        parts = [batch.dense_BD.numpy()]
        for spec in data.schema.sparse:
            if spec.mean_length == 1 and spec.num_rows < 3000:
                parts.append(np.eye(spec.num_rows)[batch.sparse[spec.name].values().numpy()])
        return np.concatenate(parts, 1), batch.labels_BT[:, 0].numpy()

    x, y = features("train")
    model = LogisticRegression(C=0.1, max_iter=200).fit(x, y)
    x, y = features("test")
    assert roc_auc_score(y, model.predict_proba(x)[:, 1]) > 0.62


def test_the_columns_of_one_family_share_a_decision(tmp_path):
    rng = np.random.default_rng(0)
    family = {f"v{n}": rng.integers(-50, 900, 500) for n in range(5)} | {
        "v5": rng.integers(0, 12, 500),
        "w1": rng.integers(0, 12, 500),
        "w2": rng.integers(-50, 900, 500),
        "w3": rng.integers(0, 90, 500),
        "label": rng.integers(0, 2, 500),
    }
    pq.write_table(pa.table(family), tmp_path / "x.parquet")
    roles = roles_of(propose(str(tmp_path / "x.parquet")))
    assert {roles[f"v{n}"] for n in range(6)} == {"numeric"}
    assert {roles[f"w{n}"] for n in range(1, 4)} == {"categorical"}


def test_a_few_fractions_of_a_name_of_ids_are_numbers_where_each_is_rare(tmp_path):
    """As of Expedia's searches, of which 95% lack it."""
    rng = np.random.default_rng(0)
    stars = rng.uniform(2, 5, 4000).round(1)
    stars[rng.random(4000) < 0.95] = np.nan
    columns = {
        "visitor_hist_starrating": pa.array(stars, from_pandas=True),
        "os_version": rng.integers(30, 60, 4000) / 10,
        "label": rng.integers(0, 2, 4000),
    }
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    roles = roles_of(propose(str(tmp_path / "x.parquet")))
    assert (roles["visitor_hist_starrating"], roles["os_version"]) == ("numeric", "categorical")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *[("userAge", "quantity"), ("age_level", "id"), ("hours-per-week", "quantity")],
        *[("num_items", "quantity"), ("num_items_id", "id"), ("days_since_order", "quantity")],
        *[("itemId", "id"), ("adid", "id"), ("amount_paid", "quantity"), ("price_id", "id")],
        *[("I13", "quantity"), ("C14", "id"), ("cat_7", "id"), ("foo", "")],
        *[("loan_amnt", "quantity"), ("visitor_hist_adr_usd", "quantity")],
        *[("year:float", "quantity"), ("age:token", "id"), ("genres:token_seq", "id")],
        *[("number_of_reviews", "quantity"), ("count_of_category", "quantity"), ("number", "")],
        *[("item.$numberInt", "id"), ("stay.$numberLong", ""), ("fee.$numberDecimal", "quantity")],
        *[("time_on_page", "quantity"), ("distance_to_store", "quantity"), ("ship_to_zip", "id")],
        *[
            ("DAYS_LAST_PHONE_CHANGE", "quantity"),
            ("hours_slot", "id"),
            ("minimum_nights", "quantity"),
            ("city_mpg", "quantity"),
        ],
    ],
)
def test_what_a_name_says(name, kind):
    assert guess_kind(name) == kind


def test_mistakes_are_counted():
    shape = Shape("x", (), (Column("a", "id"), Column("b", "count"), Column("c", "level")))
    found = find_mistakes(shape, {"a": "numeric", "b": "categorical", "c": "numeric"})
    assert found == (["a", "b"], ["a"])


@pytest.mark.long
@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/data")
def test_real_tables(tmp_path):
    path = str(SHARED / "criteo10k" / "train.txt")
    proposal = propose(path, "--columns", ",".join(CRITEO))
    roles = roles_of(proposal)
    assert proposal.format == "csv" and proposal.places["delimiter"] == "\t"
    wrong = {n: r for n, r in roles.items() if n[0] == "I" and r != "numeric"}
    wrong |= {n: r for n, r in roles.items() if n[0] == "C" and r != "categorical"}
    assert roles["label"] == "labels" and not wrong
    assert roles_of(propose(path))["c0"] == "labels"  # without names, too

    joined = tmp_path / "ml.csv"
    _join_movielens(joined, 50_000)
    proposal = propose(str(joined))
    roles = roles_of(proposal)
    assert roles.pop("rating") == "labels" and roles.pop("timestamp") == "left out"
    assert roles.pop("age") in ("numeric", "categorical")
    assert set(roles.values()) == {"categorical"}
    assert dict(proposal.columns[-1][1].settings)["separator"] == "|"


def _join_movielens(path: Path, num_rows: int) -> None:
    def rows(name: str) -> list[list[str]]:
        text = (SHARED / "ml-1m" / f"{name}.dat").read_text("latin-1")
        return [line.split("::") for line in text.splitlines()]

    users = {row[0]: row[1:] for row in rows("users")}
    genres = {row[0]: row[2] for row in rows("movies")}
    names = ("user_id", "movie_id", "rating", "timestamp", "gender", "age", "occupation", "zip")
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow([*names, "genres"])
        for row in rows("ratings")[:num_rows]:
            out.writerow([*row, *users[row[0]], genres[row[1]]])


def test_the_proposal_is_yaml_that_tells_the_reasons(tmp_path):
    out = tmp_path / "s.yaml"
    schema_verb([make("avazu", tmp_path), "--out", str(out)], ())
    text = out.read_text()
    assert '"C14": {encode: "vocabulary", min_count: 1}' in text and "; named like an id" in text
    proposed = yaml.safe_load(text)
    wanted = {"time": "hour", "input": "yymmddhh", "validation": 0.1, "test": 0.1}
    assert proposed["split"] == wanted
    assert proposed["categorical"]["hour_weekday"] == {
        "column": "hour",
        "encode": "weekday",
        "input": "yymmddhh",
    }


def test_columns_called_as_a_pattern_are_declared_by_another_name(tmp_path):
    """As keys, such names would stand for the columns a1, a2 and a3."""
    path = tmp_path / "x.csv"
    lines = [f"{n % 2},u{n % 9},{'' if n % 3 else n / 7}" for n in range(200)]
    path.write_text("\n".join(["click,a{1..3},x{2..1} z", *lines]) + "\n")
    text = format_schema_yaml(propose_schema(str(path)), "schema x.csv")
    declared = parse_schema(read_schema_yaml(text, "x.yaml"))
    assert set(declared.columns) == {"click", "a{1..3}", "x{2..1} z"}
    names = {spec.name for spec in (*declared.ids, *declared.numeric)}
    assert names >= {"a(1..3)", "x(2..1) z"}


@pytest.mark.parametrize("as_texts", [False, True])
def test_users_of_whom_most_are_seen_once_are_ids_and_titles_are_none(tmp_path, as_texts):
    """So looks a sample of 200,000 rows of a log of a million users."""
    rng = np.random.default_rng(0)
    who_R = rng.integers(0, 10_000, 2_000)
    assert 0.9 < len(np.unique(who_R)) / len(who_R) < 0.95
    texts = [f"u{n:x}" for n in who_R]
    columns = {"user_id": texts if as_texts else who_R, "title": texts}
    table = pa.table(columns | {"click": rng.integers(0, 2, len(who_R))})
    pq.write_table(table, tmp_path / "x.parquet")
    roles = roles_of(propose(str(tmp_path / "x.parquet")))
    assert (roles["user_id"], roles["title"]) == ("categorical", "carried")
