"""What FBGEMM's row-wise Adagrad costs on this CPU decides which code updates the rows."""

from __future__ import annotations

import pytest
import torch

from runner.embeddings import factory
from runner.embeddings.cpu_tables import CpuTables
from runner.embeddings.factory import build_tables
from runner.embeddings.fbgemm_tables import FbgemmTables
from runner.embeddings.interface import TableSpec
from runner.optim.settings import SparseSettings
from tests.devices import CPU


@pytest.fixture(autouse=True)
def _not_known():
    factory.adagrad_row_s.cache_clear()
    yield
    factory.adagrad_row_s.cache_clear()


def test_it_is_the_difference_of_two_kernels_and_changes_nothing_else(monkeypatch):
    times = {"sgd": 1.0, "rowwise_adagrad": 3.0}
    monkeypatch.setattr(factory, "_update_s", lambda tables, *_: times[tables.settings.kind])
    generator, num_threads = torch.get_rng_state(), torch.get_num_threads()
    assert factory.adagrad_row_s() == 2.0 / 512
    assert torch.get_num_threads() == num_threads
    assert torch.equal(torch.get_rng_state(), generator)


def test_it_measures_the_backward_once_in_a_process(monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr("time.thread_time", lambda: float(next(clock)))
    assert [factory.adagrad_row_s() for _ in range(3)] == [0.0] * 3  # each takes one tick
    assert next(clock) == 2 * 2 * 5


@pytest.mark.parametrize(
    ("kind", "row_s", "engine"),
    [
        ("rowwise_adagrad", 20e-9, FbgemmTables),
        ("rowwise_adagrad", 380e-9, CpuTables),
        ("sgd", 380e-9, FbgemmTables),
        ("adam", 20e-9, CpuTables),
    ],
)
def test_the_faster_code_updates_the_rows(kind, row_s, engine, monkeypatch):
    times = {"sgd": 0.0, "rowwise_adagrad": 512 * row_s}
    monkeypatch.setattr(factory, "_update_s", lambda tables, *_: times[tables.settings.kind])
    specs, settings = [TableSpec("t", 10, 4, ("f",))], SparseSettings(kind, 0.1)
    assert type(build_tables(specs, ["f"], settings, seed=0, device=CPU)) is engine


@pytest.mark.parametrize("row_s", [20e-9, 380e-9])
@pytest.mark.parametrize(("name", "engine"), [("AMD EPYC", FbgemmTables), ("Intel", CpuTables)])
def test_a_table_of_several_features_has_one_code_whatever_was_measured(
    row_s, name, engine, monkeypatch
):
    """The two round differently there, and a busy machine can measure either."""
    times = {"sgd": 0.0, "rowwise_adagrad": 512 * row_s}
    monkeypatch.setattr(factory, "_update_s", lambda tables, *_: times[tables.settings.kind])
    monkeypatch.setattr(factory, "cpu_name", lambda: name)
    specs, settings = [TableSpec("t", 10, 4, ("f", "g"))], SparseSettings("rowwise_adagrad", 0.1)
    assert type(build_tables(specs, ["f", "g"], settings, seed=0, device=CPU)) is engine
