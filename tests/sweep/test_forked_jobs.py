"""Jobs that are forked from one process: children of the sweep that differ from others in nothing.

Most tests take a server that imports no libraries, and jobs that are stand-ins.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from runner.config import composed_checks, groups  # noqa: F401  (the server has both)
from runner.config.compose import compose_job
from runner.launch import fork_server
from runner.sweep import forked_jobs
from runner.sweep.forked_jobs import ForkedJobs
from runner.sweep.local_process import LocalProcess
from tests.conftest import ROOT, python
from tests.sweep.driver import LIGHT_SERVER
from tests.sweep.test_killed import begin, gone, pids, stepping, until
from tests.sweep.test_local_process import ended

TINY = (
    "dataset.rows={train: 600, validation: 200, test: 200}",
    *("dataset.max_cardinality=100", "trainer.batch_size=100", "trainer.max_steps=10"),
    *("model.net.bottom=[8]", "model.net.top=[8]", "model.net.embedding_dim=4"),
)


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Return a function that forks `python -m MODULE WORD...` and returns its process."""
    monkeypatch.setattr(forked_jobs, "SERVER", LIGHT_SERVER)
    # the module `code` runs what it is given
    (tmp_path / "code.py").write_text("import sys; exec(sys.argv[1])")
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    jobs = ForkedJobs(True)

    def start(code: str, *, threads: int = 1, ranks: int = 1, **more: str) -> LocalProcess:
        words = [sys.executable, "-m", "code", code]
        fork = jobs.starter({**env, **more}, threads, ranks)
        return LocalProcess(words, tmp_path / "job.log", {**env, **more}, fork)

    start.jobs, start.log = jobs, tmp_path / "job.log"
    return start


@pytest.mark.long
def test_options_are_composed_once_for_all_jobs_that_choose_them():
    def command(*words: str) -> list[str]:
        return [sys.executable, "-m", "runner", "--allow", "tests", *words, "hydra.mode=RUN"]

    composed: set[tuple[str, ...]] = set()
    chosen = ("optimizer=adam", "model/loss=focal")
    for rate, folder in ((0.1, "a"), (0.2, "b")):
        words = (*chosen, f"optimizer.dense.lr={rate}", f"hydra.run.dir={folder}")
        fork_server._compose_options(command(*words, "run=none"), composed)
        before = groups._compose.cache_info().misses
        job = compose_job([*words, "hydra.mode=RUN"])
        assert groups._compose.cache_info().misses == before
        assert job.run_dir == folder and job.config["optimizer"]["dense"]["lr"] == rate
    assert composed == {(*chosen, "hydra.mode=RUN")}
    fork_server._compose_options(command("optimizer=adma"), composed)  # the job tells of it
    for own in (["--config-dir", "mine"], ["--config-dir=mine"], ["-cd", "mine"]):
        fork_server._compose_options(command("optimizer=mine", *own), composed)
    assert not any("optimizer=mine" in words for words in composed)


def is_fork(one: LocalProcess) -> bool:
    return one._process is None


def test_a_fork_is_a_child_of_the_sweep_and_begins_as_a_new_process_does(start):
    code = (
        "import os, random, signal, sys, json\n"
        "handlers = [str(signal.getsignal(n)) for n in (1, 2, 15)]\n"
        "print(json.dumps({'parent': os.getppid(), 'leads': os.getsid(0) == os.getpid(), "
        "'handlers': handlers, 'blocked': len(signal.pthread_sigmask(0, [])), 'argv': sys.argv, "
        "'whole': sys.orig_argv, 'env': dict(os.environ), 'cwd': os.getcwd(), "
        "'path': sys.path[1:], 'main': __name__, 'root': len(__import__('logging').root.handlers), "
        "'fds': len(os.listdir('/proc/self/fd')), 'stdin': os.readlink('/proc/self/fd/0'), "
        "'threads': len(os.listdir('/proc/self/task'))}))"
    )
    assert ended(fork := start(code)) == 0
    assert ended(alone := start(code, ranks=2)) == 0
    assert is_fork(fork) and not is_fork(alone)
    forked, fresh = (json.loads(line) for line in start.log.read_text().splitlines())
    assert forked["parent"] == os.getpid()
    assert forked["threads"] == 1
    assert forked == fresh


def test_two_forks_draw_different_numbers(start):
    for _ in range(2):
        assert ended(start("import random; print(random.random())")) == 0
    one, other = start.log.read_text().split()
    assert one != other


def test_exit_codes_and_signals_of_forks_come_through(start):
    assert ended(start("sys.exit(3)")) == 3
    assert ended(start("raise ValueError('so')")) == 1
    assert start.log.read_text().endswith("ValueError: so\n")
    assert ended(start("import os; os.kill(os.getpid(), 9)")) == -9
    sleeper = start("import time; print('up', flush=True); time.sleep(60)")
    until(lambda: start.log.read_text().endswith("up\n"))
    sleeper.send_signal(signal.SIGTERM)
    assert ended(sleeper) == -signal.SIGTERM
    sleeper.send_signal(signal.SIGTERM)  # to one that has ended: nothing
    assert is_fork(sleeper)


def test_a_server_that_is_killed_leaves_its_jobs_and_the_sweep_goes_on(start, capsys):
    going = start("print('up', flush=True); import time; time.sleep(0.5); sys.exit(4)")
    until(lambda: start.log.exists() and "up" in start.log.read_text())
    os.kill(start.jobs.server.pid, signal.SIGKILL)
    following = [start("sys.exit(5)") for _ in range(2)]
    assert [is_fork(job) for job in following] == [False, False]
    assert [ended(job) for job in (going, *following)] == [4, 5, 5]
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "each imports for itself (launcher.fork_server): it has ended with exit code -9" in error


def test_a_job_that_the_sweep_does_not_know_of_never_begins(start, monkeypatch, tmp_path):
    """The server is killed after it has forked, but before it could say so."""
    lost = tmp_path / "began"
    monkeypatch.setattr(
        forked_jobs,
        "SERVER",
        (
            "-c",
            "import os; from runner.launch import fork_server as s; s.MODULES = ()\n"
            "twice = s._fork_twice\n"
            f"def then_die():\n    pid = twice()\n    open({str(tmp_path / 'pid')!r}, 'w')"
            ".write(str(pid)) if pid else None\n    return pid and os.kill(os.getpid(), 9)\n"
            "s._fork_twice = then_die\ns.main()",
        ),
    )
    code = f"import os; open({str(lost)!r}, 'a').write(str(os.getpid()) + ' ')"
    assert ended(one := start(code)) == 0
    forked = int((tmp_path / "pid").read_text())
    assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 143  # ours: it was adopted
    assert lost.read_text().split() == [str(one.pid)]


@pytest.mark.parametrize("other", [{"threads": 2}, {"ranks": 2}, {"OMP_PROC_BIND": "true"}])
def test_a_job_that_needs_other_imports_is_a_new_process(start, other):
    assert is_fork(first := start("sys.exit(0)"))
    assert not is_fork(one := start("sys.exit(0)", **other))
    assert is_fork(last := start("sys.exit(0)"))
    assert [ended(job) for job in (first, one, last)] == [0, 0, 0]


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("s.MODULES = ('no_such',)", "ModuleNotFoundError: No module named 'no_such'"),
        (
            "import itertools; s._source_versions = itertools.count().__next__",
            "the runner's code has changed since",
        ),
        (
            "import threading, time; threading.Thread(target=time.sleep, args=(9,)).start()",
            "threads that the imports have started: 1",
        ),
        (
            "import sys, types; sys.modules['torch.cuda'] = "
            "types.SimpleNamespace(is_initialized=lambda: True)",
            "CUDA is in use",
        ),
    ],
)
def test_where_forking_is_not_safe_the_reason_is_told(start, monkeypatch, capsys, setting, reason):
    light = "from runner.launch import fork_server as s; s.MODULES = ();"
    monkeypatch.setattr(forked_jobs, "SERVER", ("-c", f"{light} {setting}\ns.main()"))
    assert not is_fork(one := start("sys.exit(3)"))
    assert ended(one) == 3
    assert reason in capsys.readouterr().err


def test_a_signal_does_not_wait_for_the_imports(start, monkeypatch):
    slow = "from runner.launch import fork_server as s; import time; time.sleep(60)"
    monkeypatch.setattr(forked_jobs, "SERVER", ("-c", slow))
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    parent = os.getpid()
    helper = subprocess.Popen(
        [sys.executable, "-c", f"import os, time; time.sleep(.2); os.kill({parent}, 10)"]
    )
    try:
        assert ended(one := start("sys.exit(6)")) == 6
    finally:
        helper.wait()
        signal.signal(signal.SIGUSR1, before)
    assert not is_fork(one)


def test_forked_jobs_of_a_sweep_that_is_killed_save_and_end(tmp_path):
    grid = {"steps": 5000, "step_s": 0.01, "seed": [1, 2]}
    sweep = begin(tmp_path, grid=grid, slots=2, start="forked")
    until(stepping(tmp_path, 2))
    jobs, started = pids(tmp_path), _children(sweep.pid)
    assert set(jobs) < set(started)  # the third is the server
    sweep.kill()
    sweep.communicate()
    until(lambda: gone(started))
    results = [json.loads(p.read_text()) for p in tmp_path.glob("*/result.json")]
    assert [r["status"] for r in results] == ["interrupted"] * 2


def _children(pid: int) -> list[int]:
    return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.slow
def test_ctrl_c_reaches_forked_jobs_and_the_same_command_goes_on(tmp_path):
    request = {"grid": {"steps": 60, "step_s": 0.005, "seed": [1, 2]}, "start": "forked"}
    sweep = begin(tmp_path, **request)
    until(stepping(tmp_path, 1))
    sweep.send_signal(signal.SIGINT)
    out, _ = sweep.communicate()
    assert sweep.returncode == 130, out
    again = begin(tmp_path, **request)
    out, _ = again.communicate()
    assert again.returncode == 0, out
    assert "2 completed" in out


@pytest.mark.slow
def test_a_forked_run_is_the_run_of_a_new_process_to_the_last_bit(tmp_path):
    """Two threads, so that the libraries have threads of their own, and one BLAS call for each."""
    for place, setting in (("forked", "true"), ("fresh", "false")):
        words = [
            "-m",
            "seed=1,2",
            *TINY,
            "trainer.num_threads=2",
            f"launcher.fork_server={setting}",
        ]
        words.append(f"hydra.sweep.dir={tmp_path / place}")
        done = python("-m", "runner", *words)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "forked no more" not in done.stderr
    forked, fresh = (_results(tmp_path / place) for place in ("forked", "fresh"))
    assert len(forked) == 2
    assert forked == fresh


def _results(place: Path) -> list[dict]:
    """Return what a run leaves, without its times, its number and its place."""
    found = []
    for folder in sorted(p.parent for p in place.glob("*/meta.json")):
        meta = json.loads((folder / "meta.json").read_text())
        own = {"created", "pid", "run_id", "command", "overrides"}
        text = (folder / "log.txt").read_text()
        tables = sorted(folder.glob("checkpoints/*/*.safetensors"))
        assert tables
        found.append(
            {
                "words": [w for w in meta["command"] if "dir=" not in w and "fork" not in w],
                "meta": {key: value for key, value in meta.items() if key not in own},
                "metrics": (folder / "metrics.jsonl").read_text(),
                "weights": [(t.parent.name, t.name, t.read_bytes()) for t in tables],
                "log": [line.split(" ", 3)[2:3] for line in text.splitlines()],
                "files": sorted(str(p.relative_to(folder)) for p in folder.rglob("*")),
            }
        )
    return found
