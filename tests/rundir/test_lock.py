import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from runner.errors import UserError
from runner.rundir.lock import FolderLock, describe_holder, is_locked
from runner.serving.write_aside import private_folder_beside

HOLD = """
import sys, time
from pathlib import Path
from runner.rundir.lock import FolderLock
lock = FolderLock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def other(tmp_path):
    """Another process that holds the lock on tmp_path."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def test_a_second_writer_is_refused_with_the_name_of_the_first(tmp_path, other):
    with pytest.raises(UserError, match=f"process {other.pid} on "):
        FolderLock(tmp_path)
    assert is_locked(tmp_path)


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path, other):
    other.send_signal(signal.SIGKILL)
    other.wait()
    assert not is_locked(tmp_path)
    lock = FolderLock(tmp_path)
    assert f"process {os.getpid()} on " in describe_holder(tmp_path)
    lock.release()
    assert not is_locked(tmp_path)


def test_a_forked_child_that_outlives_the_run_does_not_hold_its_lock(tmp_path):
    code = """
import os, sys, time
from pathlib import Path
from runner.rundir.lock import FolderLock
lock = FolderLock(Path(sys.argv[1]))
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
print(child, flush=True)
os.kill(os.getpid(), 9)
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    child = int(parent.stdout.readline())
    assert parent.wait() == -signal.SIGKILL
    try:
        os.kill(child, 0)
        deadline = time.monotonic() + 10  # the child lets go when it first runs
        while is_locked(tmp_path) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not is_locked(tmp_path)
        os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_start_is_not_refused_because_another_process_looks_at_the_lock(tmp_path):
    FolderLock(tmp_path).release()
    look = os.open(tmp_path / ".lock", os.O_RDONLY)
    fcntl.flock(look, fcntl.LOCK_SH)  # as `is_locked` does
    timer = threading.Timer(0.03, os.close, [look])
    timer.start()
    lock = FolderLock(tmp_path)
    timer.join()
    assert is_locked(tmp_path)
    lock.release()


def test_a_lock_without_text_still_refuses(tmp_path, other):
    (tmp_path / ".lock").write_text("")
    with pytest.raises(UserError, match="which process is not known"):
        FolderLock(tmp_path)


def test_a_folder_without_a_lock_is_not_locked(tmp_path):
    assert not is_locked(tmp_path)
    assert not is_locked(Path("nowhere"))


def test_a_lock_whose_text_could_not_be_written_is_let_go(tmp_path, monkeypatch):
    with monkeypatch.context() as full_disk:
        full_disk.setattr(os, "pwrite", _no_space)
        with pytest.raises(OSError, match="No space left"):
            FolderLock(tmp_path)
    FolderLock(tmp_path).release()  # the same process may try again


def test_a_private_folder_that_cannot_be_locked_is_not_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "pwrite", _no_space)
    with (
        pytest.raises(UserError, match="cannot be written: No space left"),
        private_folder_beside(tmp_path / "model"),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def _no_space(*arguments: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
