"""Statistics and histograms of named parameters and of the rows of embedding tables.

R rows of a table, N of them that are looked at.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from runner.config.intervals import parse_interval
from runner.distributed.ranks import Ranks
from runner.distributed.shards import LocalShard, LocalShards
from runner.errors import ConfigError, nearest_hint
from runner.training.callbacks.watch.histograms import (
    LastGradients,
    make_histogram,
    make_row_histogram,
    select_names,
)
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
    """A row `weights` of metrics.jsonl at each interval: `dense/<parameter>/<statistic>`, and of
    the norms of a table's rows `tables/<table>/row_norm_<statistic>`. Histograms go to trackers
    that show them, as `weights/<name>` and `gradients/<name>`.

    Args:
        parameters, tables: {pattern, statistics}; a pattern matches the whole name, and the first
        that does decides. sample_rows: of a larger table so many rows are looked at, drawn once
        for all times from its name (a row drawn twice counts once). None: all.
        histograms: patterns of names such as `dense/top.0.weight`, `tables/<table>`.
        gradient_histograms: of `dense/<parameter>`, whose last update's gradient is meant.
    Raises: ConfigError; a pattern that matches nothing is one, a histogram that no tracker shows.
    """

    on_every_rank = True

    def __init__(
        self,
        *,
        every: int | str = "1ep",
        parameters: Sequence[Mapping[str, Any]] = (),
        tables: Sequence[Mapping[str, Any]] = (),
        sample_rows: int | None = 100_000,
        histograms: Sequence[str] = (),
        gradient_histograms: Sequence[str] = (),
    ) -> None:
        self.every = parse_interval(every, key="every")
        self.parameters = [parse_selection(part, "parameters") for part in parameters]
        self.tables = [parse_selection(part, "tables") for part in tables]
        if sample_rows is not None and sample_rows < 1:
            raise ConfigError(f"sample_rows={sample_rows}: must be at least 1; null: all")
        self.sample_rows = sample_rows
        self.histograms, self.gradient_histograms = tuple(histograms), tuple(gradient_histograms)
        self.gradients = LastGradients()

    def state(self) -> dict[str, Any]:
        """Nothing: gradients are looked at in the update that made them."""
        return {}

    def load_state(self, saved: Mapping[str, Any]) -> None:
        return

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
                "histograms: no tracker of this run shows them, and metrics.jsonl holds numbers "
                "only; tracker=tensorboard, wandb or both"
            )
        if self.gradient_histograms:  # the same on all ranks
            self.gradients.attach([context.dense_optimizer, *context.part_optimizers.values()])

    def on_run_end(self, training: Any, result: Any) -> None:
        self.gradients.detach()

    def on_update(self, training: Any, output: Any) -> None:
        """Collective, at each interval."""
        gradients = self.gradients.take()
        if not training.due(self.every):
            return
        self._tell_histograms(training, gradients)
        context = training.context
        found: dict[str, float] = {}
        named = dense_parameters(context.model, context.loss)
        for name, statistics in match_statistics(self.parameters, named, "parameters").items():
            values = named[name].detach().double()
            found |= {f"dense/{name}/{s}": float(STATISTICS[s](values)) for s in statistics}  # sync
        weights = table_weights(context.tables.state())
        for name, statistics in match_statistics(self.tables, weights, "tables").items():
            rows_N = sample_row_ids(name, weights[name].shape[0], self.sample_rows)
            norms_N = row_norms(weights[name], rows_N, training.ranks)
            for s in statistics:
                found[f"tables/{name}/row_norm_{s}"] = float(STATISTICS[s](norms_N))  # sync
        training.log("weights", found)

    def _tell_histograms(self, training: Any, gradients: Mapping[int, Tensor]) -> None:
        """Collective. gradients: by the id of their parameter."""
        if not (self.histograms or self.gradient_histograms):
            return
        context = training.context
        parameters = named_parameters(context)
        tables = {f"tables/{n}": t for n, t in table_weights(context.tables.state()).items()}
        found: dict[str, Any] = {}
        for name in select_names(self.histograms, [*parameters, *tables], "histograms"):
            if name in tables:
                rows_N = sample_row_ids(
                    name.removeprefix("tables/"), tables[name].shape[0], self.sample_rows
                )
                found[name] = make_row_histogram(tables[name], rows_N, training.ranks)
            else:
                found[name] = make_histogram([parameters[name]])
        if found:
            training.log_histograms("weights", found)
        names = select_names(self.gradient_histograms, list(parameters), "gradient_histograms")
        slopes = {n: gradients[id(parameters[n])] for n in names if id(parameters[n]) in gradients}
        if slopes:
            of_slopes = {name: make_histogram([slope]) for name, slope in slopes.items()}
            training.log_histograms("gradients", of_slopes)


def named_parameters(context: Any) -> dict[str, nn.Parameter]:
    """Of the dense half and the loss, as `dense/<parameter>`."""
    return {f"dense/{n}": p for n, p in dense_parameters(context.model, context.loss).items()}


def parse_selection(part: Mapping[str, Any], key: str) -> tuple[str, tuple[str, ...]]:
    """(pattern, statistics). Raises: ConfigError."""
    if set(part) != {"pattern", "statistics"}:
        raise ConfigError(f"{key}: {dict(part)} must be {{pattern: ..., statistics: [...]}}")
    try:
        re.compile(part["pattern"])
    except (re.error, TypeError) as error:
        raise ConfigError(f"{key}: pattern {part['pattern']!r}: {error}") from error
    for name in part["statistics"]:
        if name not in STATISTICS:
            raise ConfigError(
                f"{key}: no statistic {name!r}{nearest_hint(name, STATISTICS)}; "
                f"there are {', '.join(STATISTICS)}"
            )
    return part["pattern"], tuple(part["statistics"])


def match_statistics(
    parts: Sequence[tuple[str, tuple[str, ...]]], names: Iterable[str], key: str
) -> dict[str, tuple[str, ...]]:
    """Statistics by name. Raises: ConfigError for a pattern that matches nothing."""
    names = list(names)
    for pattern, _ in parts:
        if not any(re.fullmatch(pattern, name) for name in names):
            raise ConfigError(f"{key}: {pattern!r} matches nothing{nearest_hint(pattern, names)}")
    found: dict[str, tuple[str, ...]] = {}
    for name in names:
        for pattern, statistics in parts:
            if re.fullmatch(pattern, name):
                found[name] = statistics
                break
    return found


def table_weights(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {n.removesuffix("/weight"): t for n, t in state.items() if n.endswith("/weight")}


def sample_row_ids(table: str, num_rows: int, limit: int | None) -> Tensor:
    """[N]: numbers of rows, in order: all of a small table, else the same ones at every time."""
    if limit is None or num_rows <= limit:
        return torch.arange(num_rows)
    dice = torch.Generator().manual_seed(zlib.crc32(table.encode()))
    return torch.randint(num_rows, (limit,), generator=dice).unique()


def row_norms(weight_RD: Tensor, rows_N: Tensor, ranks: Ranks) -> Tensor:
    """Collective, where the table is spread over ranks. [N] float64: the norms of some rows."""
    if not isinstance(weight_RD, LocalShards):
        return row_square_sums(LocalShard(weight_RD, (0, 0)), rows_N).sqrt()
    total_N = torch.zeros(len(rows_N), dtype=torch.float64, device=weight_RD.device)
    for piece in weight_RD.shards:
        total_N += row_square_sums(piece, rows_N)
    return ranks.all_reduce_sum(total_N).sqrt()


def row_square_sums(piece: LocalShard, rows_N: Tensor) -> Tensor:
    """[N]: sums of squares of the rows as far as they lie in a piece; 0 for others."""
    rows_N = rows_N.to(piece.tensor.device) - piece.offset[0]
    here_N = (rows_N >= 0) & (rows_N < len(piece.tensor))
    sums_N = torch.zeros(len(rows_N), dtype=torch.float64, device=piece.tensor.device)
    own = piece.tensor.index_select(0, rows_N[here_N]).double()
    sums_N[here_N] = own.square().sum(1)
    return sums_N
