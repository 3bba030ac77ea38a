"""Calls a function on nodes of a Ray cluster, and torchrun on each of them. Imports no torch."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class NodeRole:
    """The settings of torchrun on one of several nodes."""

    number: int  # of the node, from 0
    num_nodes: int
    ranks_per_node: int
    address: str  # of node 0
    port: int  # of node 0, for the rendezvous

    def command(self) -> list[str]:
        """Return the words before `-m MODULE`."""
        return [
            *(sys.executable, "-m", "torch.distributed.run"),
            *(f"--nnodes={self.num_nodes}", f"--node-rank={self.number}"),
            f"--nproc-per-node={self.ranks_per_node}",
            *(f"--master-addr={self.address}", f"--master-port={self.port}"),
        ]


def call_on_nodes(
    work: Callable[[dict[str, Any]], Any],
    request: Mapping[str, Any],
    settings: Mapping[str, Any],
    ranks_per_node: int,
) -> Any:
    """Call `work` in a task of the connected Ray cluster, or at once on several of its nodes.

    Args:
        work: receives the request; with several nodes also its `NodeRole` as `node`.
        settings: the group `remote`: `nodes`, and the resources of each task.
        ranks_per_node: processes that torchrun starts on each of several nodes.

    Returns:
        The result of `work` on the first node.

    Raises:
        ray.exceptions.RayError: if the task of the first node fails.
    """
    import ray

    resources = {"num_cpus": settings["num_cpus"], "num_gpus": settings["num_gpus"]}
    task, num_nodes = ray.remote(work), settings["nodes"]
    if num_nodes == 1:
        return ray.get(task.options(**resources, max_retries=0).remote(dict(request)))
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    needs = {"CPU": resources["num_cpus"], "GPU": resources["num_gpus"]}
    # a node has one bundle, and waits for the others until the cluster has all of them
    group = placement_group([{k: v for k, v in needs.items() if v}] * num_nodes, "STRICT_SPREAD")
    ray.get(group.ready())

    def on_node(number: int, **resources: float) -> dict[str, Any]:
        strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number)
        return {"scheduling_strategy": strategy, "max_retries": 0, **resources}

    find_address = ray.remote(_free_address).options(**on_node(0, num_cpus=0))
    address, port = ray.get(find_address.remote())
    roles = [NodeRole(n, num_nodes, ranks_per_node, address, port) for n in range(num_nodes)]
    jobs = [
        task.options(**on_node(role.number, **resources)).remote({**request, "node": asdict(role)})
        for role in roles
    ]
    result = ray.get(jobs[0])
    ray.wait(jobs, num_returns=num_nodes)  # the ranks there end with those of the first node
    return result


def _free_address() -> tuple[str, int]:
    """Return the address of this node, and a port that is currently free on it."""
    import ray

    with socket.socket() as probe:
        probe.bind(("", 0))
        return ray.util.get_node_ip_address(), probe.getsockname()[1]
