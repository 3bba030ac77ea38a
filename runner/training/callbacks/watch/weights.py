"""Statistics and histograms of named parameters and of the rows of embedding tables.

R rows of a table, N sampled rows.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from runner.config.intervals import parse_interval
from runner.config_key import Key
from runner.config_value import check_arguments, check_value
from runner.distributed.ranks import Ranks
from runner.distributed.shards import LocalShard, LocalShards, rows_in_shard
from runner.errors import ConfigError
from runner.training.callbacks.watch.histograms import (
    LastGradients,
    make_histogram,
    make_row_histogram,
    select_names,
)
from runner.training.callbacks.watch.memory import TOGETHER
from runner.training.update.parameters import dense_parameters

STATISTICS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "norm": lambda x: x.norm(),
    "rms": lambda x: x.square().mean().sqrt(),
    "mean": lambda x: x.mean(),
    "std": lambda x: x.std(correction=0),
    "min": lambda x: x.min(),
    "max": lambda x: x.max(),
    "zeros": lambda x: (x == 0).double().mean(),
}


class Weights:
    """Writes a row `weights` of metrics.jsonl at each interval, and histograms to trackers.

    The row holds `dense/<parameter>/<statistic>`, and `tables/<table>/row_norm_<statistic>` of the
    norms of a table's rows. Histograms go to the trackers that show them, as `weights/<name>` and
    `gradients/<name>`.

    Args:
        parameters: {pattern, statistics} for dense parameters. A pattern matches the whole name,
            and the first that does decides.
        tables: the same for embedding tables.
        sample_rows: rows of a larger table that are looked at, always the same ones, drawn from
            the table's name (a row drawn twice counts once). None: all rows.
        histograms: patterns of names such as `dense/top.0.weight` and `tables/<table>`.
        gradient_histograms: patterns of `dense/<parameter>`, for the gradients of the last update.

    Raises:
        ConfigError: if a setting is wrong; at the start of the run, if a pattern matches nothing
            or no tracker shows the histograms.
    """

    on_every_rank = True
    stateless = True  # gradients are looked at in the update that made them

    def __init__(
        self,
        *,
        every: Annotated[int | str, Key(interval="progress", note=TOGETHER)] = "1ep",
        parameters: Sequence[Mapping[str, Any]] = (),
        tables: Sequence[Mapping[str, Any]] = (),
        sample_rows: Annotated[int | None, Key(ge=1, unit="rows", note="null: all rows")] = 100_000,
        histograms: Sequence[str] = (),
        gradient_histograms: Sequence[str] = (),
    ) -> None:
        check_arguments(Weights.__init__, locals())
        self.every = parse_interval(every, key="every")
        self.parameters = [parse_selection(part, "parameters") for part in parameters]
        self.tables = [parse_selection(part, "tables") for part in tables]
        self.sample_rows = sample_rows
        self.histograms, self.gradient_histograms = tuple(histograms), tuple(gradient_histograms)
        self.gradients = LastGradients()

    def on_run_start(self, training: Any) -> None:
        context = training.context
        parameters = named_parameters(context)
        tables = table_weights(context.tables.state())
        match_statistics(
            self.parameters, dense_parameters(context.model, context.loss), "parameters"
        )
        match_statistics(self.tables, tables, "tables")
        select_names(self.histograms, [*parameters, *(f"tables/{n}" for n in tables)], "histograms")
        select_names(self.gradient_histograms, list(parameters), "gradient_histograms")
        if not training.ranks.is_main:
            return
        if (self.histograms or self.gradient_histograms) and not training.shows_histograms:
            raise ConfigError(
                "histograms: no tracker of this run shows them, and metrics.jsonl holds only "
                "numbers; tracker=tensorboard, wandb or both"
            )
        if self.gradient_histograms:  # gradients are the same on all ranks
            self.gradients.attach([context.dense_optimizer, *context.part_optimizers.values()])

    def on_run_end(self, training: Any, result: Any) -> None:
        self.gradients.detach()

    def on_update(self, training: Any, output: Any) -> None:
        """Write the row and the histograms. Collective, at each interval."""
        gradients = self.gradients.take()
        if not training.due(self.every):
            return
        self._log_histograms(training, gradients)
        context = training.context
        values: dict[str, float] = {}
        parameters = dense_parameters(context.model, context.loss)
        for name, statistics in match_statistics(self.parameters, parameters, "parameters").items():
            x = parameters[name].detach().double()
            values |= {f"dense/{name}/{s}": float(STATISTICS[s](x)) for s in statistics}  # sync
        weights = table_weights(context.tables.state())
        equal_columns = {s.name: s.equal_columns for s in context.tables.layout.tables}
        for name, statistics in match_statistics(self.tables, weights, "tables").items():
            rows_N = sample_row_ids(name, weights[name].shape[0], self.sample_rows)
            norms_N = row_norms(weights[name], rows_N, training.ranks)
            norms_N /= equal_columns[name] ** 0.5
            for s in statistics:
                values[f"tables/{name}/row_norm_{s}"] = float(STATISTICS[s](norms_N))  # sync
        training.log("weights", values)

    def _log_histograms(self, training: Any, gradients: Mapping[int, Tensor]) -> None:
        """Send the histograms to the trackers.

        Collective.

        Args:
            gradients: by `id()` of their parameter.
        """
        if not (self.histograms or self.gradient_histograms):
            return
        context = training.context
        parameters = named_parameters(context)
        tables = {f"tables/{n}": t for n, t in table_weights(context.tables.state()).items()}
        histograms: dict[str, Any] = {}
        for name in select_names(self.histograms, [*parameters, *tables], "histograms"):
            if name in tables:
                rows_N = sample_row_ids(
                    name.removeprefix("tables/"), tables[name].shape[0], self.sample_rows
                )
                histograms[name] = make_row_histogram(tables[name], rows_N, training.ranks)
            else:
                histograms[name] = make_histogram([parameters[name]])
        if histograms:
            training.log_histograms("weights", histograms)
        names = select_names(self.gradient_histograms, list(parameters), "gradient_histograms")
        histograms = {
            name: make_histogram([gradients[id(parameters[name])]])
            for name in names
            if id(parameters[name]) in gradients
        }
        if histograms:
            training.log_histograms("gradients", histograms)


def named_parameters(context: Any) -> dict[str, nn.Parameter]:
    """Return the parameters of the dense half and the loss, as `dense/<parameter>`."""
    return {f"dense/{n}": p for n, p in dense_parameters(context.model, context.loss).items()}


def parse_selection(part: Mapping[str, Any], key: str) -> tuple[str, tuple[str, ...]]:
    """Return (pattern, statistics) of one entry of a setting.

    Raises:
        ConfigError: if the entry has other keys, a malformed pattern or an unknown statistic.
    """
    if set(part) != {"pattern", "statistics"}:
        raise ConfigError(f"{key}: {dict(part)} must be {{pattern: ..., statistics: [...]}}")
    try:
        re.compile(part["pattern"])
    except (re.error, TypeError) as error:
        raise ConfigError(f"{key}: pattern {part['pattern']!r}: {error}") from error
    known = Annotated[Sequence[str], Key(choices=tuple(STATISTICS))]
    check_value(f"{key}.statistics", part["statistics"], known)
    return part["pattern"], tuple(part["statistics"])


def match_statistics(
    parts: Sequence[tuple[str, tuple[str, ...]]], names: Iterable[str], key: str
) -> dict[str, tuple[str, ...]]:
    """Return the statistics of each name, by the first pattern that matches it.

    Raises:
        ConfigError: if a pattern matches nothing.
    """
    return {
        name: next(statistics for pattern, statistics in parts if re.fullmatch(pattern, name))
        for name in select_names([pattern for pattern, _ in parts], list(names), key)
    }


def table_weights(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of each table, from the state of all tables."""
    return {n.removesuffix("/weight"): t for n, t in state.items() if n.endswith("/weight")}


def sample_row_ids(table: str, num_rows: int, limit: int | None) -> Tensor:
    """Return the numbers of the rows to look at, ascending, the same ones at every call.

    Args:
        limit: the most rows. None: all of them.

    Returns:
        [N] int64.
    """
    if limit is None or num_rows <= limit:
        return torch.arange(num_rows)
    generator = torch.Generator().manual_seed(zlib.crc32(table.encode()))
    rows: Tensor = torch.unique(torch.randint(num_rows, (limit,), generator=generator))
    return rows


def row_norms(weight_RD: Tensor, rows_N: Tensor, ranks: Ranks) -> Tensor:
    """Return the norms of some rows of a table.

    Collective, if the table is sharded over ranks.

    Returns:
        [N] float64.
    """
    if not isinstance(weight_RD, LocalShards):
        return row_square_sums(LocalShard(weight_RD, (0, 0)), rows_N).sqrt()
    total_N = torch.zeros(len(rows_N), dtype=torch.float64, device=weight_RD.device)
    for shard in weight_RD.shards:
        total_N += row_square_sums(shard, rows_N)
    return ranks.all_reduce_sum(total_N).sqrt()


def row_square_sums(shard: LocalShard, rows_N: Tensor) -> Tensor:
    """Return the sums of squares of the parts of rows that lie in a shard; 0 for other rows.

    Returns:
        [N] float64.
    """
    inside_N, local_N = rows_in_shard(shard, rows_N.to(shard.tensor.device))
    sums_N = torch.zeros(len(rows_N), dtype=torch.float64, device=shard.tensor.device)
    sums_N[inside_N] = shard.tensor.index_select(0, local_N).double().square().sum(1)
    return sums_N
