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


def gru4rec_states(p: Weights, item: Tensor, history: list[int], num_heads: int) -> list[Tensor]:
    """States of GRU layers, gate by gate as in the paper; `num_heads` is not used."""
    x = [item[i] for i in history[-LONGEST:]]
    layer = 0
    while f"layers.{layer}.weight_ih_l0" in p:
        w, u, b, c = (
            p[f"layers.{layer}.{kind}_l0"].chunk(3)
            for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        state, states = torch.zeros(u[0].shape[1], dtype=torch.float64), []
        for place in x:
            reset, update = (
                1 / (1 + torch.exp(-(w[k] @ place + b[k] + u[k] @ state + c[k]))) for k in (0, 1)
            )
            new = torch.tanh(w[2] @ place + b[2] + reset * (u[2] @ state + c[2]))
            state = (1 - update) * new + update * state
            states.append(state)
        x, layer = states, layer + 1
    return [linear(p, "out", state) for state in x]


def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def hstu_states(p: Weights, item: Tensor, history: list[int], num_heads: int) -> list[Tensor]:
    """Equations 1 to 3 of the paper, place by place and head by head."""
    dim = item.shape[1]
    size = dim // num_heads
    x = [item[i] * math.sqrt(dim) for i in history[-LONGEST:]]

    def plain_norm(a: Tensor) -> Tensor:
        return (a - a.mean()) / torch.sqrt(a.var(unbiased=False) + 1e-5)

    block = 0
    while f"blocks.{block}.project.weight" in p:
        name = f"blocks.{block}"
        parts = [silu(p[f"{name}.project.weight"] @ plain_norm(a)).chunk(4) for a in x]
        outputs = []
        for i, (gate, _, query, _) in enumerate(parts):
            mixed = torch.zeros(dim, dtype=torch.float64)
            for j, (_, value, _, key) in enumerate(parts[: i + 1]):
                for h in range(num_heads):
                    own = slice(h * size, (h + 1) * size)
                    score = query[own] @ key[own] + p[f"{name}.distance_bias"][i - j, 0]
                    weight = torch.zeros(dim, dtype=torch.float64)
                    weight[own] = 1.0
                    mixed = mixed + silu(score) / LONGEST * weight * value
            outputs.append(x[i] + linear(p, f"{name}.out", plain_norm(mixed) * gate))
        x, block = outputs, block + 1
    return [norm(p, "norm", a) for a in x]


STATES = {"sasrec": sasrec_states, "gru4rec": gru4rec_states, "hstu": hstu_states}


def causal_row_losses(name, p, item, batch, num_heads) -> list[Tensor]:
    """Full softmax of every place in the rows of label 1, summed over each row."""
    losses = []
    for history, [target], label in zip(
        ids_of(batch, "history"), ids_of(batch, "item"), batch.labels_BT[:, 0]
    ):
        kept = history[-LONGEST:]
        if label < 0.5 or not kept:
            losses.append(torch.zeros((), dtype=torch.float64))
            continue
        states = STATES[name](p, item, history, num_heads)
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


def leaky(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, 0.01 * x)


def gelu(x: Tensor) -> Tensor:
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def bert4rec_row_losses(p, item, batch, masks, num_heads) -> list[Tensor]:
    """Full softmax of the row's item and of masked places, summed over each row of label 1."""
    losses = []
    rows = zip(ids_of(batch, "history"), ids_of(batch, "item"), batch.labels_BT[:, 0], masks)
    for history, [target], label, mask in rows:
        kept = [*history[-LONGEST:], target]
        hidden = [*mask[: len(kept) - 1], True]
        x = [p["mask_1D"][0] if gone else item[i] for i, gone in zip(kept, hidden)]
        x = [a + place for a, place in zip(x, reversed(p["places_ND"][: len(x)]))]
        states = post_norm_states(p, "blocks", x, num_heads, gelu)
        scores = [item @ gelu(linear(p, "out", state)) for state in states]
        loss = torch.zeros((), dtype=torch.float64)
        for of_place, i, gone in zip(scores, kept, hidden):
            if gone and label > 0.5:
                loss = loss + functional.cross_entropy(of_place, torch.tensor(i))
        losses.append(loss)
    return losses


def post_norm_states(
    p: Weights, name: str, x: list[Tensor], num_heads: int, activation
) -> list[Tensor]:
    """Post-norm blocks over the places that are there, place by place."""
    dim = len(x[0])
    size = dim // num_heads
    block = 0
    while f"{name}.{block}.project.weight" in p:
        own_name = f"{name}.{block}"
        parts = [(p[f"{own_name}.project.weight"] @ a).chunk(3) for a in x]
        outputs = []
        for a, (query, _, _) in zip(x, parts):
            heads = []
            for h in range(num_heads):
                own = slice(h * size, (h + 1) * size)
                scores = torch.stack([query[own] @ k[own] / math.sqrt(size) for _, k, _ in parts])
                shares = scores.exp() / scores.exp().sum()
                heads.append(sum(s * v[own] for s, (_, _, v) in zip(shares, parts)))
            y = norm(
                p, f"{own_name}.first_norm", a + linear(p, f"{own_name}.out", torch.cat(heads))
            )
            hidden = activation(linear(p, f"{own_name}.first", y))
            z = y + linear(p, f"{own_name}.second", hidden)
            outputs.append(norm(p, f"{own_name}.second_norm", z))
        x, block = outputs, block + 1
    return x


def bst_logits(p: Weights, tables: Weights, batch) -> Tensor:
    logits = []
    names = ("user", "item", "genres")
    rows = zip(*(ids_of(batch, n) for n in names), ids_of(batch, "history"), batch.dense_BD)
    for *ids, history, age in rows:
        pooled = [tables[n][own].sum(0) for n, own in zip(names, ids)]
        x = [pooled[1], *(tables["item"][i] for i in reversed(history[-LONGEST:]))]
        x = [a + place for a, place in zip(x, p["transformers.0.places_ND"])]
        states = post_norm_states(p, "transformers.0.blocks", x, 2, leaky)
        nothing = [torch.zeros_like(x[0])] * (LONGEST + 1 - len(x))
        hidden = linear(p, "top.0", torch.cat((*pooled, *states, *nothing, age.double())))
        logits.append(linear(p, "top.2", leaky(hidden)))
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
