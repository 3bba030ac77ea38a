"""The optimizers of a job: of what parts own and of the rest, tables and dense half alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from runner.distributed.ranks import Ranks
from runner.embeddings.composite_tables import MixedTables
from runner.embeddings.factory import build_tables, check_specs
from runner.embeddings.frozen_tables import FROZEN, FrozenTables
from runner.embeddings.interface import Tables, TableSpec, arrange
from runner.embeddings.memory_budget import held_bytes
from runner.embeddings.placement import place_on_ranks
from runner.embeddings.sharding_rules import TableRules, refuse_bandwidths, refuse_plans
from runner.embeddings.sharding_settings import ShardingSettings, check_tables
from runner.errors import ConfigError
from runner.optim.dense import build_dense_optimizer
from runner.optim.param_groups import TABLES, Part, check_owned, owners
from runner.optim.settings import SparseSettings, parse_sparse

DENSE, SPARSE = "dense", "sparse"  # rates of what no part owns


@dataclass(frozen=True)
class Ownership:
    """For every trained parameter and table, by name, the part that owns it; None: no part does."""

    parts: tuple[Part, ...]
    owner: Mapping[str, Part | None]

    def of(self, part: Part | None, *, tables: bool) -> list[str]:
        names = [name for name, own in self.owner.items() if own is part]
        return [name for name in names if name.startswith(TABLES) == tables]

    def frozen(self) -> list[str]:
        return [name for name, part in self.owner.items() if part is not None and part.frozen]


def own(parts: Sequence[Part], parameters: Sequence[str], tables: Sequence[str]) -> Ownership:
    """Args: names of trained parameters of the dense half, and of tables.

    Raises: ConfigError for a pattern that owns nothing, or if everything is frozen.
    """
    names = [*parameters, *(f"{TABLES}{name}" for name in tables)]
    places = owners(names, [part.pattern for part in parts])
    check_owned(parts, places)
    found = Ownership(
        tuple(parts), {name: None if i is None else parts[i] for name, i in places.items()}
    )
    if len(found.frozen()) == len(names):
        raise ConfigError("optimizer.parts: everything is frozen, so there is nothing to train")
    return found


def build_table_groups(
    specs: Sequence[TableSpec],
    feature_order: Sequence[str],
    settings: SparseSettings,
    owned: Ownership,
    build: Callable[[Sequence[TableSpec], Sequence[str], SparseSettings], Tables],
    *,
    device: torch.device,
) -> tuple[Tables, dict[str, Tables]]:
    """All tables as one, and those that have a rate of their own by the name of the rate.

    Args: build: makes the tables of one rule. Collective where it is.
    """
    check_specs(specs)
    groups: dict[str, Tables] = {}
    made: list[Tables] = []
    for part in (None, *owned.parts):
        names = {name.removeprefix(TABLES) for name in owned.of(part, tables=True)}
        if not names:
            continue
        mine = [spec for spec in specs if spec.name in names]
        read = {feature for spec in mine for feature in spec.features}
        order = [feature for feature in feature_order if feature in read]
        if part is not None and part.frozen:
            made.append(FrozenTables(build(mine, order, FROZEN), device=device))
            continue
        rule = settings
        if part is not None and part.sparse is not None:
            rule = parse_sparse(part.sparse)
        made.append(build(mine, order, rule))
        groups[rate_name(owned, part, tables=True)] = made[-1]
    if len(made) == 1:
        return made[0], groups
    return MixedTables(
        arrange(specs, feature_order, by_dim=False), settings, made, device=device
    ), groups


def table_builder(
    sharding: ShardingSettings,
    ranks: Ranks | None,
    owned: Ownership,
    settings: SparseSettings,
    *,
    seed: int,
    device: torch.device,
    batch_size: int,
) -> Callable[[Sequence[TableSpec], Sequence[str], SparseSettings], Tables]:
    """How tables are made here. ranks: None without a process group.

    Args: settings: of what no part owns. Every call counts what the ranks hold by those before.
    Raises: ConfigError for an entry of `sharding.tables` that is no table, on one process too, and
    for a plan that the optimizer of a table cannot have.
    """
    tables = [name.removeprefix(TABLES) for name in owned.owner if name.startswith(TABLES)]
    check_tables(sharding, tables)
    if ranks is None:
        return lambda specs, order, settings: build_tables(
            specs, order, settings, seed=seed, device=device
        )
    rules = TableRules(settings.kind, owned.parts)
    for refuse in (refuse_plans, refuse_bandwidths):
        refuse(sharding, tables, rules, on_cpu=device.type == "cpu")
    held = [0] * ranks.world_size

    def build(specs: Sequence[TableSpec], order: Sequence[str], settings: SparseSettings) -> Tables:
        names = {spec.name for spec in specs}
        plans = {name: plan for name, plan in sharding.tables.items() if name in names}
        made = place_on_ranks(
            specs,
            order,
            settings,
            replace(sharding, tables=plans),
            ranks,
            seed=seed,
            device=device,
            batch_size=batch_size,
            held=held,
        )
        more = held_bytes(made.placement(), settings.kind, ranks.world_size)
        held[:] = [a + b for a, b in zip(held, more, strict=True)]
        return made

    return build


def build_optimizers(
    node: Mapping[str, Any],
    parameters: Mapping[str, nn.Parameter],
    owned: Ownership,
    find_class: Callable[[str], Any],
) -> dict[str, Optimizer]:
    """Optimizers of the dense half by the name of their rate; the first is of what no part owns.

    What parts freeze is frozen here: its parameters no longer ask for a gradient.
    """
    found: dict[str, Optimizer] = {}
    for i, part in enumerate((None, *owned.parts)):
        mine = {name: parameters[name] for name in owned.of(part, tables=False)}
        if part is not None and part.frozen:
            for parameter in mine.values():
                parameter.requires_grad_(False)
        elif mine or part is None:
            settings = dict(node if part is None or part.dense is None else part.dense)
            where = "optimizer.dense" if part is None else f"optimizer.parts[{i - 1}].dense"
            cls = find_class(settings.pop("_target_"))
            found[rate_name(owned, part, tables=False)] = build_dense_optimizer(
                cls, settings, mine, where=where
            )
    return found


def rate_name(owned: Ownership, part: Part | None, *, tables: bool) -> str:
    """`lr/<name>` in the log: a part that owns both tables and others has two rates."""
    kind = SPARSE if tables else DENSE
    if part is None:
        return kind
    return f"{part.name}/{kind}" if owned.of(part, tables=not tables) else part.name


def own_schedules(
    schedules: Mapping[str, Any], owned: Ownership
) -> dict[str, tuple[Mapping[str, Any], str]]:
    """Settings of schedules that are not the job's, by the name of the rate, and their keys."""
    found: dict[str, tuple[Mapping[str, Any], str]] = {}
    for kind in (SPARSE, DENSE):
        tables = kind == SPARSE
        for i, part in enumerate((None, *owned.parts)):
            if not owned.of(part, tables=tables):
                continue
            node, key = schedules.get(kind), f"optimizer.schedules.{kind}"
            if part is not None and part.schedule is not None:
                node, key = part.schedule, f"optimizer.parts[{i - 1}].schedule"
            if node is not None:
                found[rate_name(owned, part, tables=tables)] = (node, key)
    return found
