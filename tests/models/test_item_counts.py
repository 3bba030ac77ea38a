"""How often items occur in train rows, and what is drawn by it."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from runner.batch import DataPosition
from runner.models.retrieval.negatives import NegativeSampler
from runner.training.catalogue import count_ids
from tests.models.sequence_scene import NUM_ITEMS, SCHEMA, batch_of, ids_of


@pytest.mark.parametrize("names", [["item"], ["item", "history"]])
def test_counts_of_batches_are_those_of_a_loop_over_rows(names):
    batches = [batch_of(30, seed) for seed in range(3)]
    expected: Counter[int] = Counter()
    for batch in batches:
        for name in names:
            for ids, label in zip(ids_of(batch, name), batch.labels_BT[:, 0]):
                expected.update(ids if label > 0.5 else [])
    found = count_ids(batches, SCHEMA, names)
    assert found.dtype == torch.int64
    assert found.tolist() == [expected[item] for item in range(NUM_ITEMS)]


def test_items_are_drawn_by_the_counts_as_they_are_now():
    sampler = NegativeSampler(5, popularity=5)
    for counts in ([0, 3, 0, 1, 0], [0, 0, 0, 0, 2], [6, 0, 0, 2, 0]):
        sampler.counts_I.copy_(torch.tensor(counts))
        drawn = torch.cat([sampler.sample(DataPosition(0, at)) for at in range(200)])
        share = torch.bincount(drawn, minlength=5) / len(drawn)
        expected = torch.tensor(counts) / sum(counts)
        torch.testing.assert_close(share, expected, rtol=0, atol=0.05)
        assert set(drawn.tolist()) == {item for item, count in enumerate(counts) if count}
    moved = sampler.to(torch.device("cpu")).sample(DataPosition(0, 0))
    assert moved.tolist() == sampler.sample(DataPosition(0, 0)).tolist()
