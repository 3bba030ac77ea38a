"""Sweeps that are interrupted, terminated and killed: real processes and real signals."""

import json
import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.reliability.cases import fault_seed
from tests.sweep.test_sweep import board, starts

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60  # long, for busy machines


def begin(directory: Path, *, output: int = subprocess.PIPE, **request) -> subprocess.Popen:
    words = json.dumps({"directory": str(directory), **request})
    return subprocess.Popen(
        [sys.executable, "-m", "tests.sweep.driver", words],
        cwd=ROOT,
        stdout=output,
        stderr=subprocess.STDOUT,
        text=True,
    )


def until(holds, patience_s=PATIENCE_S) -> None:
    deadline = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.01)


def is_busy() -> bool:
    return os.getloadavg()[0] > len(os.sched_getaffinity(0)) + 0.5


def stepping(directory: Path, count: int):
    """Return a function that says whether so many jobs are at work."""
    return lambda: len(list(directory.glob("*/checkpoint"))) >= count


def pids(directory: Path) -> list[int]:
    written = (path.read_text().split() for path in directory.glob("*/starts"))
    return [int(words[-1]) for words in written if words]  # none where the disk was full


def gone(numbers) -> bool:
    return not any(Path(f"/proc/{n}/cmdline").exists() and _cmdline(n) for n in numbers)


def _cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()  # empty for one that has ended
    except OSError:
        return b""


def steps_replayed(directory: Path, count: int) -> dict[str, int]:
    """Return how many steps each folder's job has repeated. Every job must have done its last."""
    found = {}
    for path in directory.glob("*/steps"):
        steps = [int(s) for s in path.read_text().split()]
        assert sorted(set(steps)) == list(range(1, count + 1))
        found[path.parent.name] = len(steps) - count
    return found


@pytest.mark.long
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_lets_running_jobs_save_and_the_same_command_goes_on(tmp_path, number, code):
    request = {"grid": {"steps": 60, "step_s": 0.02, "seed": [1, 2, 3]}, "slots": 2}
    sweep = begin(tmp_path, **request)
    until(stepping(tmp_path, 2))
    sweep.send_signal(number)
    out, _ = sweep.communicate(timeout=PATIENCE_S)
    assert sweep.returncode == code
    assert (tmp_path / "report.html").exists()
    assert gone(pids(tmp_path))
    assert "stopping: running jobs (2) save first" in out
    assert "the same command goes on" in out
    assert sorted(r["status"] for r in board(tmp_path)) == ["interrupted"] * 2 + ["waiting"]
    results = [json.loads(p.read_text()) for p in tmp_path.glob("*/result.json")]
    assert [r["status"] for r in results] == ["interrupted"] * 2
    again = begin(tmp_path, **request)
    out, _ = again.communicate(timeout=PATIENCE_S)
    assert again.returncode == 0, out
    assert [r["status"] for r in board(tmp_path)] == ["completed"] * 3
    assert set(steps_replayed(tmp_path, 60).values()) == {0}


def test_a_second_ctrl_c_does_not_wait(tmp_path):
    sweep = begin(tmp_path, grid={"do": "stubborn", "steps": 5000, "step_s": 0.01})
    until(stepping(tmp_path, 1))
    sweep.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert sweep.poll() is None  # the job does not heed it
    sweep.send_signal(signal.SIGINT)
    started = time.monotonic()
    sweep.communicate(timeout=PATIENCE_S)
    # the job would take 50 s more, and is given 30 s to save; a busy machine is slow to anything
    assert time.monotonic() - started < (10 if is_busy() else 2)
    assert sweep.returncode == 130
    assert gone(pids(tmp_path))
    assert [r["status"] for r in board(tmp_path)] == ["interrupted"]
    assert not (tmp_path / "report.html").exists()  # drawing it takes a second


def test_the_same_signal_passed_on_twice_is_one_request(tmp_path):
    sweep = begin(tmp_path, grid={"steps": 60, "step_s": 0.1})
    until(stepping(tmp_path, 1))
    for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM):
        sweep.send_signal(number)
        time.sleep(0.01)
    sweep.communicate(timeout=PATIENCE_S)
    assert sweep.returncode == 130
    (result,) = (json.loads(p.read_text()) for p in tmp_path.glob("*/result.json"))
    assert result["status"] == "interrupted"  # it saved


@pytest.mark.long
def test_a_job_that_somebody_else_stops_leaves_the_others_and_the_sweep_is_not_done(tmp_path):
    sweep = begin(tmp_path, grid={"steps": 40, "step_s": 0.02, "seed": [1, 2]})
    until(stepping(tmp_path, 1))
    os.kill(pids(tmp_path)[0], signal.SIGTERM)
    out, _ = sweep.communicate(timeout=PATIENCE_S)
    assert sweep.returncode == 1
    found = {(r["seed"], r["status"], r["error"]) for r in board(tmp_path)}
    assert found == {("1", "interrupted", "stopped by signal 15"), ("2", "completed", "")}
    assert "interrupted: seed=1: stopped by signal 15" in out


def test_jobs_of_a_sweep_that_is_killed_save_and_end(tmp_path):
    sweep = begin(tmp_path, grid={"steps": 5000, "step_s": 0.01, "seed": [1, 2]}, slots=2)
    until(stepping(tmp_path, 2))
    sweep.kill()
    sweep.communicate()
    until(lambda: gone(pids(tmp_path)))
    results = [json.loads(p.read_text()) for p in tmp_path.glob("*/result.json")]
    assert [r["status"] for r in results] == ["interrupted"] * 2


@pytest.mark.long
def test_a_job_that_a_killed_sweep_left_behind_is_waited_for(tmp_path):
    request = {"grid": {"do": "stubborn", "steps": 100, "step_s": 0.02}}
    sweep = begin(tmp_path, **request)
    until(stepping(tmp_path, 1))
    sweep.kill()
    sweep.communicate()
    left = pids(tmp_path)
    assert not gone(left)
    for pid in left:  # so that it is still there when the second sweep has started
        os.kill(pid, signal.SIGSTOP)
    again = begin(tmp_path, **request)
    watch = threading.Timer(PATIENCE_S, again.kill)
    watch.start()
    out = ""
    while "is still at work" not in out and (line := again.stdout.readline()):
        out += line
    for pid in left:
        os.kill(pid, signal.SIGCONT)
    watch.cancel()
    out += again.communicate(timeout=PATIENCE_S)[0]
    # It came to its end while the second sweep waited for it, so nothing was left to be done.
    assert again.returncode == 0, out
    assert "1 job of the sweep that was killed is still at work" in out
    assert "1 done already" in out
    assert steps_replayed(tmp_path, 100) == {next(tmp_path.glob("*/starts")).parent.name: 0}


def test_what_a_killed_job_leaves_behind_goes_with_it(tmp_path):
    from runner.sweep.local_process import LocalProcess

    code = "import os, time; os.fork() or time.sleep(60); time.sleep(0.2); os.kill(os.getpid(), 9)"
    process = LocalProcess([sys.executable, "-c", code], tmp_path / "job.log", dict(os.environ))
    until(lambda: process.poll() is not None)
    assert process.poll() == -signal.SIGKILL
    processes = list(Path("/proc").glob("[0-9]*"))
    until(lambda: not any(_session(p) == process.pid for p in processes))


def _session(process: Path) -> int | None:
    try:
        fields = (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[3])


@pytest.mark.long
def test_a_sweep_killed_at_random_moments_ends_every_job_exactly_once(tmp_path):
    seed = fault_seed()
    print("seed", seed)
    moment = random.Random(seed)
    what = ["ok", "raise", "sigkill_once", "memory"]
    grid = {"do": what, "steps": 6, "step_s": 0.02, "seed": [1, 2, 3]}
    request = {"grid": grid, "slots": 2, "retries": 1}
    for _ in range(4):
        sweep = begin(tmp_path, **request)
        until(lambda: (tmp_path / "study.db").exists())
        time.sleep(moment.uniform(0.0, 0.5))
        sweep.kill()
        sweep.communicate()
    last = begin(tmp_path, **request)
    out, _ = last.communicate(timeout=60)
    assert last.returncode == 1, out
    ended = {(r["do"], r["seed"]): r["status"] for r in board(tmp_path)}
    good = ("ok", "sigkill_once")
    assert ended == {
        (do, str(s)): "completed" if do in good else "failed" for do in what for s in (1, 2, 3)
    }
    assert len(starts(tmp_path)) == 12
    assert not list(tmp_path.glob("*/started-though-completed"))
    assert sum(steps_replayed(tmp_path, 6).values()) <= 4 * 2  # a step a running job and kill
    quiet = tmp_path / "quiet"
    begin(quiet, **request).communicate(timeout=60)
    assert _numbers(quiet) == _numbers(tmp_path)


def _numbers(directory: Path) -> list[tuple]:
    rows = board(directory)
    return [(r["do"], r["seed"], r["status"], r["validation/auc"], r["error"]) for r in rows]


@pytest.mark.long
def test_two_sweeps_in_one_directory_the_second_is_refused_and_names_the_first(tmp_path):
    request = {"grid": {"steps": 5000, "step_s": 0.01}}
    first = begin(tmp_path, **request)
    until(stepping(tmp_path, 1))
    second = begin(tmp_path, **request)
    out, _ = second.communicate(timeout=PATIENCE_S)
    assert second.returncode == 2
    assert f"another sweep is running here: process {first.pid} on" in out
    first.kill()
    first.communicate()
    until(lambda: gone(pids(tmp_path)))


def num_ended(directory: Path) -> int:
    try:
        study = sqlite3.connect(f"file:{directory / 'study.db'}?mode=ro", uri=True)
        with closing(study):
            query = "SELECT count(*) FROM runner_jobs WHERE status = 'completed'"
            return int(study.execute(query).fetchone()[0])
    except sqlite3.OperationalError:  # not there yet
        return 0


def many(directory: Path, count: int, kills: int) -> tuple[float, float]:
    """Run empty jobs through 8 slots in a sweep that is killed at random.

    Returns:
        Milliseconds of wall time and of processor time that an undisturbed sweep takes for a job.
    """
    seed = fault_seed()
    print("seed", seed)
    moment = random.Random(seed)
    request = {"grid": {"number": list(range(count))}, "start": "empty", "slots": 8}
    for kill in range(kills):
        done = num_ended(directory)
        goal = done + (count - done) * moment.uniform(0.2, 1.0) / (kills - kill)
        sweep = begin(directory, output=subprocess.DEVNULL, **request)
        while sweep.poll() is None and num_ended(directory) < goal:
            time.sleep(0.02)
        time.sleep(moment.uniform(0, 0.02))
        sweep.kill()
        sweep.communicate()
    last = begin(directory, **request)
    out, _ = last.communicate(timeout=1200)
    assert last.returncode == 0, out[-2000:]
    assert len(board(directory)) == count
    assert {r["status"] for r in board(directory)} == {"completed"}
    assert len(list(directory.glob("*/result.json"))) == count
    assert not list(directory.glob("*/started-though-completed"))
    study = sqlite3.connect(directory / "study.db")
    ends = "SELECT count(*), count(DISTINCT job) FROM runner_tries WHERE status = 'completed'"
    total, different = study.execute(ends).fetchone()
    assert total == different
    assert study.execute("SELECT count(*) FROM runner_tries WHERE ended IS NULL").fetchone() == (0,)
    started, before = time.monotonic(), _processor_s()
    quiet = begin(directory.with_name("quiet"), output=subprocess.DEVNULL, **request)
    quiet.communicate(timeout=1200)
    assert quiet.returncode == 0
    wall_s, cpu_s = time.monotonic() - started, _processor_s() - before
    return 1000 * wall_s / count, 1000 * cpu_s / count


def _processor_s() -> float:
    """Return the processor time of all processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.long
def test_empty_jobs_under_kills_end_once(tmp_path):
    wall, cpu = many(tmp_path / "s", 300, 4)
    assert num_ended(tmp_path / "s") == num_ended(tmp_path / "quiet") == 300
    print(f"{wall:.1f} ms a job, {cpu:.1f} of the processor")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_thousand_empty_jobs_under_twenty_kills_end_once(tmp_path):
    wall, cpu = many(tmp_path / "s", 10_000, 20)
    print(f"{wall:.2f} ms a job, {cpu:.2f} of the processor, at {os.getloadavg()[0]:.1f} load")
    assert cpu < 20
    if not is_busy():  # the clock also counts what others do
        assert wall < 20
