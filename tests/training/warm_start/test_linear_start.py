"""What a linear start says before it takes long."""

from __future__ import annotations

from types import SimpleNamespace as Made

import pytest

from runner.training.warm_start import linear_start
from tests.tiny import SCHEMA


@pytest.mark.parametrize(("num_rows", "is_told"), [(100_000, False), (100_001, True)])
def test_a_start_from_many_rows_is_told_before_they_are_read(monkeypatch, num_rows, is_told):
    said: list[str] = []

    def read(*args, **settings):
        raise InterruptedError

    monkeypatch.setattr(linear_start, "read_sample", read)
    dataset = Made(schema=SCHEMA, num_rows={"train": num_rows})
    with pytest.raises(InterruptedError):
        linear_start._fit_tasks(Made(dataset=dataset, view=Made(note=said.append)), [1.0])
    assert bool(said) == is_told
    assert not said or "fits a regression to about 100,000 train rows first" in said[0]
