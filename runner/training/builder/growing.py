"""Builds growing tables: their maps, a dataset with rows for ids, and checks of other settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import nn

from runner.batch import Batch
from runner.data.core.dataset import Dataset, DatasetWrapper
from runner.data.core.dataset_check import is_stream
from runner.errors import raise_combined
from runner.models.dien import DIEN
from runner.models.layers.embedding import TableLookup
from runner.models.retrieval.retrieval_model import RetrievalModel
from runner.parts import internal
from runner.training.batches import agree_on_end
from runner.training.update.context import Context
from runner.training.update.growing_ids import GrowingIds


def check_growth(config: Mapping[str, Any], dataset: Dataset, model: nn.Module) -> None:
    """Check that no part needs rows of ids before the training, when ids have none.

    Raises:
        ConfigError: naming each part that does, with the reason.
    """
    if getattr(dataset, "growth", {}):
        raise_combined(_growth_problems(config, dataset, model))


def _growth_problems(
    config: Mapping[str, Any], dataset: Dataset, model: nn.Module
) -> Iterator[str]:
    schema = dataset.schema
    growing = [f.name for f in schema.id_features if f.table_name in dataset.growth]
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


def with_rows(dataset: Dataset, context: Context) -> Dataset:
    """Return the dataset of a job, with rows in place of raw ids where tables grow."""
    if context.growing is None:
        return dataset
    return GrowingDataset(dataset, context.growing, context)


@internal
class GrowingDataset(DatasetWrapper):
    """Yields the batches of another dataset with the rows that ids have when a batch is taken."""

    def __init__(self, dataset: Dataset, ids: GrowingIds, context: Context) -> None:
        super().__init__(dataset)
        self.is_stream = is_stream(dataset)
        self._ids, self._ranks = ids, context.ranks

    @property
    def should_stop(self) -> Callable[[], bool]:
        """The function that a stream calls while it waits."""
        callback: Callable[[], bool] = self.dataset.should_stop  # type: ignore[attr-defined]
        return callback

    @should_stop.setter
    def should_stop(self, callback: Callable[[], bool]) -> None:
        self.dataset.should_stop = callback  # type: ignore[attr-defined]

    def batches(self, split: str, *, grow: bool = False, **options: Any) -> Iterator[Batch]:
        """Return an iterator as `Dataset.batches` does.

        Args:
            grow: whether each batch is the next update of the training, so that its ids are
                counted; taking it is then collective.
        """
        batches = self.dataset.batches(split, **options)
        if not grow:
            return (self._ids.look_up(batch) for batch in batches)
        if self.is_stream and self._ranks.is_distributed:
            batches = agree_on_end(batches, self._ranks)
        return (self._ids.grow(batch) for batch in batches)
