"""The network interface through which the ranks of several nodes reach each other. Needs no torch.

By itself gloo listens at the address to which the host's name resolves. That is a loopback address
on many machines, as Debian's `127.0.1.1`, and wherever the name does not resolve; ranks of other
nodes then wait in vain until their timeout.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import MutableMapping

_SIOCGIFADDR = 0x8915  # ioctl(2) of Linux: the IPv4 address of an interface
VARIABLE = "GLOO_SOCKET_IFNAME"


def set_gloo_interface(environment: MutableMapping[str, str] = os.environ) -> None:
    """Make gloo listen on the interface of the route to rank 0, where there are several nodes.

    A variable that the user has set stays, and so does gloo's own choice where the route goes
    through the loopback or over IPv6.
    """
    is_one_node = environment.get("LOCAL_WORLD_SIZE", "1") == environment.get("WORLD_SIZE", "1")
    if VARIABLE in environment or is_one_node:
        return
    if interface := route_interface(environment["MASTER_ADDR"]):
        environment[VARIABLE] = interface


def route_interface(host: str) -> str | None:
    """Return the interface that has the address from which this machine reaches a host.

    For an address of this machine it is the one that has it. No packet is sent.

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
        own = probe.getsockname()[0]
        if own.startswith("127."):
            return None
        names = (name for _, name in socket.if_nameindex())
        return next((name for name in names if _address(probe, name) == own), None)


def _address(probe: socket.socket, interface: str) -> str | None:
    import fcntl

    try:
        answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
    except OSError:  # it has no IPv4 address
        return None
    return socket.inet_ntoa(answer[20:24])
