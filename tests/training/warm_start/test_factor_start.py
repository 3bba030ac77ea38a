"""Which rows a start as factors reads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from runner.batch import Schema, SparseFeature, TaskSpec
from runner.models.wide_and_deep import WideAndDeep
from runner.training.health.logistic_regression import Columns
from runner.training.health.sample import Ids, Sample
from runner.training.warm_start import factor_start


@pytest.mark.parametrize(("length", "rows"), [(1, 5_000_000), (99, 100_000)])
def test_long_lists_make_the_rows_fewer_that_are_read(length, rows):
    """Five million rows with a history of a hundred ids each were read into memory."""

    def ids(length):
        rows_V = np.repeat(np.arange(10), length)
        return Ids(rows_V, np.zeros(len(rows_V), np.int64), np.ones(len(rows_V)))

    found = {"item": ids(1), "history": ids(length)}
    sample = Sample(found, np.zeros((10, 0)), np.zeros((10, 1)), np.ones(10), 10)
    assert factor_start._most_rows(sample) == rows


@pytest.mark.parametrize("has_validation", [True, False])
def test_all_rows_are_read_without_a_validation_split_too(monkeypatch, has_validation):
    """A refit, which has none, sought factors in a fifth less than the regression's rows."""

    def rows(count):
        ids = Ids(np.arange(count), np.arange(count) % 9, np.ones(count))
        labels_N1 = (np.arange(count) % 2)[:, None].astype(np.float64)
        found = {"user": ids, "item": ids}
        return Sample(found, np.zeros((count, 0)), labels_N1, np.ones(count), 1_000)

    sizes: list[int] = []

    def find_factors(columns, train, judged, width, threads):
        assert all(len(targets[0].y_N) == sample.num_rows for sample, targets in (train, judged))
        sizes.extend([train[0].num_rows, judged[0].num_rows])
        return []

    schema = Schema((), tuple(SparseFeature(n, 9) for n in ("user", "item")), (TaskSpec("y"),))
    model = WideAndDeep(schema, embedding_dim=2, deep=[2], pairs="fitted")
    splits = {"train": 1_000} | ({"validation": 20} if has_validation else {})
    job: Any = SimpleNamespace(
        dataset=SimpleNamespace(schema=schema, num_rows=splits),
        context=SimpleNamespace(model=model),
    )
    monkeypatch.setattr(factor_start, "read_sample", lambda dataset, split, limit: rows(limit))
    monkeypatch.setattr(factor_start, "find_factors", find_factors)
    monkeypatch.setattr(factor_start, "weight_tensors", lambda context: {})
    train = rows(80)
    part = whole = factor_start.Regression(Columns(train), train, [(np.zeros(18), 0.0)])
    if not has_validation:
        whole = factor_start.Regression(Columns(rows(100)), rows(100), part.fits)
    assert factor_start.start_factors(job, part, rows(20), whole) == []
    assert sum(sizes) == (1_020 if has_validation else 1_000)
    assert 700 < sizes[0] < 900 or has_validation
