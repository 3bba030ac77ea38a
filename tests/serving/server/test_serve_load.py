"""`serve`: overload, requests that wait, drain, and several workers."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from runner.serving.server import workers
from runner.serving.server.settings import ServeSettings, bind
from tests.conftest import ROOT, python
from tests.serving.client import (
    HalfSent,
    infer,
    json_inputs,
    metrics,
    request,
    scores,
    wait_until_waiting,
)
from tests.serving.served import click_rows, serving, wait_for_workers

TOGETHER = 1e-6  # a score may differ by this, where its row was scored with others


@pytest.mark.long
def test_an_overloaded_server_answers_503_and_recovers(runner, clicks_model, clicks_scorer):
    rows = click_rows(5)
    with serving(runner, clicks_model, "--queue", "2", "--name", "clicks") as server:
        held = [HalfSent(server.address, rows) for _ in range(2)]
        wait_until_waiting(server.address, 2)
        status, headers, answer = infer(server.address, json_inputs(rows))
        assert (status, answer["error"]) == (503, "2 requests are waiting already")
        assert int(headers["retry-after"]) >= 1
        assert request(server.address, "/v2/health/ready")[0] == 200
        expected = clicks_scorer.score(rows)["click"]  # perhaps on another number of threads
        for one in held:
            found = scores(one.finish())["click"]
            np.testing.assert_allclose(found, expected, rtol=TOGETHER, atol=TOGETHER)
        assert infer(server.address, json_inputs(rows))[0] == 200
        assert metrics(server.address)['runner_requests_total{code="503"}'] == 1
        left = HalfSent(server.address, rows)  # a client that goes away frees its place
        wait_until_waiting(server.address, 1)
        left.connection.close()
        while metrics(server.address)["runner_queue_depth"]:
            pass
        assert "Traceback" not in server.process.text


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 143), (signal.SIGINT, 130)]
)
def test_a_signal_lets_what_has_come_be_answered(runner, clicks_model, clicks_scorer, number, code):
    rows = click_rows(4)
    with serving(runner, clicks_model) as server:
        held = HalfSent(server.address, rows)
        wait_until_waiting(server.address, 1)
        server.process.kill(number)
        while request(server.address, "/v2/health/ready")[0] == 200:
            pass
        assert request(server.address, "/v2/health/live")[0] == 200
        status, headers, answer = infer(server.address, json_inputs(rows))
        assert (status, answer["error"]) == (503, "the server is stopping")
        assert "retry-after" in headers
        answer = held.finish()
        assert np.array_equal(
            np.float32(scores(answer)["click"]), clicks_scorer.score(rows)["click"]
        )
        assert server.wait() == code
        assert "Traceback" not in server.process.text
        with pytest.raises(OSError):
            request(server.address, "/v2/health/live")


@pytest.mark.long
def test_requests_that_wait_are_scored_together_and_a_bad_one_spoils_no_other(
    runner, clicks_model, clicks_scorer
):
    tables = [click_rows(3, seed) for seed in range(4)]
    with serving(runner, clicks_model, "--batch-rows", "12", "--batch-wait-ms", "1000") as server:
        held = [HalfSent(server.address, table) for table in tables[:3]]
        held.append(HalfSent(server.address, tables[3].set_column(1, "a", pa.array([0, 9, 1]))))
        wait_until_waiting(server.address, 4)
        before = metrics(server.address)["runner_batches_total"]
        for one in held:
            one.connection.send(one.body[10:])
        answers = [one.connection.getresponse() for one in held]
        assert metrics(server.address)["runner_batches_total"] == before + 1
    assert [answer.status for answer in answers] == [200, 200, 200, 400]
    assert "row 1, column 'a': value 9" in json.loads(answers[3].read())["error"]
    for table, answer in zip(tables, answers[:3]):
        found = scores(json.loads(answer.read()))
        for name, expected in clicks_scorer.score(table).items():
            np.testing.assert_allclose(found[name], expected, rtol=TOGETHER, atol=TOGETHER)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_counts_also_where_an_import_suppresses_exceptions(number, clicks_model, tmp_path):
    (tmp_path / "uvicorn.py").write_text(
        f"import os\ntry:\n    os.kill(os.getpid(), {number:d})\n    import time; time.sleep(60)\n"
        "except BaseException:\n    pass\nraise SystemExit(7)\n"
    )
    paths = os.pathsep.join([str(tmp_path), str(ROOT)])
    words = ("-m", "runner", "serve", str(clicks_model), "--port", "0")
    assert python(*words, PYTHONPATH=paths).returncode == 128 + number


def test_a_second_signal_ends_the_server_at_once(runner, clicks_model):
    with serving(runner, clicks_model) as server:
        held = HalfSent(server.address, click_rows(4))
        wait_until_waiting(server.address, 1)
        server.process.kill(signal.SIGINT)
        time.sleep(1)
        assert request(server.address, "/v2/health/live")[0] == 200
        server.process.kill(signal.SIGINT)
        assert server.wait() == 130
        assert "Traceback" not in server.process.text
        # it is told that it is cut off; what uvicorn makes of it depends on the Python
        assert held.connection.getresponse().status in (408, 500)


@pytest.mark.slow
def test_workers_whose_parent_is_killed_answer_what_has_come_and_end(runner, clicks_model):
    with serving(runner, clicks_model, "--workers", "2") as server:
        wait_for_workers(server.process, 2)
        held = HalfSent(server.address, click_rows(4))
        wait_until_waiting(server.address, 1)
        server.stop(signal.SIGKILL)
        time.sleep(1)
        assert len(scores(held.finish())["click"]) == 4
        for _ in range(100):
            try:
                request(server.address, "/v2/health/live")
            except OSError:
                break
            time.sleep(0.1)
        else:
            raise AssertionError("a worker has outlived its parent")
        assert "Traceback" not in server.process.text


@pytest.mark.slow
def test_workers_that_die_are_replaced_and_all_end_together(runner, clicks_model, clicks_scorer):
    rows = click_rows(6)
    with serving(runner, clicks_model, "--workers", "2") as server:
        wait_for_workers(server.process, 2)
        version = clicks_scorer.artifact.version
        version = f'runner_model_info{{model="clicks",version="{version}"}}'
        assert metrics(server.address)[version] == 2
        for _ in range(20):
            assert infer(server.address, json_inputs(rows))[0] == 200
        assert metrics(server.address)['runner_requests_total{code="200"}'] == 20
        children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
        found = [int(pid) for pid in children.read_text().split()]
        workers = [p for p in found if b"spawn_main" in Path(f"/proc/{p}/cmdline").read_bytes()]
        assert len(workers) == 2
        os.kill(workers[0], signal.SIGKILL)
        wait_for_workers(server.process, 3)
        assert "ended with exit code -9; another is started" in server.process.text
        assert metrics(server.address)[version] == 2
        assert infer(server.address, json_inputs(rows))[0] == 200
        assert metrics(server.address)['runner_requests_total{code="200"}'] == 21
        assert server.stop() == 143
    with pytest.raises(OSError):
        request(server.address, "/v2/health/live")


# Python imports it at the start of a process
TOLD_AT_EXIT = """
import atexit, gc
tell = lambda: print("frozen", gc.get_freeze_count() > 200_000, gc.get_threshold(), flush=True)
atexit.register(tell)
"""


@pytest.mark.slow
def test_the_collectors_of_workers_leave_out_what_they_have_imported(
    runner, clicks_model, tmp_path
):
    (tmp_path / "sitecustomize.py").write_text(TOLD_AT_EXIT)
    words = ("serve", str(clicks_model), "--port", "0", "--workers", "2")
    process = runner.start(*words, env={"PYTHONPATH": f"{ROOT}:{tmp_path}"})
    wait_for_workers(process, 2)
    process.kill(signal.SIGTERM)
    assert process.wait() == 143
    assert process.text.count(f"frozen True {gc.get_threshold()}") == 2


class Life:
    """What a worker's process does: it serves or does not, and then ends or goes on."""

    def __init__(self, serves: bool, exitcode: int | None = None) -> None:
        self.serves, self.exitcode = serves, exitcode
        self.sentinel, self._end = os.pipe()
        if exitcode is not None:
            self.terminate()

    def is_alive(self) -> bool:
        return self.exitcode is None

    def terminate(self) -> None:
        if self._end >= 0:
            os.close(self._end)  # which the sentinel tells
        self._end, self.exitcode = -1, self.exitcode or -signal.SIGTERM


@pytest.mark.parametrize(
    ("first", "others", "code", "left"),
    [
        # the second dies, cannot load twice, and serves again; the last word is a signal
        ([(True, None)], [(True, -9), (False, 2), (False, 2), (True, None)], 143, 0),
        ([(True, None)], [(False, 2), (True, None)], 2, 1),  # it could not even start
        ([(True, -9), (False, 2)], [(True, -9), (False, 3), (True, None)], 2, 1),  # none serves
    ],
)
def test_a_replacement_that_cannot_load_ends_no_worker_that_serves(
    monkeypatch, tmp_path, first, others, code, left
):
    lives = {0: list(first), 1: list(others)}

    def start(self: workers._Workers, number: int) -> None:
        life = Life(*lives[number].pop(0))
        self.processes[number] = life
        self.counters._table[number, -1] = life.serves  # up
        if self.signal is not None:
            life.terminate()
        if lives == {0: [], 1: []}:
            self.stop(signal.SIGTERM)

    monkeypatch.setattr(workers._Workers, "start", start)
    monkeypatch.setattr(workers, "RESTART_AFTER_S", 0.0)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    settings = ServeSettings(model=tmp_path, workers=2)
    with socket.socket() as listener:
        assert workers.serve_with_workers(settings, listener, 1) == code
    assert len(lives[1]) == left


def test_after_a_signal_no_connection_waits_for_the_exit_of_workers(monkeypatch, tmp_path):
    settings = ServeSettings(model=tmp_path, workers=2, port=0)
    started = []

    def start(self: workers._Workers, number: int) -> None:
        self.stop(signal.SIGTERM)  # a signal meanwhile
        started.append((number, self.listener.fileno() >= 0))  # the process gets it

    monkeypatch.setattr(workers._Workers, "_start", start)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    listener = bind(settings.host, settings.port)
    listener.listen()
    address = listener.getsockname()
    assert workers.serve_with_workers(settings, listener, 1) == 143
    assert started == [(0, True)]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)


def test_connections_do_not_wait_for_acknowledgements(tmp_path):
    """Without it an answer over a kept connection takes 40 ms longer."""
    listener = bind("127.0.0.1", 0)
    listener.listen()
    with listener, socket.create_connection(listener.getsockname()), listener.accept()[0] as taken:
        assert taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
