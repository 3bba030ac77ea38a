"""Batches of a process of its own: the same to the bit, and what becomes of either process."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from runner.batch import Batch, DataPosition
from runner.data.read import block_dataset, reader_process
from runner.data.read.packed_batch import BatchLayout, PackedBatch
from runner.data.read.reader_process import (
    NUM_PIECES,
    PIECE_BYTES,
    _write,
    batches_from_process,
)
from runner.data.tabular.table import open_table
from runner.data.tabular.table_recipe import TableRecipe
from runner.errors import DataError
from tests.conftest import ROOT
from tests.data.clicks import SCHEMA, clicks, write_parquet
from tests.devices import DEVICES
from tests.tiny import random_batch


@pytest.fixture(scope="module")
def open_clicks(tmp_path_factory, cache):
    """Return what opens datasets of the same rows, with weighted lists and sequences."""
    path = write_parquet(tmp_path_factory.mktemp("clicks"), clicks(700), parts=3)
    recipe = TableRecipe("parquet", path, SCHEMA)
    return lambda **more: open_table(recipe, window_rows=128, prefetch=0, **more)


def children() -> list[int]:
    """The processes that this one has started since the test began."""
    now = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [int(pid) for pid in now if int(pid) not in _others]


_others: set[int] = set()  # such as servers of other tests


@pytest.fixture(autouse=True)
def _only_new_children() -> None:
    _others.clear()
    _others.update(children())


def assert_same(ours: Batch, theirs: Batch) -> None:
    one, two = BatchLayout.tensors_of(ours), BatchLayout.tensors_of(theirs)
    assert one.keys() == two.keys() and ours.cursor == theirs.cursor
    for name, tensor in one.items():
        assert tensor.dtype == two[name].dtype and tensor.shape == two[name].shape, name
        assert torch.equal(tensor.cpu(), two[name].cpu()), name
    for a, b in ((ours.sparse, theirs.sparse), (ours.sequences, theirs.sequences)):
        if a is not None:
            assert a.keys() == b.keys() and a.offset_per_key() == b.offset_per_key()


def numbered(stop: int, error: Exception | None = None):
    for number in range(stop):
        yield replace(random_batch(8, number), cursor=DataPosition(0, number))
    if error is not None:
        raise error


@pytest.mark.parametrize("piece_bytes", [8 << 20, 1000])
@pytest.mark.parametrize("start", [DataPosition(), DataPosition(1, 333)])
def test_batches_are_those_of_this_process(open_clicks, monkeypatch, start, piece_bytes):
    """Also where a batch is larger than all the memory that the processes share."""
    monkeypatch.setattr(block_dataset, "LEAST_ROWS_OF_PROCESS", 0)
    monkeypatch.setattr(reader_process, "PIECE_BYTES", piece_bytes)
    monkeypatch.setattr(reader_process, "NUM_PIECES", 2)
    one, two = open_clicks(), open_clicks()
    two.read_in_process(2)
    for seed in (5, None):
        options = {"batch_size": 100, "seed": seed, "start": start, "rank": 1, "world_size": 2}
        batches = list(two.batches("train", **options))
        assert children() == []
        for ours, theirs in zip(batches, one.batches("train", **options), strict=True):
            assert_same(ours, theirs)


@pytest.mark.parametrize("rest", ["short", "pad", "drop"])
@pytest.mark.parametrize("rank", [0, 2])
def test_rows_that_only_pad_a_batch_keep_no_ids(open_clicks, monkeypatch, rest, rank):
    """The 700 rows are 2 batches on 3 ranks and one row, which the last rank has: none is left."""
    monkeypatch.setattr(block_dataset, "LEAST_ROWS_OF_PROCESS", 0)
    one, two = open_clicks(rest=rest), open_clicks(rest=rest)
    two.read_in_process(1)
    options = {"batch_size": 233, "seed": 5, "rank": rank, "world_size": 3}
    batches = list(two.batches("train", **options))
    assert len(batches) == (1 if rest == "drop" else 2)
    for ours, theirs in zip(batches, one.batches("train", **options), strict=True):
        assert_same(ours, theirs)
    if rest != "drop" and rank == 0:
        assert batches[-1].weights_B.sum() == 0 and batches[-1].sparse.values().numel() == 0


def test_few_rows_and_a_number_of_threads_that_was_given_need_no_process(open_clicks, monkeypatch):
    small, given = open_clicks(), open_clicks(workers=1)
    for data in (small, given):
        data.read_in_process(2)
    with closing(small.batches("train", batch_size=100, seed=0)) as batches:
        next(batches)
        assert children() == []
    monkeypatch.setattr(block_dataset, "LEAST_ROWS_OF_PROCESS", 700)
    for data, expected in ((small, 1), (given, 0)):
        with closing(data.batches("train", batch_size=100, seed=0)) as batches:
            next(batches)
            assert len(children()) == expected
        assert children() == []


def test_an_error_comes_after_the_batches_before_it():
    batches = batches_from_process(
        lambda: numbered(3, DataError("column C3, row 5")), 0, pinned=False
    )
    assert [next(batches).cursor.offset for _ in range(3)] == [0, 1, 2]
    with pytest.raises(DataError, match="column C3, row 5"):
        next(batches)
    assert children() == []


def test_a_bug_comes_with_the_place_where_it_was_raised():
    batches = batches_from_process(lambda: numbered(0, KeyError("C3")), 0, pinned=False)
    with pytest.raises(KeyError, match="C3") as raised:
        next(batches)
    [note] = raised.value.__notes__
    assert "in numbered" in note


def test_an_error_that_cannot_be_sent_is_told():
    class OwnError(Exception):
        pass

    batches = batches_from_process(lambda: numbered(0, OwnError("of a lambda")), 0, pinned=False)
    with pytest.raises(DataError, match="OwnError: of a lambda"):
        next(batches)


def test_a_process_that_is_killed_is_told_with_the_way_to_do_without():
    batches = batches_from_process(lambda: numbered(10**9), 0, pinned=False)
    next(batches)
    [pid] = children()
    os.kill(pid, signal.SIGTERM)  # sent to all by a scheduler: the training decides when it ends
    assert len(list(islice(batches, 50))) == 50
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(DataError, match=r"SIGKILL, as the system .*; dataset\.workers=1 makes"):
        list(batches)
    assert children() == []


def test_a_system_without_room_for_a_second_process_has_the_batches_made_in_the_first(monkeypatch):
    def fail() -> int:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(os, "fork", fail)
    batches = list(batches_from_process(lambda: numbered(3), 0, pinned=False))
    assert [batch.cursor.offset for batch in batches] == [0, 1, 2]


@pytest.mark.long
def test_the_process_ends_with_a_training_that_is_killed_and_outlives_no_sibling():
    """A second process is a fork too, and must not keep the first one's pipes open."""
    script = """
import os, sys
from tests.data.read.test_reader_process import children, numbered
from runner.data.read.reader_process import batches_from_process
both = [batches_from_process(lambda: numbered(10**9), 0, pinned=False) for _ in range(2)]
for batches in both:
    next(batches)
print(*children(), flush=True)
sys.stdin.read()
"""
    training = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert training.stdout is not None
    pids = list(map(int, training.stdout.readline().split()))
    assert len(pids) == 2
    training.kill()
    training.wait()
    for _ in range(200):
        if not any(Path(f"/proc/{pid}").exists() for pid in pids):
            return
        time.sleep(0.05)
    raise AssertionError("a process is left")


@pytest.mark.parametrize("device", DEVICES)
def test_a_batch_in_one_piece_goes_to_a_device_as_others_do(open_clicks, device):
    data = open_clicks()
    plain = next(data.batches("train", batch_size=100, seed=1))
    sent: list[bytes] = []
    pieces = np.zeros((NUM_PIECES, PIECE_BYTES), np.uint8)
    end = SimpleNamespace(send_bytes=sent.append)
    _write(plain, len(data.columns.singles), pieces, end, end, count())
    [layout] = map(pickle.loads, sent)
    buffer = torch.from_numpy(pieces[0, : layout.num_bytes])
    packed = PackedBatch.of(layout, buffer.pin_memory() if device.type == "cuda" else buffer)
    assert packed.size == 100 and packed.cursor == plain.cursor
    assert_same(packed, plain)
    if device.type == "cuda":
        assert packed.pin_memory() is packed
    moved = packed.to(device)
    assert_same(moved, plain)
    assert type(moved) is Batch and moved.dense_BD.device == device
    changed = replace(packed, dense_BD=packed.dense_BD + 1).to(device)
    assert torch.equal(changed.dense_BD.cpu(), plain.dense_BD + 1), "and not what was there before"
