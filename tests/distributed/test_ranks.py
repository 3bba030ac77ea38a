"""Collectives receive each tensor on its sender's kind of device."""

from __future__ import annotations

import socket

import pytest
import torch
import torch.distributed as dist

from runner.distributed.process_group import join_process_group
from runner.distributed.ranks import Ranks


@pytest.mark.parity("L19")
def test_each_tensor_is_received_where_its_sender_holds_it(monkeypatch):
    """gloo transfers tensors of the host and nccl those of a GPU.

    A count on the host must not be awaited on the GPU because the sums lie there. A `meta` device
    stands for the GPU.
    """
    state = {"sums": torch.zeros(2, 3, device="meta"), "count": torch.zeros(1, dtype=torch.int64)}
    sent, received = [], []
    ranks = Ranks(rank=0, world_size=2)
    monkeypatch.setattr(dist, "send", lambda t, **_: sent.append((t.device.type, t.shape)))
    monkeypatch.setattr(dist, "recv", lambda t, **_: received.append((t.device.type, t.shape)))
    monkeypatch.setattr(
        dist,
        "all_gather_object",
        lambda gathered, value, group: gathered.__setitem__(slice(None), [value, value]),
    )
    assert Ranks(rank=1, world_size=2).gather_states(state) is None
    [_, other] = ranks.gather_states(state) or []
    assert received == sent == [("meta", (2, 3)), ("cpu", (1,))]
    assert {name: t.dtype for name, t in other.items()} == {
        "sums": torch.float32,
        "count": torch.int64,
    }


@pytest.mark.parametrize("rank", [{"RANK": "0"}, {"RANK": "1", "LOCAL_RANK": "1"}])
def test_a_rank_to_which_no_other_comes_says_which_variables_may_be_left_over(monkeypatch, rank):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for name, value in {**rank, "WORLD_SIZE": "2", **address}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(dist.DistError, match=r"the 2 ranks .* unset them; trainer\.rank_timeout"):
        join_process_group(torch.device("cpu"), timeout_s=1)
