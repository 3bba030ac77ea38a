"""Joining and leaving the process group, for ranks that we or torchrun have started.

By default gloo listens at the address to which the host's name resolves. That is a loopback address
on many machines, as Debian's `127.0.1.1`, and wherever the name does not resolve; ranks of other
nodes then wait in vain until their timeout.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import MutableMapping
from datetime import timedelta

import torch
import torch.distributed as dist

from runner.distributed import launcher
from runner.distributed.collective_order import VARIABLE, check_collective_order
from runner.distributed.ranks import Ranks, current_ranks
from runner.errors import UserError, first_line

_SIOCGIFADDR = 0x8915  # ioctl(2) of Linux: the IPv4 address of an interface
GLOO_VARIABLE = "GLOO_SOCKET_IFNAME"


def join_process_group(device: torch.device, *, timeout_s: float) -> Ranks:
    """Collective. Join the process group described by the environment, if there is one.

    Args:
        timeout_s: time after which a rank that waits for others in an exchange fails.

    Returns:
        The ranks; a single one without a group.

    Raises:
        UserError: if nodes have different numbers of ranks.
        DistError: if some ranks do not join.
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
    """Destroy the process group; without this, some runs end with an abort."""
    if dist.is_initialized():
        dist.destroy_process_group()


def set_gloo_interface(environment: MutableMapping[str, str] = os.environ) -> None:
    """Make gloo listen on the interface of the route to rank 0, if there are several nodes.

    A variable set by the user is kept, and so is gloo's own choice if the route uses
    the loopback or IPv6.
    """
    is_one_node = environment.get("LOCAL_WORLD_SIZE", "1") == environment.get("WORLD_SIZE", "1")
    if GLOO_VARIABLE in environment or is_one_node:
        return
    if interface := route_interface(environment["MASTER_ADDR"]):
        environment[GLOO_VARIABLE] = interface


def route_interface(host: str) -> str | None:
    """Return the interface with the address from which this machine reaches a host.

    For an address of this machine it is the interface with that address. No packet is sent.

    Returns:
        None for the loopback, for a host without an IPv4 address, and on other systems than Linux.
    """
    if sys.platform != "linux":
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))
        except OSError:
            return None
        address = probe.getsockname()[0]
        if address.startswith("127."):
            return None
        names = (name for _, name in socket.if_nameindex())
        return next((name for name in names if _address(probe, name) == address), None)


def _address(probe: socket.socket, interface: str) -> str | None:
    import fcntl

    try:
        reply = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
    except OSError:  # it has no IPv4 address
        return None
    return socket.inet_ntoa(reply[20:24])
