"""Joining and leaving the process group, for ranks that we or torchrun have started."""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from runner.distributed import launcher
from runner.distributed.collective_order import VARIABLE, check_collective_order
from runner.distributed.interface import set_gloo_interface
from runner.distributed.ranks import Ranks, current_ranks
from runner.errors import UserError, first_line


def join_process_group(device: torch.device, *, timeout_s: float) -> Ranks:
    """Collective. Join the process group that the environment describes, if it describes one.

    Args:
        device: on which this rank computes.
        timeout_s: after this time, a rank that waits for others in an exchange fails.

    Returns:
        The ranks; this process alone without a group.

    Raises:
        UserError: if nodes have different numbers of ranks.
        DistError: if not all ranks come.
    """
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return current_ranks()
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    timeout = timedelta(seconds=timeout_s)
    set_gloo_interface()
    # gloo for values on the host, always; nccl as well for tensors on a GPU
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    store = None
    try:
        if "TORCHELASTIC_RUN_ID" not in os.environ and "LOCAL_RANK" in os.environ:
            store = dist.TCPStore(  # type: ignore[attr-defined]  # torch does not list it in __all__
                os.environ["MASTER_ADDR"],
                int(os.environ["MASTER_PORT"]),
                size,
                is_master=rank == 0,
                timeout=timeout,
                wait_for_workers=False,
                master_listen_fd=launcher.store_socket.detach() if launcher.store_socket else None,
            )
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    except dist.DistError as error:
        raise dist.DistError(
            f"rank {rank}: the {size} ranks of WORLD_SIZE={size} have not met: "
            f"{first_line(error)} If no launcher has set RANK and WORLD_SIZE, unset them; "
            f"trainer.rank_timeout_s={timeout_s:g} is how long they wait"
        ) from error
    ranks = current_ranks()
    per_node = ranks.all_gather_object(ranks.local_world_size)
    if len(set(per_node)) > 1:
        raise UserError(
            f"nodes have {min(per_node)} to {max(per_node)} ranks each: give torchrun the same "
            "--nproc-per-node on all of them"
        )
    if os.environ.get(VARIABLE) == "1":
        check_collective_order(timeout)
    return ranks


def leave_process_group() -> None:
    """Destroy the process group; without this, some runs end in an abort."""
    if dist.is_initialized():
        dist.destroy_process_group()
