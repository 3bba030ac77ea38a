"""Builds the maps of growing tables, and refuses what they cannot be combined with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from runner.data.core.dataset import Dataset
from runner.errors import raise_combined
from runner.models.dien import DIEN
from runner.models.layers.embedding import TableLookup
from runner.models.layers.retrieval import RetrievalModel
from runner.training.update.context import Context
from runner.training.update.growing_ids import GrowingIds


def check_growth(config: Mapping[str, Any], dataset: Dataset, model: nn.Module) -> None:
    """Check that nothing needs rows that ids do not have before the training.

    Raises:
        ConfigError: naming each part that does, with the reason.
    """
    if getattr(dataset, "growth", {}):
        raise_combined(_growth_problems(config, dataset, model))


def _growth_problems(
    config: Mapping[str, Any], dataset: Dataset, model: nn.Module
) -> Iterator[str]:
    schema = dataset.schema
    tables = {f.name: f.table_name for f in schema.sparse}
    tables |= {s.name: s.table_name for s in schema.sequences}
    growing = [name for name, table in tables.items() if table in dataset.growth]
    where = "dataset.schema"
    if isinstance(model, RetrievalModel) and model.item.table_name in dataset.growth:
        yield (
            f"{where}: {model.item.name}: encode: growing: {type(model).__name__} ranks and "
            "samples the items of a catalogue, which is known before the training; encode: "
            "vocabulary has one, and the features of users may grow"
        )
    if isinstance(model, DIEN) and model.auxiliary and model.candidate_table in dataset.growth:
        yield (
            f"model.net.auxiliary=true: draws items of table {model.candidate_table}, which is "
            "growing, so that its items are not known before the training; set "
            "model.net.auxiliary=false model/loss=bce"
        )
    if config["metrics"].get("slice_by") in growing:
        yield (
            f"metrics.slice_by={config['metrics']['slice_by']}: is growing, so that its values are "
            "not known before the training; slice by another column"
        )
    if config["checkpoint"].get("init_linear"):
        yield (
            f"checkpoint.init_linear: fits weights to ids before the training, and {growing[0]} is "
            "growing: its ids get their rows in the training; set checkpoint.init_linear=false"
        )


def make_growing_ids(
    config: Mapping[str, Any], dataset: Dataset, context: Context, lookup: TableLookup
) -> GrowingIds | None:
    """Return the maps of the growing tables; None if no table grows."""
    growth = getattr(dataset, "growth", {})
    if not growth:
        return None
    return GrowingIds(
        growth,
        dataset.schema,
        context.tables,
        lookup.specs,
        seed=config["seed"],
        ranks=context.ranks,
        log=context.log,
    )
