"""Rows that begin anew, in every engine and under every optimizer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from runner.embeddings.factory import build_tables
from runner.embeddings.interface import EmbeddingTables, TableSpec
from runner.optim.settings import SparseSettings
from runner.training.update.growing_ids import reset_rows

SPECS = (TableSpec("a", 50, 8, ("a",)), TableSpec("b", 30, 6, ("b",), init_bound=0.0))
CPU = torch.device("cpu")
SETTINGS = {
    "sgd": SparseSettings(kind="sgd", lr=0.1),
    "rowwise_adagrad": SparseSettings(kind="rowwise_adagrad", lr=0.1),
    "adagrad": SparseSettings(kind="adagrad", lr=0.1),
    "adam": SparseSettings(kind="adam", lr=0.1),
    "partial_rowwise_lamb": SparseSettings(kind="partial_rowwise_lamb", lr=0.1),
    "every_row": SparseSettings(kind="adam", lr=0.1, every_row=True),
    "l2_tables": SparseSettings(kind="sgd", lr=0.1, l2_tables=0.5),
}


def update(tables: EmbeddingTables, step: int, *, set_rate: bool = True) -> None:
    ids = torch.arange(24, dtype=torch.int64) + step % 3
    kjt = KeyedJaggedTensor(["a", "b"], ids, lengths=torch.ones(24, dtype=torch.int64))
    if set_rate:
        tables.set_lr_and_step(0.1, step)
    tables(kjt).square().sum().backward()


def clone(state):
    return {name: tensor.clone() for name, tensor in state.items()}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_row_that_begins_anew_has_no_history_and_no_other_row_changes(name):
    tables = build_tables(SPECS, ("a", "b"), SETTINGS[name], seed=3, device=CPU)
    for step in range(1, 4):
        update(tables, step)
    before = clone(tables.state())
    rows = np.array([1, 2, 7, 40])
    reset_rows(tables, SPECS[:1], rows, seed=3, draw=9)
    after = clone(tables.state())
    others = torch.ones(50, dtype=torch.bool)
    others[torch.from_numpy(rows)] = False
    for key, tensor in after.items():
        kept = others if key.startswith("a/") else slice(None)
        assert torch.equal(tensor[kept], before[key][kept]), key
    weight = after["a/weight"][~others]
    assert not torch.equal(weight, before["a/weight"][~others])
    assert 0 < weight.abs().max() <= 50**-0.5
    for key, tensor in after.items():
        if key.startswith("a/") and key != "a/weight":
            assert (tensor[~others] == 0).all(), key


def test_each_draw_and_each_table_has_weights_of_its_own():
    drawn = []
    for table, draw in ((0, 1), (0, 2), (1, 1)):
        tables = build_tables(SPECS, ("a", "b"), SETTINGS["adam"], seed=3, device=CPU)
        reset_rows(tables, SPECS[table : table + 1], np.arange(5), seed=3, draw=draw)
        drawn.append(tables.state()[f"{SPECS[table].name}/weight"][:5].clone())
    assert not torch.equal(drawn[0], drawn[1])
    assert (drawn[2] == 0).all()  # its initial weights are 0


def test_a_reset_between_rate_and_look_up_leaves_the_decay_of_whole_tables_as_it_is():
    """The training sets the rate of an update before the reset that comes with its ids."""
    early, late = (
        build_tables(SPECS, ("a", "b"), SETTINGS["l2_tables"], seed=3, device=CPU) for _ in "12"
    )
    for tables in (early, late):
        for step in range(1, 4):
            update(tables, step)
    reset_rows(early, SPECS[:1], np.array([45]), seed=3, draw=1)
    update(early, 4)
    late.set_lr_and_step(0.1, 4)
    reset_rows(late, SPECS[:1], np.array([45]), seed=3, draw=1)
    update(late, 4, set_rate=False)
    for key, tensor in early.state().items():
        torch.testing.assert_close(tensor, late.state()[key], rtol=1e-6, atol=0)
