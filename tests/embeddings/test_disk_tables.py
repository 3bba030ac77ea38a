"""Tables in scratch files beside the same tables in memory, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from runner.distributed.shards import is_in_file
from runner.embeddings import disk_tables
from runner.embeddings.factory import build_tables
from runner.embeddings.interface import TableSpec
from runner.errors import ConfigError
from runner.optim.settings import SPARSE_KINDS, parse_sparse
from runner.rundir.checkpoint import (
    Checkpointer,
    load_tensors,
    open_checkpoint,
    staging,
    tensors,
)
from tests.embeddings.test_row_dtypes import CPU, ORDER, SPECS, random_ids

LARGE = tuple(
    TableSpec(s.name, s.num_rows * 40, s.dim, s.features, pooling=s.pooling) for s in SPECS
)


def settings(kind: str, dtype: str):
    return parse_sparse({"kind": kind, "lr": 0.1, "dtype": dtype})


def open_files() -> list[str]:
    """The scratch files that this process maps; they have no name any more."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in maps if "(deleted)" in line and "/tables" in line]


@pytest.mark.parametrize("kind", SPARSE_KINDS)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_updates_and_look_ups_have_the_bits_of_memory(tmp_path, kind, dtype):
    in_memory, on_disk = (
        build_tables(LARGE, ORDER, settings(kind, dtype), seed=0, device=CPU, scratch=scratch)
        for scratch in (None, tmp_path / "tables")
    )
    assert not any(is_in_file(t) for t in in_memory.state().values())
    assert all(is_in_file(t) for key, t in on_disk.state().items() if key.endswith("/weight"))
    for step in (1, 2):
        ids = random_ids(seed=step, weighted=True)
        pooled = []
        for tables in (in_memory, on_disk):
            tables.set_lr_and_step(0.1, step)
            pooled.append(tables(ids))
            pooled[-1].backward(torch.ones_like(pooled[-1]))
        assert torch.equal(*pooled)
    for key, tensor in in_memory.state().items():
        assert torch.equal(tensor, on_disk.state()[key]), key


def test_a_scratch_file_has_no_name_and_goes_with_its_tables(tmp_path):
    """So that a killed process leaves none behind either."""
    tables = build_tables(
        LARGE, ORDER, settings("adam", "fp32"), seed=0, device=CPU, scratch=tmp_path / "tables"
    )
    assert open_files() and not list((tmp_path / "tables").iterdir())
    del tables
    assert not open_files()


def test_a_save_copies_no_table_and_a_load_reads_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(tensors, "BLOCK_BYTES", 1000)
    first, second = (
        build_tables(
            LARGE, ORDER, settings("adam", "fp32"), seed=seed, device=CPU, scratch=tmp_path / "t"
        )
        for seed in (0, 1)
    )
    saver = Checkpointer(tmp_path / "checkpoints", keep=1)
    saver.prepare(first.state())
    saver.save(3, first.state(), {}, wait=True)
    assert saver._buffer.bytes.numel() < 1000  # bytes of what is in memory; the rest is 300 kB
    load_tensors(open_checkpoint(tmp_path / "checkpoints" / "step-3"), second.state())
    for key, tensor in first.state().items():
        assert torch.equal(tensor, second.state()[key]), key


def test_a_save_that_the_disk_refuses_leaves_the_checkpoint_before_it(tmp_path, monkeypatch):
    tables = build_tables(
        LARGE, ORDER, settings("sgd", "fp32"), seed=0, device=CPU, scratch=tmp_path / "t"
    )
    saver = Checkpointer(tmp_path / "checkpoints", keep=1)
    saver.save(1, tables.state(), {}, wait=True)

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(staging, "write_file", full)
    with pytest.raises(Exception, match=r"step 2 was not saved.*the one of step 1 is intact"):
        saver.save(2, tables.state(), {}, wait=True)
    assert saver.saved_steps() == [1]
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step-1"]


def test_too_little_disk_is_told_before_a_file_is_made(tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 1_000_000})
    monkeypatch.setattr(disk_tables.shutil, "disk_usage", lambda folder: usage)
    specs = [TableSpec("t", 10**9, 16, ("f",))]
    with pytest.raises(ConfigError) as caught:
        build_tables(
            specs, ("f",), settings("adam", "fp32"), seed=0, device=CPU, scratch=tmp_path / "t"
        )
    assert "need 192.0 GB" in str(caught.value) and "0.0 GB free" in str(caught.value)
    assert not list((tmp_path / "t").iterdir())
