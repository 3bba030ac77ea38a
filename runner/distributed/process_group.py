"""Joining and leaving the process group, whoever started the ranks."""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from runner.distributed import launcher
from runner.distributed.ranks import Ranks, current_ranks


def join_process_group(device: torch.device, *, timeout_s: float) -> Ranks:
    """Collective. Joins the ranks that the environment tells of; alone if it tells of none.

    Args: timeout_s: after which a rank that waits for others in an exchange fails.
    """
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return current_ranks()
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    timeout = timedelta(seconds=timeout_s)
    # gloo always, for what is agreed on the host; nccl beside it for tensors of a GPU
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    store = None
    if "TORCHELASTIC_RUN_ID" not in os.environ and "LOCAL_RANK" in os.environ:
        store = dist.TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            size,
            is_master=rank == 0,
            timeout=timeout,
            wait_for_workers=False,
            master_listen_fd=launcher.store_socket.detach() if launcher.store_socket else None,
        )
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    return current_ranks()


def leave_process_group() -> None:
    """Ends the process group, without which some runs end in an abort."""
    if dist.is_initialized():
        dist.destroy_process_group()
