"""The same seed on combinations of what `conf/` offers: a sample, and in the slow tier every two.

The matrix of all faults (`python -m tests.reliability`) trains all of them.
"""

from __future__ import annotations

import itertools

import pytest

from tests.fault_table import check_row, run_fault_script, run_selected_faults
from tests.models.fault_same_seed import (
    PIPELINES,
    THREADS,
    covering_cases,
    covering_pairs,
    train_alike,
)
from tests.models.test_same_twice import HISTORY, LOSSES, MODELS, OPTIMIZERS, RETRIEVAL, losses_of

MODULE = "tests.models.fault_same_seed"


@pytest.fixture(scope="module")
def table(request: pytest.FixtureRequest) -> dict[str, dict]:
    return run_selected_faults(request, MODULE)


@pytest.mark.long
@pytest.mark.parametrize(("fault", "least"), [("every_combination", 4), ("whole_runs", 1)])
def test_a_sample_of_combinations_is_equal_to_the_last_bit(table, fault, least):
    check_row(table[fault], least)
    assert table[fault]["cases"]["equal"] > 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("model", MODELS)
def test_every_loss_and_every_optimizer_of_a_model_is_equal_to_the_last_bit(model):
    for threads, (loss, optimizer) in itertools.product(THREADS, sorted(covering_pairs(model))):
        assert train_alike(model, loss, optimizer, threads) == "equal"
    for loss in set(LOSSES) - set(losses_of(model)):
        assert train_alike(model, loss, "sgd", 1) == "refused"


def test_the_cases_cover_every_pair_of_a_model_a_loss_and_an_optimizer():
    cases = {(model, *pair) for model in MODELS for pair in covering_pairs(model)}
    assert {case[:2] for case in cases} == {(m, loss) for m in MODELS for loss in losses_of(m)}
    assert {case[::2] for case in cases} == set(itertools.product(MODELS, OPTIMIZERS))
    assert {case[1:] for case in cases} == set(itertools.product(LOSSES, OPTIMIZERS))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_whole_runs_are_equal_to_the_last_bit(runner):
    check_row(run_fault_script(runner, MODULE, "whole_runs")["whole_runs"], 55)


def test_the_cases_cover_every_pair_of_a_pipeline_and_something_else():
    cases = list(covering_cases())
    for pipeline in PIPELINES:
        of_pipeline = [case for case in cases if case[2] == pipeline]
        assert {case[1] for case in of_pipeline} == set(OPTIMIZERS)
        assert {case[3] for case in of_pipeline} == {1, 2, 3}
        models = {case[0] for case in of_pipeline}
        assert {model for model in MODELS if model not in models} == {*RETRIEVAL, *HISTORY}
