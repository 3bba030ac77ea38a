"""Two towers, one for users and one for items, with in-batch and drawn negatives.

Yi et al. 2019, "Sampling-bias-corrected neural modeling for large corpus item recommendations",
RecSys; Yang et al. 2020, "Mixed negative sampling for learning two-tower neural networks in
recommendations", WWW.

L hard negatives of a row, D width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from runner.batch import Batch, Embeddings, Prediction, Schema
from runner.config_value import check_arguments
from runner.models.argument_types import (
    Activation,
    ColumnOrNone,
    DropoutRate,
    EmbeddingInit,
    Init,
    LayerDropout,
    Norm,
    NormPlace,
    NormScope,
    NumKept,
    NumNegatives,
    Positive,
    PositiveOrNone,
    Switch,
    Width,
    Widths,
)
from runner.models.layers.batch_norm import has_batch_statistics
from runner.models.layers.dropout import Dropout
from runner.models.layers.interest import mean_pool
from runner.models.layers.mlp import HiddenLayers, RowSequential, init_linear_layers, mlp
from runner.models.layers.row_draws import shared_draws
from runner.models.layers.sequences import SequenceLookup, is_event, single_ids
from runner.models.requirements import check_row_negatives, find_item_features
from runner.models.retrieval.item_memory import ItemMemory
from runner.models.retrieval.negative_table import NegativeTable
from runner.models.retrieval.negatives import NegativeSampler
from runner.models.retrieval.retrieval_model import RetrievalModel

SMALLEST_TEMPERATURE = 0.01  # of a learnt temperature


class TwoTower(RetrievalModel):
    """s(x, y) = <u(x), v(y)> / temperature, eq. 1 and section 3.2, where u and v are MLPs.

    u reads the features of the user, v those of the item, and their outputs are normalised. The
    features of the user are all that are not the item's: pooled features, the mean of each
    sequence, and the dense features. A mean forgets the order; with `half_life`, an event of a
    sequence weighs half as much as one that many places after it.

    Args:
        schema: needs a feature of the item, one of the user, and one binary task.
        embedding_dim: D, width of every table.
        item: names of the item's features, its id first; empty for the one that reads a
            sequence's table.
        user_tower: hidden widths of u; a last linear layer of width `out` follows.
        item_tower: hidden widths of v; a last linear layer of width `out` follows.
        out: width of the vectors that are multiplied.
        temperature: divisor of scores, above 0.
        learn_temperature: whether it is a parameter, which starts there; scores are divided by at
            least 0.01, as in section 2.5 of CLIP (Radford et al. 2021, arXiv:2103.00020).
        normalise: whether the vectors get length 1.
        half_life: in places, above 0; None if all events of a sequence have the same weight.
        dropout: dropout after each hidden layer of both towers.
        embedding_dropout: dropout of the user tower's input.
        in_batch: whether items of other rows are negatives; see `NegativeSampler`.
        uniform: number of negatives drawn uniformly; needs an item of one feature.
        popularity: number of negatives drawn by popularity; needs an item of one feature.
        exclude_known: whether the items of a user's history, and the positive items of the user's
            rows in the batch, are excluded from the user's negatives.
        user: feature or group column whose id identifies the rows of the same user; None treats
            each row as a different user's.
        hardest: number of negatives that a query keeps; see `NegativeSampler`.
        hard_negatives: name of a sequence of the item's table, which the user's tower does not
            read: further negatives of its row, in training and evaluation.
        hard_table: path of a table with hard negatives of users or of items, which are further
            negatives of their rows, in training only; see `NegativeTable`.
        memory: number of items of earlier updates that are negatives; see `ItemMemory`.
        memory_warmup: updates before these are used.
        embedding_init: see `TableLookup`.
        norm, norm_place, norm_scope, activation: of both towers, see `HiddenLayers`.
        init: see `init_linear_layers`.

    Raises:
        ValueError: if the schema lacks what is needed, or if a setting is out of range.
    """

    query_reads_dense = True

    def __init__(
        self,
        schema: Schema,
        *,
        embedding_dim: Width,
        item: Sequence[str],
        user_tower: Widths,
        item_tower: Widths,
        out: Width,
        temperature: Positive,
        learn_temperature: Switch = False,
        normalise: bool = True,
        half_life: PositiveOrNone = None,
        dropout: LayerDropout = 0.0,
        embedding_dropout: DropoutRate = 0.0,
        in_batch: bool = True,
        uniform: NumNegatives = 0,
        popularity: NumNegatives = 0,
        exclude_known: Switch = False,
        user: ColumnOrNone = None,
        hardest: NumKept = 0,
        hard_negatives: ColumnOrNone = None,
        hard_table: ColumnOrNone = None,
        memory: NumKept = 0,
        memory_warmup: NumKept = 0,
        embedding_init: EmbeddingInit = None,
        norm: Norm = None,
        norm_place: NormPlace = None,
        norm_scope: NormScope = None,
        activation: Activation = None,
        init: Init = None,
    ) -> None:
        super().__init__()
        check_arguments(TwoTower.__init__, locals())
        divisor = _make_temperature(temperature, learn_temperature)
        self.item_features = find_item_features(schema, item)
        users = [f for f in schema.sparse if f not in self.item_features]
        self.item = self.item_features[0]
        draws: dict[str, object] = {"uniform": uniform, "popularity": popularity}
        draws |= {"hard_negatives": hard_negatives, "hard_table": hard_table}
        if any(draws.values()):
            _check_single_feature([f.name for f in self.item_features])
        if hard_negatives:
            check_row_negatives(schema, hard_negatives, self.item)
        self.hard_negatives = hard_negatives
        self.negative_table = NegativeTable(hard_table) if hard_table else None
        sequences = [s for s in schema.sequences if s.name != hard_negatives]
        self.history = next(
            (s.name for s in sequences if s.table_name == self.item.table_name), None
        )
        self.embedding = SequenceLookup(
            schema,
            embedding_dim,
            features=[*self.item_features, *users],
            sequences=schema.sequences,
            candidates=None if self.item.weighted else self.item.table_name,
            init=embedding_init,
        )
        self.negatives = NegativeSampler(
            self.item.num_rows,
            in_batch=in_batch,
            uniform=uniform,
            popularity=popularity,
            hardest=hardest,
            memory=ItemMemory(memory, out, memory_warmup) if memory else None,
        )
        self.set_known_positives(schema, user, exclude_known)
        num_user = (len(users) + len(sequences)) * embedding_dim + len(schema.dense)
        self.item_width = len(self.item_features) * embedding_dim
        hidden = HiddenLayers(norm, norm_place, norm_scope, activation, dropout)
        # `thing` is the item's tower; checkpoints have this name
        self.user = mlp(num_user, [*user_tower, out], hidden, last="linear")
        self.thing = mlp(self.item_width, [*item_tower, out], hidden, last="linear")
        if has_batch_statistics(self.thing):
            _check_draws_nothing(draws)
        self.drop = Dropout(embedding_dropout)
        self.normalise, self.half_life = normalise, half_life
        self.temperature = divisor
        init_linear_layers(self, init)

    def embed(self, batch: Batch, extra_C: Tensor | None = None) -> Embeddings:
        if self.negative_table is None or not self.training:
            return super().embed(batch, extra_C)
        key_B = single_ids(batch, self.negative_table.key)
        ids_U, at_BL = self.negative_table.find(key_B, batch.is_positive_B)
        embeddings = super().embed(batch, ids_U)
        return replace(embeddings, per_row={**embeddings.per_row, "hard": at_BL})

    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        per_row, width = embeddings.per_row, self.item_width
        item_BE, user_BE = embeddings.pooled_BE[:, :width], embeddings.pooled_BE[:, width:]
        query_BD = self.query_vectors(
            replace(embeddings, pooled_BE=user_BE), batch.dense_BD, batch.weights_B
        )
        item_BD = self.encode(self.thing, item_BE, batch.weights_B)
        logits_B1 = (query_BD.float() * item_BD.float()).sum(1, keepdim=True)
        is_positive_B = batch.is_positive_B
        row_P = is_positive_B.nonzero()[:, 0]  # sync: the number of queries
        candidates = None
        if embeddings.shared_CD:  # those of the table follow the drawn ones
            candidates = (embeddings.shared_CD[0], embeddings.per_batch["candidates"])
        sampled = None
        if (count := self.negatives.num_sampled) and candidates is not None:
            drawn_CD, ids_C = (part[:count] for part in candidates)
            with shared_draws():
                sampled = (self.encode(self.thing, drawn_CD), ids_C)
        positives = (item_BD[row_P], per_row["item"][row_P])
        known = self.known_positives(row_P, is_positive_B, per_row)
        hard = self.encode_hard_negatives(embeddings, row_P)
        aux = self.negatives.score(query_BD[row_P], positives, sampled, known=known, hard=hard)
        aux["row_P"] = row_P
        aux |= self.rank_in_catalogue(query_BD, per_row["item"], per_row, batch.rows_B)
        aux |= self.row_vectors(query_BD, item_BD, per_row)
        return Prediction.of(logits_B1, batch, **aux)

    def encode(self, tower: RowSequential, x_B: Tensor, weights_B: Tensor | None = None) -> Tensor:
        """Return [B, out]."""
        vectors_BD: Tensor = tower(x_B, weights_B)
        return functional.normalize(vectors_BD, dim=1) if self.normalise else vectors_BD

    def encode_hard_negatives(
        self, embeddings: Embeddings, row_P: Tensor
    ) -> tuple[Tensor, Tensor] | None:
        """Return the vectors [P, L, out] and ids [P, L] of each row's negatives; id -1 for none."""
        embedded, ids, per_row = [], [], embeddings.per_row
        if self.hard_negatives:
            place = [s.name for s in self.embedding.sequences].index(self.hard_negatives)
            ids_BL = per_row[f"{self.hard_negatives}:ids"]
            is_there_BL = is_event(per_row[f"{self.hard_negatives}:length"], ids_BL.shape[1])
            embedded.append(embeddings.sequences_BLD[place])
            ids.append(torch.where(is_there_BL, ids_BL, -1))
        count = self.negatives.num_sampled
        if "hard" in per_row and len(embeddings.per_batch["candidates"]) > count:
            at_BL, ids_U = per_row["hard"], embeddings.per_batch["candidates"][count:]
            # not by an index, whose backward adds repeats in another order in every run
            embedded.append(
                functional.embedding(at_BL.clamp(min=0), embeddings.shared_CD[0][count:])
            )
            ids.append(torch.where(at_BL >= 0, ids_U[at_BL.clamp(min=0)], -1))
        if not ids:
            return None
        embedded_BLD, ids_BL = torch.cat(embedded, dim=1), torch.cat(ids, dim=1)
        # of all rows, so that dropout does not depend on how rows are divided
        vectors = self.encode(self.thing, embedded_BLD.flatten(0, 1))
        return torch.unflatten(vectors, 0, ids_BL.shape)[row_P], ids_BL[row_P]

    def query_vectors(
        self, embeddings: Embeddings, dense_BD: Tensor, weights_B: Tensor | None = None
    ) -> Tensor:
        means = [
            mean_pool(sequence_BLD, embeddings.per_row[f"{sequence.name}:length"], self.half_life)
            for sequence, sequence_BLD in zip(self.embedding.sequences, embeddings.sequences_BLD)
            if sequence.name != self.hard_negatives
        ]
        user_BE = self.drop(torch.cat((embeddings.pooled_BE, *means, dense_BD), dim=1))
        temperature = self.temperature
        if isinstance(temperature, Tensor):
            temperature = temperature.clamp(min=SMALLEST_TEMPERATURE)
        return self.encode(self.user, user_BE, weights_B) / temperature

    def item_vectors(self, embedded_CD: Tensor) -> Tensor:
        return self.encode(self.thing, embedded_CD)

    def check_catalogue(self) -> None:
        if len(self.item_features) > 1:
            names = ", ".join(f.name for f in self.item_features[1:])
            raise ValueError(
                f"the vector of an item depends on {names} besides its id, and these are known for "
                f"the items of rows only; use model.net.item=[{self.item.name}]"
            )


def _make_temperature(temperature: float, is_learnt: bool) -> Tensor | float:
    """Return the divisor of scores, a parameter if it is learnt.

    Raises:
        ValueError: for a learnt one that is below its minimum.
    """
    if not is_learnt:
        return temperature
    if temperature < SMALLEST_TEMPERATURE:
        raise ValueError(
            f"temperature={temperature}: is below {SMALLEST_TEMPERATURE}, the least that "
            "learn_temperature=true can reach"
        )
    return nn.Parameter(torch.tensor(float(temperature)))


def _check_single_feature(names: Sequence[str]) -> None:
    if len(names) > 1:
        raise ValueError(
            f"item={names}: only the id of a drawn item is known; set uniform=0 popularity=0 "
            f"hard_negatives=null hard_table=null, or item=[{names[0]}]"
        )


def _check_draws_nothing(arguments: Mapping[str, object]) -> None:
    """Check that a tower with batch statistics only gets items of rows.

    Raises:
        ValueError: if it also gets drawn ones.
    """
    set_arguments = {name: value for name, value in arguments.items() if value}
    if set_arguments:
        which = ", ".join(f"{name}={value}" for name, value in set_arguments.items())
        none = " ".join(
            f"{name}={0 if isinstance(value, int) else 'null'}"
            for name, value in set_arguments.items()
        )
        raise ValueError(
            f"{which}: drawn items are no rows of the batch, so the items of rows and drawn ones "
            "would have statistics of their own, by which an item_tower with norm=batch or "
            "activation=dice could tell them apart; norm=layer has none, item_tower=[] has no "
            f"hidden layers, and in_batch=true {none} draws nothing"
        )
