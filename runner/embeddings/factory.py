"""Construction of embedding tables in one process, with the fastest engine of the device.

The machine code that FBGEMM writes for a row of row-wise Adagrad (src/SparseAdagrad.cc in its
sources) has `movss`, `divss` and `sqrtss` of SSE among instructions of AVX. Some processors save
and restore the upper halves of their registers at each change between the two: an Intel CPU with
AMX takes 380 ns longer for a row, of whatever width. So it is measured whether this one does.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import torch

from runner.embeddings.cpu_tables import CpuTables
from runner.embeddings.decayed_tables import decay_whole_tables
from runner.embeddings.dense_tables import DenseTables
from runner.embeddings.disk_tables import build_in_files
from runner.embeddings.fbgemm_tables import FbgemmTables
from runner.embeddings.huge_pages import ZerosFrom, zeros_in_huge_pages
from runner.embeddings.initialization import init_rows_
from runner.embeddings.interface import EmbeddingTables, Placement, TableSpec, make_layout
from runner.embeddings.memory_budget import table_bytes_per_rank
from runner.embeddings.padded_tables import build_any_width
from runner.embeddings.sharding_settings import NO_16_BIT_ON_CUDA
from runner.embeddings.zero_gradient_rows import protect_zero_gradient_rows
from runner.errors import ConfigError
from runner.machine.cores import cpu_name
from runner.optim.settings import EVERY_ROW_LIMIT, SparseSettings

SLOW_FROM_S = 120e-9  # per row; our own row updates take 60 to 120 ns
_NUM_ROWS, _WIDTH = 512, 8
_REPEATS = 5


def build_tables(
    specs: Sequence[TableSpec],
    feature_order: Sequence[str],
    settings: SparseSettings,
    *,
    seed: int,
    device: torch.device,
    scratch: Path | None = None,
) -> EmbeddingTables:
    """Build tables with their initial weights.

    Args:
        feature_order: the features in the order of the batches' keys and of the output.
        seed: determines the initial weights.
        scratch: a folder for files with all tables; None: they are in memory.

    Raises:
        ConfigError: if there are no tables, or the disk has too little room for them.
    """
    check_table_specs(specs)
    build = partial(_build_stored_tables, seed=seed, device=device, scratch=scratch)
    tables = build_any_width(specs, feature_order, settings, build, device=device)
    return decay_whole_tables(tables, device=device)


def _build_stored_tables(
    specs: Sequence[TableSpec],
    feature_order: Sequence[str],
    settings: SparseSettings,
    *,
    seed: int,
    device: torch.device,
    scratch: Path | None,
) -> EmbeddingTables:
    settings = with_rounding_seed(settings, seed)
    tables = build_uninitialized_tables(specs, feature_order, settings, device, scratch)
    state = tables.state()
    for spec in specs:
        weight = state[f"{spec.name}/weight"]
        weight[:, spec.true_dim :].zero_()
        init_rows_(
            weight[:, : spec.true_dim],
            seed=seed,
            table=spec.name,
            num_rows=spec.num_rows,
            bound=spec.init_bound,
        )
    return tables


def build_uninitialized_tables(
    specs: Sequence[TableSpec],
    feature_order: Sequence[str],
    settings: SparseSettings,
    device: torch.device,
    scratch: Path | None = None,
) -> EmbeddingTables:
    """Build tables on the fastest engine of the device, with their weights not yet set.

    With a folder as `scratch`, they are in files there.

    Raises:
        ConfigError: for 16-bit rows on a GPU, and for a disk with too little room.
    """
    if scratch is not None:
        build = partial(_build_in_memory, specs, feature_order, settings, device)
        placements = [Placement(s.name, "", 0, 0, s.num_rows, 0, s.dim) for s in specs]
        [num_bytes] = table_bytes_per_rank(placements, settings, 1)
        return build_in_files(build, scratch, num_bytes, device=device)
    with ZerosFrom(zeros_in_huge_pages):
        return _build_in_memory(specs, feature_order, settings, device)


def _build_in_memory(
    specs: Sequence[TableSpec],
    feature_order: Sequence[str],
    settings: SparseSettings,
    device: torch.device,
) -> EmbeddingTables:
    if settings.every_row:
        return DenseTables(make_layout(specs, feature_order, by_dim=False), settings, device)
    if settings.is_16_bit and device.type != "cpu":
        raise ConfigError(f"optimizer.sparse.dtype={settings.dtype}: {NO_16_BIT_ON_CUDA}")
    if device.type == "cpu" and (settings.is_16_bit or not prefers_fbgemm(settings.kind, specs)):
        return CpuTables(make_layout(specs, feature_order, by_dim=True), settings, device)
    tables = FbgemmTables(make_layout(specs, feature_order, by_dim=False), settings, device)
    for kernel in tables._tbe:
        protect_zero_gradient_rows(kernel, settings)
    return tables


def with_rounding_seed(settings: SparseSettings, seed: int) -> SparseSettings:
    """Return the settings with the seed of the rounding of 16-bit rows, if they have it."""
    return replace(settings, rounding_seed=seed) if settings.is_16_bit else settings


def check_table_specs(specs: Sequence[TableSpec]) -> None:
    """Check that there are tables.

    Raises:
        ConfigError: if not.
    """
    if not specs:
        raise ConfigError(
            "the model has no table to look up: the dataset has no sparse feature; "
            "`categorical` in its schema declares some"
        )


def check_every_row(specs: Sequence[TableSpec], settings: SparseSettings, where: str) -> None:
    """Check that tables of which every row is updated at every update are small enough for that.

    Args:
        where: the dotted key of the settings, for the message.

    Raises:
        ConfigError: naming the largest table, if it is too large.
    """
    largest = max(specs, key=lambda spec: spec.num_rows)
    if settings.every_row and largest.num_rows > EVERY_ROW_LIMIT:
        raise ConfigError(
            f"{where}.every_row=true: every update would pass over the {largest.num_rows:,} rows "
            f"of table {largest.name}; it is for tables of up to {EVERY_ROW_LIMIT:,}. Give "
            f"this table a part of optimizer.parts with other settings, or set {where}.every_row="
            f"false {where}.l2_tables=0; {where}.l2_lookups penalises only rows that are looked up"
        )


def prefers_fbgemm(kind: str, specs: Iterable[TableSpec]) -> bool:
    """Return whether to update tables by FBGEMM's CPU kernel of an optimizer, not by our own code.

    For row-wise Adagrad both give the same bits, so the faster one is used, unless several features
    share a table: then the processor's name decides, since a busy machine can measure either, and a
    resume could differ by rounding. Adagrad is scalar code in FBGEMM, which
    takes 1.1 to 1.5 times as long as ours.
    """
    if kind != "rowwise_adagrad":
        return kind == "sgd"
    if any(len(spec.features) > 1 for spec in specs):
        return "AMD" in cpu_name()
    return adagrad_row_s() < SLOW_FROM_S


@cache
def adagrad_row_s() -> float:
    """Return by how many seconds an update of a row by row-wise Adagrad is slower than by SGD.

    It is measured once per process, in some five milliseconds, by the processor time of one thread,
    which other processes do not change.
    """
    ids, offsets = torch.arange(_NUM_ROWS), torch.arange(_NUM_ROWS + 1)
    layout = make_layout([TableSpec("probe", _NUM_ROWS, _WIDTH, ("ids",))], ["ids"], by_dim=False)
    num_threads, seconds = torch.get_num_threads(), []
    torch.set_num_threads(1)
    try:
        for kind in ("sgd", "rowwise_adagrad"):
            tables = FbgemmTables(layout, SparseSettings(kind, lr=0.01), torch.device("cpu"))
            seconds.append(min(_update_s(tables, ids, offsets) for _ in range(_REPEATS)))
    finally:
        torch.set_num_threads(num_threads)
    sgd_s, adagrad_s = seconds
    return (adagrad_s - sgd_s) / _NUM_ROWS


def _update_s(tables: FbgemmTables, ids: torch.Tensor, offsets: torch.Tensor) -> float:
    pooled_BE = tables._look_up(ids, offsets, None)
    gradient_BE = torch.ones_like(pooled_BE)
    begin = time.thread_time()
    pooled_BE.backward(gradient_BE)  # type: ignore[no-untyped-call]
    return time.thread_time() - begin
