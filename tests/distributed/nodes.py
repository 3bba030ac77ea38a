"""Nodes for tests: network namespaces of this machine with host names and links of their own.

A node shares the file system with the others and nothing else that ranks could meet through. They
are joined by a bridge in a namespace of its own, where the rendezvous of torchrun's agents is kept,
so that it outlives any node. It takes root to make them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tests.conftest import ROOT

# With a store that agents share, an agent that has led a round sends its ranks to its own store in
# a later round, too, which another node leads.
ENVIRONMENT = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
STORE = "10.99.0.254", 29400
_SERVE_STORE = (
    "import sys, time, torch.distributed as dist\n"
    "store = dist.TCPStore(sys.argv[1], int(sys.argv[2]), is_master=True, wait_for_workers=False)\n"
    "print('ready', flush=True)\n"
    "sys.stdin.read()\n"
)


@dataclass
class Nodes:
    """Joined nodes, numbered from 0."""

    prefix: str
    agents: list[subprocess.Popen] = field(default_factory=list)

    def start_agent(
        self,
        number: int,
        words: Sequence[str],
        *,
        job: str,
        nodes: str,
        output: IO[str],
        env: Mapping[str, str],
        ranks: int = 1,
        restarts: int = 0,
    ) -> subprocess.Popen:
        """Start torchrun's agent of a node; the process that is returned is the agent itself.

        A `job` that has ended is over for good: the next one takes another name.
        """
        agent = subprocess.Popen(
            [
                *("ip", "netns", "exec", f"{self.prefix}n{number}", "unshare", "--uts"),
                *("sh", "-c", f'hostname node-{number} && exec "$@"', "sh"),
                *(sys.executable, "-m", "torch.distributed.run", f"--nnodes={nodes}"),
                *(f"--nproc-per-node={ranks}", f"--max-restarts={restarts}"),
                *("--rdzv-backend=c10d", f"--rdzv-endpoint={STORE[0]}:{STORE[1]}"),
                "--rdzv-conf=is_host=false,last_call_timeout=4,keep_alive_interval=1,join_timeout=300",
                *(f"--rdzv-id={job}", f"--local-addr=10.99.0.{number + 1}"),
                *("--monitor-interval=0.2", "-m", "runner", *words),
            ],
            cwd=ROOT,
            env={**os.environ, **ENVIRONMENT, "PYTHONPATH": str(ROOT), **env},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        self.agents.append(agent)
        return agent

    def set_link(self, number: int, state: str) -> None:
        """Cut a node's link (`down`) or join it again (`up`)."""
        _ip("-n", f"{self.prefix}hub", "link", "set", f"n{number}", state)


def why_no_nodes() -> str:
    """Return why this machine cannot make nodes; empty if it can."""
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("unshare"):
        return "network namespaces need root, ip and unshare"
    name = f"r{os.getpid()}try"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode != 0:
        return f"no network namespaces here: {made.stderr.strip()}"
    _ip("netns", "del", name)
    return ""


@contextmanager
def make_nodes(count: int) -> Iterator[Nodes]:
    """Make nodes and their rendezvous, and remove them with all that runs there."""
    nodes = Nodes(f"r{os.getpid()}")
    hub = f"{nodes.prefix}hub"
    names = [hub, *(f"{nodes.prefix}n{number}" for number in range(count))]
    try:
        for name in names:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", hub, "link", "add", "bridge", "type", "bridge")
        _ip("-n", hub, "addr", "add", f"{STORE[0]}/24", "dev", "bridge")
        _ip("-n", hub, "link", "set", "bridge", "up")
        for number, name in enumerate(names[1:]):
            _ip("-n", hub, "link", "add", f"n{number}", "type", "veth", "peer", "name", "eth0",
                "netns", name)  # fmt: skip
            _ip("-n", hub, "link", "set", f"n{number}", "master", "bridge", "up")
            _ip("-n", name, "addr", "add", f"10.99.0.{number + 1}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
        with subprocess.Popen(
            ["ip", "netns", "exec", hub, sys.executable, "-c", _SERVE_STORE, *map(str, STORE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as store:
            assert store.stdout is not None and store.stdout.readline() == "ready\n"
            yield nodes
            store.stdin.close()  # type: ignore[union-attr]
    finally:
        for agent in nodes.agents:
            agent.kill()
            agent.wait()
        for name in names:
            for pid in _ip("netns", "pids", name).split():
                os.kill(int(pid), 9)
            _ip("netns", "del", name)


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


def wait_for_update(trace: Path, more: int, agents: Sequence[subprocess.Popen]) -> None:
    """Wait until a file of `TRACE_FILE` has so many more updates, or an agent has ended."""
    wanted, until = count_updates(trace) + more, time.monotonic() + 200
    while count_updates(trace) < wanted and all(agent.poll() is None for agent in agents):
        assert time.monotonic() < until, f"{trace} has {count_updates(trace)} updates, not {wanted}"
        time.sleep(0.05)


def count_updates(trace: Path) -> int:
    return trace.read_bytes().count(b"\n") if trace.exists() else 0
