"""Twins of the sequence and retrieval models, computed row by row from ids and weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from tests.models.sequence_scene import LONGEST, ids_of

Weights = dict[str, Tensor]


def linear(p: Weights, name: str, x: Tensor) -> Tensor:
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def norm(p: Weights, name: str, x: Tensor) -> Tensor:
    x = (x - x.mean()) / torch.sqrt(x.var(unbiased=False) + 1e-5)
    return x * p[f"{name}.weight"] + p[f"{name}.bias"]


def prelu_mlp(p: Weights, name: str, x: Tensor) -> Tensor:
    last = max(int(k.split(".")[-2]) for k in p if k.startswith(f"{name}.") and k.endswith("bias"))
    for place in range(0, last + 1, 2):
        x = linear(p, f"{name}.{place}", x)
        if place < last:
            x = torch.where(x > 0, x, x * p[f"{name}.{place + 1}.weight"])
    return x


def relu_mlp(p: Weights, name: str, x: Tensor) -> Tensor:
    places = sorted({int(k.split(".")[1]) for k in p if k.startswith(f"{name}.")})
    for place in places:
        x = linear(p, f"{name}.{place}", x)
        x = x if place == places[-1] else x.clamp(min=0)
    return x


def attention(p: Weights, name: str, x: list[Tensor], num_heads: int) -> list[Tensor]:
    """Attention of every place to itself and the places before it, head by head."""
    dim = len(x[0])
    size = dim // num_heads
    query = [linear(p, f"{name}.query", norm(p, f"{name}.query_norm", place)) for place in x]
    both = [linear(p, f"{name}.key_value", place) for place in x]
    mixed = []
    for i in range(len(x)):
        heads = []
        for h in range(num_heads):
            own = slice(h * size, (h + 1) * size)
            scores = torch.stack(
                [query[i][own] @ both[j][:dim][own] / math.sqrt(size) for j in range(i + 1)]
            )
            shares = scores.exp() / scores.exp().sum()
            heads.append(sum(shares[j] * both[j][dim:][own] for j in range(i + 1)))
        mixed.append(linear(p, f"{name}.out", torch.cat(heads)))
    return mixed


def sasrec_states(p: Weights, item: Tensor, history: list[int], num_heads: int) -> list[Tensor]:
    kept = history[-LONGEST:]
    dim = item.shape[1]
    x = [
        item[i] * math.sqrt(dim) + p["places_LD"][len(kept) - 1 - place]
        for place, i in enumerate(kept)
    ]
    block = 0
    while f"blocks.{block}.query.weight" in p:
        name = f"blocks.{block}"
        x = [a + b for a, b in zip(x, attention(p, name, x, num_heads))]
        hidden = [linear(p, f"{name}.first", norm(p, f"{name}.norm", a)).clamp(min=0) for a in x]
        x = [a + linear(p, f"{name}.second", h) for a, h in zip(x, hidden)]
        block += 1
    return [norm(p, "norm", a) for a in x]


def sasrec_row_losses(p, item, batch, num_heads) -> list[Tensor]:
    """Full softmax of every place in the rows of label 1, summed over each row."""
    losses = []
    for history, [target], label in zip(
        ids_of(batch, "history"), ids_of(batch, "item"), batch.labels_BT[:, 0]
    ):
        kept = history[-LONGEST:]
        if label < 0.5 or not kept:
            losses.append(torch.zeros((), dtype=torch.float64))
            continue
        states = sasrec_states(p, item, history, num_heads)
        targets = [*kept[1:], target]
        each = zip(states, targets)
        losses.append(sum(functional.cross_entropy(item @ s, torch.tensor(t)) for s, t in each))
    return losses


def din_logits(p: Weights, tables: Weights, batch) -> Tensor:
    logits = []
    names = ("user", "item", "genres")
    rows = zip(*(ids_of(batch, n) for n in names), ids_of(batch, "history"), batch.dense_BD)
    for user, item, genres, history, age in rows:
        pooled = [tables[n][ids].sum(0) for n, ids in zip(names, (user, item, genres))]
        interest = torch.zeros_like(pooled[0])
        for i in history[-LONGEST:]:
            e, v = tables["item"][i], pooled[1]
            unit = prelu_mlp(p, "activations.0.unit", torch.cat((e, e - v, e * v, v)))
            interest = interest + unit[0] * e
        x = torch.cat((*pooled, interest, age.double()))
        logits.append(prelu_mlp(p, "top", x))
    return torch.stack(logits)


def mlp_logits(p: Weights, tables: Weights, batch) -> Tensor:
    logits = []
    names = ("user", "item", "genres")
    rows = zip(*(ids_of(batch, n) for n in names), ids_of(batch, "history"), batch.dense_BD)
    for *ids, history, age in rows:
        pooled = [tables[n][own].sum(0) for n, own in zip(names, ids)]
        kept = history[-LONGEST:]
        mean = tables["item"][kept].sum(0) / max(len(kept), 1)
        logits.append(relu_mlp(p, "deep", torch.cat((*pooled, mean, age.double()))))
    return torch.stack(logits)


def towers(
    p: Weights, tables: Weights, batch, temperature: float, half_life: float = math.inf
) -> tuple[Tensor, Tensor]:
    """Return the queries, divided by the temperature, and the item vectors of all rows."""
    queries, items = [], []
    rows = zip(*(ids_of(batch, n) for n in ("user", "item", "genres", "history")), batch.dense_BD)
    for user, item, genres, history, age in rows:
        kept = history[-LONGEST:]
        mean, weights = torch.zeros(tables["item"].shape[1], dtype=torch.float64), 0.0
        for behind, event in enumerate(reversed(kept)):
            weight = 0.5 ** (behind / half_life)
            mean, weights = mean + weight * tables["item"][event], weights + weight
        mean = mean / weights if kept else mean
        x = torch.cat(
            (tables["user"][user].sum(0), tables["genres"][genres].sum(0), mean, age.double())
        )
        query = relu_mlp(p, "user", x)
        queries.append(query / query.norm() / temperature)
        vector = relu_mlp(p, "thing", tables["item"][item].sum(0))
        items.append(vector / vector.norm())
    return torch.stack(queries), torch.stack(items)
