"""Finds the rule of each table, and checks that it allows the table's plan. No torch here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.embeddings.sharding_settings import (
    BANDWIDTH_KEYS,
    EVERY_ROW,
    ShardingSettings,
    TableRule,
    engine_name,
    refusal_reason,
)
from runner.errors import ConfigError
from runner.optim.param_groups import TABLE_PREFIX, ParameterGroup


@dataclass(frozen=True)
class TableRules:
    """The rule of tables that no group owns, and the groups that may have other rules."""

    kind: str  # optimizer.sparse.kind, or one of OWN_ENGINE
    groups: tuple[ParameterGroup, ...] = ()

    def for_table(self, table: str) -> TableRule:
        """Return the rule of the first group whose pattern matches the table's name."""
        for i, group in enumerate(self.groups):
            if re.search(group.pattern, f"{TABLE_PREFIX}{table}"):
                return self._group_rule(i)
        return self._default()

    def possible(self) -> list[TableRule]:
        """Return every rule that any table may have."""
        group_rules = (self._group_rule(i) for i in range(len(self.groups)))
        return list(dict.fromkeys([self._default(), *group_rules]))

    def required(self) -> list[TableRule]:
        """Return the rules of groups that must own a table, since they have settings for tables."""
        return [
            self._group_rule(i) for i, group in enumerate(self.groups) if group.sparse is not None
        ]

    def _group_rule(self, number: int) -> TableRule:
        group, key = self.groups[number], f"optimizer.parts[{number}]"
        if group.frozen:
            return TableRule("sgd", f"{key}.frozen")  # frozen tables allow any plan, as SGD does
        if group.sparse is None:
            return self._default()
        return TableRule.of(group.sparse, f"{key}.sparse")

    def _default(self) -> TableRule:
        return TableRule.of(
            {"kind": self.kind, EVERY_ROW: self.kind == EVERY_ROW, "dtype": self.kind},
            "optimizer.sparse",
        )


def early_plan_problems(
    node: Mapping[str, Any], rules: TableRules, *, on_cpu: bool
) -> Iterator[str]:
    """Yield a message for each plan that is invalid for any tables.

    `check_plans` finds the other problems once the tables are known.
    """
    table_plans, plan = node.get("tables") or {}, node.get("plan")
    table_rules = {table: rules.for_table(table) for table in table_plans}
    for table, rule in table_rules.items():
        key = f"sharding.tables.{table}"
        message = refusal_reason(key, table_plans[table], rule, on_cpu=on_cpu)
        if message is not None:
            yield message
    reasons = {r: refusal_reason("sharding.plan", plan, r, on_cpu=on_cpu) for r in rules.possible()}
    if None not in reasons.values():
        yield from [message for message in reasons.values() if message][:1]
        return
    for rule in rules.required():
        message = reasons[rule]
        if message is not None and rule not in table_rules.values():
            yield message


def check_plans(
    sharding: ShardingSettings, tables: Sequence[str], rules: TableRules, *, on_cpu: bool
) -> None:
    """Check the plans of these tables against their rules.

    Raises:
        ConfigError: for plans that the rules do not allow.
    """
    problems = []
    for table in tables:
        plan, key = sharding.plan_of(table), "sharding.plan"
        if table in sharding.tables:
            key = f"sharding.tables.{table}"
        message = refusal_reason(key, plan, rules.for_table(table), on_cpu=on_cpu)
        if message is not None:
            problems.append(message)
    if problems:
        raise ConfigError("\n".join(dict.fromkeys(problems)))


def check_bandwidths(
    sharding: ShardingSettings, tables: Sequence[str], rules: TableRules, *, on_cpu: bool
) -> None:
    """Check that the given bandwidths have an effect.

    Raises:
        ConfigError: for a bandwidth that would be ignored.
    """
    placed = {(sharding.plan_of(table), rules.for_table(table).kind) for table in tables}
    problems = bandwidth_problems(vars(sharding), placed, on_cpu=on_cpu)
    if problems:
        raise ConfigError("\n".join(problems))


def possible_plans(node: Mapping[str, Any], rules: TableRules) -> set[tuple[str, str]]:
    """Return the pairs (plan, kind) that any table may have."""
    table_plans = node.get("tables") or {}
    pairs = {(str(plan), rules.for_table(table).kind) for table, plan in table_plans.items()}
    return pairs | {(str(node.get("plan")), rule.kind) for rule in rules.possible()}


def all_use_own_exchange(placed: Iterable[tuple[str, str]], *, on_cpu: bool) -> bool:
    """Return whether our own exchange holds all tables of these plans and kinds."""
    return all(engine_name(plan, kind, on_cpu=on_cpu) == "ours" for plan, kind in placed)


def bandwidth_problems(
    node: Mapping[str, Any], placed: Iterable[tuple[str, str]], *, on_cpu: bool
) -> list[str]:
    """Return a message for each bandwidth that is given although TorchRec plans no table."""
    keys = [key for key in BANDWIDTH_KEYS if node.get(key) is not None]
    if not keys or not all_use_own_exchange(placed, on_cpu=on_cpu):
        return []
    return [
        f"sharding.{key}={node[key]}: has no effect: it is for TorchRec's planner, and with these "
        "optimizers and plans our own exchange has all tables; null leaves it out"
        for key in keys
    ]
