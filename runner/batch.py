"""The types passed through a run: batches, their position in the data, schemas, predictions.

Shape legend, used in names throughout the package:
B batch, D dense features, F sparse features, T tasks, G group columns, L sequence length,
E width of all pooled embeddings side by side, V values of a jagged tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import torch
from torch import Tensor

from runner.machine.imports import import_alone, import_fbgemm

# All of TorchRec imports tensordict and torch's compiler: a third of the start-up time
import_alone("torchrec.sparse.jagged_tensor")
import_fbgemm()
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor  # noqa: E402
from torchrec.streamable import Pipelineable  # noqa: E402


@dataclass(frozen=True)
class DataPosition:
    """A position in the global sequence of examples, stored in checkpoints.

    It counts examples, not batches, so that it stays valid under another batch size or number of
    ranks. The end of epoch e is written as the start of the next one: (e + 1, 0). A stream cannot
    seek to a number of examples, so it adds its own `place`, such as a file and a row, or the
    offsets of its partitions.
    """

    epoch: int = 0
    offset: int = 0
    place: Mapping[str, Any] | None = None  # only of streams; JSON


@dataclass(frozen=True)
class Batch(Pipelineable):  # type: ignore[misc]  # torchrec has no types
    """One batch of one rank.

    It has plain attributes, so that TorchRec's pipelines can trace it. A row that was skipped as
    bad, or that pads the batch, has weight 0 and keeps its slot.
    """

    dense_BD: Tensor  # float32
    sparse: KeyedJaggedTensor  # keys in the schema's order, F x B lengths, int64 values
    sequences: KeyedJaggedTensor | None
    labels_BT: Tensor  # float32
    weights_B: Tensor  # float32
    rows_B: Tensor  # int64: the example's number in its split, before shuffling
    groups_BG: Tensor  # int64: ids for grouped metrics; G may be 0
    cursor: DataPosition  # the position AFTER this batch, so that prefetching cannot skew it

    @property
    def size(self) -> int:
        return self.labels_BT.shape[0]

    @property
    def is_positive_B(self) -> Tensor:
        """Return which rows count and have label 1 of the first task: their item is correct."""
        return (self.labels_BT[:, 0] > 0.5) & (self.weights_B > 0)

    def to(self, device: torch.device, non_blocking: bool = False) -> Batch:
        return self._map(lambda t: t.to(device=device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch:
        return self._map(lambda t: t.pin_memory())

    def record_stream(self, stream: torch.Stream) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, Tensor | KeyedJaggedTensor):
                value.record_stream(stream)

    def _map(self, move: Callable[[Any], Any]) -> Batch:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        moved = {k: move(v) for k, v in values.items() if isinstance(v, Tensor | KeyedJaggedTensor)}
        return replace(self, **moved)


def blank_uncounted_rows(batch: Batch) -> Batch:
    """Return a batch with numbers and labels of 0 in rows of weight 0.

    NaN is allowed there, and would reach the gradient: 0 times NaN is NaN.
    """
    counted_B1 = batch.weights_B[:, None] != 0
    if bool(counted_B1.all()):
        return batch
    dense_BD, labels_BT = (
        torch.where(counted_B1, values, 0.0) for values in (batch.dense_BD, batch.labels_BT)
    )
    return replace(batch, dense_BD=dense_BD, labels_BT=labels_BT)


def row_counts(batch: Batch) -> dict[str, int]:
    """Return the number of rows of each tensor of a batch by name; all should be equal."""
    names = ("labels_BT", "dense_BD", "weights_B", "rows_B", "groups_BG")
    tensors = {name: getattr(batch, name) for name in names}
    return {n: len(t) for n, t in tensors.items() if isinstance(t, Tensor) and t.ndim > 0}


@dataclass(frozen=True)
class SparseFeature:
    """A pooled feature: every example has zero or more ids in [0, num_rows) of one table."""

    name: str
    num_rows: int
    table: str = ""  # features of the same table share its rows; "": a separate table
    is_list: bool = False  # whether an example may have any number of ids instead of one
    weighted: bool = False
    mean_length: float = 1.0  # pooling factor, for the planner
    pooling: Literal["sum", "mean"] = "sum"
    num_special: int = 0  # the first rows, for unknown and missing values

    @property
    def table_name(self) -> str:
        return self.table or self.name


@dataclass(frozen=True)
class SequenceFeature:
    """A feature whose ids are in time order and looked up one by one.

    It `overlaps` if each event with enough earlier ones is a train row, and is in the sequences of
    later ones as well.
    """

    name: str
    num_rows: int
    max_length: int
    table: str = ""
    overlaps: bool = False

    @property
    def table_name(self) -> str:
        return self.table or self.name


@dataclass(frozen=True)
class TaskSpec:
    """A label that the model predicts, or a class of a label as a binary task."""

    name: str
    kind: Literal["binary", "regression"] = "binary"
    one_of: str = ""  # the label of whose classes it is one: exactly one of these is 1 in every row
    link: Literal["", "log"] = ""  # log: a prediction is `scale` times exp of the layers' sum
    scale: float = 1.0


def columns_by_label(tasks: Sequence[TaskSpec]) -> dict[str, slice]:
    """Return the columns of labels and logits of each label: one, or one for each of its classes.

    Raises:
        ValueError: if the classes of a label are not contiguous.
    """
    columns: dict[str, slice] = {}
    for column, task in enumerate(tasks):
        label = task.one_of or task.name
        start = columns[label].start if label in columns else column
        if label in columns and (not task.one_of or columns[label].stop != column):
            raise ValueError(f"tasks: the classes of {label} must stand side by side")
        columns[label] = slice(start, column + 1)
    return columns


def class_columns(tasks: Sequence[TaskSpec]) -> dict[str, slice]:
    """Return the columns of the classes of each label that has classes."""
    return {n: cols for n, cols in columns_by_label(tasks).items() if tasks[cols.start].one_of}


def log_columns(tasks: Sequence[TaskSpec]) -> dict[int, float]:
    """Return the column of each task with a log link, and the logarithm of its scale."""
    return {c: math.log(task.scale) for c, task in enumerate(tasks) if task.link == "log"}


@dataclass(frozen=True)
class Schema:
    """The columns that a dataset provides and a model consumes: names and sizes, never data."""

    dense: tuple[str, ...]
    sparse: tuple[SparseFeature, ...]
    tasks: tuple[TaskSpec, ...]
    sequences: tuple[SequenceFeature, ...] = ()
    groups: tuple[str, ...] = ()

    @property
    def id_features(self) -> tuple[SparseFeature | SequenceFeature, ...]:
        return (*self.sparse, *self.sequences)


@dataclass(frozen=True)
class Prediction:
    """The output of a model's dense half, with all inputs of the loss and the metrics.

    TorchRec's pipelines return the model's output and nothing else, so it carries the labels.
    """

    logits_BT: Tensor
    labels_BT: Tensor
    weights_B: Tensor
    groups_BG: Tensor
    aux: dict[str, Tensor] = field(default_factory=dict)  # intermediates for composite losses

    @classmethod
    def of(cls, logits_BT: Tensor, batch: Batch, **aux: Tensor) -> Prediction:
        """Combine the logits, in float32 whatever autocast has chosen, with the batch's labels."""
        return cls(logits_BT.float(), batch.labels_BT, batch.weights_B, batch.groups_BG, aux)

    def detached(self) -> Prediction:
        logits_BT, aux = self.logits_BT.detach(), {k: v.detach() for k, v in self.aux.items()}
        return Prediction(logits_BT, self.labels_BT, self.weights_B, self.groups_BG, aux)


@dataclass(frozen=True)
class Embeddings:
    """All look-ups of a batch: the boundary at which the graph is cut for exact gradients.

    `per_row` and `per_batch` hold what a model needs of the look-ups besides their values, such as
    ids and lengths. They have no gradient; the first dimension in `per_row` is the rows.
    """

    pooled_BE: Tensor  # concatenated, in the schema's order of sparse features
    sequences_BLD: tuple[Tensor, ...] = ()  # padded with zeros, in the schema's order
    shared_CD: tuple[Tensor, ...] = ()  # not per row: every micro-batch has them whole
    per_row: Mapping[str, Tensor] = field(default_factory=dict)
    per_batch: Mapping[str, Tensor] = field(default_factory=dict)
    # the ids looked up, in the order of the tables' features; None: one id of each in every row
    ids: KeyedJaggedTensor | None = None

    def tensors(self) -> tuple[Tensor, ...]:
        return (*self.row_lookups(), *self.shared_CD)

    def row_lookups(self) -> tuple[Tensor, ...]:
        return (self.pooled_BE, *self.sequences_BLD)

    def detached(self, rows: slice | Tensor = slice(None)) -> Embeddings:
        """Copy some rows' values into leaves that collect the gradient at the boundary."""
        pooled, *sequences = (t.detach()[rows].requires_grad_() for t in self.row_lookups())
        return Embeddings(
            pooled,
            tuple(sequences),
            tuple(t.detach().requires_grad_() for t in self.shared_CD),
            {name: t[rows] for name, t in self.per_row.items()},
            self.per_batch,
        )


def dense_rows(batch: Batch, rows: slice | Tensor) -> Batch:
    """Return some rows of a batch as input of the dense half; the ids remain those of all rows."""
    return replace(
        batch,
        dense_BD=batch.dense_BD[rows],
        labels_BT=batch.labels_BT[rows],
        weights_B=batch.weights_B[rows],
        rows_B=batch.rows_B[rows],
        groups_BG=batch.groups_BG[rows],
    )


def split_micro_batches(
    batch: Batch, embeddings: Embeddings, num_rows: int
) -> Iterator[tuple[Batch, Embeddings]]:
    """Yield micro-batches of at most `num_rows`, with leaves that collect the boundary gradient.

    The ids stay whole in every micro-batch, since they have been looked up already.
    """
    if num_rows >= batch.size:
        yield batch, embeddings.detached()
        return
    for start in range(0, batch.size, num_rows):
        rows = slice(start, start + num_rows)
        yield dense_rows(batch, rows), embeddings.detached(rows)
