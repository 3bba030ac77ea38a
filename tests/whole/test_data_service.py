"""Runs on data servers equal runs on the files bit for bit, whoever is killed in between."""

from __future__ import annotations

import random
import re
import signal
import time
from pathlib import Path

import pytest

from runner.rundir.json_files import read_json
from tests.conftest import TINY, Process, Zygote
from tests.reliability.cases import fault_seed
from tests.whole.compare_runs import TRACED, differences, examples_by_cursor

pytestmark = pytest.mark.slow
DATA = (
    "dataset=synthetic",
    "dataset.max_cardinality=200",
    "dataset.rows={train: 40000, validation: 500, test: 500}",
    "dataset.window_rows=8192",
)
# an epoch has 5 windows and 40 updates
SETTINGS = (*TINY[2:], "trainer.batch_size=1000", "trainer.max_steps=90", "model.net.dropout=0.1")


class Servers:
    """Two servers of the data, at ports of their own."""

    def __init__(self, runner: Zygote) -> None:
        self._runner = runner
        self.processes = [self._start(0), self._start(0)]
        self.ports = [self._port(process) for process in self.processes]

    def _start(self, port: int) -> Process:
        return self._runner.start("data-serve", *DATA, "--port", str(port))

    def _port(self, process: Process) -> int:
        return int(wait_for(process, r"at grpc://127.0.0.1:([0-9]+)\n").group(1))

    def kill(self, *numbers: int) -> None:
        for number in numbers:
            self.processes[number].kill()
            assert self.processes[number].wait() == -signal.SIGKILL

    def restart(self, *numbers: int) -> None:
        for number in numbers:
            self.processes[number] = self._start(self.ports[number])
        for number in numbers:
            self._port(self.processes[number])

    @property
    def words(self) -> tuple[str, ...]:
        locations = ", ".join(f"'grpc://localhost:{port}'" for port in self.ports)
        return ("dataset=flight", f"dataset.locations=[{locations}]", "dataset.workers=1")


def wait_for(process: Process, pattern: str) -> re.Match[str]:
    until_s = time.monotonic() + 120
    while not (process.output.exists() and (found := re.search(pattern, process.text))):
        assert time.monotonic() < until_s, f"{pattern} did not come"
        time.sleep(0.02)
    return found


@pytest.fixture
def servers(runner):
    started = Servers(runner)
    yield started
    for process in started.processes:
        process.kill(signal.SIGTERM)
        assert process.wait() == 128 + signal.SIGTERM


def start(runner: Zygote, folder: Path, *more: str, kill: str = "") -> Process:
    env = {"TRACE_FILE": f"{folder}.trace", "TRACE_KILL": kill}
    return runner.start(*TRACED, *SETTINGS, *more, f"hydra.run.dir={folder}", env=env)


def finish(process: Process, code: int = 0) -> str:
    assert process.wait() == code, process.text
    return process.text


@pytest.fixture(scope="module")
def local(runner, tmp_path_factory):
    folder = tmp_path_factory.mktemp("local") / "run"
    finish(start(runner, folder, *DATA))
    return folder


def assert_same(run: Path, other: Path) -> None:
    """Compare weights, losses, checkpoints, and which examples each update saw: each once."""
    assert differences(run, other) == []
    ours, theirs = (examples_by_cursor(Path(f"{folder}.trace")) for folder in (run, other))
    assert ours == theirs
    assert all(len(hashes) == 1 for hashes in ours.values())


@pytest.mark.parity("T15")
def test_servers_killed_and_restarted_under_a_run_change_nothing(runner, local, servers, tmp_path):
    run = start(runner, tmp_path / "run", *servers.words)
    wait_for(run, r"train +step +7/")
    servers.kill(0)
    wait_for(run, f":{servers.ports[0]} is skipped for now")
    servers.kill(1)
    wait_for(run, f":{servers.ports[1]} is skipped for now")
    servers.restart(0, 1)
    assert "answers again" in finish(run)
    assert_same(tmp_path / "run", local)


@pytest.mark.parity("T15")
def test_a_run_killed_on_one_server_goes_on_with_another_and_then_with_the_files(
    runner, local, servers, tmp_path
):
    run = tmp_path / "run"
    servers.kill(1)
    said = finish(start(runner, run, *servers.words, kill="step:23"), -signal.SIGKILL)
    assert f":{servers.ports[1]} is skipped for now" in said
    servers.restart(1)
    servers.kill(0)
    finish(start(runner, run, *servers.words, kill="step:51"), -signal.SIGKILL)
    servers.restart(0)
    finish(start(runner, run, *DATA))
    assert_same(run, local)


@pytest.mark.parity("T15")
def test_a_server_that_is_stopped_is_passed_by(runner, local, servers, tmp_path):
    run = start(runner, tmp_path / "run", *servers.words, "dataset.timeout_s=1")
    wait_for(run, r"train +step +7/")
    servers.processes[0].kill(signal.SIGSTOP)
    assert re.search(r"is skipped for now: no answer in time \(dataset.timeout_s=1\)", finish(run))
    servers.processes[0].kill(signal.SIGCONT)
    assert_same(tmp_path / "run", local)


@pytest.mark.parity("T15")
def test_servers_killed_or_stopped_at_random_moments_change_nothing(
    runner, local, servers, tmp_path
):
    chance = random.Random(fault_seed())
    run = start(runner, tmp_path / "run", *servers.words, "dataset.timeout_s=1")
    wait_for(run, r"train +step +7/")
    for _ in range(3):
        time.sleep(chance.uniform(0, 0.7))
        number, is_killed = chance.randrange(2), chance.random() < 0.6
        servers.kill(number) if is_killed else servers.processes[number].kill(signal.SIGSTOP)
        time.sleep(chance.uniform(0, 1.5))
        servers.restart(number) if is_killed else servers.processes[number].kill(signal.SIGCONT)
    finish(run)
    assert_same(tmp_path / "run", local)


@pytest.mark.parity("T15")
def test_two_trainings_share_the_servers_and_one_has_two_ranks(runner, local, servers, tmp_path):
    ranks = ("trainer.num_processes=2", "trainer.batch_size=500", "trainer.max_steps=30")
    finish(start(runner, tmp_path / "files", *DATA, *ranks))
    one = start(runner, tmp_path / "one", *servers.words)
    two = start(runner, tmp_path / "two", *servers.words, *ranks)
    finish(one)
    finish(two)
    assert_same(tmp_path / "one", local)
    assert differences(tmp_path / "two", tmp_path / "files") == []


@pytest.mark.parity("T15")
def test_a_run_is_evaluated_and_counted_on_the_servers(runner, local, servers, tmp_path):
    words = ("--allow", "tests", "loop=eval", f"run={local}", f"hydra.run.dir={tmp_path}/eval")
    runner.run(*words, *servers.words).check()
    found, trained = (
        read_json(run / "result.json")["metrics"] for run in (tmp_path / "eval", local)
    )
    assert found and all(trained[name] == value for name, value in found.items())
    auto = runner.run("schedule", "trainer.max_epochs=2", "trainer.batch_size=auto", *servers.words)
    assert "auto, for 40,000 train rows" in auto.text
    assert not any("torch/fx" in process.text for process in servers.processes)  # no such notice
    servers.kill(0, 1)
    gone = runner.run(*SETTINGS, *servers.words, f"hydra.run.dir={tmp_path}/none")
    assert gone.code == 2 and "no data server answers: grpc://localhost" in gone.text
    assert not (tmp_path / "none").exists()
    servers.restart(0, 1)
