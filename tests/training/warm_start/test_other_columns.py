"""Columns of a warm start that take the weights of others are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from runner.data.core.fitted import FittedTransforms
from runner.training.warm_start.other_columns import (
    describe_other_columns,
    describe_refitted,
)

LAYER, LINEAR, TABLE = "dense/top.0.weight", "tables/user:linear/weight", "tables/user/weight"


def schema(labels: Any = ("click", "buy"), numbers: Any = ("age", "price")) -> dict[str, Any]:
    named = labels if isinstance(labels, dict) else {name: {} for name in labels}
    return {
        "labels": named,
        "numeric": {name: {} for name in numbers},
        "categorical": {"user": {"encode": "vocabulary"}},
    }


@pytest.mark.parametrize(
    ("ours", "taken", "says"),
    [
        (schema(), {LAYER, LINEAR}, []),
        (
            schema(["buy", "click"]),
            {LAYER},
            ["labels differ from place 1 on (click there"],
        ),
        (schema(["click"]), {LINEAR}, ["labels differ from place 2 on (buy there, none here)"]),
        (schema(["click"]), {LAYER}, []),  # no layer of labels has the same shape
        (schema(["buy", "click"]), {TABLE}, []),
        (
            schema(numbers=["age", "sum"]),
            {LAYER},
            ["numbers differ from place 2 on (price"],
        ),
        (schema(numbers=["age"]), {LAYER}, []),
        (
            schema({"click": {"classes": ["a", "b"]}}),
            {LAYER},
            ["labels differ from place 1 on (click there, click.a here)"],
        ),
        (None, {LAYER}, []),
    ],
)
def test_weights_that_are_taken_by_place_alone_are_told(tmp_path: Path, ours, taken, says) -> None:
    """Two labels that changed places took each other's last layer, and nothing was said."""
    (tmp_path / "schema.yaml").write_text(yaml.safe_dump(schema(), sort_keys=False))
    told = list(describe_other_columns(ours, tmp_path / "schema.yaml", taken))
    assert len(told) == len(says)
    assert all(line.startswith(start) for line, start in zip(told, says))
    assert not list(describe_other_columns(ours, tmp_path / "nothing.yaml", taken))


def test_numbers_and_buckets_that_are_fitted_to_other_rows_are_told() -> None:
    """The weights of a day's warm start read numbers of another scale, and nothing was said."""
    there = FittedTransforms(
        moments={"price": [40.0, 20.0], "age": [30.0, 10.0], "gone": [1.0, 1.0]},
        boundaries={"level": [10.0, 20.0], "same": [10.0, 20.0], "more": [10.0, 20.0]},
    )
    ours = FittedTransforms(
        moments={"price": [44.0, 20.0], "age": [30.05, 10.05], "new": [1.0, 1.0]},
        boundaries={"level": [10.0, 22.0], "same": [10.05, 20.0], "more": [10.0, 20.0, 30.0]},
    )
    (said,) = describe_refitted(ours, there)
    assert "price (mean 44 and deviation 20 here, 40 and 20 there), level (buckets), more (" in said
    assert not any(name in said for name in ("age", "same", "new", "gone"))
    assert not list(describe_refitted(there, there))


def test_buckets_are_told_by_their_width_and_of_many_columns_six_are_named() -> None:
    """Ten days are nothing beside the seconds since 1970, but they are other buckets."""
    day, now = 86_400.0, 1.76e9
    days = np.arange(1.0, 5.0) * 10 * day
    there = FittedTransforms(boundaries={"made": [1990.0, 2000.0, 2010.0], "at": [*(now + days)]})
    ours = FittedTransforms(boundaries={"made": [1990.4, 2000.0, 2010.0], "at": [*(now - days)]})
    (said,) = describe_refitted(ours, there)
    assert "start: at (buckets);" in said
    many = FittedTransforms(boundaries={f"c{n}": [1.0, 2.0] for n in range(40)})
    moved = FittedTransforms(boundaries={f"c{n}": [3.0, 4.0] for n in range(40)})
    (said,) = describe_refitted(moved, many)
    assert said.count("(buckets)") == 6
    assert "c5 (buckets) and 34 more; dataset.learnt=SOURCE/data" in said
    single = FittedTransforms(boundaries={"one": [2.0], "none": []})
    assert list(describe_refitted(FittedTransforms(boundaries={"one": [3.0], "none": []}), single))
    assert not list(describe_refitted(single, single))
