"""The short tier of `python -m tests.dist.faults`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Zygote
from tests.dist.faults import Trial, outcome, start, trials


@pytest.fixture(scope="module")
def untouched(runner: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("untouched") / "run"
    process = start(runner, folder)
    assert process.wait() == 0, process.text
    return folder


@pytest.mark.parametrize(
    "trial",
    [
        Trial("killed", "collective", 1, 77),
        pytest.param(Trial("killed", "checkpoint", 0, 9), marks=pytest.mark.slow),
        pytest.param(Trial("stopped", "collective", 0, 60), marks=pytest.mark.slow),
        pytest.param(Trial("stopped", "checkpoint", 1, 5), marks=pytest.mark.slow),
    ],
    ids=lambda t: f"{t.fault}-{t.point}",
)
def test_a_rank_lost_in_an_exchange_or_a_checkpoint_costs_nothing(
    runner, untouched, tmp_path, trial
):
    assert outcome(runner, trial, tmp_path / "run", untouched) == "well"


def test_the_full_tier_has_every_fault_at_every_point_on_both_ranks():
    kinds = {(t.fault, t.point, t.rank) for t in trials(60, 0)}
    assert len(kinds) == 12 and len(trials(60, 0)) == 60
