"""Plans are checked against the optimizer of each table, as early as it is known."""

from __future__ import annotations

import pytest

from runner.embeddings.sharding_rules import (
    TableRules,
    bandwidth_problems,
    check_bandwidths,
    check_plans,
    early_plan_problems,
    possible_plans,
)
from runner.embeddings.sharding_settings import ShardingSettings
from runner.errors import ConfigError
from runner.optim.param_groups import parse_parameter_groups


def rules(kind: str, *parts: dict) -> TableRules:
    node = {"dense": {"_target_": "torch.optim.Adam"}, "sparse": {"kind": kind, "lr": 0.1}}
    return TableRules(kind, parse_parameter_groups({**node, "parts": list(parts)}))


def owns(pattern: str, kind: str) -> dict:
    return {"pattern": pattern, "sparse": {"kind": kind, "lr": 0.1}}


FROZEN = {"pattern": "^tables.C1$", "frozen": True}
BIASES = {"pattern": "bias$", "dense": {"lr": 0.1}}


def test_a_table_has_the_rule_of_the_first_part_that_matches_its_name():
    given = rules("adam", BIASES, owns("C1$", "adagrad"), owns("^tables.C", "lamb"), FROZEN)
    found = {name: given.for_table(name) for name in ("C1", "C2", "user", "C2bias")}
    assert {name: rule.kind for name, rule in found.items()} == {
        "C1": "adagrad",
        "C2": "lamb",
        "user": "adam",
        "C2bias": "adam",
    }
    assert found["C1"].key == "optimizer.parts[1].sparse.kind"
    assert found["user"].key == "optimizer.sparse.kind"


@pytest.mark.parametrize(
    ("given", "node", "named"),
    [
        (rules("rowwise_adagrad"), {"plan": "column_wise"}, ["optimizer.sparse.kind"]),
        (rules("rowwise_adagrad", BIASES), {"plan": "column_wise"}, ["optimizer.sparse.kind"]),
        # each of these tables has an optimizer that works on single weights
        (rules("rowwise_adagrad", owns("^tables.C1$", "adagrad")), {"C1": "column_wise"}, []),
        (rules("rowwise_adagrad", FROZEN), {"C1": "column_wise"}, []),
        (rules("adagrad", owns("C2", "lamb")), {"C1": "column_wise"}, []),
        (
            rules("adagrad", owns("C1", "lamb")),
            {"C1": "column_wise"},
            ["optimizer.parts[0].sparse.kind=lamb"],
        ),
        # the part owns some table, or the run is refused for that reason
        (
            rules("adagrad", owns("C1", "lamb")),
            {"plan": "column_wise"},
            ["optimizer.parts[0].sparse.kind=lamb"],
        ),
        # the part may own C1 alone, or own all tables
        (rules("adagrad", owns("C", "lamb")), {"plan": "column_wise", "C1": "row_wise"}, []),
        (rules("lamb", owns("C", "adagrad")), {"plan": "column_wise"}, []),
        (rules("lamb", FROZEN), {"plan": "column_wise"}, []),
        (
            rules("adam"),
            {"plan": "column_wise"},
            ["FBGEMM has no kernel for optimizer.sparse.kind=adam"],
        ),
    ],
)
def test_without_the_data_only_plans_that_no_data_allows_are_refused(given, node, named):
    group = {"plan": node.pop("plan", "auto"), "tables": node}
    messages = list(early_plan_problems(group, given, on_cpu=True))
    assert len(messages) == len(named), messages
    assert all(name in message for name, message in zip(named, messages))


def test_with_the_data_each_table_is_checked_against_its_owner():
    given = rules("adagrad", owns("^tables.C[12]$", "lamb"))
    sharding = ShardingSettings(plan="column_wise", tables={"C1": "row_wise"})
    check_plans(sharding, ["C1", "C3"], given, on_cpu=True)
    with pytest.raises(ConfigError) as caught:
        check_plans(sharding, ["C1", "C2", "C3"], given, on_cpu=True)
    message = str(caught.value)
    assert message.count("\n") == 0
    assert "sharding.plan=column_wise" in message
    assert "optimizer.parts[0].sparse.kind=lamb" in message


def test_bandwidths_are_refused_where_the_planner_has_nothing_to_place():
    speed = {"intra_host_gb_per_s": 10.0}

    def refused(given: TableRules, *, on_cpu: bool = True, **node: str) -> list[str]:
        group = {**speed, "plan": node.pop("plan", "auto"), "tables": node}
        return bandwidth_problems(group, possible_plans(group, given), on_cpu=on_cpu)

    assert refused(rules("rowwise_adagrad")) == []
    [message] = refused(rules("adam"))
    assert message.startswith("sharding.intra_host_gb_per_s=10.0") and "our own exchange" in message
    assert refused(rules("adam"), on_cpu=False) == []
    assert len(refused(rules("sgd"), plan="data_parallel")) == 1
    assert refused(rules("sgd"), plan="data_parallel", C1="auto") == []
    assert refused(rules("adam", owns("C1", "sgd"))) == []
    assert len(refused(rules("adam", owns("C1", "lamb")))) == 1

    sharding = ShardingSettings(**speed)
    given = rules("adam", owns("^tables.C1$", "sgd"))
    check_bandwidths(sharding, ["C1", "C2"], given, on_cpu=True)
    with pytest.raises(ConfigError, match=r"sharding\.intra_host_gb_per_s"):
        check_bandwidths(sharding, ["C2", "C3"], given, on_cpu=True)
