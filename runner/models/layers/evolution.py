"""DIEN's interest extractor, its evolution, and the auxiliary loss (arXiv:1809.03672, section 4).

B batch, L sequence length, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from runner.models.layers.sequences import is_event


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

    Attention is the softmax of h W e over a row's events; it is 0 behind the last event, so
    that the state stays as it is there, and 0 for a history without events.

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
