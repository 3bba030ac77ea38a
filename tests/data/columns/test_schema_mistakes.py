"""Mistakes in the YAML that declares a table's columns: refused, all at once, with key and rule."""

from __future__ import annotations

import re
import time

import pytest
import yaml

from runner.data.columns.schema_file import expand_pattern, parse_schema
from runner.data.columns.schema_yaml import format_value, read_schema_yaml
from runner.data.columns.split_setting import parse_split
from runner.errors import ConfigError
from tests.conftest import ROOT

GOOD = {"labels": {"y": {}}}
USER_ITEM_TIME = {"user": "u", "item": "i", "time": "t"}
RATED = {"rating": "r", "positive": 4, "below": "negative"}


def growing(**settings):
    return {"categorical": {"c": {"encode": "growing", "num_rows": 9, **settings}}}


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"categorical": {"C{1..1000000000}": {}}}, "s.yaml.categorical.C{1..1000000000}: stands"),
        ({"categorical": {"C{5..1}": {}}}, "from the lower number to the higher one"),
        ({"categorical": {"C{1.." + "9" * 5000 + "}": {}}}, "stands for one column at least"),
        ({"split": 7}, "s.yaml.split=7: expected one of random"),
        ({"split": {"random": {"train": float("nan")}}}, "split.random.train=nan: must be a share"),
        ({"split": {"random": {"train": "much"}}}, "split.random.train=much: must be a share"),
        ({"split": {"group": "user", "train": 0.8}}, "split: shares add up to 0.8"),
        ({"split": {"random": {"train": 1}, "tset": 1}}, "split.tset: no such split"),
        ({"split": {"column": ["a"], "train": [0]}}, "split.column=['a']: expected the name"),
        (
            {"split": {"column": "fold", "train": [0, 1], "test": ["1", 2]}},
            "split.test: 1 is a value of train, too: the model would be measured on rows it has",
        ),
        (
            {"categorical": {"c": {"num_rows": 10**30}}},
            "c.num_rows=1000000000000000000000000000000",
        ),
        ({"categorical": {"c": {"num_rows": 1e30}}}, "c.num_rows=1e+30: expected a whole number"),
        ({"categorical": {"c": {"num_rows": 0}}}, "c.num_rows=0: must be at least 1"),
        ({"categorical": {"c": {"num_rows": 5, "default": 5}}}, "must be below num_rows=5"),
        (
            {"categorical": {"c": {"encode": "vocabulary", "num_rows": 5}}},
            "c.num_rows=5: its table has as many rows as its values need; leave it out",
        ),
        (
            {"categorical": {"c": {"encode": "bucketise", "buckets": 3, "num_rows": 5}}},
            "c.num_rows=5: its table has as many rows as its buckets need; leave it out",
        ),
        ({"numeric": {"x": {"clip": [5, 1]}}}, "x.clip=[5, 1]: the first must be below the second"),
        ({"numeric": {"x": {"clip": [float("nan"), 1]}}}, "x.clip[0]=nan: must be a finite number"),
        ({"numeric": {"x": {"clip": [1]}}}, "x.clip=[1]: needs 2 items"),
        ({"numeric": {"x": {"clip": None}}}, "x.clip=None: expected a list of numbers"),
        ({"numeric": {"x": {"clip": [True, 5]}}}, "x.clip=[True, 5]: expected a list of numbers"),
        ({"labels": {"y": {"allowed": [0, None]}}}, "y.allowed=[0, None]: expected a list of num"),
        ({"labels": [True]}, "s.yaml.labels: its list holds True, which is not the name of"),
        ({"numeric": ["x", "x"]}, "s.yaml.numeric: 'x' is declared twice"),
        (
            {"categorical": ["a", {"name": "c", "encode": "hash"}]},
            "categorical: its list holds {'name': 'c', 'encode': 'hash'}, which is not the name of",
        ),
        ({"numeric": {"y": {}}}, "'y' is declared twice; give one of them another name"),
        ({"categorical": {"c": {"max_length": 3}}}, "c.max_length: only sequences have a length"),
        ({"categorical": {"c": 7}}, "s.yaml.categorical.c=7: expected settings, of column, encode"),
        ({"categorical": {"c": {"input": "yymmddhh"}}}, "input=yymmddhh: is for a part of a time"),
        ({"categorical": {"c": {"out_of_range": "default"}}}, "default is not set, which out_of_r"),
        (
            {"sequences": {"s": {"max_length": 3, "weights": "w"}}},
            "s.weights: sequences have no weights",
        ),
        ({"weight": 7}, "s.yaml.weight=7: expected the name of a column"),
        ({"split": {"random": 7}}, "s.yaml.split.random=7: expected split: share"),
        ({"split": {"time": "t"}}, "split: a split by time needs the lengths of validation and t"),
        ({"split": {"time": "t", "input": "x"}}, "s.yaml.split.input=x: must be one of "),
        ({"interactions": 7}, "s.yaml.interactions=7: expected {user: COLUMN, item: COLUMN"),
        ({"interactions": {"user": "u", "item": 7, "time": "t"}}, "interactions.item=7: expected"),
        (
            {"interactions": {**USER_ITEM_TIME, "rating": "r", "positive": "x"}},
            "interactions.positive='x': expected a number",
        ),
        (
            {"interactions": {**USER_ITEM_TIME, **RATED, "train_on": "windows"}},
            "train_on=windows: trains on every event, so it cannot be used with events.predict or",
        ),
        (
            {"interactions": USER_ITEM_TIME, "categorical": {"i": {"list": True}}},
            "s.yaml.interactions.item: i must have one id for each event, not a list",
        ),
        ({"groups": 7}, "s.yaml.groups=7: expected a list of columns"),
        ({"path": 7}, "s.yaml.path=7: expected a path"),
        ({"labels": 7}, "s.yaml.labels=7: expected"),
        (
            {"labels": {"y": {"positive": [1, True]}}},
            "y.positive=[1, True]: expected a list of texts, such as ['1', 'true']",
        ),
        ({"labels": {"y": {"positive": 1}}}, "positive=1: expected a list of texts, such as ['1']"),
        ({"numeric": {"x": {"clip": ["a", 1]}}}, "clip=['a', 1]: expected a list of numbers"),
        (growing(num_rows=None), "c.num_rows=None: growing needs the number of rows"),
        (growing(num_rows=2), "c.num_rows=2: growing needs"),
        (growing(min_count=256), "c.min_count=256: growing counts to 255"),
        (growing(default=0), "c.default: growing takes every id"),
        (growing(evict=7), "c.evict=7: expected {by: lru"),
        (growing(evict={"by": "fifo", "every": 3}), "c.evict.by=fifo: must be one of lru, lfu"),
        (growing(evict={"by": "lru"}), "c.evict.every is not set"),
        (growing(evict={"by": "lru", "every": 0}), "c.evict.every=0: must be at least 1"),
        (growing(evict={"by": "lru", "every": 3.0}), "c.evict.every=3.0: expected a whole number"),
        (
            growing(evict={"by": "lru", "every": 3, "share": 1}),
            "evict.share=1.0: must be above 0 and below 1",
        ),
        (growing(evict={"by": 3, "every": 3}), "evict.by=3: expected lru or lfu"),
        (growing(evict={"by": "lru", "every": 3, "shar": 1}), "evict.shar: there is no such key"),
        (growing(cross=["a", "b"]), "c.cross: a cross is hashed"),
        ({"categorical": {"c": {"evict": {"by": "lru", "every": 3}}}}, "is for encode: growing"),
    ],
)
def test_a_mistake_is_refused_with_its_key_value_and_rule(more, told):
    started = time.perf_counter()
    with pytest.raises(ConfigError) as refused:
        parse_schema(GOOD | more, "s.yaml")
    assert told in str(refused.value) and "mistakes" not in str(refused.value)
    assert time.perf_counter() - started < 0.5


def test_all_mistakes_are_told_at_once():
    numeric = {"x": {"clip": [5, 1]}, "z": {"log1": True}}
    with pytest.raises(ConfigError, match="4 mistakes") as refused:
        parse_schema({"numeric": numeric, "split": 7, "labels": {"y": {"type": "binry"}}}, "s")
    for told in ("s.numeric.x.clip", "s.numeric.z.log1", "s.split=7", "nearest: 'binary'"):
        assert told in str(refused.value)


def test_mistakes_of_a_column_are_told_in_the_order_of_its_settings():
    names = ["salt", "buckets", "list", "table", "weights", "num_rows", "max_length"]
    with pytest.raises(ConfigError) as refused:
        parse_schema(GOOD | {"categorical": {"c": dict.fromkeys(names, 0.5)}}, "s")
    assert re.findall(r"s\.categorical\.c\.(\w+)=", str(refused.value)) == names


def test_a_key_that_is_there_twice_is_refused_with_both_lines():
    text = "labels: {y: {}}\ncategorical:\n  c: {num_rows: 3}\n  d: {salt: 1, salt: 2}\n  c: {}\n"
    with pytest.raises(ConfigError, match="2 mistakes") as refused:
        read_schema_yaml(text, "s.yaml")
    assert "s.yaml.categorical.c: is there twice, in lines 3 and 5" in str(refused.value)
    assert "s.yaml.categorical.d.salt: is there twice, in lines 4 and 4" in str(refused.value)


@pytest.mark.parametrize(
    "text", ["labels: [", "[" * 20000, "a: !!python/object:os.system {}", "- x"]
)
def test_what_is_no_schema_is_refused_in_one_line(text):
    with pytest.raises(ConfigError) as refused:
        read_schema_yaml(text, "s.yaml")
    assert str(refused.value).startswith("s.yaml: ") and "\n" not in str(refused.value)


def test_a_pattern_of_a_flag_is_told_without_a_place():
    with pytest.raises(ConfigError, match=r"^C\{3\.\.1\}: stands for one column at least"):
        expand_pattern("C{3..1}")


def test_aliases_lead_to_the_same_settings():
    text = "labels: {y: {}}\ncategorical: {a: &one {num_rows: 3}, b: *one}\n"
    declared = parse_schema(read_schema_yaml(text, "s.yaml"))
    assert [spec.num_rows for spec in declared.ids] == [3, 3]


def test_the_declaration_and_the_splits_in_the_docs_have_none():
    pages = [(ROOT / "docs" / name).read_text() for name in ("data.md", "interactions.md")]
    [block] = re.findall(r"```yaml\n(path: .*?)```", pages[0], re.DOTALL)
    declared = parse_schema(yaml.safe_load(block))
    assert len(declared.labels) == 9 and {"C1", "C26"} <= {s.name for s in declared.ids}
    tables = [page.split("\n## Splits")[1].split("\n## ")[0] for page in pages]
    splits = re.findall(r"^\| `([^`]+)` \|", "".join(tables), re.MULTILINE)
    kinds = {parse_split(yaml.safe_load(split)).kind for split in splits}
    assert kinds == {"time", "random", "column", "group", "leave_out", "user"}


def test_names_of_columns_are_texts_as_they_are_written():
    text = "labels: {on: {}}\nnumeric: {01: &a {}, 2024-01-01: {<<: *a}, null: {}, 1.50: {}}"
    declared = parse_schema(read_schema_yaml(text, "s.yaml"))
    assert [spec.column for spec in declared.labels] == ["on"]
    assert [s.column for s in declared.numeric] == ["01", "2024-01-01", "null", "1.50"]


def test_zero_and_false_are_values_of_the_column_of_a_split():
    found = parse_split({"column": "fold", "train": [1, 2], "validation": False, "test": 0})
    assert found.of == {"train": ["1", "2"], "validation": ["False"], "test": ["0"]}
    assert parse_split(
        {"column": "fold", "train": 1, "test": None, "validation": []}
    ).of.keys() == {"train"}
    assert parse_split({"random": {"train": 1, "test": 0}}).splits == ("train",)


def test_a_few_lines_whose_aliases_multiply_are_refused_at_once():
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    with pytest.raises(ConfigError, match="its aliases stand for more than"):
        read_schema_yaml("\n".join(lines), "s.yaml")
    with pytest.raises(ConfigError, match="its aliases stand for more than"):
        read_schema_yaml("a: &a [*a]", "s.yaml")
    few = read_schema_yaml("a: &a {b: 1}\nc: *a\nd: {<<: *a, e: 2}", "s.yaml")
    assert few["d"] == {"b": 1, "e": 2}


def test_numbers_with_an_exponent_are_numbers_as_schema_writes_them():
    numbers = [1e-07, 2.5e-07, -1e20, 3e22, 12.0]
    text = f"x: {format_value(numbers)}\ny: {format_value(['1e-07', 'a1e5'])}\nz: a1e-5"
    found = read_schema_yaml(text, "x.yaml")
    assert found == {"x": numbers, "y": ["1e-07", "a1e5"], "z": "a1e-5"}
