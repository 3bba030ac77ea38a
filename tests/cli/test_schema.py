"""The verb `schema`: what it is told, what it asks, and what it says."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import pty
import re
import resource
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser

from runner.cli.schema import schema, write_new_file
from runner.config.overrides import parse_job_overrides
from runner.data.files.read_text import read_text_chunks
from runner.data.proposal.columns.choose_roles import SeveralLabelsError
from runner.data.proposal.schema import propose_schema
from runner.data.tabular.table import open_table
from runner.data.tabular.table_recipe import TableRecipe
from runner.errors import DataError, UserError
from tests.conftest import ROOT
from tests.data.shapes import SHAPES, make

ROWS = 1000


@pytest.fixture
def write(tmp_path):
    def write_table(**columns) -> str:
        rng = np.random.default_rng(0)
        usual = {"user": rng.integers(0, 40, ROWS), "item": rng.integers(0, 60, ROWS)}
        path = tmp_path / "x.parquet"
        pq.write_table(pa.table({**usual, **columns}), path)
        return str(path)

    return write_table


@pytest.fixture
def propose(tmp_path, capsys):
    """Run the verb; return the YAML, and what was shown."""

    def run(path: str, *flags: str) -> tuple[dict, str]:
        out = tmp_path / "s.yaml"
        out.unlink(missing_ok=True)
        assert schema([path, *flags, "--out", str(out)], ()) == 0
        return yaml.safe_load(out.read_text()), " ".join(capsys.readouterr().out.split())

    return run


@pytest.mark.long
def test_the_yaml_is_written_whatever_becomes_of_the_terminal(write, tmp_path):
    path = write(click=np.arange(ROWS) % 2)
    command = f"{sys.executable} -m runner schema {path} --out {tmp_path}/s.yaml"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "wide"}
    done = subprocess.run(
        ["bash", "-c", f"{command} | true"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stderr == ""
    assert "click" in (tmp_path / "s.yaml").read_text()


def test_copied_rows_are_told_where_the_split_is_random_and_equal_ones_by_chance_are_not(
    write, propose
):
    rng = np.random.default_rng(1)
    label, price, size = binary(), rng.normal(size=ROWS), rng.normal(size=ROWS)
    kinds = rng.integers(0, 3, ROWS)
    alone = {"label": label, "price": price, "size": size, "kind": kinds}
    columns = {"user": kinds, "item": kinds, **alone}
    _, shown = propose(write(**columns))
    assert "equal another row" not in shown
    copied = {n: np.concatenate([v[:900], v[:100]]) for n, v in columns.items()}
    _, shown = propose(write(**copied))
    assert "20.0% of the 1,000 sampled rows equal another row in every column, label inclu" in shown
    time = np.concatenate([np.arange(900), np.arange(100)]) * 3600 + 1_700_000_000
    proposed, shown = propose(write(**copied, created_at=time))
    assert "time" in proposed["split"] and "equal another row" not in shown
    _, shown = propose(write(user=kinds, item=kinds, kind=kinds, label=label))
    assert "equal another row" not in shown  # 18 kinds of rows


@pytest.mark.parametrize("path", ["no/such/path", "no/such.csv", "no/s*.csv"])
def test_a_path_that_is_not_there_is_told_as_it_was_given(write, path):
    with pytest.raises(DataError, match=rf"^{re.escape(path)}: no (such path|file matches)"):
        schema([path], ())
    table = write(label=binary())
    with pytest.raises(DataError, match=rf"^--test={re.escape(path)}: no (such path|file match)"):
        schema([table, "--test", path], ())


def binary(seed: int = 0) -> np.ndarray:
    return np.random.default_rng([5, seed]).integers(0, 2, ROWS)


def test_several_labels_are_refused_and_said_by_a_flag(write, propose):
    path = write(click=binary(), purchase=binary(1), like=binary(2))
    with pytest.raises(SeveralLabelsError, match="click, purchase, like; --label click takes one"):
        schema([path], ())
    proposed, shown = propose(path, "--label", "click,purchase")
    assert list(proposed["labels"]) == ["click", "purchase"]
    assert "like" not in {**proposed["categorical"], **proposed.get("numeric", {})}
    assert "looks like another label; --categorical makes a feature of it" in shown
    proposed, _ = propose(path, "--label=click", "--categorical", "like", "--drop", "purchase")
    assert "like" in proposed["categorical"] and list(proposed["labels"]) == ["click"]


def test_a_label_with_missing_values_is_told_with_what_trains_on_the_other_rows(write, propose):
    purchase = [int(b) if a else None for a, b in zip(binary(), binary(1))]
    path = write(click=binary(), purchase=purchase)
    _, shown = propose(path, "--label", "click,purchase")
    share = purchase.count(None) / ROWS
    assert (
        f"label purchase: is missing in {share:.1%} of the rows, which are bad rows, also for "
        "click: --label click trains on them; `default: 0` beside it in the YAML takes them as 0"
    ) in shown
    _, shown = propose(path, "--label", "purchase", "--drop", "click")
    assert "which are bad rows" in shown and "also for" not in shown


def test_a_label_that_is_1_or_missing_as_a_join_of_clicks_leaves_it_is_0_where_it_is_missing(
    write, propose
):
    age = np.arange(ROWS) % 50 + 0.5
    seen = (age > 30) & (np.random.default_rng(1).random(ROWS) < 0.8)
    click = pa.array(np.ones(ROWS, np.int64), mask=~seen)
    proposed, shown = propose(write(age=age, click=click))
    assert proposed["labels"] == {"click": {"default": 0}}
    assert "a missing one is taken as 0 (`default: 0`)" in shown
    assert "bad_rows" not in shown and "nothing can be learnt" not in shown
    _, shown = propose(write(age=pa.array(age, mask=~seen), click=click))
    assert "age alone predicts click (AUC 1.0000)" in shown
    with pytest.raises(SeveralLabelsError, match="click, buy"):
        schema([write(click=click, buy=click)], ())


def test_a_rating_beside_a_click_is_a_second_label(write):
    path = write(click=binary(), rating=np.arange(ROWS) % 5 + 1)
    with pytest.raises(SeveralLabelsError, match="click, rating"):
        schema([path], ())


def test_on_a_terminal_the_label_is_asked(write, tmp_path):
    path = write(click=binary(), purchase=binary(1))
    main, side = pty.openpty()
    command = [sys.executable, "-m", "runner", "schema", path, "--out", str(tmp_path / "s.yaml")]
    child = subprocess.Popen(command, stdin=side, stdout=side, stderr=side, close_fds=True)
    os.close(side)
    os.write(main, b"purchas\npurchase\n")
    shown = b""
    while True:
        try:
            part = os.read(main, 4096)
        except OSError:  # the other side is closed
            break
        if not part:
            break
        shown += part
    os.close(main)
    assert child.wait(60) == 0, shown
    assert b"nearest: 'purchase'" in shown and b"2 columns may be the label" in shown
    text = (tmp_path / "s.yaml").read_text()
    assert list(yaml.safe_load(text)["labels"]) == ["purchase"] and "--label purchase" in text


def test_a_table_without_a_label_gets_a_proposal(write, propose):
    proposed, shown = propose(write(is_weekend=binary(), is_mobile=binary(1)))
    assert "labels" not in proposed and set(proposed["categorical"]) >= {"user", "item"}
    assert "no column looks like the label (of two values: is_weekend, is_mobile)" in shown
    assert "--label NAME" in shown and "next:" not in shown and "no label yet" in shown
    _, shown = propose(write(c5=2 * binary() - 1))
    assert "no column looks like the label (of two values: c5)" in shown


def test_the_command_that_is_suggested_names_the_column_that_sounds_like_the_label(write, propose):
    flags = {f"c{n}": np.where(binary(n), "Male", "Female") for n in (3, 4)}
    _, shown = propose(write(user=binary(9), **flags, income_gt_50k=binary(5), last=binary(6)))
    assert shown.endswith("--label income_gt_50k")
    _, shown = propose(write(**flags, y98=binary(5), status=binary(6), is_open=binary(7)))
    assert shown.endswith("--label status")
    _, shown = propose(write(**flags, income=np.random.default_rng(1).gamma(2, 9, ROWS)))
    assert shown.endswith("--label NAME") and "(of two values: c3, c4)" in shown


def test_what_a_table_of_events_needs_is_told_once(write, propose):
    flags = {"a": binary(), "b": binary(1)}
    shown = propose(write(**flags))[1]
    assert "--task next_item --time COLUMN" in shown and "needs no label" not in shown
    assert "--user NAME --item NAME" in propose(write(item=binary(2), **flags))[1]


@pytest.mark.parametrize("name", ["choice", "CHOSEN", "is_selected", "accepted", "decision"])
def test_a_choice_is_the_label_unless_another_outcome_is(write, propose, name):
    for values in (binary(), binary() > 0, np.where(binary(), "choice1", "choice2")):
        proposed, shown = propose(write(is_mobile=binary(1), is_new=binary(2), **{name: values}))
        assert list(proposed["labels"]) == [name] and "named like a choice" in shown
    proposed, _ = propose(write(click=binary(1), **{name: binary()}))
    assert list(proposed["labels"]) == ["click"] and name in proposed["categorical"]


def test_a_choice_among_texts_is_a_label_of_classes_and_one_among_numbers_is_not_guessed(
    write, propose
):
    brands = np.array(["heinz", "hunts", "private"])
    proposed, _ = propose(write(is_mobile=binary(), **{"soup.choice": brands[np.arange(ROWS) % 3]}))
    assert proposed["labels"] == {"soup.choice": {"classes": ["heinz", "hunts", "private"]}}
    proposed, shown = propose(write(a=binary(), b=binary(1), choice=np.arange(ROWS) % 3))
    assert "labels" not in proposed and "no column looks like the label" in shown


def test_a_result_within_an_object_is_the_label_and_a_user_s_income_is_not(write, propose):
    results = pa.array([{"clicked": bool(n), "price": 0.5} for n in binary()])
    users = pa.array([{"income": int(n)} for n in binary(1)])
    proposed, _ = propose(write(result=results, seller=users))
    assert proposed["labels"] == {"result.clicked": {}}
    assert "seller.income" in proposed["categorical"]


@pytest.mark.parametrize("ending", ["parquet", "csv"])
@pytest.mark.parametrize(("rows", "is_number"), [(4_000, True), (70_000, False)])
def test_labels_say_of_a_small_table_which_column_in_doubt_is_a_quantity(
    tmp_path, propose, ending, rows, is_number
):
    rng = np.random.default_rng(4)
    lots, shops = rng.gamma(2.0, 200, rows).astype(int), rng.integers(0, 300, rows)
    logits = (lots - 330) / 200 + rng.normal(size=300)[shops]
    columns = {"lots": lots, "f1": shops, "click": (logits + rng.logistic(size=rows) > 0) * 1}
    path = str(tmp_path / f"x.{ending}")
    {"csv": pacsv.write_csv, "parquet": pq.write_table}[ending](pa.table(columns), path)
    proposed, shown = propose(path)
    assert ("lots" in proposed["numeric"]) == is_number
    assert ("lots" in proposed["categorical"]) == (not is_number)
    assert ("lots_number" in proposed["numeric"]) == (not is_number)
    assert "f1" in proposed["categorical"] and "f1_number" not in proposed["numeric"]
    assert ("whole numbers whose order helps to predict the label" in shown) == is_number


def test_y_beside_x_is_a_coordinate_unless_it_alone_can_be_the_label(write, propose):
    rng = np.random.default_rng(3)
    places = {name: rng.normal(size=ROWS) for name in "xyz"}
    proposed, _ = propose(write(late=binary(), x=places["x"], y=places["y"]), "--label=late")
    assert {"x", "y"} <= proposed["numeric"].keys()
    proposed, _ = propose(write(f1=binary(), **places))
    assert "f1" in proposed["labels"] and "y" in proposed["numeric"]
    proposed, _ = propose(write(x=places["x"], y=places["y"]))
    assert list(proposed["labels"]) == ["y"]
    proposed, _ = propose(write(x=places["x"], z=places["z"], y=binary()))
    assert list(proposed["labels"]) == ["y"]
    proposed, shown = propose(write(late=binary(), Y1=places["y"], X2=places["x"]), "--label=late")
    assert "Y1" not in proposed["numeric"] and "looks like another label" in shown


def test_an_income_is_a_feature_of_a_label_that_is_named_and_a_second_outcome_is_not(
    write, propose
):
    income = np.random.default_rng(3).integers(100, 900, ROWS)
    path = write(late=binary(), income=income, churned=binary(1))
    proposed, shown = propose(path, "--label=late")
    assert "income" in proposed["numeric"] and "churned" not in proposed["categorical"]
    assert "looks like another label" in shown
    texts = np.where(binary(1) > 0, ">50K", "<=50K")
    proposed, _ = propose(write(late=binary(), income=texts), "--label=late")
    assert "income" not in proposed["categorical"]


def test_an_income_in_numbers_is_no_label_where_none_is_named(write, propose):
    texts = np.array(["a", "b", "c"])[np.random.default_rng(3).integers(0, 3, ROWS)]
    income = np.random.default_rng(4).normal(900, 100, ROWS)
    proposed, shown = propose(write(income=income, vote=texts))
    assert "labels" not in proposed and "income" in proposed["numeric"]
    assert "no column looks like the label" in shown


@pytest.mark.parametrize("years", [("y98", "y99", "y00"), ("Y2013", "Y2014")])
def test_columns_of_years_are_no_labels(years, write, propose):
    of_years = {name: binary(n) for n, name in enumerate(years)}
    _, shown = propose(write(fare=np.random.default_rng(3).normal(size=ROWS), **of_years))
    assert f"no column looks like the label (of two values: {', '.join(years)})" in shown
    proposed, _ = propose(write(late=binary(5), **of_years), "--label=late")
    assert set(years) <= proposed["categorical"].keys()
    tasks = {f"y{n}": binary(n) for n in range(1, 12)}
    proposed, _ = propose(write(late=binary(12), **tasks), "--label=late")
    assert "categorical" not in proposed or not tasks.keys() & proposed["categorical"].keys()


def test_a_folder_of_two_tables_is_told_to_name_one(tmp_path):
    (tmp_path / "movies.csv").write_text("movie,title\n" + "1,Heat\n2,Ran\n" * 20)
    (tmp_path / "ratings.csv").write_text("user,movie,rating\n" + "1,1,4\n2,2,5\n" * 20)
    with pytest.raises(
        DataError, match=r"ratings.csv: no column 'title', as .*/movies.csv has; of"
    ):
        schema([str(tmp_path)], ())


def test_files_without_an_ending_are_read_by_a_glob_which_a_folder_of_them_is_told(
    tmp_path, propose
):
    for part in range(3):
        rows = [f"{n % 2},u{n % 7},{n % 5}\n" for n in range(part, 300, 3)]
        (tmp_path / f"part-0000{part}").write_text("".join(rows))
    (tmp_path / "_SUCCESS").touch()
    with pytest.raises(UserError, match=r"no file has an ending .*part-00001.*: name one") as error:
        schema([str(tmp_path)], ())
    [pattern] = shlex.split(str(error.value).split(" or ")[1].partition(" for all")[0])
    proposed, _ = propose(pattern)
    assert proposed["path"] == pattern and list(proposed["labels"]) == ["c0"]


def test_the_tables_of_a_folder_come_before_notes_beside_them(tmp_path, propose):
    for name in ("train", "valid", "test"):
        rows = "".join(f"{n % 2},u{n % 7}\n" for n in range(99))
        (tmp_path / f"{name}.csv").write_text("click,user\n" + rows)
    (tmp_path / "feature_map.json").write_text('{"num_fields": 2}')
    proposed, _ = propose(str(tmp_path))
    assert list(proposed["labels"]) == ["click"] and proposed["test_path"].endswith("test.csv")


def test_texts_of_two_values_are_labels(write, propose):
    incomes = np.where(np.arange(ROWS) % 4 == 0, "50000+.", "- 50000.")
    path = write(income=incomes, sex=np.where(binary(), "m", "f"))
    proposed, shown = propose(path)
    assert proposed["labels"] == {"income": {"positive": ["50000+."]}}
    assert "1 for '50000+.', the rarer value; --positive names another" in shown
    proposed, _ = propose(path, "--label", "sex", "--positive", "f")
    assert proposed["labels"] == {"sex": {"positive": ["f"]}}
    with pytest.raises(UserError, match="--positive 50000: income has the values"):
        schema([path, "--label", "income", "--positive", "50000"], ())


@pytest.mark.parametrize("name", ["units_sold", "Sales", "weekly_sales"])
def test_of_a_table_of_sales_the_number_is_the_label_and_not_the_promotion(write, propose, name):
    rng = np.random.default_rng(1)
    promo = rng.integers(0, 2, ROWS)
    proposed, _ = propose(write(promo=promo, **{name: rng.poisson(5 + 3 * promo)}))
    assert (
        proposed["labels"] == {name: {"type": "regression"}} and "promo" in proposed["categorical"]
    )
    proposed, _ = propose(write(click=promo, **{name: rng.poisson(5, ROWS)}))
    assert list(proposed["labels"]) == ["click"]
    assert name in {**proposed.get("numeric", {}), **proposed["categorical"]}
    proposed, _ = propose(write(promo=promo, **{f"{name}_rank": rng.poisson(5, ROWS)}))
    assert list(proposed["labels"]) == ["promo"]


def test_the_positive_number_of_a_label_is_named_by_its_digits(write, propose):
    kind = np.random.default_rng(0).integers(1, 4, ROWS)
    for values in (kind, kind.astype(float)):
        proposed, _ = propose(write(kind=values), "--label", "kind", "--positive", "2.0")
        assert proposed["labels"] == {"kind": {"positive": ["2"]}}


def test_a_label_of_one_value_is_a_class_and_said_to_teach_nothing(write, propose):
    path = write(click=binary(), buy=np.zeros(ROWS, np.int64))
    proposed, shown = propose(path, "--label", "click,buy")
    assert proposed["labels"] == {"click": {}, "buy": {}}
    assert "label buy: has one value in all rows, so nothing can be learnt of it" in shown
    with pytest.raises(UserError, match="--positive yes: click holds numbers from 0 to 1"):
        schema([path, "--label", "click", "--positive", "yes"], ())


@pytest.mark.parametrize(
    ("stray", "listed"),
    [
        ([-1] * 3, "-1"),
        ([2], "2"),
        ([4321], "4321"),
        ([0.5] * 2, "0.5"),
        ([0.25, 0.5], "0.25, 0.5"),
    ],
)
def test_a_few_other_values_of_a_click_are_bad_rows_and_no_regression(
    write, propose, stray, listed
):
    clicks = binary()
    clicks = clicks.astype(np.asarray(stray).dtype)
    clicks[7 : 7 + len(stray)] = stray
    proposed, shown = propose(write(click=clicks))
    assert proposed["labels"] == {"click": {}}
    told = f"{len(stray)} of 1,000 sampled rows hold another value than 0 and 1 ({listed}); these"
    assert told in shown and "dataset.on_bad_rows=skip dataset.max_bad_rows=1000000000" in shown
    assert "by_kind" not in shown


def test_a_click_with_a_few_other_values_is_not_a_feature_of_another_label(write, propose):
    clicks = np.where(np.arange(ROWS) == 7, -1, binary())
    with pytest.raises(SeveralLabelsError, match="click, purchase"):
        schema([write(click=clicks, purchase=binary(1))], ())


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("rating", np.arange(ROWS) % 5 + 1),
        ("click", np.arange(ROWS) % 4),
        ("label", np.random.default_rng(0).poisson(0.2, ROWS)),  # counts: 2 and 3 follow on 1
        ("num_likes", np.where(np.arange(ROWS) == 7, 9, binary())),
        ("click", np.where(np.arange(ROWS) % 10 == 7, 0.5, binary())),
        ("target", np.where(np.arange(ROWS) % 99 == 7, 0.5, np.arange(ROWS) % 50 == 0)),
    ],
)
def test_ratings_and_counts_are_no_clicks_with_bad_rows(write, propose, name, values):
    proposed, shown = propose(write(**{name: values}), "--label", name)
    assert proposed["labels"][name] and "on_bad_rows" not in shown
    share = np.isin(values, (0, 1)).mean()
    assert (f"is 0 or 1 in {share:.1%} of the rows, and else" in shown) == (share > 0.5)


def test_few_whole_numbers_of_a_label_are_said_to_be_classes_perhaps(write, propose):
    """As 0 to 2 of wines and 0 to 9 of digits, which a regression orders."""
    digits = np.arange(ROWS) % 10
    _, shown = propose(write(target=digits), "--label", "target")
    assert "to be predicted; --task classes takes its 10 values for classes" in shown
    _, shown = propose(write(target=digits % 3), "--label", "target")
    assert "and 0 of all others; --task classes takes its 3 values for classes" in shown
    for name, numbers in (("target", np.arange(ROWS) % 12), ("age", digits)):
        assert "--task classes" not in propose(write(**{name: numbers}), "--label", name)[1]


def test_a_time_alone_is_learnt_from_by_its_hour(tmp_path, propose):
    """As the flow of water in each hour, a table of two columns."""
    hours = np.arange(ROWS) + np.datetime64("2022-03-20T11", "h")
    pq.write_table(
        pa.table({"at": hours.astype("M8[s]"), "flow": np.sin(np.arange(ROWS))}),
        path := str(tmp_path / "x.parquet"),
    )
    proposed, _ = propose(path, "--label", "flow")
    assert list(proposed["categorical"]) == ["at_hour", "at_weekday"]


def test_few_rows_end_where_no_smaller_log_loss_is_evidence(write, propose):
    """Rows that validation cannot tell from perfect would only be learnt with more certainty."""
    click = np.arange(ROWS) % 2
    assert " trainer.early_stop.threshold=0.01 " in propose(write(click=click))[1]
    assert (
        "threshold"
        not in propose(write(click=click), "--task", "regression", "--label", "click")[1]
    )


def test_whole_numbers_are_ids_until_a_flag_says_otherwise(write, propose):
    rng = np.random.default_rng(1)
    path = write(
        label=binary(), f7=rng.integers(0, 500, ROWS), num_views=rng.integers(0, 500, ROWS)
    )
    proposed, shown = propose(path)
    assert set(proposed["categorical"]) == {"user", "item", "f7"}
    assert list(proposed["numeric"]) == ["num_views"]
    assert "3 whole-number columns taken as ids; --numeric user,item,f7 turns them into" in shown
    assert "1 whole-number column taken as a quantity; --categorical num_views turns it" in shown
    assert "whole numbers, perhaps ids" in shown and "named like a quantity" in shown
    proposed, _ = propose(path, "--numeric", "f7", "--categorical=num_views")
    assert set(proposed["categorical"]) == {"user", "item", "num_views"}
    assert list(proposed["numeric"]) == ["f7"]


def test_consecutive_numbers_are_quantities_if_their_name_ends_with_a_unit(write, propose):
    rng = np.random.default_rng(1)
    tall, lengths = rng.integers(156, 204, ROWS), rng.integers(50, 90, ROWS)
    proposed, _ = propose(write(label=binary(), height_cm=tall, score=tall, max_len=lengths))
    assert list(proposed["numeric"]) == ["height_cm"]
    assert {"score", "max_len"} <= set(proposed["categorical"])


@pytest.mark.parametrize(("num_rows", "first"), [(150, 1), (150, 0), (1200, 1)])
def test_numbers_of_rows_are_no_features_and_of_few_rows_quantities_are(
    propose, tmp_path, num_rows, first
):
    rng = np.random.default_rng(6)
    numbers = rng.permutation(num_rows) + first
    income = np.rint(rng.normal(50_000, 9_000, num_rows)).astype(int)
    columns = {
        "label": (income > 50_000).astype(int) ^ (rng.random(num_rows) < 0.3),
        "x": rng.normal(size=num_rows),
        "rownames": numbers,
        "pay": income,
        "code_id": income[::-1],
    }
    pq.write_table(pa.table(columns), path := str(tmp_path / "x.parquet"))
    proposed, shown = propose(path)
    assert "numbers the rows" in shown and "rownames" not in proposed.get("categorical", {})
    assert not {"rownames", "rownames_number"} & {*proposed["numeric"]}
    assert ("pay" if num_rows < 1000 else "pay_number") in proposed["numeric"]
    assert not {"pay", "pay_number"} <= {*proposed["numeric"]}
    assert "code_id" in proposed["categorical"]
    kept, _ = propose(path, "--numeric", "rownames")
    assert "rownames" in kept["numeric"]


def test_skewed_numbers_take_their_logarithm_where_few_are_a_little_below_0(
    write, propose, monkeypatch, tmp_path
):
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(2)
    wide = np.exp(rng.normal(2, 2.2, ROWS))
    few = rng.random(ROWS) < 0.03
    days = np.where(few, -1, wide)
    path = write(label=binary(), days=days, debt=np.where(few, -wide, wide), gain=wide - 7)
    proposed, _ = propose(path)
    logarithm = {"log1p": True, "clip": [0, None], "standardise": True}
    assert proposed["numeric"] == {
        "days": logarithm, "debt": {"standardise": True}, "gain": {"standardise": True},
    }  # fmt: skip
    recipe = TableRecipe("parquet", None, proposed)
    data = open_table(recipe, window_rows=1 << 14, prefetch=0)
    batch = next(data.batches("train", batch_size=ROWS))
    assert batch.dense_BD[:, 0].abs().max() < 4  # as it is, the largest is above 20


def test_a_few_numbers_far_from_all_others_are_cut_off(write, propose, monkeypatch, tmp_path):
    """As in KKBox's logs, whose seconds are -9e15 in a few rows, beside which others are alike."""
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(2)
    seconds, even = np.exp(rng.normal(8, 1, ROWS)), rng.normal(size=ROWS)
    seconds[::500], even[::400], even[7] = -9.2e15, 4e7, -3e5
    heavy = rng.standard_cauchy(ROWS)
    path = write(label=binary(), total=seconds, even=even, heavy=heavy, plain=rng.random(ROWS))
    proposed, shown = propose(path)
    total, even_clip = proposed["numeric"]["total"], proposed["numeric"]["even"]["clip"]
    assert 100 < total["clip"][0] < 1000 and total["clip"][1] is None and "log1p" in total
    assert even_clip == pytest.approx([-2.3, 2.3], abs=0.3)
    assert {*proposed["numeric"]["heavy"], *proposed["numeric"]["plain"]} == {"standardise"}
    assert "total: a few numbers are far from all others (-9.2e+15 to" in shown
    assert "in the YAML limits them to its bounds; delete it where they are right" in shown
    data = open_table(TableRecipe("parquet", None, proposed), window_rows=1 << 14, prefetch=0)
    spread = next(data.batches("train", batch_size=ROWS)).dense_BD.std(0)
    assert spread.min() > 0.9  # as it is, all but those few are 0


def test_a_column_that_tells_the_label_is_left_out_with_a_warning(write, propose):
    label = binary()
    path = write(label=label, result=np.where(label, 7, 3), almost=np.where(binary(3), label, 2))
    proposed, shown = propose(path)
    assert "result" not in proposed["categorical"] and "almost" in proposed["categorical"]
    assert "warning: result alone predicts label (AUC 1.0000)" in shown and "left out" in shown
    proposed, shown = propose(path, "--categorical", "result")
    assert "result" in proposed["categorical"] and "warning: result" in shown


def test_a_number_that_differs_in_every_row_and_tells_the_label_is_left_out(write, propose):
    label, noise = binary(), np.random.default_rng(4).normal(size=(2, ROWS))
    path = write(label=label, paid=label * 20 + noise[0], half=label * 2 + noise[1])
    proposed, shown = propose(path)
    assert list(proposed["numeric"]) == ["half"]
    assert "warning: paid alone predicts label (AUC 0.99" in shown


def test_a_column_that_tells_one_of_several_classes_stays_with_a_warning(write, propose):
    of_three, noise = np.random.default_rng(0).integers(0, 3, ROWS), binary(3)
    path = write(
        kind=np.array(["setosa", "versicolor", "virginica"])[of_three],
        petal=np.where(of_three == 0, 0, 1 + noise),
        code=of_three * 7,
    )
    proposed, shown = propose(path, "--label", "kind", "--categorical", "petal")
    assert "petal" in proposed["categorical"] and "code" not in proposed["categorical"]
    assert "warning: code alone predicts kind (AUC 1.0000)" in shown
    shown = propose(path, "--label", "kind")[1]
    assert "warning: petal alone predicts kind.setosa (AUC 1.0000): is petal known before" in shown
    assert "--drop petal leaves it out" in shown


def test_fractions_that_are_taken_for_texts_stand_beside_a_number_to_be_predicted(write, propose):
    rng = np.random.default_rng(1)
    sex = np.where(binary(1) == 1, 0.0506801187398187, -0.0446416365069889)
    path = write(sex=sex, bmi=rng.normal(size=ROWS), progress=(sex * 900 + rng.normal(size=ROWS)))
    proposed, _ = propose(path, "--label", "progress")
    assert proposed["categorical"]["sex"]["input"] == "string"


def test_what_tells_a_number_by_its_order_is_left_out_with_a_warning(write, propose):
    price = np.random.default_rng(5).gamma(2, 20, ROWS).round(2)
    noisy = price + np.random.default_rng(6).normal(size=ROWS) * 4
    path = write(price=price, price_eur=(-0.92 * price).round(2), noisy=noisy)
    proposed, shown = propose(path, "--label", "price")
    assert list(proposed["numeric"]) == ["noisy"]
    assert "warning: price_eur alone predicts price by its order" in shown and "left out" in shown
    proposed, shown = propose(path, "--label", "price", "--numeric", "price_eur")
    assert "price_eur" in proposed["numeric"] and "warning: price_eur" in shown


@pytest.mark.parametrize(
    ("make", "decimals", "formula"),
    [
        (lambda a, b: a * b, 2, "quantity x unit_price"),
        (lambda a, b: a + b, 2, "quantity + unit_price"),
        (lambda a, b: b - a, 2, "unit_price - quantity"),
        (lambda a, b: b / a, 3, "unit_price / quantity"),
        (lambda a, b: 100 * b / a, 1, "100 x unit_price / quantity"),
        (lambda a, b: b / a + 0.01, 3, None),
    ],
)
def test_two_columns_that_make_the_number_are_told(write, propose, make, decimals, formula):
    rng = np.random.default_rng(7)
    quantity, price = rng.integers(1, 9, ROWS), rng.gamma(2, 20, ROWS).round(2)
    path = write(quantity=quantity, unit_price=price, y=make(quantity, price).round(decimals))
    proposed, shown = propose(path, "--label", "y")
    assert "unit_price" in proposed["numeric"]
    assert ("warning: y is" in shown) == (formula is not None)
    if formula is not None:
        assert f"warning: y is {formula}: are both known before y is? --drop" in shown


def test_a_share_in_percent_that_32_bits_held_is_told(tmp_path, propose):
    rng = np.random.default_rng(7)
    eligible = rng.integers(50, 900, ROWS)
    taking = rng.binomial(eligible, 0.8)
    rate = (100 * taking / eligible).round(1).astype(np.float32).astype(float)  # 97.599998
    columns = {"taking_count": taking, "eligible_count": eligible, "rate": rate}
    pacsv.write_csv(pa.table(columns), path := str(tmp_path / "x.csv"))
    _, shown = propose(path, "--label", "rate", "--task", "regression")
    assert "warning: rate is 100 x taking_count / eligible_count: are both known" in shown
    assert "A row of counts is better two: a label of 1 with the weight taking_count" in shown


@pytest.mark.parametrize("noise", [0, 0.3])
def test_columns_that_together_make_the_number_are_told(write, propose, noise):
    rng = np.random.default_rng(7)
    names = ("fare", "tolls", "tip", "miles")
    paid = {name: rng.gamma(2, size, ROWS).round(2) for name, size in zip(names, (9, 1, 3, 4))}
    total = paid["fare"] + paid["tolls"] + paid["tip"] + 0.8 + noise * rng.normal(size=ROWS)
    _, shown = propose(write(**paid, total=total.round(2)), "--label", "tip")
    told = "tip is total - fare - tolls - 0.8: are all known before tip is? --drop total,fare,tolls"
    assert (f"warning: {told} leaves them out" in shown) == (noise == 0) == ("warning" in shown)


def test_a_rate_of_counts_is_told_with_the_rows_that_hold_them_better(write, propose):
    rng = np.random.default_rng(8)
    shown_times = rng.integers(0, 30, ROWS)
    clicks = rng.binomial(shown_times, 0.2)
    rate = np.divide(clicks, shown_times, out=np.zeros(ROWS), where=shown_times > 0).round(4)
    _, shown = propose(write(impressions=shown_times, clicks=clicks, ctr=rate), "--label", "ctr")
    assert "warning: ctr is clicks / impressions" in shown
    assert "a label of 1 with the weight clicks" in shown
    assert "0 with the weight impressions - clicks. Else --drop clicks,impressions" in shown


def test_a_value_that_only_positive_rows_have_is_left_out_with_a_warning(write, propose):
    label, amounts = binary(), np.random.default_rng(3).uniform(1, 50, ROWS)
    refund = np.where((label == 1) & (amounts < 45), amounts, np.nan)
    other = np.where(binary(1) == 1, amounts, np.nan)
    few = np.where((label == 1) & (amounts < 5), amounts, np.nan)
    path = write(label=label, refund=refund, other=other, few=few)
    proposed, shown = propose(path)
    assert set(proposed["numeric"]) == {"other", "few"}
    assert "warning: refund has a value only where label is 1: is it known before" in shown
    proposed, shown = propose(path, "--numeric", "refund")
    assert "refund" in proposed["numeric"] and "warning: refund has a value only" in shown


def test_a_number_that_is_0_but_for_positive_rows_is_left_out_with_a_warning(write, propose):
    rng = np.random.default_rng(3)
    label, amounts = binary(), rng.uniform(1, 50, ROWS)
    spent = np.where((label == 1) & (amounts < 30), amounts, 0)
    often = np.where((label == 1) | (amounts < 25), amounts, 0)  # other numbers in most rows
    blocked = np.where((label == 0) & (amounts < 30), 1, 0)  # a rule that may be known
    both = np.where(amounts < 20, amounts, 0)
    path = write(label=label, spent=spent, often=often, blocked=blocked, both=both)
    proposed, shown = propose(path)
    assert "warning: spent is another number than 0 only where label is 1: is it known" in shown
    assert set(proposed["numeric"]) == {"often", "both"} and "blocked" in proposed["categorical"]
    proposed, _ = propose(path, "--numeric", "spent")
    assert "spent" in proposed["numeric"]
    place = np.where(spent > 0, np.rint(amounts % 5), -1)  # as Criteo's attribution log has it
    proposed, shown = propose(write(label=label, place=place, both=both))
    assert "warning: place is another number than -1 only where label is 1" in shown
    assert "place" not in {**proposed["numeric"], **proposed["categorical"]}
    kind = np.where(label == 1, "storm", np.where(amounts < 25, "calm", "rain"))
    proposed, _ = propose(write(kind=kind, gusts=spent, both=both), "--label", "kind")
    assert "gusts" in proposed["numeric"]  # what only one of several classes has may be known


@pytest.mark.parametrize(
    "as_written",
    [
        lambda x_R: pa.array(x_R).cast(pa.decimal128(12, 2)),
        lambda x_R: pa.array([f"${x:.2f}" for x in x_R]),
    ],
)
def test_what_tells_the_label_is_found_in_decimals_and_in_texts_of_amounts(
    write, propose, as_written
):
    rng = np.random.default_rng(3)
    label, amounts = binary(), rng.uniform(1, 50, ROWS).round(2)
    spent = as_written(np.where((label == 1) & (amounts < 30), amounts, 0))
    proposed, shown = propose(write(label=label, spent=spent, price=as_written(amounts)))
    assert "warning: spent is another number than 0 only where label is 1: is it known" in shown
    assert set(proposed["numeric"]) == {"price"}


def test_decimals_have_missing_codes_and_orders_that_tell_as_other_numbers_do(write, propose):
    rng = np.random.default_rng(5)
    level = rng.integers(0, 400, ROWS)
    label = (rng.random(ROWS) < 0.1 + 0.8 * level / 400).astype(int)
    score = np.where(rng.random(ROWS) < 0.1, -999.0, rng.normal(size=ROWS).round(2))
    columns = {"level": pa.array(level.astype(float)), "score": pa.array(score)}
    plain, shown = propose(write(label=label, **columns))
    decimals = {name: x_R.cast(pa.decimal128(12, 2)) for name, x_R in columns.items()}
    proposed, shown_of_decimals = propose(write(label=label, **decimals))
    for role in ("numeric", "categorical"):
        assert proposed[role] == plain[role]
    assert "level_number" in proposed["numeric"]
    assert "score (-999 in" in shown and "score (-999 in" in shown_of_decimals


def test_a_step_on_the_way_to_the_label_is_told(write, propose):
    rng = np.random.default_rng(2)
    visit = rng.integers(0, 4, ROWS) == 0
    buy = visit & (rng.random(ROWS) < 0.5)
    seen_s = np.where(visit, rng.random(ROWS), 0.0)
    left = ~visit & (np.arange(ROWS) > 9)  # no copy of `visit`
    path = write(buy=buy.astype(int), visit=visit.astype(int), seen_s=seen_s, left=left)
    proposed, shown = propose(path, "--label", "buy")
    assert "warning: buy is 1 only where visit is not 0: is visit known before buy is?" in shown
    assert "only where seen_s is not 0" in shown and "where left" not in shown
    assert {"visit", "left"} <= set(proposed["categorical"]) and "seen_s" in proposed["numeric"]
    assert "warning" not in propose(path, "--label", "buy", "--drop", "visit,seen_s")[1]
    rare = (np.cumsum(buy) <= 40) & buy  # as conversions of Criteo's uplift data: 1 of 300 rows
    _, shown = propose(write(buy=rare.astype(int), visit=visit.astype(int)), "--label", "buy")
    assert "warning: buy is 1 only where visit is not 0" in shown
    few = (np.cumsum(buy) <= 10) & buy
    _, shown = propose(write(buy=few.astype(int), visit=visit.astype(int)), "--label", "buy")
    assert "warning" not in shown  # one of four rows has a visit, so that it may be chance


@pytest.mark.parametrize(("share", "is_told"), [(0.65, True), (0.95, False)])
def test_a_step_that_most_rows_have_taken_is_told_of_a_column_of_0_and_1(
    share, is_told, write, propose
):
    """As of Goodreads' books, of which more than half are read, and only those have a rating."""
    rng = np.random.default_rng(2)
    read = rng.random(ROWS) < share
    like = read & (rng.random(ROWS) < 0.5)
    minutes = np.where(read, 1 + rng.integers(0, 9, ROWS), 0)
    tags = [["a", "b"][: 1 + n % 2] for n in range(ROWS)]
    path = write(like=like.astype(int), is_read=read.astype(int), pages=minutes, tags=tags)
    _, shown = propose(path, "--label", "like")
    assert ("warning: like is 1 only where is_read is not 0" in shown) == is_told
    assert "where pages" not in shown


def test_what_nearly_goes_with_the_label_is_told(write, propose):
    rng = np.random.default_rng(4)
    click = rng.random(ROWS) < 0.3
    seconds = np.where(rng.random(ROWS) < np.where(click, 0.9, 0.03), rng.exponential(9, ROWS), 0)
    note = np.where(rng.random(ROWS) < np.where(click, 0.95, 0.02), "a", None)
    strong = np.where(rng.random(ROWS) < np.where(click, 0.7, 0.1), 1, 0)
    path = write(click=click.astype(int), dwell=seconds, note=note, strong=strong)
    proposed, shown = propose(path)
    assert shown.count("warning: ") == 2 and "dwell" in proposed["numeric"]
    told = f"in {(seconds[click] > 0).mean():.1%} of the rows where click is 1, and in "
    assert f"{told}{(seconds[~click] > 0).mean():.1%} of others: is dwell known before" in shown
    assert "warning: note has a value, or another one than 0, in" in shown


def test_chances_of_a_log_are_no_features_and_their_inverses_are_weights(write, propose):
    chance = np.random.default_rng(0).uniform(0.1, 1, ROWS)
    path = write(click=binary(), propensity_score=chance, ips_weight=1 / chance)
    proposed, shown = propose(path)
    assert proposed["weight"] == "ips_weight" and "numeric" not in proposed
    assert "a probability that future rows lack" in shown


def test_constants_weights_times_and_texts(write, propose):
    days = np.arange(ROWS) * 7200 + 1_413_849_600
    path = write(
        label=binary(),
        country=np.array(["de"] * ROWS),
        weight=np.random.default_rng(0).random(ROWS),
        when=days,
        note=np.array([f"text {n}" for n in range(ROWS)]),
        flag=binary(4) == 1,
    )
    proposed, shown = propose(path, "--weight", "weight", "--time", "when")
    assert proposed["weight"] == "weight" and proposed["split"]["time"] == "when"
    assert proposed["categorical"]["when_weekday"] == {"column": "when", "encode": "weekday"}
    assert proposed["carried"] == ["note"] and "the same in every row" in shown
    assert "flag" in proposed["categorical"] and "country" not in proposed["categorical"]
    proposed, _ = propose(path)  # a weight may be that of a parcel
    assert "weight" not in proposed and "weight" in proposed["numeric"]


def test_all_mistakes_of_flags_at_once(write):
    path = write(label=binary(), name=np.array(["a", "b"] * (ROWS // 2)))
    flags = ["--label", "lable", "--numeric", "name", "--drop", "item", "--categorical", "item"]
    with pytest.raises(UserError) as caught:
        schema([path, *flags, "--time", "name"], ())
    for part in (
        "--label lable: no such column; nearest: 'label'",
        "item: is named by --drop and --categorical",
        "--numeric name: has no numbers, but string",
        "--time name: has no times, but string",
    ):
        assert part in str(caught.value)


def test_spaces_are_the_delimiter_where_nothing_else_is_one(tmp_path, propose):
    rows = ["click hour user"] + [f"{n % 2} {n % 7} u{n % 11}" for n in range(200)]
    path = tmp_path / "x.csv"
    path.write_text("\n".join(rows))
    proposed, shown = propose(str(path))
    assert proposed["delimiter"] == " " and "its columns stand between spaces" in shown
    assert list(proposed["labels"]) == ["click"] and proposed["groups"] == ["user"]
    path.write_text("\n".join(["click,user", *(f"{n % 2},u {n % 11}" for n in range(200))]))
    proposed, _ = propose(str(path))
    assert "delimiter" not in proposed and list(proposed["categorical"]) == ["user"]


def test_tabs_are_the_delimiter_where_each_line_has_a_text_with_one_comma(tmp_path, propose):
    path = tmp_path / "films.csv"  # as what iconv writes, or .dat
    films = (f"{n}\tFilm {n}, The\t{n % 9}\t{n % 2}\n" for n in range(ROWS))
    path.write_text("".join(films))
    proposed, _ = propose(str(path), "--columns", "film,title,kind,click")
    assert proposed["delimiter"] == "\t" and list(proposed["labels"]) == ["click"]
    path.write_text("".join(f"{n % 7},a\tb,{n % 2}\n" for n in range(ROWS)))
    proposed, _ = propose(str(path), "--columns", "film,words,click")
    assert "delimiter" not in proposed


def test_files_without_names_and_with_other_delimiters_are_told(tmp_path, propose):
    rows = [f"{n % 2}\t{n % 7}\tu{n % 11}" for n in range(200)]
    (tmp_path / "x.csv").write_text("\n".join(rows))
    proposed, shown = propose(str(tmp_path / "x.csv"))
    assert proposed["delimiter"] == "\t" and proposed["column_names"] == ["c0", "c1", "c2"]
    assert "its columns stand between tabs" in shown and "--columns a,b,c gives them names" in shown
    proposed, _ = propose(str(tmp_path / "x.csv"), "--columns", "click,hour,user")
    assert list(proposed["labels"]) == ["click"] and proposed["groups"] == ["user"]
    for flags, message in (
        (["--columns", "a,b"], "2 names, but .* has 3 columns"),
        (["--delimiter", "::"], "expected one character; sed"),
    ):
        with pytest.raises(UserError, match=message):
            schema([str(tmp_path / "x.csv"), *flags], ())
    (tmp_path / "y.csv").write_text(
        "\n".join(["101,click", *(f"{n % 9},{n % 2}" for n in range(99))])
    )
    assert list(propose(str(tmp_path / "y.csv"))[0]["labels"]) == ["click"]
    (tmp_path / "x.xlsx").write_bytes(b"PK\x03\x04")
    with pytest.raises(UserError, match="save the sheet as CSV"):
        schema([str(tmp_path / "x.xlsx")], ())


def test_a_first_line_of_texts_is_a_row_where_the_columns_go_on_as_they_begin(tmp_path, propose):
    path = tmp_path / "x.tsv"
    rows = [f"u_{n // 9}\t2009-05-04T23:{n % 60:02}:57Z\tartist_{n % 31}" for n in range(200)]
    path.write_text("\n".join(rows))
    assert propose(str(path))[0]["column_names"] == ["c0", "c1", "c2"]
    for names in ("user\ttime\tartist", "u\tu_0\tartist"):  # a name may be a value, too
        path.write_text("\n".join([names, *rows]))
        assert "column_names" not in propose(str(path))[0]


def test_tables_of_different_widths_without_names_are_told_to_name_one(tmp_path, propose):
    (tmp_path / "a.csv").write_text("1,u1,7\n0,u2,5\n" * 50)
    (tmp_path / "b.csv").write_text("u1,7\nu2,5\n" * 50)
    with pytest.raises(DataError, match=r"b.csv: has 2 columns, and .*a.csv has 3; of two tables"):
        propose(str(tmp_path))
    (tmp_path / "b.csv").write_text("1,u1\n" + "1,u1,7\n0,u2,5\n" * 50)  # one short line
    assert propose(str(tmp_path))[0]["column_names"] == ["c0", "c1", "c2"]


def test_a_column_that_another_table_of_the_folder_has_is_not_said_to_be_one_of_a_near_name(
    tmp_path, propose
):
    for name, columns in (
        ("submission", ("id", "response")),
        ("test", ("id", "region_code")),
        ("train", ("id", "region_code", "response")),
    ):
        rows = "".join(",".join(str(n % 7) for _ in columns) + "\n" for n in range(60))
        (tmp_path / f"{name}.csv").write_text(f"{','.join(columns)}\n{rows}")
    with pytest.raises(DataError, match=r"test.csv: no column 'response', as .*of two tables"):
        propose(str(tmp_path))


def test_headings_between_rows_are_told_with_a_command_that_makes_a_column_of_them(
    tmp_path, propose
):
    parts = [f"{m}:\n" + "".join(f"u{n},{n % 5}\n" for n in range(60)) for m in range(9)]
    path = tmp_path / "x.txt"
    path.write_text("".join(parts))
    with pytest.raises(DataError, match="lines such as '0:' are headings") as error:
        propose(str(path))
    [convert] = re.findall(r"(awk .*) makes a column", str(error.value))
    assert subprocess.run(convert, shell=True, cwd=tmp_path, timeout=60).returncode == 0
    lines = (tmp_path / "table.csv").read_text().splitlines()
    assert (len(lines), lines[0], lines[-1]) == (540, "0,u0,0", "8,u59,4")


@pytest.mark.parametrize(
    ("query", "features", "columns"),
    [
        ("", "sparse", {"c0": "labels", "c1": "categorical"}),
        (" qid:{}", "sparse", {"c0": "labels", "c1": "categorical", "c2": "categorical"}),
        (" qid:{}", "dense", {"label": "labels", "f1": "numeric", "f2": "numeric"}),
    ],
)
def test_rows_of_libsvm_are_told_with_a_command_that_makes_columns(
    tmp_path, propose, query, features, columns
):
    rows = []
    for n in range(200):
        pairs = [f" {m}:1" for m in range(n % 3, 9, 2)]
        if features == "dense":
            pairs = [f" {m}:{n * m % 97 / 97:.3f}" for m in (1, 2)]
        rows.append(f"{n % 2}{query.format(n % 20)}{''.join(pairs)} # docid = {n}")
    path = tmp_path / "a9a"
    path.write_text("\n".join(rows))
    with pytest.raises(UserError, match="has the rows of LibSVM") as error:
        propose(str(path))
    [convert] = re.findall(r"LibSVM: (.*) makes a column", str(error.value))
    assert subprocess.run(convert, shell=True, cwd=tmp_path, timeout=60).returncode == 0
    [made] = tmp_path.glob("rows.*")
    proposed, _ = propose(str(made))
    roles = {n: r for r in ("labels", "numeric", "categorical") for n in proposed.get(r, {})}
    assert columns.items() <= roles.items()
    if features == "dense":
        assert proposed["split"]["group"] == "qid"


def test_one_object_of_columns_is_told_and_no_list_of_columns_is_endless(tmp_path, propose):
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"click": {n: n % 2 for n in range(99)}}))
    with pytest.raises(
        DataError, match=r"click.11 \(the same in every row\), \.\.\.; it has one obj"
    ):
        propose(str(path))


def test_parts_between_control_characters_are_lists(write, propose):
    rng = np.random.default_rng(0)
    tags = ["\x03".join(map(str, rng.integers(0, 20, 1 + n % 4))) for n in range(ROWS)]
    proposed, _ = propose(write(click=rng.integers(0, 2, ROWS), tags=tags))
    assert proposed["categorical"]["tags"]["separator"] == "\x03"


def test_a_users_rating_with_fractions_is_a_number_to_be_predicted(write, propose):
    rating = np.random.default_rng(0).uniform(-10, 10, ROWS).round(2)  # as of Jester's jokes
    proposed, shown = propose(write(rating=rating))
    assert proposed["labels"] == {"rating": {"type": "regression"}} and "next: python" in shown
    path = write(rating=rating)
    pq.write_table(pq.read_table(path).drop_columns(["user"]), path)  # a mean, as of a catalogue
    assert "no column looks like the label" in propose(path)[1]


def test_a_rating_that_is_mostly_0_is_told(write, propose):
    rating = np.where(np.arange(ROWS) % 2, 0, np.arange(ROWS) % 6)
    shown = propose(write(rating=rating))[1]
    assert "is 0 in 66.7% of the rows; where 0 says" in shown
    assert "with pandas, `t = t[t['rating'] != 0]`" in shown
    assert "where 0 says" not in propose(write(rating=np.arange(ROWS) % 5 + 1))[1]


def test_lines_that_are_all_longer_than_the_first_are_told(tmp_path, propose):
    path = tmp_path / "x.csv"
    path.write_text("user,click\n" + "".join(f"u{n % 7},{n % 2},\n" for n in range(99)))
    with pytest.raises(DataError, match="no line fits its first line: line 2 has 3 values, not 2"):
        propose(str(path))


TABLE = [("user", "age", "click"), *((f"u{n % 7}", 20 + n, n % 2) for n in range(99))]


def by_r(mark: str) -> str:
    """Write the table as R does, whose first line lacks the name of its first column."""
    rows = [[f'"{n}"' * bool(n), *map(str, row)] for n, row in enumerate(TABLE)]
    return "".join(mark.join(row[not n :]) + "\n" for n, row in enumerate(rows))


def by_place(_: str) -> str:
    return "".join("".join(f"{value:>9}" for value in row) + " \n" for row in TABLE)


def with_ends(mark: str) -> str:
    rows = [mark.join(map(str, row)) for row in TABLE]
    return "".join(row + mark * bool(n) + "\n" for n, row in enumerate(rows))


@pytest.mark.parametrize(
    ("make", "mark", "columns"),
    [
        (by_r, ",", ["row", *TABLE[0]]),
        (by_r, " ", ["row", *TABLE[0]]),
        (by_r, "\t", ["row", *TABLE[0]]),
        (with_ends, ",", TABLE[0]),
        (with_ends, "|", TABLE[0]),
        (by_place, "", TABLE[0]),
    ],
)
def test_lines_that_do_not_fit_come_with_a_command_that_makes_them_fit(
    tmp_path, propose, monkeypatch, make, mark, columns
):
    (tmp_path / "x.csv").write_text(make(mark))
    with pytest.raises((DataError, UserError)) as raised:
        propose(str(tmp_path / "x.csv"))
    script = re.search(r"; (.*) > (table.[ct]sv)", str(raised.value))
    monkeypatch.chdir(tmp_path)
    subprocess.run(["bash", "-c", script[0][2:]], check=True)
    proposed, shown = propose(str(tmp_path / script[2]))
    assert "click" in proposed["labels"] and "age" in proposed["numeric"]
    assert all(f" {name} " in shown for name in columns)


QUOTED = [(f"u{n % 7}", 20 + n, f"it, {n % 9}", f'say "{n % 5}", now', n % 2) for n in range(99)]


def quoted_by(mark: str, delimiter: str = ",", *, quote: str = '"', space: str = "") -> str:
    """Write the table with texts in quotes, and with `mark` before quotes within them."""
    texts = [
        delimiter.join(
            str(value) if type(value) is int else quote + value.replace(quote, mark + quote) + quote
            for value in row
        ).replace(delimiter + quote, delimiter + space + quote)
        for row in QUOTED
    ]
    return "\n".join([delimiter.join(["user", "age", "item", "text", "click"]), *texts, ""])


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (quoted_by("'", quote="'"), "values stand between single quotes"),
        (quoted_by("'", ";", quote="'").replace(", ", "; "), "values stand between single quotes"),
        (quoted_by("\\"), "quotes within its values follow a backslash"),
        (quoted_by('"', space=" "), "spaces stand before its quotes"),
        (quoted_by("\\", quote="'", space=" "), "between single quotes and spaces stand before"),
    ],
    ids=["single", "semicolons", "backslashes", "spaces", "several"],
)
@pytest.mark.parametrize(("ending", "few"), [("csv", False), ("csv.gz", True)])
def test_other_quotes_are_told_with_a_command_that_makes_usual_ones(
    tmp_path, propose, monkeypatch, text, cause, ending, few
):
    monkeypatch.chdir(tmp_path)
    path = Path(f"it's mine.{ending}")
    mark = ";" if ";" in text.splitlines()[0] else ","
    if few:  # most lines have no value that needs quotes
        text += "".join(f"u{n % 7}{mark}{n}{mark}a{mark}b{mark}{n % 2}\n" for n in range(400))
    path.write_bytes(gzip.compress(text.encode()) if ending == "csv.gz" else text.encode())
    if few:
        told = propose(str(path), "--delimiter", mark)[1]
        assert "99 of 499 sampled lines cannot be read" in told
    else:
        with pytest.raises(DataError, match="no line fits its first line: line 2 has") as raised:
            propose(str(path), "--delimiter", mark)
        told = str(raised.value)
    assert cause in told and "as R has not done" not in told
    [command] = re.findall(r"; (\S*(?:cat|gzip).*? > table.csv) quotes them as usual", told)
    subprocess.run(["bash", "-c", command], check=True, timeout=60)
    rows = pacsv.read_csv("table.csv", parse_options=pacsv.ParseOptions(delimiter=mark))
    expected = [[v.replace(", ", f"{mark} ") if type(v) is str else v for v in r] for r in QUOTED]
    assert [list(row.values()) for row in rows.slice(0, 99).to_pylist()] == expected
    proposed, told = propose("table.csv")
    assert "cannot be read" not in told and list(proposed["labels"]) == ["click"]


def test_a_name_for_the_first_column_is_told_only_where_lines_begin_with_names_of_rows(
    tmp_path, propose
):
    rows = [f"u{n % 7},{n % 9},Smith, John,{n % 2}" for n in range(99)]
    for text, is_of_r in (
        ("\n".join(["user,age,name,click", *rows]), False),
        ("\n".join(["user,age,name,click", *(f"{n},{r}" for n, r in enumerate(rows))]), None),
        ("\n".join(["user,age,last,first,click", *(f"{n},{r}" for n, r in enumerate(rows))]), True),
        ('user,click\n1,"a\\" b,0\n2,"c\\" d,1\n', False),
    ):
        (tmp_path / "x.csv").write_text(text)
        with pytest.raises(DataError, match="no line fits its first line") as raised:
            propose(str(tmp_path / "x.csv"))
        assert ("as R has not done" in str(raised.value)) is bool(is_of_r)
        needs_quotes = "values in which the delimiter stands need quotes" in str(raised.value)
        assert needs_quotes is (is_of_r is False)


def test_arff_comes_with_a_command_that_makes_a_table_of_it(tmp_path, propose, monkeypatch):
    kinds = ["user {u0,u1,u2}", "age NUMERIC", "click {0,1}"]
    lines = ["% made by hand", "@RELATION clicks", *(f"@ATTRIBUTE {kind}" for kind in kinds)]
    rows = [f"u{n % 3},{20 + n},{n % 2}" for n in range(99)]
    (tmp_path / "x.arff.csv").write_text("\n".join([*lines, "", "@DATA", *rows]) + "\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="has the lines of ARFF") as raised:
        propose("x.arff.csv")
    script = re.search(r"; (\(.* > table.csv)", str(raised.value))[1]
    subprocess.run(["bash", "-c", script], check=True)
    written, _ = propose("table.csv")
    assert list(written["labels"]) == ["click"] and pacsv.read_csv("table.csv").num_rows == 99


def test_of_two_columns_of_0_and_1_the_last_one_may_be_the_label_though_it_is_a_flag(
    tmp_path, propose
):
    path = str(tmp_path / "x.csv")
    for last, expected in (("is_phishing", "is_phishing"), ("is_ours", None), ("x", "old")):
        names = ["old", "is_new", last]
        rows = [f"{n % 2},{n // 2 % 2},{n // 3 % 2 if last != 'x' else n}" for n in range(99)]
        (tmp_path / "x.csv").write_text("\n".join([",".join(names), *rows]) + "\n")
        if expected is None:
            with pytest.raises(SeveralLabelsError, match="old, is_ours"):
                propose(path)
        else:
            assert list(propose(path)[0]["labels"]) == [expected]


def test_a_label_of_lists_is_refused(write, propose):
    path = write(click=binary(), tags=[[1, 2]] * ROWS)
    with pytest.raises(UserError, match=r"--label tags: type list<\w+: int64> cannot be a label"):
        propose(path, "--label", "tags")


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
@pytest.mark.parametrize("every", [100, 3])
def test_lines_that_make_no_row_are_told_and_skipped_where_they_are_few(
    tmp_path, propose, every, ending
):
    rows = [{"user": f"u{n % 7}", "click": n % 2} for n in range(300)]
    if ending == "csv":
        lines = [f"{r['user']},{r['click']}" + ",7" * (not n % every) for n, r in enumerate(rows)]
        lines.insert(0, "user,click")
    else:
        lines = [json.dumps(r) + "}" * (not n % every) for n, r in enumerate(rows)]
    path = tmp_path / f"x.{ending}"
    path.write_text("\n".join(lines) + "\n")
    shown = propose(str(path))[1]
    first = "x.csv: line 2: 3 values, not 2" if ending == "csv" else "x.jsonl: line 1: "
    assert f"{300 // every} of 300 sampled lines cannot be read" in shown and first in shown
    assert ("dataset.on_bad_rows=skip dataset.max_bad_rows=" in shown) == (every == 100)


@pytest.mark.parametrize("missing", ["-", "n/a", "<NA>", "#N/A", "--"])
def test_numbers_with_decimal_commas_are_numbers(tmp_path, propose, missing):
    path = tmp_path / "ratings.csv"
    price = [missing if n == 5 else f"{n},5" for n in range(30)]
    rows = [f"{n % 2};{price[n]};1,{n:03};{'' if n == 3 else n}" for n in range(30)]
    path.write_text("\n".join(["click;price;thousands;count", *rows, "1;7;1,250;4"]))
    written, told = propose(str(path))
    assert "price: numbers with a decimal comma" in told and written["decimal"] == ","
    assert set(written["numeric"]) == {"price", "thousands", "count"}
    path.write_text("\n".join(["click;thousands", *(f"{n % 2};1,{n:03}" for n in range(30))]))
    written, _ = propose(str(path))
    assert "decimal" not in written and "thousands" in written["categorical"]
    # thousands have no 0 in front
    path.write_text("\n".join(["click;rate", *(f"{n % 2};-0,{n:03}" for n in range(30))]))
    written, _ = propose(str(path))
    assert written["decimal"] == "," and "rate" in written["numeric"]


@pytest.mark.parametrize(
    ("before", "told"),
    [
        (["# of 2026", "# by a tool"], r"first 2 lines .*'# of 2026'"),
        (["sep=;"], "first line .*"),
        (["Sales of 2026;;", ";;"], r"first 2 lines .*'Sales of 2026'"),
    ],
    ids=["comments", "excel", "title"],
)
def test_lines_before_the_table_are_told_with_a_command_that_leaves_them_out(
    tmp_path, propose, before, told
):
    path = tmp_path / "my report.csv"
    rows = [f"u{n % 7};{n % 3};{n % 2}" for n in range(99)]
    path.write_text("\n".join([*before, "user;item;click", *rows]))
    with pytest.raises(DataError, match=rf"{told}.* 3 columns between semi") as e:
        propose(str(path))
    [convert] = re.findall(r"(tail .*) leaves them out", str(e.value))
    assert subprocess.run(convert, shell=True, cwd=tmp_path, timeout=60).returncode == 0
    assert list(propose(str(tmp_path / "table.csv"))[0]["labels"]) == ["click"]
    with pytest.raises(DataError, match=r"> 'new_my table.csv' leaves them out"):  # not emptied
        propose(str(path.rename(tmp_path / "my table.csv")))
    # a bad row within the table is left to on_bad_rows
    rows = [f"u{n % 7},{n % 3},{n % 2}" for n in range(99)]
    path.write_text("\n".join(["user,item,click", *rows[:5], "u1,2,0,more", *rows[5:]]))
    assert list(propose(str(path))[0]["labels"]) == ["click"]


def test_values_in_quotes_may_have_line_breaks(tmp_path, propose):
    path = tmp_path / "orders.csv"
    rows = [f'{n % 9};"well; {n}\r\n""done""";{n % 2};"{n},{n % 7}"' for n in range(99)]
    path.write_text("\ufeff" + "\r\n".join(["Käufer;Kommentar;click;Preis", *rows, ""]), newline="")
    written, told = propose(str(path))
    assert "its columns stand between semicolons" in told
    assert written["delimiter"] == ";" and written["decimal"] == ","
    assert list(written["labels"]) == ["click"] and list(written["numeric"]) == ["Preis"]
    assert "Käufer" in written["categorical"]


def test_a_first_line_of_hashes_is_a_row_as_those_below(tmp_path, propose):
    """As in Alibaba-iFashion, whose file of clicks has no names."""

    def md5(value: object) -> str:
        return hashlib.md5(str(value).encode(), usedforsecurity=False).hexdigest()

    rows = [f"{md5(n)},{';'.join(map(md5, range(n % 5, n % 7 + 7)))},{md5(n)}" for n in range(99)]
    path = tmp_path / "user_data.txt"
    path.write_text("\n".join(rows))
    written, told = propose(str(path))
    assert written["column_names"] == ["c0", "c1", "c2"] and "its first line is a row" in told
    path.write_text("\n".join(["deadbeefdeadbeef,items,outfit_id", *rows]))
    assert "column_names" not in propose(str(path))[0]


@pytest.mark.parametrize("delimiter", ["\t", ";"])
def test_quotes_that_are_a_part_of_values_are_read_as_they_are(tmp_path, propose, delimiter):
    """As in Last.fm: one that is not closed took all rows up to the next one."""
    path = tmp_path / "plays.csv"
    artists = ['"Weird Al" Yankovic', "Moby", 'Say "yes"', '"Heroes', "AC/DC", "Air", "Beck"]
    rows = [["artist", "user", "click"], *([artists[n % 7], n % 9, n % 2] for n in range(99))]
    path.write_text("\n".join(delimiter.join(map(str, row)) for row in rows))
    written, told = propose(str(path))
    assert written["quote"] == "" and 'a part of its values, such as "Weird Al" Yankovic' in told
    declared = {**written, "split": {"random": {"train": 0.8, "validation": 0.2}}}
    table = TableRecipe("csv", str(path), declared)
    chunks = read_text_chunks(table.files["train"][0], {}, table.text_format, skip_bad_rows=False)
    read = pa.concat_tables(chunk.table for chunk in chunks)
    assert read["artist"].to_pylist() == [artists[n % 7] for n in range(99)]
    assert replace(table, quote="'").text_format.quote == "'"
    usual = TableRecipe("csv", str(path), {**declared, "quote": '"'})
    assert usual.content_fields() != table.content_fields()


@pytest.mark.parametrize(
    "value", ['"a ""b"" c"', '"a\tb"', '"a\nb" c', "'a' b", '"a" "b"', '"a" '], ids=ascii
)
def test_quotes_around_values_are_no_part_of_them(tmp_path, propose, value):
    rows = [f"{value}\t{n % 9}\t{n % 2}" for n in range(99)]
    (tmp_path / "x.tsv").write_text("\n".join(["text\tuser\tclick", *rows]))
    assert "quote" not in propose(str(tmp_path / "x.tsv"))[0]


def test_the_commands_that_it_prints_name_files_with_spaces(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [f"K{n % 9},{n % 3},{n % 2}" for n in range(99)]
    Path("März 2025.csv").write_text("\n".join(["Kunde,Größe,click", *rows]))
    schema(["März 2025.csv", "--out", "mein Plan.yaml"], ())
    [next_] = re.findall("next: python -m runner (.*)", capsys.readouterr().out)
    words = shlex.split(next_)
    [override] = [o for o in parse_job_overrides(words) if o.key_or_group == "dataset.schema"]
    assert override.value() == "mein Plan.yaml"
    text = Path("mein Plan.yaml").read_text(encoding="utf-8")
    assert text.startswith("# Proposed by `schema 'März 2025.csv' --out 'mein Plan.yaml'`")
    assert '"Größe"' in text and "\\u" not in text


def test_a_column_without_a_name_is_left_out(tmp_path, propose):
    rows = [f"{n % 9},{n % 5 // 4}" for n in range(40)]
    days = [f"2026-01-01 00:{n:02}:00" for n in range(40)]
    ending = "\n".join(["user,click,", *(f"{row}," for row in rows)])  # each with a last comma
    index = "\n".join([",user,click", *(f"{n},{row}" for n, row in zip(days, rows))])  # of pandas
    for text in (ending, index):
        (tmp_path / "x.csv").write_text(text + "\n")
        proposed, shown = propose(str(tmp_path / "x.csv"))
        assert list(proposed["labels"]) == ["click"] and list(proposed["categorical"]) == ["user"]
        assert "carried" not in proposed and "random" in proposed["split"]
        assert ("the column without a name is left out" in shown) == (text is index)


def test_several_columns_without_a_name_are_left_out(tmp_path, propose):
    rows = [f"{n},{n % 9},{n % 5 // 4}," for n in range(40)]
    (tmp_path / "x.csv").write_text("\n".join([",user,click,", *rows]) + "\n")
    pq.write_table(pacsv.read_csv(tmp_path / "x.csv"), tmp_path / "x.parquet")
    for name in ("x.csv", "x.parquet"):
        proposed, shown = propose(str(tmp_path / name))
        assert list(proposed["labels"]) == ["click"] and list(proposed["categorical"]) == ["user"]
        assert "the 2 columns without a name are left out; names in the first line" in shown


@pytest.mark.parametrize("ending", [".csv", ".csv.gz"])
@pytest.mark.parametrize("rows_before", [5, 100_000])  # within and after what types are guessed of
def test_names_that_are_repeated_are_told_with_a_command_that_leaves_them_out(
    tmp_path, monkeypatch, ending, rows_before
):
    monkeypatch.chdir(tmp_path)
    rows = [f"u{n % 9},{n},{n % 5 // 4}\n" for n in range(rows_before)]
    text = "user,price,click\n" + "".join(rows)
    packed = (2 * text).encode()
    path = Path(f"x{ending}")
    path.write_bytes(gzip.compress(packed) if ending == ".csv.gz" else packed)
    with pytest.raises(DataError, match="a line repeats the names of the columns") as told:
        schema([str(path), "--label", "click"], ())
    command = re.search(r"columns: (.*) leaves them out", str(told.value))[1]
    subprocess.run(command, shell=True, check=True)
    assert Path("table.csv").read_text() == text + "".join(rows)
    assert schema(["table.csv", "--label", "click"], ()) == 0


def test_the_third_text_of_a_label_is_shown(tmp_path):
    rows = "".join(f"{n % 9},{n % 2}\n" for n in range(2000))
    (tmp_path / "x.csv").write_text(f"user,click\n{rows}3,maybe\n")
    with pytest.raises(UserError, match=r"has 3 texts \(0, 1, maybe\); --positive VALUE"):
        schema([str(tmp_path / "x.csv"), "--label", "click"], ())


@pytest.mark.parametrize(
    ("names", "paths"),
    [
        (["train.csv", "valid.csv", "test.csv"], ["train.csv", "valid.csv", "test.csv"]),
        (["Train/x.csv", "dev/x.csv", "test/x.csv"], ["Train", "dev", "test"]),
        (["train-0001.csv", "train-0002.csv", "val.csv"], ["train-000*.csv", "val.csv", None]),
        (["train.csv", "test.csv"], ["train.csv", None, "test.csv"]),
        (["train.csv", "test.csv", "more.csv"], None),
        (["monday.csv", "tuesday.csv"], None),
        (["trainers.csv", "test.csv"], None),
    ],
)
def test_files_named_as_splits_are_the_splits_of_a_folder(tmp_path, propose, names, paths):
    folder = tmp_path / "a [b]"
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        rows = "".join(f"{n % 9},{n % 2}\n" for n in range(40))
        (folder / name).write_text(f"user,click\n{rows}")
    proposed, shown = propose(str(folder))
    if paths is None:
        assert proposed["path"] == str(folder) and "splits:" not in shown
        assert sorted(proposed["split"]["random"]) == ["test", "train", "validation"]
        return
    own = [proposed.get(key) for key in ("path", "validation_path", "test_path")]
    assert [path and Path(path).name for path in own] == paths
    held_out = [name for name, path in zip(("validation", "test"), own[1:]) if not path]
    assert sorted(proposed.get("split", {"random": {}})["random"]) == sorted(
        [*held_out, *["train"] * bool(held_out)]
    )
    assert f"{paths[0]} is train" in shown and "/**/*.csv' makes one table" in shown
    proposed, _ = propose(str(folder), "--validation", str(folder / names[0]))
    assert proposed["path"] == str(folder)


def split_names(*names: str) -> np.ndarray:
    """Return names of splits, ROWS of them, in turn; the first is that of nearly all rows."""
    return np.array([names[n % 10 if n % 10 < len(names) else 0] for n in range(ROWS)])


def count_splits(schema_: dict, tmp_path: Path, monkeypatch) -> dict[str, int]:
    """Return the rows of each split, as a training has them."""
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))
    data = open_table(TableRecipe("parquet", None, schema_), window_rows=1 << 14, prefetch=0)
    return dict(data.num_rows)


@pytest.mark.parametrize(
    "names",
    [("train", "valid", "test"), ("Training", "dev", "TEST "), ("train", "val"), ("train", "test")],
)
def test_a_column_of_names_of_splits_splits_the_rows_and_is_no_feature(
    write, propose, tmp_path, monkeypatch, names
):
    path = write(label=binary(), fold=np.arange(ROWS) % 5, part=split_names(*names))
    proposed, shown = propose(path)
    of = dict(zip(["train", "validation", "test"], names))  # where two are, the weights need it
    assert proposed["split"] == {"column": "part"} | {split: [name] for split, name in of.items()}
    assert proposed["categorical"].keys() == {"user", "item", "fold"}
    assert "- (says of which split a row is)" in shown and "the column part says it" in shown
    assert "#   part: says of which split a row is" in (tmp_path / "s.yaml").read_text()
    expected = {s: int((split_names(*names) == n).sum()) for s, n in of.items()}
    assert count_splits(proposed, tmp_path, monkeypatch) == expected
    assert ("names no rows for validation" in shown) == (names == ("train", "test"))
    assert "trainer.early_stop.patience" in shown


def test_rows_for_validation_that_a_split_lacks_are_drawn_by_the_line_that_is_told(write, propose):
    path = write(label=binary(), part=split_names("train", "test"))
    [code] = re.findall("with pandas, `(.*?)` takes a tenth", propose(path)[1])
    table = pq.read_table(path).to_pandas().astype({"part": "category"})
    exec(code, {"t": table})
    assert table["part"].value_counts().to_dict() == {"train": 810, "test": 100, "validation": 90}
    table.to_parquet(path)
    split = propose(path)[0]["split"]
    assert (split["validation"], split["test"]) == (["validation"], ["test"])


def test_what_a_user_says_of_a_column_of_names_of_splits_goes_before_it(write, propose, tmp_path):
    times = np.arange(ROWS) * 3600 + 1_700_000_000
    path = write(label=binary(), part=split_names("train", "valid", "test"), ts=times)
    assert propose(path)[0]["split"]["column"] == "part"
    proposed, _ = propose(path, "--categorical", "part", "--drop", "ts")
    assert "part" in proposed["categorical"] and "random" in proposed["split"]
    proposed, shown = propose(path, "--drop", "part,ts")
    assert "part" not in proposed["categorical"] and "random" in proposed["split"]
    proposed, shown = propose(path, "--time", "ts")
    assert "part" not in proposed["categorical"] and proposed["split"]["time"] == "ts"
    assert "part: says of which split a row is, and is left out; --time ts splits" in shown
    (tmp_path / "test.parquet").write_bytes(Path(path).read_bytes())
    files = ["--test", str(tmp_path / "test.parquet")]
    split = {"column": "part", "train": ["train"], "validation": ["valid"]}
    assert propose(path, *files)[0]["split"] == split
    proposed, shown = propose(path, *files, "--validation", files[1])
    assert "split" not in proposed and "part" not in proposed["categorical"]
    assert 'split: {column: "part", train: ["train"]} in the YAML trains on its train' in shown


def test_names_of_splits_beside_other_values_are_ids(write, propose):
    for names in (("train", "valid", "other"), ("valid", "test"), ("train", None), ("train", "")):
        part = pa.array([str(n) if n is not None else None for n in split_names(*names).tolist()])
        proposed, _ = propose(write(label=binary(), part=part))
        assert "part" in proposed["categorical"] and "random" in proposed["split"]


def test_a_sample_of_train_rows_alone_tells_how_others_are_held_out(write, propose, monkeypatch):
    part = np.where(np.arange(ROWS) < 800, "train", "test")
    path = write(label=binary(), part=part)
    assert propose(path)[0]["split"]["validation"] == ["test"]
    monkeypatch.setattr("runner.data.proposal.columns.sample_rows.SAMPLE_ROWS", 600)
    _, shown = propose(path)
    assert "part: is train in all sampled rows; if other rows are for validation or test" in shown


@pytest.mark.parametrize(
    ("name", "mark", "listed"),
    [
        ("is_train", lambda is_in: is_in.astype(int), "train: [1], validation: [0]"),
        ("isTest", lambda is_in: is_in, "train: [false], validation: [true]"),
        ("in_train", lambda is_in: is_in.astype(float), "train: [1, 1.0], validation: [0, 0.0]"),
        ("is_valid", lambda is_in: np.where(is_in, "yes", "no"), None),
    ],
)
def test_a_mark_of_the_rows_of_a_split_is_left_out_and_told_with_a_split_by_it(
    write, propose, tmp_path, monkeypatch, name, mark, listed
):
    listed = listed or 'train: ["no"], validation: ["yes"]'
    is_in = np.arange(ROWS) % 4 == 0
    path = write(
        price=np.arange(ROWS) % 7 / 2, rating=np.arange(ROWS) % 5 + 1, **{name: mark(is_in)}
    )
    proposed, shown = propose(path)
    assert list(proposed["labels"]) == ["rating"]
    assert name not in {**proposed["categorical"], **proposed["numeric"]}
    assert f"{name}: marks the " in shown and listed in shown
    [split] = re.findall(r"left out; split: (\{.*?\}) in the YAML splits by it", shown)
    proposed["split"] = yaml.safe_load(split)
    num_rows = count_splits(proposed, tmp_path, monkeypatch)
    is_train = is_in if "rain" in name else ~is_in
    assert num_rows == {"train": is_train.sum(), "validation": (~is_train).sum()}
    assert name in propose(path, "--categorical", name)[0]["categorical"]
    assert name in propose(path, "--label", name)[0]["labels"]


def test_events_are_split_by_a_column_of_names_of_splits(tmp_path, propose):
    rows = [f"{n % 40},{n * 7 % 60},{1_700_000_000 + n * 99}" for n in range(ROWS)]
    rows = [f"{row},{name}" for row, name in zip(rows, split_names("train", "test"))]
    (tmp_path / "x.csv").write_text("\n".join(["user_id,item_id,timestamp,split", *rows]))
    proposed, shown = propose(str(tmp_path / "x.csv"))
    assert proposed["split"] == {"column": "split", "train": ["train"], "validation": ["test"]}
    assert "interactions" in proposed and "trainer.early_stop" in shown


def test_what_other_splits_alone_have_missing_or_wrong_is_known(tmp_path, propose):
    rng = np.random.default_rng(8)
    for name, num_rows in (("train", ROWS), ("test", 200)):
        x, age = rng.normal(size=num_rows).astype(str), rng.integers(18, 80, num_rows).astype(str)
        if name == "test":
            x[::20], age[3] = "", "old"
        rows = zip(rng.integers(0, 2, num_rows), rng.integers(0, 9, num_rows), x, age)
        lines = ["click,user,x,age", *(",".join(map(str, row)) for row in rows)]
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
    path, test = str(tmp_path / "train.csv"), str(tmp_path / "test.csv")
    proposed, shown = propose(path)
    assert proposed["numeric"] == {"x": {"standardise": True}, "age": {"standardise": True}}
    proposed, shown = propose(path, "--test", test)
    x = np.loadtxt(path, delimiter=",", skiprows=1, usecols=2)
    assert proposed["numeric"]["x"]["default"] == pytest.approx(np.median(x), rel=1e-5)
    assert "age: 1 of 1,200 sampled rows hold a text that is no number ('old')" in shown
    assert shown.rstrip().endswith("dataset.max_bad_rows=1000000000")


@pytest.mark.parametrize("yes", ["ja", "Oui", "sí"])
def test_yes_in_other_languages_counts_as_1_although_no_is_rarer(tmp_path, propose, yes):
    path = tmp_path / "rows.csv"
    path.write_text(
        "\n".join(["age,bought", *(f"{n},{'no' if n % 3 else yes}" for n in range(60))])
    )
    written, _ = propose(str(path), "--label", "bought")
    assert written["labels"]["bought"] == {"positive": [yes]}
    path.write_text(
        "\n".join(["age,bought", *(f"{n},{yes if n % 3 else 'no'}" for n in range(60))])
    )
    written, _ = propose(str(path), "--label", "bought")
    assert written["labels"]["bought"] == {"positive": [yes]}


def test_a_test_file_without_labels_is_told_with_a_command_for_the_others(tmp_path):
    (tmp_path / "train.csv").write_text("user,click\n" + "1,1\n2,0\n" * 20)
    (tmp_path / "test.csv").write_text("user\n" + "1\n2\n" * 20)
    with pytest.raises(DataError, match=r"no column 'click'.*schema .*train.csv takes the train"):
        schema([str(tmp_path)], ())


def test_decimal_commas_beside_points_are_told_with_a_command_that_makes_points_of_them(
    tmp_path, propose
):
    path = tmp_path / "ratings.csv"
    rows = [f"{n % 2};{n},5;{n}.5;{'' if n == 3 else n}" for n in range(30)]
    path.write_text("\n".join(["click;price;weight_kg;count", *rows]))
    _, told = propose(str(path))
    [convert] = re.findall(
        r"semicolons price: numbers .*? here, since .* of weight_kg .*; (sed .*?) makes points",
        told,
    )
    assert subprocess.run(convert, shell=True, cwd=tmp_path, timeout=60).returncode == 0
    written, told = propose(str(tmp_path / "points.csv"))
    assert "decimal comma" not in told and "price" in written["numeric"]


def test_a_price_with_decimal_commas_is_no_list_and_the_label_is_named_in_a_command(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    rows = [
        f"K{n % 9};{n * 7 % 40},{n % 10}{n % 7};s{n % 5}|s{n % 3};{'yn'[n % 2]}" for n in range(400)
    ]
    Path("klicks.csv").write_text("\n".join(["Kunde;Preis;Tags;Gekauft", *rows]))
    schema(["klicks.csv", "--out", "klicks.yaml"], ())
    written = yaml.safe_load(Path("klicks.yaml").read_text())
    assert written["numeric"]["Preis"] and written["categorical"]["Tags"]["separator"] == "|"
    [again] = re.findall(
        r"or run: rm klicks.yaml && python -m runner schema (.*)", capsys.readouterr().out
    )
    Path("klicks.yaml").unlink()
    schema(shlex.split(again), ())
    assert list(yaml.safe_load(Path("klicks.yaml").read_text())["labels"]) == ["Gekauft"]


def test_names_cannot_break_out_of_the_yaml(write, propose):
    name = 'x\nlabels: {evil: {}}\n"[red]'
    values, others = np.random.default_rng(0).integers(0, 99, (2, ROWS))
    proposed, _ = propose(write(label=binary(), **{name: values, "is.a/b: ": others}))
    assert list(proposed["labels"]) == ["label"]
    assert {name, "is.a/b: "} <= set(proposed["categorical"])


@pytest.mark.long
@pytest.mark.parametrize("name", ["adult_without_names", "aliccp", "yelp", "avazu"])
def test_what_is_proposed_trains(tmp_path, runner, name):
    env = {"RUNNER_CACHE": str(tmp_path / "cache")}
    path, out = make(name, tmp_path, 1500), str(tmp_path / "s.yaml")
    done = runner.run("schema", path, *SHAPES[name].flags, "--out", out, env=env).check()
    command = shlex.split(done.text.rpartition("next: python -m runner ")[2])
    few = ("trainer.batch_size=300", "trainer.max_epochs=1", "trainer.num_threads=1")
    runner.run(*command, f"hydra.run.dir={tmp_path / 'run'}", *few, env=env).check()
    result = json.loads((Path(tmp_path) / "run" / "result.json").read_text())
    assert result["status"] == "completed" and 0 < result["metrics"]["test/auc"] < 1


def test_a_number_beside_other_labels_counts_in_the_unit_of_its_deviation(write, propose):
    rng = np.random.default_rng(1)
    path = write(**{"took: s": 40 * rng.normal(size=ROWS)}, click=rng.integers(0, 2, ROWS))
    _, shown = propose(path, "--label", "took: s,click")
    words = shlex.split(shown.rpartition("next: python -m runner ")[2])
    overrides = OverridesParser.create().parse_overrides(words)
    given = {override.key_or_group: override.value() for override in overrides}
    assert given["model.net.scale"] == {"took: s": pytest.approx(40, rel=0.1)}
    assert given["model.loss.weights"] == {"took: s": pytest.approx(1 / 1600, rel=0.2)}
    assert given["model/loss"] == "by_kind" and given["checkpoint.init_linear"] is True
    assert given["metrics.eval"] == ["auc", "log_loss", "mae", "mse", "rmse", "r2"]


@pytest.mark.parametrize(
    ("flags", "labels", "has_pairs"),
    [((), "click", True), (("--drop", "item"), "click", False), ((), "click,like", True)],
)
def test_dot_products_are_proposed_beside_several_ids(write, propose, flags, labels, has_pairs):
    columns = {name: binary(seed) for seed, name in enumerate(labels.split(","))}
    _, shown = propose(write(**columns), "--label", labels, *flags)
    assert ("model.net.pairs=fitted model.net.embedding_init=0.01" in shown) == has_pairs
    assert ("optimizer.sparse.l2_lookups=0.02" in shown) == has_pairs


def test_a_rating_is_a_label_of_0_and_1_or_with_the_flag_a_number(write, propose):
    path = write(rating=np.arange(ROWS) % 5 + 1)
    proposed, shown = propose(path)
    assert proposed["labels"] == {"rating": {"above": 3.0}}
    assert "rating: is 1 over 3 and 0 otherwise; --task regression predicts the number" in shown
    proposed, shown = propose(path, "--task", "regression")
    assert proposed["labels"] == {"rating": {"type": "regression"}}
    assert "model/loss=by_kind" in shown and "is 1 over" not in shown


def test_rows_without_the_time_of_the_split_are_told_and_skipped_by_the_command(write, propose):
    times = pa.array(np.arange(ROWS) * 3600, pa.timestamp("s"))
    some = pa.array([None if n == 5 else t for n, t in enumerate(times.to_pylist())])
    for column, number in ((times, 0), (some, 1)):
        proposed, shown = propose(write(click=np.arange(ROWS) % 2, event_time=column))
        assert proposed["split"]["time"] == "event_time"
        assert ("event_time: 1 of" in shown and "hold no time" in shown) is bool(number)
        assert ("dataset.on_bad_rows=skip dataset.max_bad_rows" in shown) is bool(number)


def test_numbers_that_only_move_one_way_with_the_time_of_the_split_are_left_out(write, propose):
    rng, order = np.random.default_rng(0), np.random.default_rng(1).permutation(ROWS)
    hours = np.arange(ROWS)[order]
    path = write(
        click=binary(),
        event_time=pa.array(hours * 3600, pa.timestamp("s")),
        year_part=2016 + hours / 8766,
        days_left=400 - hours // 24 + 0.5,
        price=20 + hours / 100 + rng.normal(size=ROWS),
    )
    proposed, shown = propose(path)
    assert list(proposed["numeric"]) == ["price"]
    assert "year_part, days_left only rise or only fall with event_time" in shown
    proposed, shown = propose(path, "--numeric", "year_part,days_left")
    assert list(proposed["numeric"]) == ["year_part", "days_left", "price"]
    path = write(click=binary(), year_part=2016 + hours / 8766)  # whose rows are split at random
    assert list(propose(path)[0]["numeric"]) == ["year_part"]


def test_one_amount_as_large_as_a_hash_makes_no_ids_of_the_others(write, propose):
    saved = np.random.default_rng(0).integers(1, 90, ROWS) * 50_000
    saved[7] = 10**14
    hashes = np.random.default_rng(1).integers(0, 2**62, 300)[np.arange(ROWS) % 300]
    proposed, _ = propose(write(click=binary(), saved_amount=saved, hash_count=hashes))
    assert proposed["numeric"]["saved_amount"]["log1p"]
    assert "hash_count" in proposed["categorical"]


def test_ids_that_only_move_one_way_with_the_time_of_the_split_are_left_out(write, propose):
    hours = np.random.default_rng(1).permutation(ROWS)
    path = write(
        click=binary(),
        event_time=pa.array(hours * 3600, pa.timestamp("s")),
        season=1990 + hours * 20 // ROWS,
        version=np.minimum(hours * 20 // ROWS, 12),  # the last one has train rows as well
        weekday=hours // 24 % 7,
    )
    proposed, shown = propose(path)
    assert "season only rises or only falls with event_time" in shown
    assert "season" not in proposed["categorical"]
    assert {"version", "weekday"} <= proposed["categorical"].keys()
    assert "season" in propose(path, "--categorical", "season")[0]["categorical"]


def test_numbers_of_a_table_with_many_rows_a_day_do_not_go_with_its_days(write, propose):
    rng, days = np.random.default_rng(0), np.arange(20_000) * 14 // 20_000
    path = write(
        click=rng.integers(0, 2, 20_000),
        user=rng.integers(0, 50, 20_000),
        item=rng.integers(0, 50, 20_000),
        dt=pa.array(days.astype("int32"), pa.date32()),
        price=rng.normal(size=20_000),
        rows_before=np.arange(20_000) + 0.5,
    )
    assert list(propose(path)[0]["numeric"]) == ["price"]


def test_a_file_that_cannot_be_written_whole_is_not_left(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(UserError, match="cannot be written: File too large"):
            write_new_file(tmp_path / "clicks.yaml", "path: clicks.csv")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not any(tmp_path.iterdir())


def test_rows_of_other_splits_are_no_train_rows(tmp_path, propose):
    rng = np.random.default_rng(0)
    for name, num_rows in (("train", 500), ("test", 120_000)):
        x, click = rng.normal(size=num_rows), rng.integers(0, 2, num_rows)
        pq.write_table(pa.table({"x": x, "click": click}), tmp_path / f"{name}.parquet")
    _, shown = propose(str(tmp_path))
    assert "120,500 rows" in shown and "optimizer.sparse.lr=0.003" in shown


@pytest.mark.parametrize(("num_rows", "is_larger"), [(120_000, False), (150_000, True)])
def test_more_rows_have_a_larger_network_for_ids(tmp_path, propose, num_rows, is_larger):
    rng = np.random.default_rng(0)
    columns = {name: rng.integers(0, 50, num_rows) for name in ("user_id", "item_id")}
    table = pa.table({**columns, "click": rng.integers(0, 2, num_rows)})
    pq.write_table(table, tmp_path / "clicks.parquet")
    _, shown = propose(str(tmp_path / "clicks.parquet"))
    assert ('model.net.embedding_dim=32 "model.net.deep=[256,128]"' in shown) == is_larger
    assert ("trainer.ema.decay=0.99" in shown) != is_larger


def test_a_table_whose_columns_take_long_is_announced(write, monkeypatch, capsys):
    path = write(click=binary(), x=np.random.default_rng(0).normal(size=ROWS))
    for many, is_announced in ((4 * ROWS, False), (4 * ROWS - 1, True)):
        monkeypatch.setattr("runner.cli.schema.MANY_VALUES", many)
        assert schema([path], []) == 0
        line = f"examining 4 columns of {ROWS:,} sampled rows ..."
        assert (line in capsys.readouterr().err) == is_announced


def test_small_row_groups_are_sampled_until_there_are_rows_enough(tmp_path):
    """As a stream writes them: of 100 groups the sample would have few rows."""
    table = pa.table({"click": np.tile([0, 1], 2000), "user": np.arange(4000) % 50})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=10)
    [column, _] = propose_schema(str(tmp_path / "x.parquet")).columns[0]
    assert column.num_rows == 4000
