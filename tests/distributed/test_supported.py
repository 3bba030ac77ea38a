"""What docs/ranks.md says of optimizers and plans is what the code does."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest
import torch
from fbgemm_gpu import split_table_batched_embeddings_ops_training
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)

from runner.embeddings.cpu_tables import CpuTables
from runner.embeddings.factory import build_uninitialized_tables
from runner.embeddings.fbgemm_tables import FBGEMM_OPTIMIZERS, FbgemmTables
from runner.embeddings.interface import TableSpec
from runner.embeddings.sharding_rules import TableRules, early_plan_problems
from runner.embeddings.sharding_settings import FBGEMM_CPU_KINDS, PLANS, check_sharding, engine_name
from runner.optim.settings import SPARSE_KINDS, parse_sparse

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "ranks.md"


def support_matrix() -> str:
    """Return a Markdown table of the engines by optimizer and plan, on CPU / on CUDA."""
    lines = [f"| | one process | {' | '.join(PLANS)} |", f"|---|---{'|---' * len(PLANS)}|"]
    for kind in SPARSE_KINDS:
        cells = [
            {"sgd": "FBGEMM", "rowwise_adagrad": "FBGEMM or ours / FBGEMM"}.get(
                kind, "ours / FBGEMM"
            )
        ]
        for plan in PLANS:
            on_cpu, on_cuda = (
                engine_name(plan, kind, on_cpu=c) or "refused" for c in (True, False)
            )
            cells.append(on_cpu if on_cpu == on_cuda else f"{on_cpu} / {on_cuda}")
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    return "\n".join(lines)


def test_the_table_of_the_readme_is_that_of_the_code():
    assert support_matrix() in PAGE.read_text()


def test_every_optimizer_has_a_plan_that_keeps_rows_whole_and_columns_only_where_exact():
    for kind in SPARSE_KINDS:
        for plan in set(PLANS) - {"column_wise"}:
            assert engine_name(plan, kind, on_cpu=True)
            assert bool(engine_name(plan, kind, on_cpu=False)) == (plan != "disk")
    split = {kind for kind in SPARSE_KINDS if engine_name("column_wise", kind, on_cpu=False)}
    assert split == {"sgd", "adagrad", "adam"}
    assert {kind for kind in SPARSE_KINDS if engine_name("column_wise", kind, on_cpu=True)} == {
        "sgd",
        "adagrad",
    }
    assert set(FBGEMM_CPU_KINDS) <= set(SPARSE_KINDS)


def test_a_refusal_names_key_reason_and_what_works():
    node = {"plan": "row_wise", "tables": {"user": "column_wise"}}
    assert check_sharding(node) == []
    [message] = early_plan_problems(node, TableRules("lamb"), on_cpu=True)
    assert message.startswith("sharding.tables.user=column_wise")
    assert "norm of a whole row" in message and "row_wise" in message
    [message] = check_sharding({"tables": {"user": "colum_wise"}})
    assert "nearest: 'column_wise'" in message


def fbgemm_lists() -> list[set[str]]:
    """Return the optimizers that FBGEMM's source accepts by name on CPU, and those on CUDA."""
    tree = ast.parse(inspect.getsource(split_table_batched_embeddings_ops_training))
    tables = SplitTableBatchedEmbeddingBagsCodegen.__name__
    [cls] = [n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == tables]
    return [
        {e.attr for e in node.test.comparators[0].elts}
        for node in ast.walk(cls)
        if isinstance(node, ast.Assert)
        and isinstance(node.test, ast.Compare)
        and getattr(node.test.left, "id", "") == "optimizer"
        and isinstance(node.test.comparators[0], ast.Tuple)
        and "is not supported" in ast.unparse(node.msg or ast.Constant(""))
    ]


def test_fbgemm_has_the_kernels_that_the_table_counts_on():
    on_cpu, on_cuda = fbgemm_lists()
    names = {kind: kernel.name for kind, kernel in FBGEMM_OPTIMIZERS.items()}
    assert names.keys() == SPARSE_KINDS.keys()
    assert {kind for kind, name in names.items() if name in on_cpu} == set(FBGEMM_CPU_KINDS)
    assert {kind for kind, name in names.items() if name in on_cuda} == set(SPARSE_KINDS)


@pytest.mark.parametrize("kind", SPARSE_KINDS)
def test_in_one_process_on_cpu_the_engine_is_that_of_the_table(kind):
    settings = parse_sparse({"kind": kind, "lr": 0.1})
    tables = build_uninitialized_tables(
        [TableSpec("t", 10, 4, ("f",))], ("f",), settings, torch.device("cpu")
    )
    [row] = [line for line in support_matrix().splitlines() if line.startswith(f"| {kind} ")]
    documented = row.split("|")[2].strip().split(" / ")[0].split(" or ")
    assert {FbgemmTables: "FBGEMM", CpuTables: "ours"}[type(tables)] in documented


@pytest.mark.parametrize("kind", sorted(set(SPARSE_KINDS) - set(FBGEMM_CPU_KINDS)))
def test_fbgemm_refuses_on_cpu_what_the_table_lists_without_a_kernel(kind):
    with pytest.raises(AssertionError, match="not supported in CPU mode"):
        SplitTableBatchedEmbeddingBagsCodegen(
            embedding_specs=[(10, 4, EmbeddingLocation.HOST, ComputeDevice.CPU)],
            optimizer=FBGEMM_OPTIMIZERS[kind],
        )
