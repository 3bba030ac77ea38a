"""The optimizers' states of what a warm start takes: of a table and its group all, or none.

Sums (Adagrad's) need nothing but the weights they belong to. Moments of tables need the number of
updates behind them too, which is one for all tables of a rate: they go on from where the source
was, or the whole group counts anew. The dense half's optimizers count by parameter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from runner.embeddings.interface import EmbeddingTables
from runner.embeddings.step_counts import describe_counts, uses_step_count
from runner.optim.dense import create_dense_states, dense_state_tensors, probe_state_names
from runner.training.job import Job
from runner.training.update.parameters import trained_parameters
from runner.training.warm_start.source import (
    DENSE_PREFIX,
    TABLES_PREFIX,
    RowMap,
    WarmStartSource,
    copy_matched_tensors,
    is_table_weight,
)


@dataclass(frozen=True)
class MatchedWeights:
    """Weights that were taken from one source: our names -> theirs, and rows that moved."""

    source: WarmStartSource
    names: Mapping[str, str]
    row_maps: Mapping[str, RowMap]


@dataclass(frozen=True)
class _Moved:
    """The states of one table: our name -> (live tensor, their name)."""

    source: WarmStartSource
    states: Mapping[str, tuple[Tensor, str]]
    rows: RowMap | None
    updates: int  # that the source had applied


def copy_optimizer_states(job: Job, takes: Sequence[MatchedWeights]) -> list[str]:
    """Copies states where both runs keep the same ones; of a table taken twice, the last's.

    Returns: lines of the report.
    """
    found, lines = _of_tables(job, takes)
    for tables in job.context.table_groups.values():
        if uses_step_count(tables):
            lines += _continue_together(job, tables, found)
    for moved in found.values():
        rows = {} if moved.rows is None else dict.fromkeys(moved.states, moved.rows)
        copy_matched_tensors(moved.source, moved.states, rows)
    number = sum(len(moved.states) for moved in found.values())
    for take in takes:
        dense, more = _dense_states(job, take.source, take.names)
        copy_matched_tensors(take.source, dense, {})
        number, lines = number + len(dense), lines + more
    return [*lines, f"  optimizer's: {number} states taken"]


def _of_tables(job: Job, takes: Sequence[MatchedWeights]) -> tuple[dict[str, _Moved], list[str]]:
    """By table what could be taken; a line for each state that is not there."""
    last = {name: take for take in takes for name in take.names if is_table_weight(name)}
    states: dict[str, dict[str, Tensor]] = {}
    for key, tensor in job.context.tables.state().items():
        table, _, state = key.rpartition("/")
        if state != "weight" and f"{TABLES_PREFIX}{table}/weight" in last:
            states.setdefault(table, {})[state] = tensor
    found: dict[str, _Moved] = {}
    lines = []
    for table, own in states.items():
        weight = f"{TABLES_PREFIX}{table}/weight"
        take = last[weight]
        theirs = take.names[weight].removesuffix("weight")
        shapes = take.source.shapes
        missing = [
            state
            for state, tensor in own.items()
            if f"{theirs}{state}" not in shapes
            or shapes[f"{theirs}{state}"][1:] != tuple(tensor.shape[1:])
        ]
        if missing:
            lines += [
                f"  optimizer's, not there: {TABLES_PREFIX}{table}/{state}" for state in missing
            ]
            continue
        moved = {
            f"{TABLES_PREFIX}{table}/{s}": (tensor, f"{theirs}{s}") for s, tensor in own.items()
        }
        updates = count_source_updates(take.source, theirs.removeprefix(TABLES_PREFIX).rstrip("/"))
        found[table] = _Moved(take.source, moved, take.row_maps.get(weight), updates)
    return found, lines


def count_source_updates(source: WarmStartSource, table: str) -> int:
    """Updates behind the moments of a table there, those before its own warm start included."""
    values = source.saved.values
    before = values.get("table_updates", {}).get(table, 0)
    return before + values["step"] - values["skipped"]


def _continue_together(job: Job, tables: EmbeddingTables, found: dict[str, _Moved]) -> list[str]:
    """Lets a group's count go on from its source's; what cannot be is taken out of `found`."""
    names = [spec.name for spec in tables.layout.tables]
    counts = {name: found[name].updates for name in names if name in found}
    if not counts:
        return []
    if len(counts) == len(names) and len(set(counts.values())) == 1:
        job.context.prior_table_updates |= counts
        [behind] = set(counts.values())
        these = f"{len(names)} table{'s' * (len(names) > 1)}"
        return [f"  optimizer's: moments of {these} go on after {behind:,} updates"]
    for name in counts:
        del found[name]
    each = describe_counts({name: counts.get(name) for name in names})
    return [
        "  optimizer's, not taken: moments of tables, since those of one rate need one number of "
        f"updates behind them, and there is: {each}; optimizer.parts gives some a rate of their own"
    ]


def _dense_states(
    job: Job, source: WarmStartSource, taken: Mapping[str, str]
) -> tuple[dict[str, tuple[Tensor, str]], list[str]]:
    """States made for the dense weights that were taken, and what they are called there."""
    optimizers = list(job.context.optimizers().values())
    parameters = trained_parameters(job.context)
    saved = source.saved.values["dense_optimizer"]
    states, others, lines = {}, {}, []
    for optimizer in optimizers:
        owned = {id(p): p.dim() for group in optimizer.param_groups for p in group["params"]}
        kept = {dims: probe_state_names(optimizer, dims) for dims in set(owned.values())}
        for name, parameter in parameters.items():
            if id(parameter) not in owned or f"{DENSE_PREFIX}{name}" not in taken:
                continue
            if not kept[parameter.dim()]:
                continue
            others[name] = taken[f"{DENSE_PREFIX}{name}"].removeprefix(DENSE_PREFIX)
            if set(saved.get(others[name], {})) == kept[parameter.dim()]:
                states[name] = saved[others[name]]
            else:
                lines.append(f"  optimizer's, not there or of another kind: {DENSE_PREFIX}{name}")
    if not states:
        return {}, lines
    create_dense_states(optimizers, parameters, states)
    made = {k: t for o in optimizers for k, t in dense_state_tensors(o, parameters).items()}
    found = {}
    for name in states:
        for key in (k for k in made if k.startswith(f"{name}/")):
            other = f"dense_optimizer/{others[name]}{key[len(name) :]}"
            found[f"dense_optimizer/{key}"] = (made[key], other)
    return found, lines
