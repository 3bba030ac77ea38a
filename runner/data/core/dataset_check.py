"""Checks a user-defined dataset against the interface, before training begins.

Otherwise an error in a dataset would only show at its first use, possibly at the end of training.

B batch, D dense features, T tasks, G group columns, V values of a jagged tensor.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from runner.batch import Batch, DataPosition, Schema, SequenceFeature, SparseFeature, row_counts
from runner.data.core.argument_types import LAST_BATCH_POLICIES
from runner.data.core.dataset import Dataset, epoch_end_offset
from runner.errors import DataError, nearest_hint, raise_combined

SPLITS = ("train", "validation", "test")
_NONE: Any = object()  # a marker for a missing batch
ARGUMENTS = ("batch_size", "seed", "start", "rank", "world_size")


def check_dataset(
    dataset: Dataset, *, batch_size: int, seed: int, rank: int = 0, world_size: int = 1
) -> None:
    """Check the attributes and methods of a dataset, and the first batch of each split.

    The batches of our own classes are not read, and neither are those of a stream, which may take
    long to arrive: its first batch is checked when it arrives.

    Args:
        batch_size: rows of a training batch on one rank.

    Raises:
        ConfigError: with everything that is missing or wrong.
    """
    raise_combined(f"dataset: {problem}" for problem in find_dataset_problems(dataset))
    if not is_of_ones_own(dataset) or is_stream(dataset):
        return
    problems = []
    for split, num_rows in dataset.num_rows.items():
        is_train = split == "train"
        batches = dataset.batches(
            split,
            batch_size=batch_size,
            seed=seed if is_train else None,
            rank=rank,
            world_size=world_size,
        )
        if not isinstance(batches, Iterable):
            what = type(batches).__name__
            problems.append(f"batches({split!r}, ...) returned {what}, not an iterator of batches")
            continue
        batch = next(iter(batches), _NONE)
        del batches  # closes a generator, and thereby the files that it may have open
        update = batch_size * world_size
        end = epoch_end_offset(dataset, 0, update) if is_train else num_rows
        if batch is _NONE and end:
            problems.append(f"the {split} split gives no batch, and num_rows says {num_rows:,}")
        elif batch is not _NONE:
            full = batch_size if end >= update else None
            after = DataPosition(1, 0) if end <= update else DataPosition(0, update)
            issues = [*find_batch_problems(batch, dataset.schema, batch_size, full)]
            if is_train and isinstance(batch, Batch):
                issues += _position_problems(batch, after)
            problems += [f"first batch of the {split} split: {problem}" for problem in issues]
    raise_combined(f"dataset: {problem}" for problem in problems)


def check_first_batch(batches: Iterator[Batch], schema: Schema, batch_size: int) -> Iterator[Batch]:
    """Yield the batches of a user-defined stream, after checking the first one.

    Raises:
        ConfigError: if the first one does not match the schema.
    """
    for batch in batches:
        problems = find_batch_problems(batch, schema, batch_size, batch_size)
        raise_combined(f"dataset: first batch of the stream: {problem}" for problem in problems)
        yield batch
        break
    yield from batches


def check_epoch(
    batches: Iterator[Batch],
    dataset: Dataset,
    start: DataPosition,
    batch_size: int,
    world_size: int = 1,
) -> Iterator[Batch]:
    """Yield the batches of an epoch of a user-defined dataset, which must have `num_rows` rows.

    Raises:
        DataError: if it has fewer or more, since everything else relies on `num_rows`.
    """
    update = batch_size * world_size
    end = epoch_end_offset(dataset, start.offset, update)
    position = start
    for batch in batches:
        before, position = position, batch.cursor
        # with several ranks or rows that pad, the last update has this many at most
        is_exact = world_size == 1 and dataset.rest != "pad"
        last = before.offset + (batch.size if is_exact else update)
        turns = position.epoch > start.epoch
        if turns and not (last == end if is_exact else before.offset < end <= last):
            raise DataError(_wrong_end(start.epoch, last, end))
        if not turns and position.offset > end:
            raise DataError(_wrong_end(start.epoch, position.offset, end, "went on to"))
        yield batch
    if position.epoch == start.epoch and position.offset < end:
        raise DataError(_wrong_end(start.epoch, position.offset, end))


def _wrong_end(epoch: int, row: int, end: int, how: str = "ended at") -> str:
    return (
        f"dataset: the train batches of epoch {epoch} {how} row {row:,}, and num_rows says that "
        f"there are {end:,}"
    )


def is_of_ones_own(dataset: object) -> bool:
    """Return whether the class of a dataset is defined outside this package."""
    return type(dataset).__module__.partition(".")[0] != "runner"


def is_stream(dataset: object) -> bool:
    """Return whether a dataset is a stream, which has no defined end."""
    return bool(getattr(dataset, "is_stream", False))


def find_dataset_problems(dataset: Any) -> Iterator[str]:
    """Yield a message for each attribute or method that is missing or of a wrong kind."""
    if not isinstance(getattr(dataset, "schema", None), Schema):
        yield f"schema: must be a runner.Schema{_told(dataset, 'schema')}"
    num_rows = getattr(dataset, "num_rows", None)
    if not isinstance(num_rows, Mapping) or not all(
        isinstance(n, int) and n > 0 for n in num_rows.values()
    ):
        yield f"num_rows: must map splits to numbers of rows above 0{_told(dataset, 'num_rows')}"
    else:
        for split in [split for split in num_rows if split not in SPLITS]:
            yield f"num_rows: there is no split {split!r}{nearest_hint(str(split), SPLITS)}"
        if "train" not in num_rows and not is_stream(dataset):
            yield "num_rows: has no split 'train'; a stream without an end says is_stream = True"
    if getattr(dataset, "rest", None) not in LAST_BATCH_POLICIES:
        yield f"rest: must be one of {', '.join(LAST_BATCH_POLICIES)}{_told(dataset, 'rest')}"
    if not isinstance(getattr(dataset, "reachable", None), Mapping):
        yield f"reachable: must be a mapping, {{}} if unknown{_told(dataset, 'reachable')}"
    bad_rows = getattr(dataset, "bad_rows", None)
    if (
        not isinstance(bad_rows, Mapping)
        or not isinstance(bad_rows.get("count"), int)
        or not isinstance(bad_rows.get("examples"), Sequence)
    ):
        yield (
            "bad_rows: must have a number `count` and a list `examples`, such as "
            f"{{'count': 0, 'examples': []}}{_told(dataset, 'bad_rows')}"
        )
    if not callable(getattr(dataset, "save_fitted_transforms", None)):
        yield "save_fitted_transforms(folder): there is no such method"
    yield from _signature_problems(getattr(dataset, "batches", None))


def _told(dataset: object, name: str) -> str:
    missing = "; there is none: derive your class from runner.Dataset, or set it"
    return f", not {getattr(dataset, name)!r:.80}" if hasattr(dataset, name) else missing


def _signature_problems(batches: Any) -> Iterator[str]:
    if not callable(batches) or getattr(batches, "__func__", None) is Dataset.batches:
        yield f"batches(split, *, {', '.join(ARGUMENTS)}): there is no such method"
        return
    parameters = inspect.signature(batches).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    missing = [name for name in ARGUMENTS if name not in parameters and not takes_any]
    if missing:
        yield f"batches(): does not take {', '.join(missing)}; see runner.Dataset.batches"


def find_batch_problems(
    batch: Any, schema: Schema, batch_size: int, full: int | None
) -> Iterator[str]:
    """Yield a message for every mismatch of a batch and the schema.

    Args:
        batch: the object to check, on the CPU.
        batch_size: the most rows that it may have.
        full: the rows that it must have; None: at least one.
    """
    if not isinstance(batch, Batch):
        yield f"is a {type(batch).__name__}, not a runner.Batch"
        return
    # the size of most of its tensors, so that the one that differs is named
    sizes = Counter(row_counts(batch).values())
    size = sizes.most_common(1)[0][0] if sizes else batch_size
    if not (size == full if full else 1 <= size <= batch_size):
        yield f"has {size} rows, not {full or f'1 to {batch_size}'}"
    shapes = {
        "labels_BT": ((size, len(schema.tasks)), torch.float32),
        "dense_BD": ((size, len(schema.dense)), torch.float32),
        "weights_B": ((size,), torch.float32),
        "rows_B": ((size,), torch.int64),
        "groups_BG": ((size, len(schema.groups)), torch.int64),
    }
    wrong = False
    for name, (shape, dtype) in shapes.items():
        value = getattr(batch, name)
        if not isinstance(value, Tensor) or (tuple(value.shape), value.dtype) != (shape, dtype):
            wrong = True
            yield f"{name}: must be {str(dtype).removeprefix('torch.')} of {list(shape)}, " + (
                f"not {_describe(value)}"
            )
    if not wrong:
        yield from _value_problems(batch, schema)
    yield from _jagged_problems("sparse", batch.sparse, schema.sparse, size)
    if schema.sequences or batch.sequences is not None:
        yield from _jagged_problems("sequences", batch.sequences, schema.sequences, size)


def _describe(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} of {list(value.shape)}"
    return f"{type(value).__name__}"


def _value_problems(batch: Batch, schema: Schema) -> Iterator[str]:
    if not batch.weights_B.isfinite().all() or (batch.weights_B < 0).any():
        yield "weights_B: must be finite and not negative"
    counted_B = batch.weights_B > 0
    for name, value in (("dense_BD", batch.dense_BD), ("labels_BT", batch.labels_BT)):
        if not value[counted_B].isfinite().all():
            yield f"{name}: holds NaN or infinity in a row whose weight is not 0"
    for task, column in zip(schema.tasks, batch.labels_BT[counted_B].T):
        if task.kind == "binary" and not ((column == 0) | (column == 1)).all():
            yield f"labels_BT: labels of the binary task {task.name} must be 0 or 1"


def _jagged_problems(
    name: str, jagged: Any, features: Sequence[SparseFeature | SequenceFeature], size: int
) -> Iterator[str]:
    if not isinstance(jagged, KeyedJaggedTensor):
        yield f"{name}: must be a torchrec KeyedJaggedTensor, not {type(jagged).__name__}"
        return
    names = [feature.name for feature in features]
    if list(jagged.keys()) != names:
        yield f"{name}: must have the keys {names}, in the schema's order, not {jagged.keys()}"
        return
    values_V, lengths = jagged.values(), jagged.lengths()
    if values_V.dtype != torch.int64:
        yield f"{name}: ids must be int64, not {_describe(values_V)}"
        return
    if lengths.numel() != size * len(names):
        yield f"{name}: has {lengths.numel()} lengths, not {len(names)} x {size} rows"
        return
    if (lengths < 0).any() or int(lengths.sum()) != values_V.numel():
        yield f"{name}: the lengths add up to {int(lengths.sum())}, with {values_V.numel()} ids"
        return
    if any(getattr(f, "weighted", False) for f in features) and jagged.weights_or_none() is None:
        yield f"{name}: the schema has a weighted feature, so the ids need weights"
    at = 0
    for feature, lengths_B in zip(features, lengths.view(len(names), size)):
        ids = values_V[at : at + int(lengths_B.sum())]
        at += ids.numel()
        outside = ids[(ids < 0) | (ids >= feature.num_rows)]
        if outside.numel():
            yield f"{name}: {feature.name} has id {int(outside[0])}, outside [0, " + (
                f"{feature.num_rows})"
            )
        if isinstance(feature, SequenceFeature) and lengths_B.max() > feature.max_length:
            yield f"{name}: {feature.name} is longer than its max_length={feature.max_length}"


def _position_problems(batch: Batch, after: DataPosition) -> Iterator[str]:
    """Yield a message if a checkpoint after this batch would resume elsewhere."""
    cursor: Any = batch.cursor
    if not isinstance(cursor, DataPosition):
        yield f"cursor: must be a runner.DataPosition, not {type(cursor).__name__}"
    elif (cursor.epoch, cursor.offset) != (after.epoch, after.offset):
        yield f"cursor: must be {after}, the position after the batch over all ranks, not {cursor}"
