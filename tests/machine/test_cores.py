import os

import pytest

from runner.machine.cores import OPENMP_SPIN_COUNT, set_thread_environment, usable_cores
from tests.conftest import python


@pytest.mark.parametrize(
    ("quota", "expected"), [("max", 8), ("200000", 2), ("250000", 3), ("50000", 1)]
)
def test_a_containers_share_limits_the_cores(tmp_path, monkeypatch, quota, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text("0::/\n")
    (tmp_path / "cpu.max").write_text(f"{quota} 100000\n")
    assert usable_cores(tmp_path, tmp_path) == expected
    # version 1, seen from a container: the path of its group is not there
    (tmp_path / "self" / "cgroup").write_text("8:pids:/\n4:cpu,cpuacct:/docker/12ab\n0::/\n")
    (tmp_path / "cpu.max").unlink()
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1" if quota == "max" else quota)
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert usable_cores(tmp_path, tmp_path) == expected


def test_without_a_limit_it_is_the_affinity(tmp_path):
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from runner.machine.cores import usable_cores; print(usable_cores())"
    )
    assert python("-c", code).stdout == "1\n"


def test_what_the_user_has_set_stays():
    mine = {"GOMP_SPINCOUNT": "7"}
    set_thread_environment(3, mine)
    assert mine == {"GOMP_SPINCOUNT": "7", "OMP_NUM_THREADS": "3"}
    fresh: dict[str, str] = {}
    set_thread_environment(None, fresh)
    assert fresh == {"GOMP_SPINCOUNT": OPENMP_SPIN_COUNT, "OMP_NUM_THREADS": str(usable_cores())}
