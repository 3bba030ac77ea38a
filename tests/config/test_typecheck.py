from typing import Any, Literal

import pytest

from runner.config.typecheck import check_types
from runner.config_value import matches_type, number_hint, type_name


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        (1, int, True),
        (True, int, False),
        (1, float, True),
        (True, float, False),
        (1.0, int, False),
        (True, bool, True),
        (1, bool, False),
        ("x", str, True),
        (None, int | None, True),
        (None, int, False),
        ("1ep", int | str | None, True),
        ([1, 2], list[int], True),
        ([1, "a"], list[int], False),
        ([1, 2.5], list[float], True),
        ("ab", list[str], False),
        ("a", Literal["a", "b"], True),
        ("c", Literal["a", "b"], False),
        ({"a": 1}, dict[str, int], True),
        ({"a": "b"}, dict[str, int], False),
        (object(), Any, True),
    ],
)
def test_a_value_matches_a_type_or_not(value, hint, expected):
    assert matches_type(value, hint) is expected


def test_types_are_named_for_people():
    assert type_name(int | str | None) == "whole number or text or null"
    assert type_name(list[float]) == "list of number"
    assert type_name(list[Any]) == "list"
    assert type_name(dict[str, Any] | None) == "group of keys or null"


def test_without_a_schema_the_options_own_yaml_is_one():
    plain = {"model": {"net": {"width": 4, "rate": 0.5, "kinds": ["a"], "free": None, "sub": {}}}}
    good = {"model": {"net": {"width": 8, "rate": 1, "kinds": [], "free": [1], "sub": {}}}}
    assert check_types(good, plain, ()) == []
    bad = {"model": {"net": {"width": 8.5, "rate": "x", "kinds": "a", "free": 1, "sub": {"k": 1}}}}
    messages = check_types(bad, plain, ())
    assert [m.split("=")[0] for m in messages] == [
        "model.net.width",
        "model.net.rate",
        "model.net.kinds",
        "model.net.sub.k",
    ]


@pytest.mark.parametrize(("right", "wrong"), [("batch_size", "batchsize"), ("amp", "ammp")])
def test_a_wrong_key_of_an_own_options_file_is_told_like_one_of_the_command_line(right, wrong):
    plain = {"trainer": {right: None, wrong: 3}}  # there without any override
    messages = check_types({"trainer": {wrong: 3}}, plain, ())
    known = f"trainer.{wrong}=3: there is no key 'trainer.{wrong}'; nearest: 'trainer.{right}'"
    assert [m for m in messages if m.startswith(known)]


def test_arguments_may_be_added_to_a_target_by_hand_and_nowhere_else():
    plain = {"task": {"_target_": "runner.x.F", "a": 1}, "mine": {"b": 1}}
    config = {"task": {"_target_": "runner.x.F", "a": 1, "more": 2}, "mine": {"b": 1, "c": 2}}
    (left,) = check_types(config, plain, ["task.more", "mine.c"])
    assert left.startswith("mine.c=2: there is no key")
    assert len(check_types(config, plain, [])) == 2


def test_another_target_has_arguments_of_its_own():
    plain = {"model": {"net": {"_target_": "runner.a.A", "width": 1}}}
    config = {"model": {"net": {"_target_": "mine.B", "depth": "x"}}}
    assert check_types(config, plain, ()) == []


def test_null_takes_a_value_out_where_no_schema_says_otherwise():
    plain = {"dataset": {"rows": 10}}
    assert check_types({"dataset": {"rows": None}}, plain, ()) == []
    assert check_types({"trainer": {"amp": None}}, {"trainer": {}}, ()) == [
        "trainer.amp=null: expected true or false, got null"
    ]


@pytest.mark.parametrize(
    "value", ["abc", "1.5", 1.5, "5m", "..", "9e99", "", 0, True, None, "-", "k"]
)
def test_what_means_no_whole_number_has_no_nearest_one(value):
    assert number_hint(value) == ""
