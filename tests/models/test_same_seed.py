"""The same seed on combinations of what `conf/` offers: a sample, and in the slow tier all."""

from __future__ import annotations

import pytest

from tests.fault_table import check_row, run_fault_script, run_selected_faults
from tests.models.fault_same_seed import FAULTS, PIPELINES, covering_cases
from tests.models.test_same_twice import HISTORY, MODELS, OPTIMIZERS, RETRIEVAL

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
@pytest.mark.timeout(14_400)
def test_every_combination_is_equal_to_the_last_bit(runner):
    table = run_fault_script(runner, MODULE)
    for fault in FAULTS:
        check_row(table[fault], {"every_combination": 4_000, "whole_runs": 55}[fault])


def test_the_cases_cover_every_pair_of_a_pipeline_and_something_else():
    cases = list(covering_cases())
    for pipeline in PIPELINES:
        of_pipeline = [case for case in cases if case[2] == pipeline]
        assert {case[1] for case in of_pipeline} == set(OPTIMIZERS)
        assert {case[3] for case in of_pipeline} == {1, 2, 3}
        models = {case[0] for case in of_pipeline}
        assert {model for model in MODELS if model not in models} == {*RETRIEVAL, *HISTORY}
