"""The rows of an update: one count, whatever shares them, and one place that multiplies them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from runner.distributed import global_batch
from runner.distributed.global_batch import (
    batches_per_update,
    configured_global_batch_size,
    global_batch_size,
    rank_batch_size,
)

PACKAGE = Path(global_batch.__file__).parent.parent


@pytest.mark.parametrize(
    ("trainer", "rows"),
    [
        ({"batch_size": 6}, 6),
        ({"batch_size": 6, "accumulate": None, "num_processes": None}, 6),
        ({"batch_size": 6, "accumulate": 2}, 12),
        ({"batch_size": 6, "num_processes": 3}, 18),
        ({"batch_size": 6, "accumulate": 2, "num_processes": 3}, 36),
    ],
)
def test_the_rows_of_a_configuration_count_missing_keys_once(trainer, rows):
    assert configured_global_batch_size(trainer) == rows


def test_the_rows_of_an_update_are_those_of_its_ranks_and_of_its_micro_batches():
    assert batches_per_update(2, 3) == 6
    assert global_batch_size(7, 2, 3) == 7 * 6
    assert rank_batch_size(7, 2, batch_multiplier=5) == 70
    assert global_batch_size(7, 2, 3, batch_multiplier=5) == 3 * 70


@pytest.mark.long
def test_no_other_module_multiplies_by_accumulate():
    wrong = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in PACKAGE.rglob("*.py")
        if path != Path(global_batch.__file__)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Mult)
        and "accumulate" in ast.unparse(node)
        and "global_batch" not in ast.unparse(node)
    ]
    assert not wrong
