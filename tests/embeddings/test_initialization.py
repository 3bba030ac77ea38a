"""Initial weights of tables."""

from __future__ import annotations

import itertools

import torch

from runner.embeddings.initialization import BLOCK_ROWS, init_rows_


def test_any_cut_of_a_table_into_shards_gives_the_same_rows():
    num_rows = 2 * BLOCK_ROWS + 100
    whole = torch.empty(num_rows, 4)
    init_rows_(whole, seed=1, table="t", num_rows=num_rows)
    for cuts in ([0, 10, num_rows], [0, BLOCK_ROWS - 1, BLOCK_ROWS + 5, 2 * BLOCK_ROWS, num_rows]):
        shards = []
        for first, last in itertools.pairwise(cuts):
            shard = torch.empty(last - first, 4)
            init_rows_(shard, seed=1, table="t", num_rows=num_rows, first_row=first)
            shards.append(shard)
        assert torch.equal(torch.cat(shards), whole)


def test_blocks_tables_and_seeds_differ():
    num_rows = 2 * BLOCK_ROWS
    whole = torch.empty(num_rows, 4)
    init_rows_(whole, seed=1, table="t", num_rows=num_rows)
    assert not torch.equal(whole[:BLOCK_ROWS], whole[BLOCK_ROWS:])
    for seed, table in ((2, "t"), (1, "u")):
        other = torch.empty(num_rows, 4)
        init_rows_(other, seed=seed, table=table, num_rows=num_rows)
        assert not torch.equal(whole, other)
