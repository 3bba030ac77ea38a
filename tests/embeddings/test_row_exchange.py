"""The exchange of ids between ranks that have parts of the rows of a table."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from runner.embeddings.row_exchange import RowExchange


@pytest.mark.parametrize("wrong", [-1, 5, 2**40])
def test_an_id_outside_its_table_is_refused_as_in_one_process(wrong):
    ranges = [[(0, 6), (6, 10)], [(0, 5), (5, 5)]]  # of two tables, on two ranks
    exchange = RowExchange(SimpleNamespace(rank=0), ranges, [4, 4], torch.device("cpu"))
    ids = KeyedJaggedTensor(
        ["user", "item"], torch.tensor([9, 5, 0, 4, wrong, 1]), lengths=torch.tensor([2, 1, 0, 3])
    )
    message = rf"^item: id {wrong} is outside its table of 5 rows$"
    with pytest.raises(IndexError, match=message):
        exchange.send_ids(ids)
