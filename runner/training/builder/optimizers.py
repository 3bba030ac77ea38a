"""The optimizers of a job: of what parts own and of the rest, tables and dense half alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from runner.distributed.ranks import Ranks
from runner.embeddings.composite_tables import CompositeTables
from runner.embeddings.factory import build_tables, check_table_specs
from runner.embeddings.frozen_tables import FROZEN_SETTINGS, FrozenTables
from runner.embeddings.interface import EmbeddingTables, TableSpec, make_layout
from runner.embeddings.memory_budget import table_bytes_per_rank
from runner.embeddings.placement import shard_tables
from runner.embeddings.sharding_rules import TableRules, check_bandwidths, check_plans
from runner.embeddings.sharding_settings import ShardingSettings, check_table_names
from runner.errors import ConfigError
from runner.optim.dense import build_dense_optimizer
from runner.optim.param_groups import (
    TABLE_PREFIX,
    ParameterGroup,
    check_group_settings,
    match_patterns,
)
from runner.optim.settings import SparseSettings, parse_sparse

DENSE, SPARSE = "dense", "sparse"  # rates of what no part owns


@dataclass(frozen=True)
class ParameterGroups:
    """For every trained parameter and table, by name, the part that owns it; None: no part does."""

    groups: tuple[ParameterGroup, ...]
    group_of: Mapping[str, ParameterGroup | None]

    def names_in(self, group: ParameterGroup | None, *, tables: bool) -> list[str]:
        names = [name for name, own in self.group_of.items() if own is group]
        return [name for name in names if name.startswith(TABLE_PREFIX) == tables]

    def frozen_names(self) -> list[str]:
        return [name for name, part in self.group_of.items() if part is not None and part.frozen]


def assign_parameters(
    parts: Sequence[ParameterGroup], parameters: Sequence[str], tables: Sequence[str]
) -> ParameterGroups:
    """Args: names of trained parameters of the dense half, and of tables.

    Raises: ConfigError for a pattern that owns nothing, or if everything is frozen.
    """
    names = [*parameters, *(f"{TABLE_PREFIX}{name}" for name in tables)]
    places = match_patterns(names, [part.pattern for part in parts])
    check_group_settings(parts, places)
    found = ParameterGroups(
        tuple(parts), {name: None if i is None else parts[i] for name, i in places.items()}
    )
    if len(found.frozen_names()) == len(names):
        raise ConfigError("optimizer.parts: everything is frozen, so there is nothing to train")
    return found


def build_table_groups(
    specs: Sequence[TableSpec],
    feature_order: Sequence[str],
    settings: SparseSettings,
    parameter_groups: ParameterGroups,
    build_tables_of: Callable[
        [Sequence[TableSpec], Sequence[str], SparseSettings], EmbeddingTables
    ],
    *,
    device: torch.device,
) -> tuple[EmbeddingTables, dict[str, EmbeddingTables]]:
    """All tables as one, and those that have a rate of their own by the name of the rate.

    Args: build_tables_of: makes the tables of one rule. Collective where it is.
    """
    check_table_specs(specs)
    groups: dict[str, EmbeddingTables] = {}
    made: list[EmbeddingTables] = []
    for part in (None, *parameter_groups.groups):
        names = {
            name.removeprefix(TABLE_PREFIX) for name in parameter_groups.names_in(part, tables=True)
        }
        if not names:
            continue
        mine = [spec for spec in specs if spec.name in names]
        read = {feature for spec in mine for feature in spec.features}
        order = [feature for feature in feature_order if feature in read]
        if part is not None and part.frozen:
            made.append(FrozenTables(build_tables_of(mine, order, FROZEN_SETTINGS), device=device))
            continue
        rule = settings
        if part is not None and part.sparse is not None:
            rule = parse_sparse(part.sparse)
        made.append(build_tables_of(mine, order, rule))
        groups[lr_name(parameter_groups, part, tables=True)] = made[-1]
    if len(made) == 1:
        return made[0], groups
    return CompositeTables(
        make_layout(specs, feature_order, by_dim=False), settings, made, device=device
    ), groups


def make_table_builder(
    sharding: ShardingSettings,
    ranks: Ranks | None,
    parameter_groups: ParameterGroups,
    settings: SparseSettings,
    *,
    seed: int,
    device: torch.device,
    batch_size: int,
) -> Callable[[Sequence[TableSpec], Sequence[str], SparseSettings], EmbeddingTables]:
    """How tables are made here. ranks: None without a process group.

    Args: settings: of what no part owns. Every call counts what the ranks hold by those before.
    Raises: ConfigError for an entry of `sharding.tables` that is no table, on one process too, and
    for a plan that the optimizer of a table cannot have.
    """
    tables = [
        name.removeprefix(TABLE_PREFIX)
        for name in parameter_groups.group_of
        if name.startswith(TABLE_PREFIX)
    ]
    check_table_names(sharding, tables)
    if ranks is None:
        return lambda specs, order, settings: build_tables(
            specs, order, settings, seed=seed, device=device
        )
    rules = TableRules(settings.kind, parameter_groups.groups)
    for refuse in (check_plans, check_bandwidths):
        refuse(sharding, tables, rules, on_cpu=device.type == "cpu")
    held = [0] * ranks.world_size

    def build(
        specs: Sequence[TableSpec], order: Sequence[str], settings: SparseSettings
    ) -> EmbeddingTables:
        names = {spec.name for spec in specs}
        plans = {name: plan for name, plan in sharding.tables.items() if name in names}
        made = shard_tables(
            specs,
            order,
            settings,
            replace(sharding, tables=plans),
            ranks,
            seed=seed,
            device=device,
            batch_size=batch_size,
            used_bytes=held,
        )
        more = table_bytes_per_rank(made.placement(), settings.kind, ranks.world_size)
        held[:] = [a + b for a, b in zip(held, more, strict=True)]
        return made

    return build


def build_dense_optimizers(
    node: Mapping[str, Any],
    parameters: Mapping[str, nn.Parameter],
    parameter_groups: ParameterGroups,
    find_class: Callable[[str], Any],
) -> dict[str, Optimizer]:
    """Optimizers of the dense half by the name of their rate; the first is of what no part owns.

    What parts freeze is frozen here: its parameters no longer ask for a gradient.
    """
    found: dict[str, Optimizer] = {}
    for i, part in enumerate((None, *parameter_groups.groups)):
        mine = {name: parameters[name] for name in parameter_groups.names_in(part, tables=False)}
        if part is not None and part.frozen:
            for parameter in mine.values():
                parameter.requires_grad_(False)
        elif mine or part is None:
            settings = dict(node if part is None or part.dense is None else part.dense)
            where = "optimizer.dense" if part is None else f"optimizer.parts[{i - 1}].dense"
            cls = find_class(settings.pop("_target_"))
            found[lr_name(parameter_groups, part, tables=False)] = build_dense_optimizer(
                cls, settings, mine, where=where
            )
    return found


def lr_name(
    parameter_groups: ParameterGroups, group: ParameterGroup | None, *, tables: bool
) -> str:
    """`lr/<name>` in the log: a part that owns both tables and others has two rates."""
    kind = SPARSE if tables else DENSE
    if group is None:
        return kind
    return (
        f"{group.name}/{kind}"
        if parameter_groups.names_in(group, tables=not tables)
        else group.name
    )


def group_schedules(
    schedules: Mapping[str, Any], parameter_groups: ParameterGroups
) -> dict[str, tuple[Mapping[str, Any], str]]:
    """Settings of schedules that are not the job's, by the name of the rate, and their keys."""
    found: dict[str, tuple[Mapping[str, Any], str]] = {}
    for kind in (SPARSE, DENSE):
        tables = kind == SPARSE
        for i, part in enumerate((None, *parameter_groups.groups)):
            if not parameter_groups.names_in(part, tables=tables):
                continue
            node, key = schedules.get(kind), f"optimizer.schedules.{kind}"
            if part is not None and part.schedule is not None:
                node, key = part.schedule, f"optimizer.parts[{i - 1}].schedule"
            if node is not None:
                found[lr_name(parameter_groups, part, tables=tables)] = (node, key)
    return found
