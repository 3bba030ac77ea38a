"""DIEN (Zhou et al. 2019, arXiv:1809.03672): how an interest evolves towards the candidate item."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from runner.batch import Batch, Embeddings, Schema, SequenceFeature
from runner.models.argument_types import Activation, Width, Widths
from runner.models.layers.evolution import InterestEvolution, auxiliary_loss
from runner.models.layers.history import HistoryModel
from runner.models.layers.mlp import init_linear_layers, mlp
from runner.models.layers.place_draws import draw_at_places


class DIEN(HistoryModel):
    """Each history by a GRU and an AUGRU, then an MLP that also sees all pooled and dense features.

    In training, the states of the GRU also learn to tell the next event from a drawn item, the
    auxiliary loss, for the sequences that read the table of the first candidate. The drawn items
    are a function of seed, epoch, row and place, uniform over all items but the event's. States
    are as wide as embeddings, since the auxiliary loss multiplies both.

    Args:
        schema: needs a sequence, and a sparse feature that reads its table: the candidate. A
            sequence whose table no feature reads is averaged.
        embedding_dim: D, width of every table and of the states.
        top: hidden widths of the MLP; a last linear layer with one logit per task follows.
        auxiliary: whether items are drawn for the auxiliary loss, which `AuxiliaryBCE` adds.
        activation: of the MLP; None for PReLU.
        shared: further arguments of `HistoryModel`.

    Raises:
        ValueError: if the schema has no such sequence.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        embedding_dim: Width,
        top: Widths,
        auxiliary: bool = True,
        activation: Activation = None,
        **shared: Any,
    ) -> None:
        activation = activation or "prelu"
        super().__init__(schema, embedding_dim, auxiliary, activation=activation, **shared)
        self.auxiliary = auxiliary
        self.seed = int(torch.randint(2**31, ()))  # from the run's seed, so the same on all ranks
        self.evolutions = nn.ModuleList(
            InterestEvolution(embedding_dim) for place in self.candidates if place is not None
        )
        self.top = mlp(self.num_inputs, [*top, len(schema.tasks)], self.hidden, last="linear")
        init_linear_layers(self, self.linear_init)

    @property
    def provides(self) -> tuple[str, ...]:
        """What this model offers to losses, for their `requires`."""
        return ("logits", "auxiliary") if self.auxiliary else ("logits",)

    @property
    def interests(self) -> nn.ModuleList:
        return self.evolutions

    def embed(self, batch: Batch) -> Embeddings:
        """Look up the batch, and in training the drawn items; `per_row` says where these are."""
        if not (self.auxiliary and self.training):
            return super().embed(batch)
        places, drawn = {}, []
        padded = self.embedding.padded(batch)
        for number, (sequence, (name, ids_BL, mask_BL)) in enumerate(zip(self.sequences, padded)):
            if sequence.table_name != self.candidate_table:
                continue
            is_pair_BL = mask_BL.clone()
            is_pair_BL[:, 0] = False
            random_BL = draw_at_places(batch, ids_BL.shape[1], self.seed + number)
            # of the other items, each has the same chance
            other_BL = ids_BL + 1 + random_BL % (sequence.num_rows - 1)
            drawn.append(other_BL[is_pair_BL] % sequence.num_rows)  # sync: their number
            places[f"{name}:drawn"] = is_pair_BL
        ids_U, at = torch.unique(torch.cat(drawn), return_inverse=True)
        for (name, is_pair_BL), part in zip(places.items(), at.split([len(d) for d in drawn])):
            at_BL = torch.full_like(is_pair_BL, -1, dtype=torch.int64)
            at_BL[is_pair_BL] = part
            places[name] = at_BL
        embeddings: Embeddings = self.embedding(batch, ids_U, padded)
        return replace(embeddings, per_row={**embeddings.per_row, **places})

    def interest(
        self,
        layer: nn.Module,
        sequence: SequenceFeature,
        inputs: tuple[Tensor, Tensor, Tensor, Tensor],
        embeddings: Embeddings,
        aux: dict[str, Tensor],
    ) -> Tensor:
        assert isinstance(layer, InterestEvolution)
        x_BLD, item_BD, length_B, _ = inputs
        states_BLD = layer.extractor(x_BLD)
        at_BL = embeddings.per_row.get(f"{sequence.name}:drawn")
        if at_BL is not None:
            losses_B = x_BLD.new_zeros(len(x_BLD), dtype=torch.float32)
            if len(embeddings.shared_CD[0]):
                # not by an index, whose backward adds repeats in another order in every run
                drawn_BLD = functional.embedding(at_BL.clamp(min=0), embeddings.shared_CD[0])
                drawn_BLD = self.embedding_drop(drawn_BLD)
                losses_B = auxiliary_loss(states_BLD, x_BLD, drawn_BLD, at_BL >= 0)
            aux["auxiliary_B"] = losses_B + aux.get("auxiliary_B", 0.0)
        return layer.evolve(states_BLD, item_BD, length_B)
