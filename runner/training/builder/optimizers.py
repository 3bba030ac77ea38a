"""The optimizers of a job: one for each group of `optimizer.parts`, and one for everything else.

Dense parameters and tables are shared out alike; the group None owns what no part owns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from runner.data.core.cache import cache_root
from runner.distributed.ranks import Ranks
from runner.embeddings.composite_tables import CompositeTables
from runner.embeddings.factory import build_tables, check_every_row, check_table_specs
from runner.embeddings.frozen_tables import FROZEN_SETTINGS, FrozenTables
from runner.embeddings.interface import EmbeddingTables, TableSpec, make_layout
from runner.embeddings.memory_budget import table_bytes_per_rank
from runner.embeddings.padded_tables import BuildTables
from runner.embeddings.placement import shard_tables
from runner.embeddings.sharding_rules import TableRules, check_bandwidths, check_plans
from runner.embeddings.sharding_settings import (
    DISK,
    ShardingSettings,
    check_table_names,
    placed_kind,
)
from runner.errors import ConfigError
from runner.optim.dense import build_dense_optimizer
from runner.optim.param_groups import (
    TABLE_PREFIX,
    ParameterGroup,
    check_group_settings,
    match_patterns,
)
from runner.optim.settings import SparseSettings, parse_sparse

SCRATCH_FOLDER = "tables"  # of the cache; its files have no names
DENSE, SPARSE = "dense", "sparse"  # names of the rates of what no part owns


@dataclass(frozen=True)
class ParameterGroups:
    """The group that owns each trained parameter and table, by name; None: no part owns it."""

    groups: tuple[ParameterGroup, ...]
    group_of: Mapping[str, ParameterGroup | None]

    def names_in(self, group: ParameterGroup | None, *, tables: bool) -> list[str]:
        """Return the names of the tables, or of the other parameters, that a group owns."""
        names = [name for name, owner in self.group_of.items() if owner is group]
        return [name for name in names if name.startswith(TABLE_PREFIX) == tables]

    def frozen_names(self) -> list[str]:
        return [n for n, owner in self.group_of.items() if owner is not None and owner.frozen]


@dataclass(frozen=True)
class BuiltTables:
    """The embedding tables of a job, with the learning rates that the configuration gives them."""

    tables: EmbeddingTables  # all of them
    trained: dict[str, EmbeddingTables]  # those that are not frozen, by the name of their rate
    base_lrs: dict[str, float]  # by the same names, before the schedule scales them

    def l2_lookups(self) -> float:
        """Return the strength of the penalty on look-ups, which all trained tables share.

        Raises:
            ConfigError: if they have several.
        """
        values = sorted({tables.settings.l2_lookups for tables in self.trained.values()})
        if len(values) > 1:
            raise ConfigError(
                f"optimizer.sparse.l2_lookups: the tables have {values[0]:g} and {values[-1]:g}: "
                "it is a penalty on all look-ups of a row of data, so give every part the same; "
                "l2_tables may differ between parts"
            )
        return values[0] if values else 0.0


def assign_parameters(
    groups: Sequence[ParameterGroup], parameters: Sequence[str], tables: Sequence[str]
) -> ParameterGroups:
    """Assign each trained parameter and table to the first group whose pattern matches its name.

    Args:
        groups: the checked entries of `optimizer.parts`.
        parameters: names of the trained parameters of the dense half.
        tables: names of the tables.

    Returns:
        Who owns what.

    Raises:
        ConfigError: for a pattern that owns nothing, or if everything is frozen.
    """
    names = [*parameters, *(f"{TABLE_PREFIX}{name}" for name in tables)]
    indices = match_patterns(names, [group.pattern for group in groups])
    check_group_settings(groups, indices)
    assigned = ParameterGroups(
        tuple(groups), {name: None if i is None else groups[i] for name, i in indices.items()}
    )
    if len(assigned.frozen_names()) == len(names):
        raise ConfigError(
            "optimizer.parts: everything is frozen, so nothing is trained; take a part out"
        )
    return assigned


def build_table_groups(
    specs: Sequence[TableSpec],
    feature_order: Sequence[str],
    settings: SparseSettings,
    parameter_groups: ParameterGroups,
    build: BuildTables,
    *,
    device: torch.device,
) -> BuiltTables:
    """Build the tables of each group, and join them to one look-up.

    Collective where `build` is.

    Args:
        specs: all tables of the model.
        feature_order: all features, in the order of their columns in a look-up.
        settings: the rule of tables that no part owns.
        parameter_groups: who owns which table.
        build: makes the tables of one rule.
        device: where the joined look-up stands.

    Returns:
        The tables and their learning rates.
    """
    check_table_specs(specs)
    built: list[EmbeddingTables] = []
    trained: dict[str, EmbeddingTables] = {}
    base_lrs: dict[str, float] = {}
    for i, group in enumerate((None, *parameter_groups.groups)):
        where = f"optimizer.parts[{i - 1}].sparse" if group else "optimizer.sparse"
        names = {
            name.removeprefix(TABLE_PREFIX)
            for name in parameter_groups.names_in(group, tables=True)
        }
        if not names:
            continue
        group_specs = [spec for spec in specs if spec.name in names]
        group_features = {feature for spec in group_specs for feature in spec.features}
        order = [feature for feature in feature_order if feature in group_features]
        if group is not None and group.frozen:
            frozen = build(group_specs, order, FROZEN_SETTINGS)
            built.append(FrozenTables(frozen, device=device))
            continue
        rule = settings if group is None or group.sparse is None else parse_sparse(group.sparse)
        check_every_row(group_specs, rule, where)
        built.append(build(group_specs, order, rule))
        name = lr_name(parameter_groups, group, tables=True)
        trained[name], base_lrs[name] = built[-1], rule.lr
    if not trained:
        check_no_table_penalty(settings)
    if len(built) == 1:
        return BuiltTables(built[0], trained, base_lrs)
    layout = make_layout(specs, feature_order, by_dim=False)
    return BuiltTables(CompositeTables(layout, settings, built, device=device), trained, base_lrs)


def check_no_table_penalty(settings: SparseSettings) -> None:
    """Check that a job whose tables are all frozen asks for nothing that moves them.

    Raises:
        ConfigError: for a setting that would have no effect.
    """
    for name in ("every_row", "l2_tables", "l2_lookups"):
        if getattr(settings, name):
            raise ConfigError(
                f"optimizer.sparse.{name}: has no effect: optimizer.parts freezes all tables"
            )


def make_table_builder(
    sharding: ShardingSettings,
    ranks: Ranks | None,
    parameter_groups: ParameterGroups,
    settings: SparseSettings,
    *,
    seed: int,
    device: torch.device,
    batch_size: int,
) -> BuildTables:
    """Return the function that builds tables in this process, or over its ranks.

    Over ranks every call of it is collective, and counts the memory that earlier calls have taken.

    Args:
        sharding: settings of `sharding`.
        ranks: None without a process group.
        parameter_groups: who owns which table.
        settings: the rule of tables that no part owns.
        seed: of the initial weights.
        device: where the tables of this rank lie.
        batch_size: rows that a rank looks up at once, for the planner.

    Returns:
        A function from specifications, the order of the features and a rule to tables.

    Raises:
        ConfigError: for an entry of `sharding.tables` that is no table, in one process too, and
            for a plan that the optimizer of a table does not support.
    """
    tables = [
        name.removeprefix(TABLE_PREFIX)
        for name in parameter_groups.group_of
        if name.startswith(TABLE_PREFIX)
    ]
    check_table_names(sharding, tables)
    rules = TableRules(placed_kind(settings), parameter_groups.groups)
    if ranks is None:
        on_disk = [name for name in tables if sharding.plan_of(name) == DISK]
        check_plans(sharding, on_disk, rules, on_cpu=device.type == "cpu")
        return _builder_in_one_process(frozenset(on_disk), seed, device)
    for check in (check_plans, check_bandwidths):
        check(sharding, tables, rules, on_cpu=device.type == "cpu")
    used_bytes = [0] * ranks.world_size

    def build(
        specs: Sequence[TableSpec], order: Sequence[str], settings: SparseSettings
    ) -> EmbeddingTables:
        names = {spec.name for spec in specs}
        plans = {name: plan for name, plan in sharding.tables.items() if name in names}
        sharded = shard_tables(
            specs,
            order,
            settings,
            replace(sharding, tables=plans),
            ranks,
            seed=seed,
            device=device,
            batch_size=batch_size,
            used_bytes=used_bytes,
            scratch=cache_root() / SCRATCH_FOLDER,
        )
        added = table_bytes_per_rank(sharded.placement(), settings, ranks.world_size)
        used_bytes[:] = [a + b for a, b in zip(used_bytes, added, strict=True)]
        return sharded

    return build


def _builder_in_one_process(
    on_disk: Collection[str], seed: int, device: torch.device
) -> BuildTables:
    """Return the function that builds tables in this process, some of them on disk."""

    def build(
        specs: Sequence[TableSpec], order: Sequence[str], settings: SparseSettings
    ) -> EmbeddingTables:
        members = []
        for scratch in (None, cache_root() / SCRATCH_FOLDER):
            own = [s for s in specs if (s.name in on_disk) == (scratch is not None)]
            features = {feature for spec in own for feature in spec.features}
            if own:
                own_order = [feature for feature in order if feature in features]
                members.append(
                    build_tables(
                        own, own_order, settings, seed=seed, device=device, scratch=scratch
                    )
                )
        if len(members) == 1:
            return members[0]
        layout = make_layout(specs, order, by_dim=False)
        return CompositeTables(layout, settings, members, device=device)

    return build


def build_dense_optimizers(
    settings: Mapping[str, Any],
    parameters: Mapping[str, nn.Parameter],
    parameter_groups: ParameterGroups,
    find_class: Callable[[str], Any],
) -> dict[str, Optimizer]:
    """Build the optimizers of the dense half, by the name of their rate.

    The first one trains what no part owns. The parameters of a frozen group no longer ask for a
    gradient.

    Args:
        settings: of `optimizer.dense`.
        parameters: trained parameters of the dense half, by name.
        parameter_groups: who owns which parameter.
        find_class: from a `_target_` to the optimizer's class.

    Returns:
        name of the rate -> optimizer.
    """
    optimizers: dict[str, Optimizer] = {}
    for i, group in enumerate((None, *parameter_groups.groups)):
        owned = {name: parameters[name] for name in parameter_groups.names_in(group, tables=False)}
        if group is not None and group.frozen:
            for parameter in owned.values():
                parameter.requires_grad_(False)
        elif owned or group is None:
            node = dict(settings if group is None or group.dense is None else group.dense)
            where = "optimizer.dense" if group is None else f"optimizer.parts[{i - 1}].dense"
            cls = find_class(node.pop("_target_"))
            optimizers[lr_name(parameter_groups, group, tables=False)] = build_dense_optimizer(
                cls, node, owned, where=where
            )
    return optimizers


def lr_name(
    parameter_groups: ParameterGroups, group: ParameterGroup | None, *, tables: bool
) -> str:
    """Return the name of a group's rate, as in `lr/<name>` of the log.

    A group that owns both tables and other parameters has two rates, `<group>/sparse` and
    `<group>/dense`.
    """
    kind = SPARSE if tables else DENSE
    if group is None:
        return kind
    owns_both = bool(parameter_groups.names_in(group, tables=not tables))
    return f"{group.name}/{kind}" if owns_both else group.name


def group_schedules(
    schedules: Mapping[str, Any], parameter_groups: ParameterGroups
) -> dict[str, tuple[Mapping[str, Any], str]]:
    """Return the schedules that replace the job's, by the name of the rate.

    Args:
        schedules: of `optimizer.schedules`; a group's own schedule goes before them.
        parameter_groups: who owns what.

    Returns:
        name of the rate -> (settings of the schedule, their key in the configuration).
    """
    found: dict[str, tuple[Mapping[str, Any], str]] = {}
    for kind in (SPARSE, DENSE):
        tables = kind == SPARSE
        for i, group in enumerate((None, *parameter_groups.groups)):
            if not parameter_groups.names_in(group, tables=tables):
                continue
            node, key = schedules.get(kind), f"optimizer.schedules.{kind}"
            if group is not None and group.schedule is not None:
                node, key = group.schedule, f"optimizer.parts[{i - 1}].schedule"
            if node is not None:
                found[lr_name(parameter_groups, group, tables=tables)] = (node, key)
    return found
