"""Builds the embedding tables of a job: those of each group of `optimizer.parts` by its rule."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from runner.config.settings import TrainerSettings, make_settings
from runner.distributed.global_batch import rank_batch_size
from runner.distributed.ranks import Ranks, current_ranks
from runner.embeddings.composite_tables import join_tables, read_features
from runner.embeddings.factory import build_tables, check_every_row, check_table_specs
from runner.embeddings.frozen_tables import FROZEN_SETTINGS, FrozenTables
from runner.embeddings.interface import EmbeddingTables, Placement, TableSpec
from runner.embeddings.padded_tables import BuildTables
from runner.embeddings.placement import describe_placement, shard_tables
from runner.embeddings.sharding_rules import TableRules, check_bandwidths, check_plans
from runner.embeddings.sharding_settings import (
    DISK,
    ShardingSettings,
    check_table_names,
    placed_kind,
)
from runner.embeddings.zero_gradient_rows import NORM_SCALED_KINDS
from runner.errors import ConfigError
from runner.machine.cache_folder import cache_root
from runner.models.layers.embedding import TableLookup
from runner.optim.param_groups import TABLE_PREFIX
from runner.optim.settings import SparseSettings, parse_sparse
from runner.reporting.console import View
from runner.rundir.json_files import write_json
from runner.rundir.run import Run
from runner.training.builder.optimizers import SPARSE, ParameterGroups, lr_name

SCRATCH_FOLDER = "tables"  # subfolder of the cache; its files have no names


@dataclass(frozen=True)
class BuiltTables:
    """The embedding tables of a job, with the learning rates that the configuration gives them."""

    tables: EmbeddingTables  # all of them
    trained: dict[str, EmbeddingTables]  # those that are not frozen, by the name of their rate
    base_lrs: dict[str, float]  # by the same names, before the schedule's factor

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


def get_table_lookup(model: nn.Module) -> TableLookup:
    """Return the one look-up that holds all tables of the model.

    Raises:
        ConfigError: if the model has none or several.
    """
    lookups = [m for m in model.modules() if isinstance(m, TableLookup)]
    if len(lookups) != 1:
        raise ConfigError(
            f"model.net: {type(model).__name__} must hold one TableLookup for all its tables, not "
            f"{len(lookups)}"
        )
    return lookups[0]


def build_embedding_tables(
    lookup: TableLookup,
    config: Mapping[str, Any],
    parameter_groups: ParameterGroups,
    trainer: TrainerSettings,
    device: torch.device,
) -> BuiltTables:
    """Give the model's tables memory, initial weights and their fused optimizers.

    Collective.
    """
    sparse = parse_sparse(config["optimizer"]["sparse"])
    build = make_table_builder(
        make_settings(ShardingSettings, config["sharding"]),
        current_ranks() if dist.is_initialized() else None,
        parameter_groups,
        sparse,
        seed=config["seed"],
        device=device,
        batch_size=rank_batch_size(trainer.batch_size, trainer.accumulate),
    )
    built = build_table_groups(
        lookup.specs, lookup.features, sparse, parameter_groups, build, device=device
    )
    lookup.attach_tables(built.tables)
    return built


def report_placement(
    placement: Sequence[Placement], world_size: int, run: Run | None, view: View
) -> None:
    """Show which rank has which part of which table, and write it into the run directory.

    A single process has all tables whole: nothing is shown, and a file from an earlier start of
    the run on several ranks is removed.
    """
    file = None if run is None else run.dir / "sharding.json"
    if not placement:
        if file is not None:
            file.unlink(missing_ok=True)
        return
    view.note(describe_placement(placement, world_size))
    if file is not None:
        pieces = [asdict(piece) for piece in placement]
        write_json(file, {"world_size": world_size, "pieces": pieces})


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
        feature_order: all features, in the order of their columns in a look-up.
        settings: the rule of tables that no part owns.
        build: makes the tables of one rule.

    Returns:
        The tables and their learning rates.

    Raises:
        ConfigError: where all tables are frozen, for a setting that would have no effect.
    """
    check_table_specs(specs)
    built: list[EmbeddingTables] = []
    trained: dict[str, EmbeddingTables] = {}
    base_lrs: dict[str, float] = {}
    for i, group in enumerate((None, *parameter_groups.groups)):
        where = f"optimizer.parts[{i - 1}].sparse" if group else "optimizer.sparse"
        owned = parameter_groups.names_in(group, tables=True)
        names = {name.removeprefix(TABLE_PREFIX) for name in owned}
        if not names:
            continue
        group_specs = [spec for spec in specs if spec.name in names]
        order = read_features(group_specs, feature_order)
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
        for key in ("every_row", "l2_tables", "l2_lookups"):
            if getattr(settings, key):
                raise ConfigError(
                    f"optimizer.sparse.{key}: has no effect: optimizer.parts freezes all tables"
                )
    tables = join_tables(built, specs, feature_order, settings, device=device)
    return BuiltTables(tables, trained, base_lrs)


def check_start(trained: Mapping[str, EmbeddingTables]) -> None:
    """Check that no table starts at 0 under a rule that scales a step by the norm of its row.

    Such a row would stay at 0 whatever its gradients are.

    Args:
        trained: the tables that train, by the name of their rate.

    Raises:
        ConfigError: naming the tables.
    """
    for rate, tables in trained.items():
        kind = tables.settings.kind
        names = [spec.name for spec in tables.layout.tables if spec.init_bound == 0]
        if kind in NORM_SCALED_KINDS and names:
            where = "optimizer.sparse" if rate == SPARSE else f"optimizer.parts, {rate}: sparse"
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise ConfigError(
                f"{where}.kind={kind}: scales each step by the norm of its row, so tables of "
                f"first-order weights, which start at 0, would stay there: {names[0]}{more}; give "
                "them another rule, as in optimizer.parts=[{pattern: ':linear$', "
                "sparse: {kind: adam, lr: 0.001}}]"
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
        ranks: None without a process group.
        parameter_groups: the group of each table.
        settings: the rule of tables that no part owns.
        batch_size: rows that a rank looks up at once, for the planner.

    Returns:
        A function from specifications, the order of the features and a rule to tables.

    Raises:
        ConfigError: for an entry of `sharding.tables` that is no table, also in one process, and
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
        return shard_tables(
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
            engine_specs = [s for s in specs if (s.name in on_disk) == (scratch is not None)]
            if engine_specs:
                own_order = read_features(engine_specs, order)
                members.append(
                    build_tables(
                        engine_specs, own_order, settings, seed=seed, device=device, scratch=scratch
                    )
                )
        return join_tables(members, specs, order, settings, device=device)

    return build
