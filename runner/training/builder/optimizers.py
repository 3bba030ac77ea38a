"""The optimizers of a job: one for each group of `optimizer.parts`, and one for everything else.

Dense parameters and tables are assigned alike; group None owns those of no part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn
from torch.optim import Optimizer, SparseAdam

from runner.config.settings import LrScalingSettings
from runner.errors import ConfigError
from runner.optim.dense import build_dense_optimizer, optimizer_parameters
from runner.optim.lr_scaling import lr_scale_factor
from runner.optim.param_groups import (
    TABLE_PREFIX,
    ParameterGroup,
    check_group_settings,
    match_patterns,
)
from runner.training.builder.own_schedule import build_any_schedule
from runner.training.job import LearningRates
from runner.training.update.context import Context

DENSE, SPARSE = "dense", "sparse"  # names of the rates of group None


@dataclass(frozen=True)
class ParameterGroups:
    """The group that owns each trained parameter and table, by name; None: no part owns it."""

    groups: tuple[ParameterGroup, ...]
    group_of: Mapping[str, ParameterGroup | None]

    def names_in(self, group: ParameterGroup | None, *, tables: bool) -> list[str]:
        """Return the names of the tables, or of the other parameters, that a group owns."""
        names = [name for name, owner in self.group_of.items() if owner is group]
        return [name for name in names if name.startswith(TABLE_PREFIX) == tables]


def assign_parameters(
    groups: Sequence[ParameterGroup], parameters: Sequence[str], tables: Sequence[str]
) -> ParameterGroups:
    """Assign each trained parameter and table to the first group whose pattern matches its name.

    Args:
        groups: the checked entries of `optimizer.parts`.
        parameters: names of the trained parameters of the dense half.
        tables: names of the tables.

    Returns:
        The group of each parameter and table.

    Raises:
        ConfigError: for a pattern that owns nothing, or if everything is frozen.
    """
    names = [*parameters, *(f"{TABLE_PREFIX}{name}" for name in tables)]
    indices = match_patterns(names, [group.pattern for group in groups])
    check_group_settings(groups, indices)
    assigned = ParameterGroups(
        tuple(groups), {name: None if i is None else groups[i] for name, i in indices.items()}
    )
    if all(owner is not None and owner.frozen for owner in assigned.group_of.values()):
        raise ConfigError(
            "optimizer.parts: everything is frozen, so nothing is trained; take a part out"
        )
    return assigned


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


def check_sparse_adam(optimizers: Iterable[Optimizer], model: nn.Module) -> None:
    """Check that `SparseAdam` owns nothing but what has sparse gradients, which alone it takes.

    Raises:
        ConfigError: if it owns anything else.
    """
    owned = [p for o in optimizers if isinstance(o, SparseAdam) for p in optimizer_parameters(o)]
    sparse = {id(m.weight) for m in model.modules() if getattr(m, "sparse", False)}
    if any(id(parameter) not in sparse for parameter in owned):
        raise ConfigError(
            "optimizer.dense: SparseAdam takes sparse gradients alone, and the dense half has none "
            "but of a torch.nn.Embedding with sparse=True; optimizer.dense._target_="
            "torch.optim.Adam trains it, and optimizer.sparse.kind=adam moves those rows of tables "
            "that a batch looks up"
        )


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

    Returns:
        name of the rate -> (settings of the schedule, their key in the configuration).
    """
    by_name: dict[str, tuple[Mapping[str, Any], str]] = {}
    for kind in (SPARSE, DENSE):
        tables = kind == SPARSE
        for i, group in enumerate((None, *parameter_groups.groups)):
            if not parameter_groups.names_in(group, tables=tables):
                continue
            node, key = schedules.get(kind), f"optimizer.schedules.{kind}"
            if group is not None and group.schedule is not None:
                node, key = group.schedule, f"optimizer.parts[{i - 1}].schedule"
            if node is not None:
                by_name[lr_name(parameter_groups, group, tables=tables)] = (node, key)
    return by_name


def base_learning_rates(
    context: Context, table_lrs: Mapping[str, float], scaling: LrScalingSettings
) -> dict[str, float]:
    """Return the full learning rates of all optimizers by name, scaled by the batches of an update.

    Called before the first update, which sets the rates of a schedule: an optimizer of the dense
    half or of the task may have the default rate of its class, which only the optimizer knows.

    Args:
        context: after the task has added its optimizers.
    """
    lrs = {name: float(o.param_groups[0]["lr"]) for name, o in context.optimizers().items()}
    scale = lr_scale_factor(scaling.rule, scaling.batches)
    return {name: lr * scale for name, lr in {**lrs, **table_lrs}.items()}


def make_learning_rates(
    config: Mapping[str, Any],
    base_lrs: Mapping[str, float],
    parameter_groups: ParameterGroups,
    allowed: Sequence[str],
    total_steps: int | None,
    steps_per_epoch: int | None,
) -> LearningRates:
    """Return the full learning rates with the schedules of a run of this length.

    Raises:
        ConfigError: for a schedule that does not fit the length of the run.
    """
    build = partial(
        build_any_schedule,
        total_steps=total_steps,
        steps_per_epoch=steps_per_epoch,
        allowed=allowed,
    )
    schedules = group_schedules(config["optimizer"].get("schedules") or {}, parameter_groups)
    factors = {name: build(node, where=where) for name, (node, where) in schedules.items()}
    return LearningRates(base_lrs, build(config["scheduler"]), factors)
