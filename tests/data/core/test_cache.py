from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from runner.data.core import cache
from runner.errors import DataError

pytestmark = pytest.mark.usefixtures("own_cache")
PREPARE_ONCE = """
import sys, time
from runner.data.core import cache

def make(folder):
    with open(sys.argv[1], "a") as log:
        log.write("made\\n")
    time.sleep(0.5)
    (folder / "part").write_text("content")
    return {"answer": 42}

folder = cache.get_or_prepare("thing", "key", make)
assert cache.read_contents(folder) == {"answer": 42}
print((folder / "part").read_text())
"""


def maker(text="content"):
    def make(folder):
        (folder / "part").write_text(text)
        return {"text": text}

    return make


def fail_if_called(folder):
    pytest.fail("it was made again")


def test_two_processes_that_ask_at_once_make_it_once(own_cache, tmp_path):
    log = tmp_path / "log"
    command = [sys.executable, "-c", PREPARE_ONCE, str(log)]
    jobs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [job.communicate()[0] for job in jobs] == ["content\n"] * 3
    assert log.read_text() == "made\n"


def test_it_is_made_once_and_found_again():
    folder = cache.get_or_prepare("thing", "key", maker())
    assert cache.get_or_prepare("thing", "key", fail_if_called) == folder
    assert cache.read_contents(folder) == {"text": "content"}


@pytest.mark.parametrize("error", [RuntimeError("bad"), KeyboardInterrupt()])
def test_nothing_is_left_of_a_maker_that_failed(own_cache, error):
    def make(folder):
        (folder / "half").write_text("x")
        raise error

    with pytest.raises(type(error)):
        cache.get_or_prepare("thing", "key", make)
    assert [path.name for path in own_cache.iterdir()] == ["thing-key.lock"]
    assert (cache.get_or_prepare("thing", "key", maker()) / "part").exists()


def test_leftovers_of_a_killed_maker_are_removed(own_cache):
    (own_cache / "thing-key.tmp").mkdir(parents=True)
    (own_cache / "thing-key.tmp" / "half").write_text("x")
    folder = cache.get_or_prepare("thing", "key", maker())
    assert sorted(path.name for path in folder.iterdir()) == ["part", "prepared.json"]


@pytest.mark.parametrize("damage", ["cut", "gone", "no list", "cut list", "folder"])
def test_a_damaged_folder_is_made_again(damage):
    folder = cache.get_or_prepare("thing", "key", maker("first"))
    if damage == "cut":
        (folder / "part").write_text("fir")
    elif damage == "gone":
        (folder / "part").unlink()
    elif damage == "no list":
        (folder / cache.PREPARED_FILE).unlink()
    elif damage == "folder":
        (folder / cache.PREPARED_FILE).unlink()
        (folder / cache.PREPARED_FILE).mkdir()
    else:
        (folder / cache.PREPARED_FILE).write_text('{"sizes": {')
    again = cache.get_or_prepare("thing", "key", maker("second"))
    assert (again / "part").read_text() == "second"


def test_a_cache_that_cannot_be_written_is_a_clear_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"cannot prepare thing data in .*RUNNER_CACHE names"):
        cache.get_or_prepare("thing", "key", maker())


def test_the_place_follows_the_environment(tmp_path, monkeypatch):
    assert cache.cache_root() == tmp_path / "cache"
    monkeypatch.delenv("RUNNER_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.cache_root() == tmp_path / "xdg" / "runner"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.cache_root() == tmp_path / ".cache" / "runner"


def test_a_user_without_a_home_is_told_which_variable_names_a_folder(monkeypatch):
    for name in ("RUNNER_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 54321)  # has no entry in /etc/passwd
    with pytest.raises(DataError, match=r"user 54321 has no entry in /etc/passwd; RUNNER_CACHE"):
        cache.cache_root()


def test_the_list_of_files_holds_their_sizes(own_cache):
    folder = cache.get_or_prepare("thing", "key", maker("12345"))
    assert json.loads((folder / cache.PREPARED_FILE).read_text())["sizes"] == {"part": 5}
