"""By which rule each table is updated, and whether its plan can be had under it. No torch here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.embeddings.sharding_settings import BANDWIDTHS, Rule, ShardingSettings, engine, refusal
from runner.errors import ConfigError
from runner.optim.param_groups import TABLES, Part


@dataclass(frozen=True)
class TableRules:
    """The rule of what no part owns, and the parts that may have others."""

    kind: str  # optimizer.sparse.kind
    parts: tuple[Part, ...] = ()

    def of(self, table: str) -> Rule:
        """That of the first part whose pattern is found in the table's name."""
        for i, part in enumerate(self.parts):
            if re.search(part.pattern, f"{TABLES}{table}"):
                return self._of_part(i)
        return Rule(self.kind)

    def possible(self) -> list[Rule]:
        """Every rule that a table may have, whatever tables there are."""
        return list(
            dict.fromkeys([Rule(self.kind), *(self._of_part(i) for i in range(len(self.parts)))])
        )

    def certain(self) -> list[Rule]:
        """Those of parts that must own a table, since they have settings for one."""
        return [self._of_part(i) for i, part in enumerate(self.parts) if part.sparse is not None]

    def _of_part(self, place: int) -> Rule:
        part, key = self.parts[place], f"optimizer.parts[{place}]"
        if part.frozen:
            return Rule("sgd", f"{key}.frozen")  # looked up and never stepped: any plan does
        if part.sparse is None:
            return Rule(self.kind)
        return Rule(str(part.sparse["kind"]), f"{key}.sparse.kind")


def refused_before_data(
    node: Mapping[str, Any], rules: TableRules, *, on_cpu: bool
) -> Iterator[str]:
    """What no data could make right, a message each. `refuse_plans` says the rest."""
    own, plan = node.get("tables") or {}, node.get("plan")
    named = {table: rules.of(table) for table in own}
    for table, rule in named.items():
        message = refusal(f"sharding.tables.{table}", own[table], rule, on_cpu=on_cpu)
        if message is not None:
            yield message
    said = {r: refusal("sharding.plan", plan, r, on_cpu=on_cpu) for r in rules.possible()}
    if None not in said.values():
        yield from [message for message in said.values() if message][:1]
        return
    for rule in rules.certain():
        message = said[rule]
        if message is not None and rule not in named.values():
            yield message


def refuse_plans(
    sharding: ShardingSettings, tables: Sequence[str], rules: TableRules, *, on_cpu: bool
) -> None:
    """Raises: ConfigError for plans that the rules of these tables cannot have."""
    problems = []
    for table in tables:
        plan, key = sharding.plan_of(table), "sharding.plan"
        if table in sharding.tables:
            key = f"sharding.tables.{table}"
        message = refusal(key, plan, rules.of(table), on_cpu=on_cpu)
        if message is not None:
            problems.append(message)
    if problems:
        raise ConfigError("\n".join(dict.fromkeys(problems)))


def refuse_bandwidths(
    sharding: ShardingSettings, tables: Sequence[str], rules: TableRules, *, on_cpu: bool
) -> None:
    """Args: tables: all. Raises: ConfigError for speeds of which nobody would take notice."""
    placed = {(sharding.plan_of(table), rules.of(table).kind) for table in tables}
    problems = refused_bandwidths(vars(sharding), placed, on_cpu=on_cpu)
    if problems:
        raise ConfigError("\n".join(problems))


def possible_plans(node: Mapping[str, Any], rules: TableRules) -> set[tuple[str, str]]:
    """Pairs of a plan and a kind of optimizer that tables may have, whatever tables there are."""
    own = node.get("tables") or {}
    found = {(str(plan), rules.of(table).kind) for table, plan in own.items()}
    return found | {(str(node.get("plan")), rule.kind) for rule in rules.possible()}


def all_ours(placed: Iterable[tuple[str, str]], *, on_cpu: bool) -> bool:
    """Whether our own exchange holds every table of these plans and kinds."""
    return all(engine(plan, kind, on_cpu=on_cpu) == "ours" for plan, kind in placed)


def refused_bandwidths(
    node: Mapping[str, Any], placed: Iterable[tuple[str, str]], *, on_cpu: bool
) -> list[str]:
    """A message for each speed that is given where TorchRec's planner has no table to place."""
    given = [key for key in BANDWIDTHS if node.get(key) is not None]
    if not given or not all_ours(placed, on_cpu=on_cpu):
        return []
    return [
        f"sharding.{key}={node[key]}: is for TorchRec's planner, and with these optimizers and "
        "plans our own exchange holds all tables, which lie as the plan says; null leaves it out"
        for key in given
    ]
