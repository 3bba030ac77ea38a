"""L1 and L2 penalties on chosen parameters of the dense half.

    loss + sum over entries (l1 * sum |p| + l2 * sum p^2)

The gradient is added once per update, after the micro-batches and the sum over ranks, so it equals
that of one batch. The sums over all chosen parameters are logged as the parts `l1` and `l2` of the
train loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from runner.batch import Embeddings
from runner.errors import ConfigError
from runner.optim.param_groups import TABLE_PREFIX, matching_names
from runner.optim.penalty_settings import Penalty


@dataclass(frozen=True)
class ParameterPenalty:
    """A penalty with the parameters to which it applies."""

    parameters: tuple[nn.Parameter, ...]
    l1: float
    l2: float


def resolve_penalties(
    penalties: Sequence[Penalty], parameters: Mapping[str, nn.Parameter], tables: Sequence[str]
) -> tuple[ParameterPenalty, ...]:
    """Find the parameters to which each penalty applies.

    Args:
        parameters: the dense parameters by name.
        tables: the names of the model's tables, to which no penalty can apply.

    Raises:
        ConfigError: for a pattern that matches no parameter, or a table.
    """
    resolved = []
    names = [*parameters, *(f"{TABLE_PREFIX}{name}" for name in tables)]
    for i, penalty in enumerate(penalties):
        matched = matching_names(names, penalty.pattern, f"trainer.penalties[{i}].pattern")
        matched_tables = [name for name in matched if name.startswith(TABLE_PREFIX)]
        if matched_tables:
            raise ConfigError(
                f"trainer.penalties[{i}].pattern {penalty.pattern!r} matches the table "
                f"{matched_tables[0]!r}: tables have penalties of their own: l2_tables of "
                "optimizer.sparse reaches every row at every update, l2_lookups what a batch looks "
                "up, and weight_decay of adam or lamb decays the rows of the batch"
            )
        chosen = tuple(parameters[name] for name in matched)
        resolved.append(ParameterPenalty(chosen, penalty.l1, penalty.l2))
    return tuple(resolved)


@torch.no_grad()
def add_lookup_gradients(embeddings: Embeddings, strength_B: Tensor) -> None:
    """Add the gradient of strength / 2 times the squares of the vectors that each row looks up.

    An id looked up by several rows counts in each, and a bag as the one pooled vector.
    Candidates, which belong to no row, count as if each row had looked up their mean.

    Args:
        embeddings: leaves of the graph of some rows, after its backward.
        strength_B: for each of these rows.
    """
    for rows in embeddings.row_lookups():
        strength = strength_B.to(rows.dtype).view(-1, *(1 for _ in rows.shape[1:]))
        rows.grad = torch.addcmul(_gradient(rows), rows, strength)
    for shared_CD in embeddings.shared_CD:
        strength = strength_B.sum() / max(1, len(shared_CD))
        shared_CD.grad = torch.addcmul(_gradient(shared_CD), shared_CD, strength)


def _gradient(leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad


@torch.no_grad()
def penalty_values(penalties: Sequence[ParameterPenalty]) -> dict[str, Tensor]:
    """Compute `l1` and `l2`, or only one if no penalty has the other. It does not synchronise."""
    values: dict[str, list[Tensor]] = {"l1": [], "l2": []}
    for penalty in penalties:
        for parameter in penalty.parameters:
            if penalty.l1:
                values["l1"].append(parameter.abs().sum() * penalty.l1)
            if penalty.l2:
                values["l2"].append(parameter.square().sum() * penalty.l2)
    return {name: torch.stack(parts).sum() for name, parts in values.items() if parts}


@torch.no_grad()
def add_penalty_gradients(
    penalties: Sequence[ParameterPenalty], parameters: Sequence[nn.Parameter]
) -> None:
    """Add to the gradients of those penalised parameters that are in `parameters`."""
    ids = {id(p) for p in parameters}
    for penalty in penalties:
        for parameter in penalty.parameters:
            if id(parameter) not in ids:
                continue
            parameter.grad = _gradient(parameter)
            if penalty.l1:
                parameter.grad.add_(parameter.sign(), alpha=penalty.l1)
            if penalty.l2:
                parameter.grad.add_(parameter, alpha=2 * penalty.l2)
