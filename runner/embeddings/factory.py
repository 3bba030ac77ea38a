"""Embedding tables with their optimizer inside, by the fastest engine of the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from runner.embeddings.cpu_tables import ExactTables
from runner.embeddings.fbgemm_tables import FusedTables
from runner.embeddings.huge_pages import put_in_huge_pages
from runner.embeddings.initialization import fill_rows
from runner.embeddings.interface import Tables, TableSpec, arrange
from runner.embeddings.sharding_settings import FASTER_ON_CPU
from runner.embeddings.zero_gradient_rows import keep_still_rows
from runner.errors import ConfigError
from runner.optim.settings import SparseSettings

__all__ = ["ExactTables", "FusedTables", "TableSpec", "Tables", "build_tables"]


def build_tables(
    specs: Sequence[TableSpec],
    feature_order: Sequence[str],
    settings: SparseSettings,
    *,
    seed: int,
    device: torch.device,
) -> Tables:
    """Tables with initial weights. `feature_order` is that of the batches' keys and the output.

    Raises: ConfigError for no table at all, or widths that FBGEMM cannot hold.
    """
    check_specs(specs)
    tables = build_engine(specs, feature_order, settings, device)
    state = tables.state()
    put_in_huge_pages(state.values())
    for spec in specs:
        fill_rows(
            state[f"{spec.name}/weight"],
            seed=seed,
            table=spec.name,
            num_rows=spec.num_rows,
            bound=spec.bound,
        )
    return tables


def build_engine(
    specs: Sequence[TableSpec],
    feature_order: Sequence[str],
    settings: SparseSettings,
    device: torch.device,
) -> Tables:
    """The fastest engine of the device, its weights not yet set."""
    if device.type == "cpu" and settings.kind not in FASTER_ON_CPU:
        return ExactTables(arrange(specs, feature_order, by_dim=True), settings, device)
    tables = FusedTables(arrange(specs, feature_order, by_dim=False), settings, device)
    for kernel in tables._tbe:
        keep_still_rows(kernel, settings)
    return tables


def check_specs(specs: Sequence[TableSpec]) -> None:
    """Raises: ConfigError for no table at all, or widths that FBGEMM cannot hold."""
    if not specs:
        raise ConfigError("the model looks nothing up: the dataset has no sparse feature")
    odd = [f"{spec.name} ({spec.dim})" for spec in specs if spec.dim % 4]
    if odd:
        raise ConfigError(f"widths of tables must be multiples of 4: {', '.join(odd)}")
