"""A few trials of `python -m tests.distributed.faults`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Zygote
from tests.distributed.faults import POINTS, Trial, count_points, outcome, trials


@pytest.fixture(scope="module")
def untouched(runner: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("untouched") / "run"
    counts = count_points(runner, folder)
    assert all(counts[rank][point] > 4 for rank in (0, 1) for point in POINTS), counts
    assert counts[1]["checkpoint"] == LAST
    return folder


LAST = 8  # of rank 1, in the last checkpoint: no exchange comes after it that would notice


@pytest.mark.long
@pytest.mark.parametrize(
    "trial",
    [
        Trial("killed", "collective", 1, 77),
        pytest.param(Trial("killed", "checkpoint", 0, 9), marks=pytest.mark.slow),
        pytest.param(Trial("stopped", "collective", 0, 60), marks=pytest.mark.slow),
        pytest.param(Trial("stopped", "checkpoint", 1, 5), marks=pytest.mark.slow),
        pytest.param(Trial("stopped", "checkpoint", 1, LAST), marks=pytest.mark.slow),
    ],
    ids=lambda t: f"{t.fault}-{t.point}",
)
def test_a_run_that_loses_a_rank_resumes_to_the_same_result(runner, untouched, tmp_path, trial):
    assert outcome(runner, trial, tmp_path / "run", untouched) == "well"


def test_sixty_trials_have_every_fault_at_every_point_on_both_ranks():
    counts = [{"step": 30, "collective": 150, "checkpoint": n} for n in (24, 6)]
    chosen = trials(60, 0, counts)
    kinds = {(t.fault, t.point, t.rank) for t in chosen}
    assert len(kinds) == 12 and len(chosen) == 60
    assert all(1 <= t.count <= counts[t.rank][t.point] for t in chosen)
