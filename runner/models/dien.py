"""DIEN (Zhou et al. 2019, arXiv:1809.03672): how an interest evolves towards the candidate item.

B batch, L sequence length, D width. The extractor, its evolution and the auxiliary loss: section 4.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from runner.batch import Batch, Embeddings, Schema, SequenceFeature
from runner.models.argument_types import Activation, Width, Widths
from runner.models.layers.history import HistoryModel
from runner.models.layers.mlp import init_linear_layers, mlp
from runner.models.layers.row_draws import draw_at_places
from runner.models.layers.sequences import is_event


class DIEN(HistoryModel):
    """Each history by a GRU and an AUGRU, then an MLP that also sees all pooled and dense features.

    In training, the states of the GRU also learn to separate the next event from a drawn item, the
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
            # all other items have the same probability
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


class GatedUnits(nn.Module):
    """A GRU, or with attention one whose update gate is scaled by it (AUGRU).

    u = s(W_u i + U_u h + b_u), r = s(W_r i + U_r h + b_r), c = tanh(W_h i + r (U_h h) + b_h),
    and h = (1 - a u) h + a u c, where a is 1 without attention.

    Args:
        dim: D, of inputs and states.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.input, self.state = nn.Linear(dim, 3 * dim), nn.Linear(dim, 3 * dim, bias=False)

    def forward(self, x_BLD: Tensor, attention_BL: Tensor | None = None) -> Tensor:
        """Return the states, [B, L, D]; the first one follows a state of zeros."""
        h_BD, states = torch.zeros_like(x_BLD[:, 0]), []
        for place, input_BE in enumerate(self.input(x_BLD).unbind(1)):
            of_u, of_r, of_c = input_BE.chunk(3, dim=1)
            from_u, from_r, from_c = self.state(h_BD).chunk(3, dim=1)
            update_BD = torch.sigmoid(of_u + from_u)
            candidate_BD = torch.tanh(of_c + torch.sigmoid(of_r + from_r) * from_c)
            if attention_BL is not None:
                update_BD = attention_BL[:, place, None] * update_BD
            h_BD = (1 - update_BD) * h_BD + update_BD * candidate_BD
            states.append(h_BD)
        return torch.stack(states, dim=1)


class InterestEvolution(nn.Module):
    """The last state of an AUGRU over the states of a GRU, which attend to the candidate item.

    Attention is the softmax of h W e over a row's events; it is 0 after the last event, so
    that the state does not change there, and 0 for a history without events.

    Args:
        dim: D.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.extractor, self.evolution = GatedUnits(dim), GatedUnits(dim)
        self.attention = nn.Linear(dim, dim, bias=False)

    def evolve(self, states_BLD: Tensor, item_BD: Tensor, length_B: Tensor) -> Tensor:
        """Return [B, D], from the extractor's states."""
        scores_BL = torch.bmm(states_BLD, self.attention(item_BD)[:, :, None])[:, :, 0]
        is_event_BL = is_event(length_B, scores_BL.shape[1])
        scores_BL = scores_BL.float().masked_fill(~is_event_BL, -1e30)
        attention_BL = scores_BL.softmax(1).masked_fill(~is_event_BL, 0.0)
        states_BLD = self.evolution(states_BLD, attention_BL.to(states_BLD.dtype))
        return states_BLD[:, -1]


def auxiliary_loss(
    states_BLD: Tensor, events_BLD: Tensor, negatives_BLD: Tensor, is_pair_BL: Tensor
) -> Tensor:
    """Return [B], the sum over pairs of -log s(h_t e_t+1) - log(1 - s(h_t n_t+1)), over L - 1.

    The paper has the sum; the authors' code takes the mean over all L - 1 places, where its weight
    is 1.

    Args:
        states_BLD: h, the extractor's.
        events_BLD: e, the embeddings of the events.
        negatives_BLD: n, those of items that are not the event's, at the place of the event.
        is_pair_BL: whether a place has an event with one before it.
    """
    known_BLD = states_BLD[:, :-1]
    rights_BL = (known_BLD * events_BLD[:, 1:]).sum(2).float()
    wrongs_BL = (known_BLD * negatives_BLD[:, 1:]).sum(2).float()
    losses_BL = functional.softplus(-rights_BL) + functional.softplus(wrongs_BL)
    return (losses_BL * is_pair_BL[:, 1:]).sum(1) / max(rights_BL.shape[1], 1)
