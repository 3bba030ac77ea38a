"""TorchRec's sharded tables in a group of one rank equal FBGEMM's tables, on every device."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.devices import DEVICES

ROOT = Path(__file__).resolve().parent.parent.parent


def free_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


@pytest.mark.long
@pytest.mark.parametrize("device", DEVICES)
def test_sharded_tables_of_one_rank_equal_those_of_one_process(device):
    """On a GPU the group has nccl for its tensors, and gloo for values on the host."""
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    place = dict.fromkeys(("RANK", "LOCAL_RANK"), "0")
    size = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), "1")
    done = subprocess.run(
        [sys.executable, "-m", "tests.distributed.one_rank", device.type],
        cwd=ROOT,
        env={**os.environ, **group, **place, **size},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
