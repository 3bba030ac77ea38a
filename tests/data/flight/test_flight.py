"""Batches of data servers are those of the files, whoever serves them and whatever fails."""

from __future__ import annotations

import itertools
import threading
import time

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from runner.batch import DataPosition
from runner.data.core.fitted import FITTED_FILE, FittedTransforms
from runner.data.flight import servers as flight_servers
from runner.data.flight.pieces import ARRAYS, MESSAGE, from_message, misalignment, to_message
from runner.data.flight.protocol import NAMES, NamesRequest, ServedData, Ticket
from runner.data.read import block_dataset
from runner.data.read.collate import collate
from runner.data.read.stream import BatchSlice, RankSlice
from runner.errors import DataError
from tests.data.flight.served import assert_same, connect, location, open_files, serve


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return open_files(tmp_path_factory.mktemp("files"))


@pytest.fixture
def servers(files):
    started = [serve(files), serve(files)]
    yield started
    for server in started:
        server.shutdown()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(flight_servers, "RETRY_S", (0.1, 0.2))
    monkeypatch.setattr(flight_servers, "POLL_S", 0.02)


@pytest.mark.parity("T15")
@pytest.mark.parametrize("rest", ["short", "drop", "pad"])
def test_batches_equal_those_of_the_files_bit_for_bit(files, servers, rest, monkeypatch):
    monkeypatch.setattr(files, "rest", rest)
    served = connect(*servers)
    assert (served.rest, served.num_rows, served.schema) == (rest, files.num_rows, files.schema)
    for epoch, offset, batch_size, rank, ranks in [
        (0, 0, 100, 0, 1),  # of several windows
        (2, 33, 20, 1, 3),  # in the middle of an epoch, on a rank of three
    ]:
        order = {"batch_size": batch_size, "seed": 5, "start": DataPosition(epoch, offset)}
        order |= {"rank": rank, "world_size": ranks}
        ours = list(served.batches("train", **order))
        assert_same(ours, list(files.batches("train", **order)))
    ours = list(served.batches("validation", batch_size=150))
    assert_same(ours, list(files.batches("validation", batch_size=150)))
    assert all(server.num_tickets for server in servers)


def test_a_rank_without_a_row_gets_the_same_row_of_weight_0(files, servers):
    served = connect(servers[0])
    start = DataPosition(0, 499)  # one row is left, which the last rank gets
    order = {"batch_size": 499, "seed": 1, "rank": 0, "world_size": 2, "start": start}
    (ours,), (theirs,) = (list(data.batches("train", **order)) for data in (served, files))
    assert_same([ours], [theirs])
    assert ours.weights_B.tolist() == [0.0]


@pytest.mark.parametrize("shift", [0, 3, 8])
def test_tensors_are_the_received_buffers_where_these_are_aligned(files, shift):
    batch = next(files.batches("train", batch_size=20, seed=0))
    serialised = to_message(batch, 2).serialize()
    memory = pa.allocate_buffer(serialised.size + shift)
    np.frombuffer(memory, np.uint8)[shift:] = np.frombuffer(serialised, np.uint8)
    message = pa.ipc.read_record_batch(memory.slice(shift), MESSAGE)
    assert misalignment(message) == shift
    rows = from_message(message, files.columns)
    batch_slice = BatchSlice(((rows, 0, 20),), 20)
    again = collate(batch_slice, files.sparse_keys, batch.cursor, files.sequence_keys)
    assert_same([again], [batch])
    received = {name: message.column(name).values.buffers()[1].address for name in ARRAYS}
    tensors = {"dense": again.dense_BD, "ids": again.sparse.values(), "labels": again.labels_BT}
    tensors |= {"sequences": again.sequences.values(), "rows": again.rows_B}
    for name, tensor in tensors.items():
        assert (tensor.data_ptr() == received[name]) == (not shift), name
        assert tensor.data_ptr() % 16 == 0  # as matrix products need, to round as for files


def test_a_message_is_padded_as_the_ticket_asks(files, servers):
    served = connect(servers[0], workers=0)
    served.pad = 5
    list(served.batches("train", batch_size=500))
    assert 0 <= served.pad < 16
    ticket = served.claim(Ticket, total=500, batch_size=500, pad=7)
    client = flight.FlightClient(location(servers[0]))
    (chunk,) = client.do_get(flight.Ticket(ticket.to_bytes()))
    assert len(chunk.app_metadata) == 8


@pytest.mark.parametrize("rank", range(3))
def test_rows_before_an_offset_are_counted(rank):
    part = RankSlice(start=13, total=100, batch_size=8, rank=rank, world_size=3)
    for offset in range(101):
        counted = len(part.offsets_in_window(0, offset)) if offset > 13 else 0
        assert part.rows_before(offset) == counted


@pytest.mark.parity("T15")
def test_a_server_that_breaks_off_is_passed_by_and_every_row_comes_once(files, servers, capfd):
    served = connect(*servers)
    servers[1].fails_after = 1
    batches = list(served.batches("train", batch_size=10, seed=3))
    assert_same(batches, list(files.batches("train", batch_size=10, seed=3)))
    assert sorted(row for b in batches for row in b.rows_B.tolist()) == list(range(500))
    assert capfd.readouterr().err.count(f"{location(servers[1])} is skipped for now: cut off") == 1
    servers[1].fails_after = None
    time.sleep(0.25)  # until it is tried again
    list(served.batches("train", batch_size=10, seed=3))
    assert f"{location(servers[1])} answers again" in capfd.readouterr().err


@pytest.mark.parity("T15")
def test_a_stalled_server_is_passed_by_after_a_timeout_and_said(files, servers, capfd):
    servers[0].stall_s = 0.5
    served = connect(*servers, timeout_s=0.2)
    batches = list(served.batches("train", batch_size=64, seed=3))
    assert_same(batches, list(files.batches("train", batch_size=64, seed=3)))
    said = capfd.readouterr().err
    assert (
        f"{location(servers[0])} is skipped for now: no answer in time (dataset.timeout_s=0.2)"
        in said
    )


def test_without_any_server_it_waits_so_long_and_names_them(files, servers):
    served = connect(*servers, wait_s=0.3)
    for server in servers:
        server.shutdown()
    with pytest.raises(DataError) as error:
        list(served.batches("train", batch_size=64, seed=3))
    assert "no data server has answered for 0 s (dataset.wait_s)" in str(error.value)
    assert all(location(server) in str(error.value) for server in servers)
    assert "the run can be resumed" in str(error.value)
    with pytest.raises(DataError, match="no data server answers: grpc://localhost"):
        connect(*servers)


def test_all_servers_are_restarted_and_the_rows_go_on(files, monkeypatch):
    monkeypatch.setattr(block_dataset, "BURST_ROWS", 20)
    first = serve(files)
    served = connect(first, workers=0)
    batches = served.batches("train", batch_size=20, seed=4)
    taken = list(itertools.islice(batches, 9))
    first.shutdown()
    again = []
    timer = threading.Timer(0.2, lambda: again.append(serve(files, first.port)))
    timer.start()
    taken += list(batches)
    assert_same(taken, list(files.batches("train", batch_size=20, seed=4)))
    again[0].shutdown()


def test_an_iterator_that_is_left_does_not_wait_for_a_stalled_server(files, servers):
    served = connect(servers[0], workers=1)
    batches = served.batches("train", batch_size=64, seed=4)
    next(batches)
    servers[0].stall_s = 1.0
    began = time.monotonic()
    batches.close()
    assert time.monotonic() - began < 30  # rather than for the timeout of a minute


def test_names_of_values_come_from_the_server(files, monkeypatch):
    def name_values(column, values):
        return {v: f"{column} {v}" for v in reversed(values)}

    monkeypatch.setattr(files, "name_values", name_values)
    server = serve(files)
    served = connect(server)
    assert [*served.name_values("city", [2, 3]).items()] == [(3, "city 3"), (2, "city 2")]
    request = served.claim(NamesRequest, column="city", values=["2"])
    with pytest.raises(DataError, match="the request holds no list of at most"):
        served.act(NAMES, request)
    server.shutdown()


def test_transforms_and_seen_items_come_from_the_server(files, tmp_path, monkeypatch):
    class Seen:
        def find(self, rows_B):
            return np.repeat(np.arange(len(rows_B)), 2), np.concatenate([rows_B, rows_B + 1])

    ids = np.arange(5)
    fitted = FittedTransforms({"city": 7}, {"tags": 1.5}, vocabularies={"city": ids, "tags": ids})
    fitted.save(tmp_path / "fitted")
    monkeypatch.setattr(files, "transforms_dir", tmp_path / "fitted")
    monkeypatch.setattr(files, "seen_items", lambda split: None if split == "train" else Seen())
    server = serve(files)
    served = connect(server)
    served.save_fitted_transforms(tmp_path / "run")
    assert FittedTransforms.load(tmp_path / "run").digest() == fitted.digest()
    rows_B = np.array([3, 5, 250])
    for ours, theirs in zip(served.seen_items("validation").find(rows_B), Seen().find(rows_B)):
        assert np.array_equal(ours, theirs)
    assert served.seen_items("train") is None
    monkeypatch.setattr(files, "transforms_dir", tmp_path / "evil")
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil" / FITTED_FILE).write_text("{}")
    with pytest.raises(DataError, match="cannot be read"):
        served.save_fitted_transforms(tmp_path / "other")
    assert not (tmp_path / "other" / FITTED_FILE).exists()
    server.shutdown()


def test_what_is_served_survives_its_text(files, servers):
    told = servers[0].describe()
    again = ServedData.from_json(told.to_json())
    assert again == told and again.columns == files.columns
    assert np.array_equal(again.index("train").rows_N, files.indexes["train"].rows_N)
    with pytest.raises(DataError, match="description of its data cannot be read"):
        ServedData.from_json("[1]")
