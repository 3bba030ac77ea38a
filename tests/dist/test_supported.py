"""What the README says of optimizers and plans is what the code does."""

from __future__ import annotations

from pathlib import Path

from runner.optim.settings import KINDS
from runner.optim.sharding import KERNELS_ON_CPU, PLANS, check_sharding, engine, support_table

README = Path(__file__).resolve().parent.parent.parent / "README.md"


def test_the_table_of_the_readme_is_what_the_code_says():
    assert support_table() in README.read_text()


def test_every_optimizer_has_a_plan_that_keeps_rows_whole_and_columns_only_where_exact():
    for kind in KINDS:
        for plan in set(PLANS) - {"column_wise"}:
            assert engine(plan, kind, on_cpu=True) and engine(plan, kind, on_cpu=False)
    split = {kind for kind in KINDS if engine("column_wise", kind, on_cpu=False)}
    assert split == {"sgd", "adagrad", "adam"}
    assert {kind for kind in KINDS if engine("column_wise", kind, on_cpu=True)} == {
        "sgd",
        "adagrad",
    }
    assert set(KERNELS_ON_CPU) <= set(KINDS)


def test_a_refusal_names_key_reason_and_what_works():
    [message] = check_sharding(
        {"plan": "row_wise", "tables": {"user": "column_wise"}}, "lamb", on_cpu=True
    )
    assert message.startswith("sharding.tables.user=column_wise")
    assert "norm of a whole row" in message and "row_wise" in message
    [message] = check_sharding({"plan": "colum_wise"}, None, on_cpu=True)
    assert "nearest: 'column_wise'" in message
