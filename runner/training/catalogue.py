"""Rankings and slices of an evaluation, and the counts of ids that a retrieval model asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from runner.batch import Batch, Prediction, Schema
from runner.data.core.dataset import Dataset
from runner.distributed.ranks import Ranks
from runner.errors import ConfigError
from runner.metrics.lists import popularity_levels
from runner.metrics.names import ITEM_POPULARITY, parse_cutoff
from runner.metrics.settings import MetricSettings, check_slice_column
from runner.metrics.slices import attach_slice_values
from runner.models.layers.sequences import single_ids
from runner.models.retrieval.retrieval_model import RetrievalModel

COUNT_ROWS = 65_536  # read at a time


def check_rankings(settings: MetricSettings, dataset: Dataset, model: nn.Module) -> None:
    """Check the settings of rankings and slices against dataset and model.

    Raises:
        ConfigError: for a ranking that the model cannot make, or a column that cannot slice.
    """
    if settings.ranks_full_catalogue:
        _check_full_catalogue(settings, model)
    if settings.leave_seen_out:
        _check_seen_items(dataset)
    if settings.slice_by == ITEM_POPULARITY:
        if not isinstance(model, RetrievalModel):
            name = type(model).__name__
            raise ConfigError(
                f"metrics.slice_by={ITEM_POPULARITY}: {name} knows no item; model=sasrec and "
                "model=two_tower do"
            )
    elif settings.slice_by is not None:
        _check_slices(settings, dataset)


def _check_full_catalogue(settings: MetricSettings, model: nn.Module) -> None:
    name = type(model).__name__
    if not isinstance(model, RetrievalModel):
        raise ConfigError(
            f"metrics.candidates=full: {name} scores rows, not all items; model=sasrec and "
            "model=two_tower do, and metrics.candidates=rows ranks each user's rows"
        )
    try:
        model.check_catalogue()
    except ValueError as error:
        raise ConfigError(f"metrics.candidates=full: {error}") from error
    num_items = model.item.num_rows - model.item.num_special
    for metric in (*settings.ranking_metrics, *settings.list_metrics):
        _, cutoff = parse_cutoff(metric)
        if cutoff is not None and cutoff > num_items:
            raise ConfigError(
                f"metrics.eval: {metric!r} asks for the first {cutoff:,} of {num_items:,} items "
                f"({model.item.name}); at most {metric.partition('@')[0]}@{num_items}"
            )


def _check_seen_items(dataset: Dataset) -> None:
    held_out = [split for split in dataset.num_rows if split != "train"]
    if not any(dataset.seen_items(split) for split in held_out):
        raise ConfigError(
            "metrics.leave_seen_out=true: the dataset does not know what users have seen; one "
            "whose schema declares `interactions` does"
        )


def _check_slices(settings: MetricSettings, dataset: Dataset) -> None:
    name = str(settings.slice_by)
    schema = dataset.schema
    check_slice_column(settings, schema.groups, [f.name for f in schema.sparse])
    split = "validation" if "validation" in dataset.num_rows else list(dataset.num_rows)[-1]
    values: set[int] = set()
    for batch in dataset.batches(split, batch_size=COUNT_ROWS):
        try:
            values |= set(torch.unique(slice_values(batch, dataset.schema, name)).tolist())
        except ValueError as error:
            raise ConfigError(f"metrics.slice_by={name}: {error}") from error
        if len(values) > settings.max_slices:
            raise ConfigError(
                f"metrics.slice_by={name}: has more than {settings.max_slices} values in the "
                f"{split} split (metrics.max_slices=N allows more)"
            )


def slice_values(batch: Batch, schema: Schema, name: str) -> Tensor:
    """Return [B]: a group column, or the ids of a feature.

    Raises:
        ValueError: for a feature of lists of ids.
    """
    if name in schema.groups:
        return batch.groups_BG[:, schema.groups.index(name)]
    return single_ids(batch, name)


def attach_slices(
    prediction: Prediction, batch: Batch, schema: Schema, name: str | None, model: nn.Module
) -> Prediction:
    """Return the prediction with the column that metrics are sliced by, if any."""
    if name is None:
        return prediction
    if name == ITEM_POPULARITY:
        assert isinstance(model, RetrievalModel) and model.popularity_I is not None
        values_B = popularity_levels(model.popularity_I)[single_ids(batch, model.item.name)]
        return attach_slice_values(prediction, values_B)
    return attach_slice_values(prediction, slice_values(batch, schema, name))


def count_ids_for_model(model: nn.Module, dataset: Dataset, ranks: Ranks) -> None:
    """Count ids over the train split, for a model that asks for them.

    Collective.
    """
    if isinstance(model, RetrievalModel) and (names := model.counted_features):
        counts_I = model.negatives.counts_I
        counts_I.copy_(_count_events(names, dataset, ranks, counts_I.device))


def count_item_popularity(
    model: nn.Module, dataset: Dataset, ranks: Ranks, settings: MetricSettings
) -> None:
    """Count how often items occur in the train split, as a target or in a history, if needed.

    Collective.
    """
    if not settings.needs_item_popularity or not isinstance(model, RetrievalModel):
        return
    names = [model.item.name, *([model.history] if model.history else [])]
    model.popularity_I = _count_events(names, dataset, ranks, model.negatives.counts_I.device)
    # unknown and missing values are not popular items: rows of rare items count as cold
    model.popularity_I[: model.item.num_special] = 0


def without_overlaps(names: Sequence[str], schema: Schema) -> list[str]:
    """Leave out overlapping histories, so that each event counts once in popularity.

    In overlapping histories an event counts for each later one, which favours items of busy users.
    """
    return [n for n in names if n not in {s.name for s in schema.sequences if s.overlaps}]


def _count_events(
    names: Sequence[str], dataset: Dataset, ranks: Ranks, device: torch.device
) -> Tensor:
    """Return how often each item occurs in train rows of label 1, an event once: [I] int64."""
    once = without_overlaps(names, dataset.schema)
    counts_I = _count_ids(once, dataset, ranks, device)
    if once != list(names):  # a user's first events make no rows, but their items are not cold
        counts_I = counts_I.clamp(min=1) * (_count_ids(names, dataset, ranks, device) > 0)
    return counts_I


def _count_ids(
    names: Sequence[str], dataset: Dataset, ranks: Ranks, device: torch.device
) -> Tensor:
    """Return how often each item occurs in train rows of label 1, [I] int64."""
    batches = dataset.batches(
        "train", batch_size=COUNT_ROWS, rank=ranks.rank, world_size=ranks.world_size
    )
    return ranks.all_reduce_sum(count_ids(batches, dataset.schema, names).to(device))


def count_ids(batches: Iterable[Batch], schema: Schema, names: Sequence[str]) -> Tensor:
    """Return how often each id occurs in rows of label 1, [I] int64.

    It takes 8 bytes for each item, and the time of a batch does not depend on their number.

    Args:
        names: features and sequences of one table, whose ids are counted together.
    """
    rows = {f.name: f.num_rows for f in schema.id_features}
    counts_I = torch.zeros(max(rows[name] for name in names), dtype=torch.int64)
    for batch in batches:
        for ids in _ids_of_rows(batch, batch.is_positive_B, names):
            counts_I.index_add_(0, ids, torch.ones_like(ids, dtype=torch.int64))
    return counts_I


def _ids_of_rows(batch: Batch, selected_B: Tensor, names: Sequence[str]) -> Iterator[Tensor]:
    for kjt in (batch.sparse, batch.sequences):
        if kjt is None:
            continue
        lengths_FB = kjt.lengths().view(len(kjt.keys()), -1)
        values = kjt.values().split(kjt.length_per_key())
        for name, ids_V, lengths_B in zip(kjt.keys(), values, lengths_FB):
            if name in names:
                yield ids_V[selected_B.repeat_interleave(lengths_B)]


def find_seen_items(
    settings: MetricSettings, dataset: Dataset, split: str
) -> Callable[[Tensor], tuple[Tensor, Tensor]] | None:
    """Return a function from rows to the items that their users have seen, or None."""
    seen_items = dataset.seen_items(split) if settings.leave_seen_out else None
    if seen_items is None:
        return None

    def find(rows_B: Tensor) -> tuple[Tensor, Tensor]:
        row_V, ids_V = seen_items.find(rows_B.cpu().numpy())  # sync
        return torch.from_numpy(row_V).to(rows_B.device), torch.from_numpy(ids_V).to(rows_B.device)

    return find


@contextmanager
def open_catalogue(
    model: nn.Module, settings: MetricSettings, dataset: Dataset, split: str
) -> Iterator[None]:
    """Keep the vectors of all items ready while a split is evaluated, for rankings of all items.

    Collective.
    """
    if not (settings.ranks_full_catalogue and isinstance(model, RetrievalModel)):
        yield
        return
    model.open_catalogue(
        leave_history_out=settings.leave_history_out,
        list_length=settings.list_length,
        seen_items=find_seen_items(settings, dataset, split),
    )
    try:
        yield
    finally:
        model.close_catalogue()
