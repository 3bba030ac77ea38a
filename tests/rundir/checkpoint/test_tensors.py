"""Tensors come back bit for bit, in the format of torch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch import Tensor

from runner.distributed.ranks import SINGLE_PROCESS
from runner.distributed.shards import LocalShard, LocalShards
from runner.errors import UserError
from runner.rundir.checkpoint import (
    Checkpointer,
    load_tensors,
    open_checkpoint,
    read_tensors,
    staging,
    tensor_shapes,
    tensors,
)
from runner.rundir.checkpoint.staging import HostBuffer, stage_tensors
from tests.rundir.checkpoint.saving import make_checkpointer, save

DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool,
    torch.float8_e4m3fn, torch.float8_e5m2,
)  # fmt: skip


def bits(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def every_kind_of_tensor() -> dict[str, Tensor]:
    """Make tensors of random bits, with NaNs and subnormals, in all dtypes and odd shapes."""
    torch.manual_seed(0)
    state = {}
    for dtype in DTYPES:
        top = 2 if dtype == torch.bool else 256
        raw = torch.randint(0, top, (3 * 5 * dtype.itemsize,), dtype=torch.uint8)
        state[f"dense/layers.0.{dtype}"] = raw.view(dtype).view(3, 5)
        state[f"dense/layers.0.{dtype}/scalar"] = raw.view(dtype)[0].clone()
        state[f"empty/{dtype}"] = torch.empty(0, 4, dtype=dtype)
    state["tables/C 1/weight"] = torch.randn(7, 6).t()  # not contiguous
    state["tables/größe.ü/momentum1"] = torch.randn(10)[::3]
    state["dense/parameter"] = torch.nn.Parameter(torch.randn(2, 2))
    return state


def test_tensors_come_back_bit_for_bit(tmp_path: Path) -> None:
    state = every_kind_of_tensor()
    saved = open_checkpoint(save(tmp_path, 7, state))
    into = {name: torch.ones_like(t).clone() for name, t in state.items()}
    load_tensors(saved, into)
    read = read_tensors(saved, state)
    assert tensor_shapes(saved) == {name: tuple(t.shape) for name, t in state.items()}
    for name, tensor in state.items():
        for found in (into[name], read[name]):
            assert found.dtype == tensor.dtype
            assert found.shape == tensor.shape
            assert bits(found) == bits(tensor), name


def test_tensors_are_loaded_in_place(tmp_path: Path) -> None:
    saved = open_checkpoint(save(tmp_path, 1, {"w": torch.arange(12.0).view(3, 4)}))
    whole = torch.zeros(4, 6)
    load_tensors(saved, {"w": whole[:3, 1:5]})
    assert torch.equal(whole[:3, 1:5], torch.arange(12.0).view(3, 4))
    assert whole.sum() == torch.arange(12.0).sum()


def test_a_value_that_cannot_be_stored_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    for wrong in (torch.eye(2).to_sparse(), torch.zeros(1, dtype=torch.complex64), 3.0):
        with pytest.raises(TypeError, match="'w'"):
            make_checkpointer(tmp_path).save(1, {"w": wrong}, {})  # type: ignore[dict-item]
    assert list(tmp_path.iterdir()) == []


def test_the_files_are_those_of_torchs_own_safetensors_storage(tmp_path: Path) -> None:
    state = {"a/b.c": torch.randn(3, 4), "n": torch.arange(5), "s": torch.tensor(2.0)}
    ours = save(tmp_path, 1, state) / "shard-00001.safetensors"
    storage = dcp.HuggingFaceStorageWriter(str(tmp_path / "torch"), save_distributed=True)
    with pytest.warns(UserWarning, match="single process"):
        dcp.save(dict(state), storage_writer=storage, no_dist=True)
    (theirs,) = (tmp_path / "torch").iterdir()

    def head(path: Path) -> dict:
        raw = path.read_bytes()
        head = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
        sharding = head["__metadata__"]["DCP_SHARDING_INFO"]
        head["__metadata__"]["DCP_SHARDING_INFO"] = json.loads(sharding)
        return head

    assert head(ours) == head(theirs)
    read = load_file(ours)
    assert {n: bits(t) for n, t in read.items()} == {n: bits(t) for n, t in state.items()}


def test_training_may_change_the_state_once_save_has_returned(tmp_path: Path) -> None:
    checkpointer = make_checkpointer(tmp_path)
    weight, values = torch.zeros(1 << 20), {"seen": [1]}
    for step in (1, 2, 3):
        weight.fill_(step)
        checkpointer.save(step, {"w": weight}, values)
        weight.fill_(-1)
        values["seen"].append(step)
    checkpointer.finish()
    saved = open_checkpoint(tmp_path / "step-3")
    assert read_tensors(saved, ["w"])["w"].unique().tolist() == [3.0]
    assert saved.values == {"seen": [1, 1, 2]}


def test_the_second_save_copies_into_the_memory_of_the_first(tmp_path: Path) -> None:
    checkpointer, state = (
        make_checkpointer(tmp_path),
        {"w": torch.randn(1000), "b": torch.randn(())},
    )
    checkpointer.prepare(state)
    checkpointer.finish()
    places = [checkpointer._buffer.bytes.data_ptr()]
    for step in (1, 2):
        checkpointer.save(step, state, {})
        places.append(checkpointer._buffer.bytes.data_ptr())
    checkpointer.finish()
    assert len(set(places)) == 1


def test_states_that_do_not_fit_are_refused_before_any_is_changed(tmp_path: Path) -> None:
    state = {"dense/mlp.weight": torch.ones(2, 3), "tables/item/weight": torch.ones(4, 2)}
    saved = open_checkpoint(save(tmp_path, 1, state))
    wrong = {
        r"lacks 1 tensors.*'dense/mlp.weigth'; nearest: 'dense/mlp.weight'": {
            "dense/mlp.weigth": torch.zeros(2, 3)
        },
        r"does not, the first is 'dense/mlp.weight'": {},
        r"'dense/mlp.weight' is \(2, 3\).*\(3, 2\)": {"dense/mlp.weight": torch.zeros(3, 2)},
        r"'dense/mlp.weight' is torch.float32.*torch.float64": {
            "dense/mlp.weight": torch.zeros(2, 3).double()
        },
    }
    for message, part in wrong.items():
        into = {"tables/item/weight": torch.zeros(4, 2), **part}
        with pytest.raises(UserError, match=message):
            load_tensors(saved, into)
        assert all(not t.any() for t in into.values())
    part = {"tables/item/weight": torch.zeros(4, 2)}
    load_tensors(saved, part, partial=True)
    assert part["tables/item/weight"].all()
    with pytest.raises(UserError, match="nearest: 'tables/item/weight'"):
        read_tensors(saved, ["tables/item/wait"])


def test_memory_is_allocated_for_the_shards_of_this_rank_and_not_for_whole_tensors():
    here = [LocalShard(torch.ones(3, 8), (4, 0)), LocalShard(torch.ones(0, 8), (0, 0))]
    table = LocalShards((1_000_000, 8), here, torch.float32, torch.device("cpu"))
    state = {"table": table, "dense": torch.full((5, 2), 2.0), "step": torch.ones(3).double()}
    buffer = HostBuffer()
    buffer.prepare(state.values())
    held = buffer.bytes
    assert (3 * 8 + 5 * 2) * 4 + 3 * 8 <= held.numel() < 1000
    files = stage_tensors(state, buffer, SINGLE_PROCESS)
    assert buffer.bytes is held, "the copy needs no more"
    assert files[0].end == (3 * 8 + 5 * 2) * 4 + 3 * 8


def test_without_room_for_a_copy_large_tensors_are_written_and_read_in_place(tmp_path, monkeypatch):
    monkeypatch.setattr(staging, "available_memory_bytes", lambda: 1000.0)
    monkeypatch.setattr(staging, "BLOCK_BYTES", 500)
    for name, value in (("BLOCK_BYTES", 700), ("_WHOLE_BYTES", 800)):
        monkeypatch.setattr(tensors, name, value)
    table = torch.randn(101, 7)
    state = {
        "table": table,
        "transposed": table.T,
        "state": torch.randn(101),
        "scalar": table[0, 0],
    }
    told: list[str] = []
    checkpointer = Checkpointer(tmp_path, keep=2, warn=told.append)
    checkpointer.prepare(state)
    checkpointer.save(1, state, {}, wait=True)
    checkpointer.save(2, state, {}, wait=True)
    (said,) = told
    assert said.startswith("memory has no room for a copy of 0.0 GB of tables, so training waits")
    assert checkpointer._buffer.bytes.nbytes < 500, "the state and the scalar alone are copied"
    into = {name: torch.zeros(tensor.shape) for name, tensor in state.items()}
    load_tensors(open_checkpoint(tmp_path / "step-1"), into)
    for name, tensor in state.items():
        assert torch.equal(into[name], tensor)
