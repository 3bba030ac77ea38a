"""Copies the optimizers' states of the weights that a warm start takes.

Sums (Adagrad's) need only the weights they belong to. Moments of tables also need the number of
updates behind them, which all tables of one rate share: either all of them continue from the number
of the source, or all start afresh. The optimizers of the dense half count for each parameter.
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
    """Weights that were taken from one source."""

    source: WarmStartSource
    names: Mapping[str, str]  # ours -> in the source
    row_maps: Mapping[str, RowMap]  # by our name, if rows change places


@dataclass(frozen=True)
class _TableStates:
    """The optimizer states of one table that can be taken."""

    source: WarmStartSource
    states: Mapping[str, tuple[Tensor, str]]  # our name -> (our live tensor, name in the source)
    rows: RowMap | None  # None: row for row
    updates: int  # updates that the source had applied


def copy_optimizer_states(job: Job, matches: Sequence[MatchedWeights]) -> list[str]:
    """Copy the states that both runs have; for a table taken twice, those of the last source.

    Returns:
        Lines of the report.
    """
    by_table, lines = _match_table_states(job, matches)
    for tables in job.context.table_groups.values():
        if uses_step_count(tables):
            lines += _continue_step_count(job, tables, by_table)
    for table_states in by_table.values():
        rows = table_states.rows
        row_maps = {} if rows is None else dict.fromkeys(table_states.states, rows)
        copy_matched_tensors(table_states.source, table_states.states, row_maps)
    num_states = sum(len(table_states.states) for table_states in by_table.values())
    for match in matches:
        dense, dense_lines = _match_dense_states(job, match.source, match.names)
        copy_matched_tensors(match.source, dense, {})
        num_states += len(dense)
        lines += dense_lines
    return [*lines, f"  optimizer's: {num_states} states taken"]


def _match_table_states(
    job: Job, matches: Sequence[MatchedWeights]
) -> tuple[dict[str, _TableStates], list[str]]:
    """Return the states that can be taken by table, and a line for each one that is missing."""
    last = {name: match for match in matches for name in match.names if is_table_weight(name)}
    states: dict[str, dict[str, Tensor]] = {}
    for key, tensor in job.context.tables.state().items():
        table, _, state = key.rpartition("/")
        if state != "weight" and f"{TABLES_PREFIX}{table}/weight" in last:
            states.setdefault(table, {})[state] = tensor
    by_table: dict[str, _TableStates] = {}
    lines = []
    for table, table_states in states.items():
        weight = f"{TABLES_PREFIX}{table}/weight"
        match = last[weight]
        prefix = match.names[weight].removesuffix("weight")
        shapes = match.source.shapes
        missing = [
            state
            for state, tensor in table_states.items()
            if f"{prefix}{state}" not in shapes
            or shapes[f"{prefix}{state}"][1:] != tuple(tensor.shape[1:])
        ]
        if missing:
            lines += [
                f"  optimizer's, not there: {TABLES_PREFIX}{table}/{state}" for state in missing
            ]
            continue
        matched = {
            f"{TABLES_PREFIX}{table}/{state}": (tensor, f"{prefix}{state}")
            for state, tensor in table_states.items()
        }
        source_table = prefix.removeprefix(TABLES_PREFIX).rstrip("/")
        updates = count_source_updates(match.source, source_table)
        by_table[table] = _TableStates(match.source, matched, match.row_maps.get(weight), updates)
    return by_table, lines


def count_source_updates(source: WarmStartSource, table: str) -> int:
    """Return the updates behind a table's moments in the source, with those of its warm start."""
    values = source.saved.values
    prior = int(values.get("table_updates", {}).get(table, 0))
    return prior + int(values["step"]) - int(values["skipped"])


def _continue_step_count(
    job: Job, tables: EmbeddingTables, states_of: dict[str, _TableStates]
) -> list[str]:
    """Let the tables of one rate continue the step count of the source.

    Where that is impossible, their states are removed from `states_of`.
    """
    names = [spec.name for spec in tables.layout.tables]
    counts = {name: states_of[name].updates for name in names if name in states_of}
    if not counts:
        return []
    if len(counts) == len(names) and len(set(counts.values())) == 1:
        job.context.prior_table_updates |= counts
        [count] = set(counts.values())
        num_tables = f"{len(names)} table{'s' * (len(names) > 1)}"
        return [f"  optimizer's: moments of {num_tables} go on after {count:,} updates"]
    for name in counts:
        del states_of[name]
    by_table = describe_counts({name: counts.get(name) for name in names})
    return [
        "  optimizer's, not taken: moments of tables, since those of one rate need one number of "
        f"updates behind them, and there is: {by_table}; optimizer.parts gives some a rate of "
        "their own"
    ]


def _match_dense_states(
    job: Job, source: WarmStartSource, names: Mapping[str, str]
) -> tuple[dict[str, tuple[Tensor, str]], list[str]]:
    """Create the states of the dense weights that were taken, and match them to the source's.

    Returns:
        our name -> (our live tensor, the name in the source), and a line for each weight whose
        states cannot be taken.
    """
    optimizers = list(job.context.optimizers().values())
    parameters = trained_parameters(job.context)
    saved = source.saved.values["dense_optimizer"]
    states, source_names, lines = {}, {}, []
    for optimizer in optimizers:
        state_names_of = probe_state_names(optimizer)
        for name, parameter in parameters.items():
            if id(parameter) not in state_names_of or f"{DENSE_PREFIX}{name}" not in names:
                continue
            state_names = state_names_of[id(parameter)]
            if not state_names:
                continue
            source_name = names[f"{DENSE_PREFIX}{name}"].removeprefix(DENSE_PREFIX)
            source_names[name] = source_name
            if set(saved.get(source_name, {})) == state_names:
                states[name] = saved[source_name]
            else:
                lines.append(f"  optimizer's, not there or of another kind: {DENSE_PREFIX}{name}")
    if not states:
        return {}, lines
    create_dense_states(optimizers, parameters, states)
    created = {k: t for o in optimizers for k, t in dense_state_tensors(o, parameters).items()}
    matched = {}
    for name in states:
        for key in (k for k in created if k.startswith(f"{name}/")):
            source_key = f"dense_optimizer/{source_names[name]}{key[len(name) :]}"
            matched[f"dense_optimizer/{key}"] = (created[key], source_key)
    return matched, lines
