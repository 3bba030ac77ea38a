"""Several ranks make one checkpoint."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from runner.rundir.checkpoint import open_checkpoint, read_tensors
from tests.rundir.checkpoint.two_ranks import ROWS


@pytest.mark.slow
def test_two_ranks_save_one_checkpoint_that_one_process_reads(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.rundir.checkpoint.two_ranks"]
    ranks = [subprocess.Popen([*command, str(rank), str(tmp_path)]) for rank in (0, 1)]
    assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
    path = tmp_path / "checkpoints" / "step-2"
    assert sorted(p.name for p in path.glob("*.safetensors")) == [
        "shard-00001-2.safetensors",
        "shard-00001.safetensors",
        "shard-00002.safetensors",
    ]
    read = read_tensors(open_checkpoint(path), ["tables/a/weight", "tables/b/weight", "dense/w"])
    assert torch.equal(read["tables/a/weight"], ROWS)
    assert torch.equal(read["tables/b/weight"], ROWS[:5])
    assert torch.equal(read["dense/w"], torch.ones(3))
