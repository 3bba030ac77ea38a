"""Models as graphs of plain tensors: stacked tables, then the model's own dense half.

B batch, F features, E width of all pooled embeddings, L sequence length, D width, T tasks.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from runner.batch import Batch, DataPosition, Embeddings, Schema, SparseFeature
from runner.embeddings.interface import TableSpec
from runner.errors import UserError
from runner.models.layers.embedding import LINEAR_SUFFIX, TableLookup
from runner.models.layers.recommender import Recommender
from runner.models.layers.sequences import SequenceLookup, is_event
from runner.models.retrieval.retrieval_model import RetrievalModel
from runner.serving.artifact.folder import GraphSpec, LookupGroup, SequenceInput
from runner.serving.export.stacked_tables import StackedTables, make_rows

EXAMPLE_ROWS = 3


@dataclass(frozen=True)
class TableChoice:
    """How the tables are written into a graph."""

    quantise: str | None = None
    for_onnx: bool = False
    weights: Mapping[str, Tensor] | None = None  # `<table>/weight`; None: those of the model
    num_rows: Mapping[str, int] = field(default_factory=dict)  # table -> rows; others are whole


class _Tables:
    """The trained tables of a look-up, by feature."""

    def __init__(self, lookup: TableLookup, choice: TableChoice) -> None:
        if choice.weights is None:
            assert lookup.tables is not None
            self._state: Mapping[str, Tensor] = lookup.tables.state()
        else:
            self._state = choice.weights
        self._num_rows = choice.num_rows
        self._spec_of = {name: spec for spec in lookup.specs for name in spec.features}

    def spec(self, feature: str) -> TableSpec:
        return self._spec_of[feature]

    def weight(self, spec: TableSpec) -> Tensor:
        """Return the rows without padding, [R, D] float32: a view of the model's, or a copy."""
        weight: Tensor = self._state[f"{spec.name}/weight"]
        num_rows = self._num_rows.get(spec.name.removesuffix(LINEAR_SUFFIX))
        return weight.detach()[:num_rows].float().contiguous()

    def stack(self, features: Sequence[str], choice: TableChoice) -> StackedTables:
        """Stack the tables of features of one width."""
        specs = list({self.spec(name).name: self.spec(name) for name in features}.values())
        names = [spec.name for spec in specs]
        return StackedTables(
            [self.weight(spec) for spec in specs],
            [names.index(self.spec(name).name) for name in features],
            [self.spec(name).pooling == "mean" for name in features],
            quantise=choice.quantise,
            for_onnx=choice.for_onnx,
        )


class PlainLookup(nn.Module):
    """The embedding half of a model, which takes a graph's inputs instead of a batch.

    Args:
        features: those that are pooled, in the order of the embeddings.
        sequences: names and lengths of the sequences whose ids are looked up one by one.
    """

    def __init__(
        self,
        lookup: TableLookup,
        features: Sequence[SparseFeature],
        sequences: Sequence[SequenceInput],
        choice: TableChoice,
    ) -> None:
        super().__init__()
        tables = _Tables(lookup, choice)
        by_width: dict[int, list[SparseFeature]] = {}
        for feature in features:
            by_width.setdefault(tables.spec(feature.name).dim, []).append(feature)
        self.groups = tuple(
            LookupGroup(tuple(f.name for f in group), any(f.weighted for f in group))
            for group in by_width.values()
        )
        names = [group.features for group in self.groups]
        self.pooled = nn.ModuleList(tables.stack(group, choice) for group in names)
        linear = [[f"{n}{LINEAR_SUFFIX}" for n in group] for group in names]
        self.linear = nn.ModuleList(
            tables.stack(group, choice) for group in linear if lookup.linear
        )
        self.places = [
            next((g, group.index(f.name)) for g, group in enumerate(names) if f.name in group)
            for f in features
        ]
        self.sequences = tuple(sequences)
        self.sequence_rows = nn.ModuleList(
            make_rows(
                tables.weight(tables.spec(f"{s.name}:0")), choice.quantise, for_onnx=choice.for_onnx
            )
            for s in self.sequences
        )

    def forward(self, inputs: Sequence[Tensor]) -> Embeddings:
        """Return the embeddings of a graph's inputs behind `dense`."""
        rest = list(inputs)
        bags = []
        for group in self.groups:
            values, lengths = rest.pop(0), rest.pop(0)
            bags.append((values, lengths, rest.pop(0) if group.weighted else None))
        parts = []
        for tables in (self.pooled, self.linear):
            pooled = [module(*bag) for module, bag in zip(tables, bags)]
            if len(pooled) == 1:
                parts.append(pooled[0].flatten(1))
            elif pooled:
                parts.append(torch.cat([pooled[g][:, place] for g, place in self.places], dim=1))
        per_row: dict[str, Tensor] = {}
        sequences: list[Tensor] = []
        for sequence, rows in zip(self.sequences, self.sequence_rows):
            ids_BL, length_B = rest.pop(0), rest.pop(0)
            is_event_BL1 = is_event(length_B, sequence.max_length)[:, :, None]
            sequences.append(torch.where(is_event_BL1, rows(ids_BL), 0.0))
            per_row |= {f"{sequence.name}:ids": ids_BL, f"{sequence.name}:length": length_B}
        size = bags[0][1].shape[1] if bags else sequences[0].shape[0]
        if not parts:
            parts = [torch.zeros(size, 0)]
        pooled_BE = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        return Embeddings(pooled_BE, tuple(sequences), per_row=per_row)


class RowsGraph(nn.Module):
    """A model that scores rows: logits [B, T], and for each task [B] its probability or value."""

    def __init__(self, model: Recommender, lookup: PlainLookup, schema: Schema) -> None:
        super().__init__()
        self.model, self.lookup = model, lookup
        self.num_dense = len(schema.dense)
        self.is_binary = [task.kind == "binary" for task in schema.tasks]

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        embeddings = self.lookup(inputs[1:] if self.num_dense else inputs)
        size = embeddings.pooled_BE.shape[0]
        dense_BD = inputs[0] if self.num_dense else torch.zeros(size, 0)
        zeros_BT = torch.zeros(size, len(self.is_binary))
        ids_B = torch.zeros(size, dtype=torch.int64)
        batch = Batch(
            dense_BD=dense_BD,
            sparse=None,  # the dense half reads no ids
            sequences=None,
            labels_BT=zeros_BT,
            weights_B=torch.ones(size),
            rows_B=ids_B,
            groups_BG=ids_B[:, None][:, :0],
            cursor=DataPosition(),
        )
        logits_BT: Tensor = self.model.predict_tasks(embeddings, batch).logits_BT
        columns = logits_BT.unbind(1)
        scores = [x.sigmoid() if b else x.clone() for x, b in zip(columns, self.is_binary)]
        return (logits_BT, *scores)


class QueryGraph(nn.Module):
    """The query of a retrieval model, [B, D]."""

    def __init__(self, model: RetrievalModel, lookup: PlainLookup, schema: Schema) -> None:
        super().__init__()
        self.model, self.lookup = model, lookup
        self.num_dense = len(schema.dense) if model.query_reads_dense else 0

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        embeddings = self.lookup(inputs[1:] if self.num_dense else inputs)
        size = embeddings.pooled_BE.shape[0]
        dense_BD = inputs[0] if self.num_dense else torch.zeros(size, 0)
        return (self.model.query_vectors(embeddings, dense_BD).float(),)


class ItemsGraph(nn.Module):
    """The vectors of items of a retrieval model, [B, D]."""

    def __init__(self, model: RetrievalModel, lookup: PlainLookup) -> None:
        super().__init__()
        self.model, self.lookup = model, lookup

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return (self.model.item_vectors(self.lookup(inputs).pooled_BE).float(),)


def build_graphs(
    model: Recommender, schema: Schema, choice: TableChoice
) -> list[tuple[GraphSpec, nn.Module]]:
    """Build the graphs of a model: one that scores rows, or query and items.

    Whether `embed` of a user's model does more than look up tables is not known; the exported model
    is checked against the evaluation.

    Raises:
        UserError: for a model whose look-ups cannot be written as plain tables.
    """
    model.eval()
    if isinstance(model, RetrievalModel):
        return _retrieval_graphs(model, schema, choice)
    lookups = [module for module in model.modules() if isinstance(module, TableLookup)]
    if len(lookups) != 1:
        raise UserError(
            f"model {type(model).__name__} cannot be exported: it has {len(lookups)} TableLookups, "
            "and `embed` must be the look-up of a single one; see docs/own_model.md"
        )
    lookup, features = lookups[0], schema.sparse
    sequences: tuple[SequenceInput, ...] = ()
    if isinstance(lookup, SequenceLookup):
        sequences, features = _sequence_inputs(lookup), lookup.pooled_features
    plain = PlainLookup(lookup, features, sequences, choice)
    outputs = ("logits", *(task.name for task in schema.tasks))
    spec = GraphSpec("model", schema.dense, plain.groups, plain.sequences, outputs)
    return [(spec, RowsGraph(model, plain, schema))]


def _retrieval_graphs(
    model: RetrievalModel, schema: Schema, choice: TableChoice
) -> list[tuple[GraphSpec, nn.Module]]:
    lookup, items = model.embedding, model.item_features
    users = [f for f in lookup.pooled_features if f not in items]
    query = PlainLookup(lookup, users, _sequence_inputs(lookup), choice)
    item = PlainLookup(lookup, items, (), choice)
    dense = schema.dense if model.query_reads_dense else ()
    return [
        (
            GraphSpec("query", dense, query.groups, query.sequences, ("vectors",)),
            QueryGraph(model, query, schema),
        ),
        (GraphSpec("items", (), item.groups, (), ("vectors",)), ItemsGraph(model, item)),
    ]


def _sequence_inputs(lookup: SequenceLookup) -> tuple[SequenceInput, ...]:
    return tuple(SequenceInput(s.name, s.max_length) for s in lookup.sequences)


@contextmanager
def without_tables(model: nn.Module) -> Iterator[None]:
    """Remove the trained tables from the model within the block: a graph has plain copies."""
    [lookup] = [m for m in model.modules() if isinstance(m, TableLookup)]
    tables, lookup.tables = lookup.tables, None
    try:
        yield
    finally:
        lookup.tables = tables


def example_inputs(spec: GraphSpec) -> tuple[Tensor, ...]:
    """Return inputs of a few rows, with lists of two ids, as torch.export traces them."""
    size, inputs = EXAMPLE_ROWS, []
    if spec.dense:
        inputs.append(torch.zeros(size, len(spec.dense)))
    for group in spec.groups:
        count = 2 * size * len(group.features)
        inputs += [torch.zeros(count, dtype=torch.int64)]
        inputs += [torch.full((len(group.features), size), 2)]
        inputs += [torch.ones(count)] if group.weighted else []
    for sequence in spec.sequences:
        inputs += [torch.zeros(size, sequence.max_length, dtype=torch.int64)]
        inputs += [torch.full((size,), 1)]
    return tuple(inputs)


def export_graph(spec: GraphSpec, module: nn.Module) -> torch.export.ExportedProgram:
    """Trace a graph for any number of rows from 1, and any number of ids.

    Raises:
        UserError: for a model that torch.export does not take, with its reason.
    """
    rows = torch.export.Dim("B", min=1, max=1 << 20)
    shapes: list[dict[int, torch.export.Dim]] = [{0: rows}] if spec.dense else []
    for n, group in enumerate(spec.groups):
        values = {0: torch.export.Dim(f"V{n}", min=0)}
        shapes += [values, {1: rows}, *([values] if group.weighted else [])]
    shapes += [{0: rows} for _ in range(2 * len(spec.sequences))]
    try:
        with torch.no_grad(), warnings.catch_warnings():
            # torch lists the weights of a GRU twice; the warning about it cannot be avoided
            warnings.filterwarnings("ignore", r"The tensor attributes? .*_flat_weights")
            return torch.export.export(
                module.eval(), example_inputs(spec), dynamic_shapes=(tuple(shapes),)
            )
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        raise UserError(
            f"the model cannot be exported: torch.export: {type(error).__name__}: {first}; its "
            "forward must not branch on the values of tensors"
        ) from error
