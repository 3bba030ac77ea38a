"""Python's garbage collector: what a process imports is looked at by no full collection."""

from textwrap import dedent

import pytest

from tests.conftest import python

# `gc` is watched from before `python -m runner` begins to its end
WATCHED = """
import atexit, gc, runpy, sys
full = []
gc.callbacks.append(lambda phase, info: full.append(info["generation"]) if phase == "stop" else 0)
usual = gc.get_threshold()
def tell():
    print("full", full.count(2), "frozen", gc.get_freeze_count(), gc.get_threshold() == usual)
atexit.register(tell)
sys.argv[0] = "runner"
runpy.run_module("runner", run_name="__main__", alter_sys=True)
"""


@pytest.mark.long
def test_a_job_makes_no_full_collection_of_what_it_imports(tmp_path):
    words = ("loop=debug", "trainer.num_threads=1", "model.net.bottom=[4]", "model.net.top=[4]")
    done = python("-c", WATCHED, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    _, num_full, _, num_frozen, is_usual = done.stdout.splitlines()[-1].split()
    assert num_full == "0"
    assert int(num_frozen) > 200_000
    assert is_usual == "True"


def test_a_process_of_the_users_own_keeps_its_collector():
    code = """
    import gc
    from runner.machine.imports import end_imports, postpone_full_collections
    usual, frozen = gc.get_threshold(), gc.get_freeze_count()  # Python 3.12 starts with some
    end_imports()
    assert gc.get_threshold() == usual and gc.get_freeze_count() == frozen
    postpone_full_collections()
    assert gc.get_threshold()[:2] == usual[:2] and gc.get_threshold()[2] > 1000 * usual[2]
    end_imports()
    assert gc.get_threshold() == usual and gc.get_freeze_count() > frozen
    """
    done = python("-c", dedent(code))
    assert done.returncode == 0, done.stderr
