"""L1 and L2 penalties on chosen parameters of the dense half: parts of the loss of their own.

    loss + sum over entries (l1 * sum |p| + l2 * sum p^2)

The gradient is added once an update, after the micro-batches and the sum over ranks, so it is that
of one batch. Sums over all chosen parameters are the parts `l1` and `l2` of the train loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from runner.errors import ConfigError
from runner.optim.param_groups import TABLE_PREFIX, matching_names
from runner.optim.penalty_settings import Penalty


@dataclass(frozen=True)
class ParameterPenalty:
    """A penalty and the parameters it holds for."""

    parameters: tuple[nn.Parameter, ...]
    l1: float
    l2: float


def resolve_penalties(
    penalties: Sequence[Penalty],
    parameters: Mapping[str, nn.Parameter],
    tables: Sequence[str],
    *,
    where: str = "trainer.penalties",
) -> tuple[ParameterPenalty, ...]:
    """The parameters that each penalty holds for.

    Args: tables: names of the model's, which no penalty can hold for.
    Raises: ConfigError for a pattern that matches no parameter, or a table.
    """
    found = []
    names = [*parameters, *(f"{TABLE_PREFIX}{name}" for name in tables)]
    for i, penalty in enumerate(penalties):
        owned = matching_names(names, penalty.pattern, f"{where}[{i}].pattern")
        of_tables = [n for n in owned if n.startswith(TABLE_PREFIX)]
        if of_tables:
            raise ConfigError(
                f"{where}[{i}].pattern {penalty.pattern!r} matches the table {of_tables[0]!r}: a "
                "penalty would move all its rows at every update; weight_decay of "
                "optimizer.sparse adam or lamb decays the rows of the batch"
            )
        found.append(ParameterPenalty(tuple(parameters[n] for n in owned), penalty.l1, penalty.l2))
    return tuple(found)


@torch.no_grad()
def penalty_values(penalties: Sequence[ParameterPenalty]) -> dict[str, Tensor]:
    """The parts `l1` and `l2` of the loss, those that there are. Does not synchronise."""
    found: dict[str, list[Tensor]] = {"l1": [], "l2": []}
    for penalty in penalties:
        for parameter in penalty.parameters:
            if penalty.l1:
                found["l1"].append(parameter.abs().sum() * penalty.l1)
            if penalty.l2:
                found["l2"].append(parameter.square().sum() * penalty.l2)
    return {name: torch.stack(parts).sum() for name, parts in found.items() if parts}


@torch.no_grad()
def add_penalty_gradients(
    penalties: Sequence[ParameterPenalty], parameters: Sequence[nn.Parameter]
) -> None:
    """Adds to the gradients of those parameters that are among `parameters`."""
    mine = {id(p) for p in parameters}
    for penalty in penalties:
        for parameter in penalty.parameters:
            if id(parameter) not in mine:
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if penalty.l1:
                parameter.grad.add_(parameter.sign(), alpha=penalty.l1)
            if penalty.l2:
                parameter.grad.add_(parameter, alpha=2 * penalty.l2)
