"""A job's process: its command, its share of the machine, its signals, its end."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time

import pytest
from omegaconf import OmegaConf

from runner.config.hydra_text import hydra_value, quote_hydra_value, shell_override
from runner.config.overrides import parse_job_overrides
from runner.distributed import parent_death
from runner.sweep.local_process import (
    JOB_LOG_FILE,
    LocalProcess,
    is_log_open,
    job_command,
    process_start_ticks,
    split_devices,
    visible_devices,
    wait_for_orphans,
)
from runner.sweep.plan import SweepJob
from tests.sweep.test_killed import until


def ended(one: LocalProcess) -> int:
    until(lambda: one.poll() is not None)
    code = one.poll()
    assert code is not None
    return code


def python(code: str, log) -> LocalProcess:
    return LocalProcess([sys.executable, "-c", code], log, dict(os.environ))


def test_a_jobs_command_is_one_that_a_person_could_give(tmp_path):
    job = SweepJob("1", "1", ("optimizer=adam", "seed=1"), {})
    words = job_command(job, tmp_path / "a b", ["--allow", "mine"], 2)
    assert words[1:] == [
        *("-m", "runner", "--allow", "mine", "optimizer=adam", "seed=1"),
        *("trainer.num_threads=2", f"hydra.run.dir='{tmp_path}/a b'", "hydra.mode=RUN"),
    ]


@pytest.mark.parametrize(
    "path",
    [
        "out/x",
        "/a b/c",
        "/it's/x",
        "/a=b,c/[1]/{x}",
        "12/3",
        "/é/x",
        "/back\\slash/it\\'s",
        "/é/end\\",
    ],
)
def test_a_path_survives_hydras_grammar(path):
    (found,) = parse_job_overrides([f"hydra.run.dir={quote_hydra_value(path)}"])
    assert found.value() == path


@pytest.mark.parametrize(
    "value",
    [[{"pattern": r"^top\.\d", "frozen": True}], {"a b": 1e-5}, "é", 'it\'s "x"', "1", None],
)
def test_a_value_of_each_job_survives_hydras_grammar(value):
    (found,) = parse_job_overrides([f"key={hydra_value(value)}"])
    assert found.value() == value


def test_a_path_in_a_command_is_no_reference_to_another_key():
    [word] = shlex.split(shell_override("path", "/a/${x}/b"))
    [found] = parse_job_overrides([word])
    assert OmegaConf.create({"path": found.value()}).path == "/a/${x}/b"


def test_each_slot_gets_several_gpus_or_several_slots_share_one(monkeypatch):
    assert split_devices(["0", "1", "2", "3"], 2) == [["0", "1"], ["2", "3"]]
    assert split_devices(["4", "5"], 3) == [["4"], ["5"], ["4"]]
    assert split_devices(["0"], 2) is None
    assert split_devices(["0", "1"], 1) is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a, GPU-b")
    assert visible_devices() == ["GPU-a", "GPU-b"]
    for nothing in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", nothing)
        assert visible_devices() == []


def test_exit_codes_and_signals_come_through(tmp_path):
    assert ended(python("raise SystemExit(7)", tmp_path / JOB_LOG_FILE)) == 7
    assert ended(python("import os; os.kill(os.getpid(), 11)", tmp_path / JOB_LOG_FILE)) == -11
    sleeping = python(
        "import time; print('here', flush=True); time.sleep(60)", tmp_path / JOB_LOG_FILE
    )
    until(lambda: "here" in (tmp_path / JOB_LOG_FILE).read_text())
    sleeping.send_signal(signal.SIGTERM)
    assert ended(sleeping) == -15


def test_a_job_heeds_ctrl_c_even_if_its_sweep_was_started_to_ignore_it(tmp_path):
    code = (
        "import signal, sys; sys.path.insert(0, '.')\n"
        "from tests.sweep.test_local_process import python, ended\n"
        "from pathlib import Path\n"
        "code = 'import signal; print(signal.getsignal(2), signal.pthread_sigmask(0, []))'\n"
        f"ended(python(code, Path({str(tmp_path / JOB_LOG_FILE)!r})))"
    )
    ignoring = 'trap "" INT; exec "$@"'
    command = ["sh", "-c", ignoring, "sh", sys.executable, "-c", code]
    subprocess.run(command, check=True)
    assert (
        tmp_path / JOB_LOG_FILE
    ).read_text() == "<built-in function default_int_handler> set()\n"


def test_a_job_whose_sweep_died_before_it_could_begin_does_not_begin(tmp_path):
    command = [
        sys.executable,
        "-I",
        "-S",
        parent_death.__file__,
        "1",
        sys.executable,
        "-c",
        "print(1)",
    ]
    done = subprocess.run(command, check=False, capture_output=True)
    assert (done.returncode, done.stdout) == (143, b"")


def test_a_log_stays_in_use_while_any_process_of_the_job_lives(tmp_path):
    log = tmp_path / JOB_LOG_FILE
    assert not is_log_open(log)
    one = python("import time; time.sleep(60)", log)
    assert is_log_open(log)
    assert process_start_ticks(one.pid) is not None
    one.kill()
    ended(one)
    assert not is_log_open(log)
    assert process_start_ticks(one.pid) is None


@pytest.mark.long
def test_an_orphan_that_does_not_end_is_killed_unless_its_number_is_another_process_now(tmp_path):
    stubborn = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True);"
        "time.sleep(60)"
    )
    log = tmp_path / JOB_LOG_FILE
    one = python(stubborn, log)
    until(lambda: log.read_text())
    began = process_start_ticks(one.pid)
    assert began is not None
    started = time.monotonic()
    assert wait_for_orphans([(log, one.pid, began - 1)], grace_s=0.1) == 1
    assert one.poll() is None
    assert wait_for_orphans([(log, one.pid, began)], grace_s=0.1) == 1
    assert ended(one) == -9
    assert time.monotonic() - started < 5
    assert wait_for_orphans([(log, one.pid, began)], grace_s=60) == 0


def test_a_job_killed_for_lack_of_memory_is_reported_as_that(tmp_path):
    """The sweep runs in a memory cgroup of its own, where this process may make one."""
    from pathlib import Path

    from tests.sweep.test_sweep import board

    for root in (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")):
        group = root / f"runner-test-{os.getpid()}"
        limit = "memory.limit_in_bytes" if root.name == "memory" else "memory.max"
        try:
            group.mkdir()
            (group / limit).write_text(str(512 << 20))
            break
        except OSError:
            if group.exists():
                group.rmdir()
    else:
        pytest.skip("not allowed to make a memory cgroup here")
    what = ["oom", "ok", "sigkill"]
    request = json.dumps({"directory": str(tmp_path), "grid": {"do": what}, "slots": 1})
    enter = f'echo $$ > {group}/cgroup.procs; exec "$@"'
    command = ["sh", "-c", enter, "sh", sys.executable, "-m", "tests.sweep.driver", request]
    try:
        assert subprocess.run(command, timeout=60).returncode == 1
    finally:
        group.rmdir()
    errors = {row["do"]: row["error"] for row in board(tmp_path)}
    told = "killed by signal 9, probably out of memory: the system killed a process for want of it"
    assert errors == {"oom": f"{told} meanwhile", "ok": "", "sigkill": "killed by signal 9"}


def test_command_lines_of_jobs_are_recorded_as_json_lists(tmp_path):
    import sqlite3

    from tests.sweep.driver import grid, run

    assert run(tmp_path, grid(value=[0.5])) == 0
    (text,) = (
        sqlite3.connect(tmp_path / "study.db")
        .execute("SELECT overrides FROM runner_jobs")
        .fetchone()
    )
    assert json.loads(text) == ["value=0.5"]
