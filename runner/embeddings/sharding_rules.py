"""By which rule each table is updated, and whether its plan can be had under it. No torch here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.embeddings.sharding_settings import (
    BANDWIDTH_KEYS,
    ShardingSettings,
    TableRule,
    engine_name,
    refusal_reason,
)
from runner.errors import ConfigError
from runner.optim.param_groups import TABLE_PREFIX, ParameterGroup


@dataclass(frozen=True)
class TableRules:
    """The rule of what no part owns, and the parts that may have others."""

    kind: str  # optimizer.sparse.kind
    groups: tuple[ParameterGroup, ...] = ()

    def for_table(self, table: str) -> TableRule:
        """That of the first part whose pattern is found in the table's name."""
        for i, part in enumerate(self.groups):
            if re.search(part.pattern, f"{TABLE_PREFIX}{table}"):
                return self._of_part(i)
        return TableRule(self.kind)

    def possible(self) -> list[TableRule]:
        """Every rule that a table may have, whatever tables there are."""
        return list(
            dict.fromkeys(
                [TableRule(self.kind), *(self._of_part(i) for i in range(len(self.groups)))]
            )
        )

    def required(self) -> list[TableRule]:
        """Those of parts that must own a table, since they have settings for one."""
        return [self._of_part(i) for i, part in enumerate(self.groups) if part.sparse is not None]

    def _of_part(self, place: int) -> TableRule:
        part, key = self.groups[place], f"optimizer.parts[{place}]"
        if part.frozen:
            return TableRule("sgd", f"{key}.frozen")  # looked up and never stepped: any plan does
        if part.sparse is None:
            return TableRule(self.kind)
        return TableRule(str(part.sparse["kind"]), f"{key}.sparse.kind")


def early_plan_problems(
    node: Mapping[str, Any], rules: TableRules, *, on_cpu: bool
) -> Iterator[str]:
    """What no data could make right, a message each. `refuse_plans` says the rest."""
    own, plan = node.get("tables") or {}, node.get("plan")
    named = {table: rules.for_table(table) for table in own}
    for table, rule in named.items():
        message = refusal_reason(f"sharding.tables.{table}", own[table], rule, on_cpu=on_cpu)
        if message is not None:
            yield message
    said = {r: refusal_reason("sharding.plan", plan, r, on_cpu=on_cpu) for r in rules.possible()}
    if None not in said.values():
        yield from [message for message in said.values() if message][:1]
        return
    for rule in rules.required():
        message = said[rule]
        if message is not None and rule not in named.values():
            yield message


def check_plans(
    sharding: ShardingSettings, tables: Sequence[str], rules: TableRules, *, on_cpu: bool
) -> None:
    """Raises: ConfigError for plans that the rules of these tables cannot have."""
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
    """Args: tables: all. Raises: ConfigError for speeds of which nobody would take notice."""
    placed = {(sharding.plan_of(table), rules.for_table(table).kind) for table in tables}
    problems = bandwidth_problems(vars(sharding), placed, on_cpu=on_cpu)
    if problems:
        raise ConfigError("\n".join(problems))


def possible_plans(node: Mapping[str, Any], rules: TableRules) -> set[tuple[str, str]]:
    """Pairs of a plan and a kind of optimizer that tables may have, whatever tables there are."""
    own = node.get("tables") or {}
    found = {(str(plan), rules.for_table(table).kind) for table, plan in own.items()}
    return found | {(str(node.get("plan")), rule.kind) for rule in rules.possible()}


def all_use_own_exchange(placed: Iterable[tuple[str, str]], *, on_cpu: bool) -> bool:
    """Whether our own exchange holds every table of these plans and kinds."""
    return all(engine_name(plan, kind, on_cpu=on_cpu) == "ours" for plan, kind in placed)


def bandwidth_problems(
    node: Mapping[str, Any], placed: Iterable[tuple[str, str]], *, on_cpu: bool
) -> list[str]:
    """A message for each speed that is given where TorchRec's planner has no table to place."""
    given = [key for key in BANDWIDTH_KEYS if node.get(key) is not None]
    if not given or not all_use_own_exchange(placed, on_cpu=on_cpu):
        return []
    return [
        f"sharding.{key}={node[key]}: is for TorchRec's planner, and with these optimizers and "
        "plans our own exchange holds all tables, which lie as the plan says; null leaves it out"
        for key in given
    ]
