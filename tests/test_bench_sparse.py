"""`bench.sparse` runs end to end, and its contestants learn the same thing. Nothing is timed."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from bench.paired import Stopwatch
from bench.sparse import __main__ as sparse
from bench.sparse.contestants import CONTESTANTS, our_context, our_update, uncut_update
from bench.sparse.scenes import Scene, prepared

TINY = Scene(num_tables=3, num_rows=40, dim=4, pooling=2)


@pytest.mark.long
def test_every_part_prints_its_table(capsys):
    words = ["--rows", "50", "--seconds", "0.1", "--turn-s", "0.001", "--batch-sizes", "16"]
    assert sparse.main([*words, "--save-gb", "0.001", "--largest", "1000"]) == 0
    said = capsys.readouterr().out
    for contestant in CONTESTANTS:
        lines = [line for line in said.splitlines() if line.startswith(contestant.name)]
        assert len(lines) == 2, "one in each scene"
    for part in ("the boundary and the check", "rows of each of 2 tables", "saved beside training"):
        assert part in said
    assert "8 tables of 50 x 64, 10 ids each, batch 16" in said


@pytest.mark.parametrize(("growth", "verdict"), [(1.0, "held"), (1.2, "missed")])
def test_the_largest_table_is_judged_against_the_smallest(monkeypatch, growth, verdict):
    """An update that takes `growth` times as long in ten times the rows."""
    seconds = {}

    def timed(update, batches, turn_s):
        return Stopwatch(1.0, growth ** seconds.setdefault(id(update), len(seconds)))

    monkeypatch.setattr(sparse, "in_one_turn", timed)
    lines = sparse.measure_size(0.1, 0.001, 1000).splitlines()
    assert [line.split()[-1] == verdict for line in lines[-3:]] == [False, False, True]
    assert f"{growth**2:.2f}" in lines[-1] and "at most 1.25" in lines[1]


def test_sizes_that_memory_does_not_allow_are_left_out_and_said(monkeypatch):
    monkeypatch.setattr(sparse, "free_bytes", lambda: 100_000)
    said = sparse.measure_size(0.01, 0.001, 10_000).splitlines()
    assert [line.split()[0] for line in said[-2:]] == ["100", "1,000"]
    assert "left out" in said[-1] and "held" not in said[-2]


@pytest.mark.parametrize("contestant", CONTESTANTS, ids=lambda c: c.name)
def test_each_contestant_learns(contestant, monkeypatch):
    """The loss of a batch falls when it is learnt again and again."""
    losses = []
    real = functional.binary_cross_entropy_with_logits

    def told(logits, labels, **more):
        loss = real(logits, labels, **more)
        losses.append(loss.detach().mean().item())
        return loss

    monkeypatch.setattr(functional, "binary_cross_entropy_with_logits", told)
    torch.manual_seed(0)
    given = prepared(TINY, 32, seed=0)
    update = contestant.make(TINY)
    for _ in range(60):
        update(given)
    assert losses[-1] < losses[0] - 0.005


def test_the_cut_and_the_uncut_update_do_the_same():
    """By the rule that SGD and a mean loss have in common, since all weights of rows are 1."""
    torch.manual_seed(0)
    cut = our_context(TINY, "rowwise_adagrad")
    torch.manual_seed(0)
    uncut = our_context(TINY, "rowwise_adagrad")
    one, two = our_update(cut), uncut_update(uncut)
    for seed in range(3):
        one(prepared(TINY, 16, seed))
        two(prepared(TINY, 16, seed))
    for a, b in zip(cut.tables.state().values(), uncut.tables.state().values()):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    for a, b in zip(cut.model.parameters(), uncut.model.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_all_forms_of_a_batch_name_the_same_rows():
    given = prepared(TINY, 5, seed=3)
    jagged = given.batch.sparse.to_dict()
    for number, (ids, values) in enumerate(zip(given.ids_F, jagged.values())):
        assert torch.equal(ids, values.values())
        moved = given.all_ids.view(5, 3, 2)[:, number].reshape(-1)
        assert torch.equal(moved - number * 40, ids)
