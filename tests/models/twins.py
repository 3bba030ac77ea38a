"""Twins of the models, written as in the papers with loops over fields, pairs, experts, heads.

A twin is called with the model's weights by name, the embedding of each field, the sums of the
first-order weights of each row, one for all tasks or one for each, and the dense features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

import torch
from torch import Tensor
from torch.nn import functional

Weights = Mapping[str, Tensor]
Twin = Callable[[Weights, Sequence[Tensor], Tensor, Tensor], Tensor]


def linear(p: Weights, name: str, x: Tensor) -> Tensor:
    y = x @ p[f"{name}.weight"].T
    return y + p[f"{name}.bias"] if f"{name}.bias" in p else y


def mlp(p: Weights, name: str, x: Tensor, *, last_linear: bool = False) -> Tensor:
    found = [key.removeprefix(f"{name}.").split(".")[0] for key in p if key.startswith(f"{name}.")]
    places = sorted({int(place) for place in found if place.isdigit()})
    for place in places:
        x = linear(p, f"{name}.{place}", x)
        if not (last_linear and place == places[-1]):
            x = x.clamp(min=0)
    return x


def flat(e: Sequence[Tensor], x: Tensor) -> Tensor:
    return torch.cat([*e, x], dim=1)


def fields(p: Weights, e: Sequence[Tensor], x: Tensor) -> list[Tensor]:
    numbers = [x[:, d : d + 1] * p["fields.vectors"][d] for d in range(x.shape[1])]
    return [*e, *numbers]


def first_order(p: Weights, name: str, first: Tensor, x: Tensor) -> Tensor:
    return first + (linear(p, f"{name}.dense", x) if x.shape[1] else 0)


def dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(1)


def dlrm(p, e, first, x):
    bottom = [mlp(p, "bottom", x)] if x.shape[1] else []
    vectors = [*bottom, *e]
    pairs = [dot(vectors[i], vectors[j])[:, None] for i in range(len(vectors)) for j in range(i)]
    return mlp(p, "top", torch.cat([*bottom, *pairs], dim=1), last_linear=True)


def cross(p, x0):
    x, layer = x0, 0
    while f"cross.layers.{layer}.weight" in p:
        x = x0 * linear(p, f"cross.layers.{layer}", x) + x
        layer += 1
    while f"cross.layers.{layer}.inner_KRR" in p:
        name = f"cross.layers.{layer}"
        gates = linear(p, f"{name}.gate", x).exp()
        gates = gates / gates.sum(1, keepdim=True)
        inner = p[f"{name}.inner_KRR"]
        rank, total = inner.shape[1], 0
        for k in range(len(inner)):
            own = slice(k * rank, (k + 1) * rank)
            low = torch.tanh(x @ p[f"{name}.down.weight"][own].T)
            low = torch.tanh(low @ inner[k])
            back = low @ p[f"{name}.up.weight"][:, own].T + p[f"{name}.up.bias"]
            total = total + gates[:, k : k + 1] * (x0 * back)
        x = total + x
        layer += 1
    return x


def dcn(p, e, first, x):
    x0 = flat(e, x)
    crossed = cross(p, x0)
    return linear(p, "head", torch.cat([crossed, mlp(p, "deep", x0)], dim=1))


def dcn_stacked(p, e, first, x):
    return linear(p, "head", mlp(p, "deep", cross(p, flat(e, x))))


def deepfm(p, e, first, x):
    v = fields(p, e, x)
    pairs = sum(dot(a, b) for a, b in combinations(v, 2))
    deep = mlp(p, "deep", torch.cat(v, dim=1), last_linear=True)
    return first_order(p, "first_order", first, x) + pairs[:, None] + deep


def wide_and_deep(p, e, first, x):
    deep = mlp(p, "deep", flat(e, x), last_linear=True)
    return first_order(p, "wide", first, x) + deep


def wide_and_deep_pairs(p, e, first, x):
    pairs = sum(dot(a, b) for a, b in combinations(e, 2))
    return wide_and_deep(p, e, first, x) + pairs[:, None]


def wide_and_deep_members(p, e, first, x):
    pairs = sum(dot(a, b) for a, b in combinations(e, 2))
    logits = []
    for k in range(len(p["deep.0.bias"])):
        h = flat(e, x)
        for place in ("deep.0", "deep.2"):
            h = (h * p[f"{place}.factors_in"][k]) @ p[f"{place}.shared.weight"].T
            h = (h * p[f"{place}.factors_out"][k] + p[f"{place}.bias"][k]).clamp(min=0)
        logits.append(h @ p["deep.4.weight"][k] + p["deep.4.bias"][k])
    return first_order(p, "wide", first, x) + pairs[:, None] + sum(logits) / len(logits)


def plain_mlp(p, e, first, x):
    return mlp(p, "deep", flat(e, x), last_linear=True)


def xdeepfm(p, e, first, x):
    v = torch.stack(fields(p, e, x), dim=1)
    maps, sums = v, []
    for layer in range(2):
        weight = p[f"cin.layers.{layer}.weight"].unflatten(1, (maps.shape[1], v.shape[1]))
        maps = torch.einsum("hij,bid,bjd->bhd", weight, maps, v)
        sums.append(maps.sum(2))
    shallow = first_order(p, "first_order", first, x)
    shallow = shallow + linear(p, "cin_head", torch.cat(sums, dim=1))
    return shallow + mlp(p, "deep", v.flatten(1), last_linear=True)


def autoint(p, e, first, x, num_heads=2):
    v = fields(p, e, x)
    whole = torch.stack(v, dim=1)
    layer = whole
    for number in range(2):
        weight = p[f"attention.{number}.project.weight"]
        width = len(weight) // 4
        head = width // num_heads
        query, key, value, residual = weight.split(width)
        outs = []
        for h in range(num_heads):
            own = slice(h * head, (h + 1) * head)
            q, k, u = layer @ query[own].T, layer @ key[own].T, layer @ value[own].T
            rows = []
            for m in range(len(v)):
                scores = torch.stack([dot(q[:, m], k[:, n]) for n in range(len(v))], dim=1).exp()
                scores = scores / scores.sum(1, keepdim=True)
                rows.append(sum(scores[:, n : n + 1] * u[:, n] for n in range(len(v))))
            outs.append(torch.stack(rows, dim=1))
        layer = (torch.cat(outs, dim=2) + layer @ residual.T).clamp(min=0)
    logits = linear(p, "head", layer.flatten(1))
    if any(name.startswith("deep.") for name in p):
        logits = logits + mlp(p, "deep", whole.flatten(1), last_linear=True)
    return logits


def norm(x: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
    centred = x - x.mean(1, keepdim=True)
    return centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt() * gain + bias


def mask_block(p, name, guide, x):
    mask = linear(p, f"{name}.mask.2", linear(p, f"{name}.mask.0", guide).clamp(min=0))
    y = linear(p, f"{name}.linear", mask * x)
    return norm(y, p[f"{name}.norm.weight"], p[f"{name}.norm.bias"]).clamp(min=0)


def masknet(p, e, first, x, serial=False):
    v = fields(p, e, x)
    guide = torch.cat(v, dim=1)
    normed = [norm(one, p["norm.weight"][n], p["norm.bias"][n]) for n, one in enumerate(v)]
    start = torch.cat(normed, dim=1)
    if serial:
        hidden = mask_block(p, "blocks.1", guide, mask_block(p, "blocks.0", guide, start))
    else:
        hidden = torch.cat([mask_block(p, f"blocks.{b}", guide, start) for b in range(2)], dim=1)
    return mlp(p, "top", hidden, last_linear=True)


def sums(p: Weights, name: str, vectors: Sequence[Tensor]) -> list[Tensor]:
    return [sum(w * one for w, one in zip(row, vectors)) for row in p[f"{name}.weight"]]


def wukong(p, e, first, x):
    """Each number of a product is a sum of dot products of two vectors."""
    v, layer = [*([mlp(p, "bottom", x)] if x.shape[1] else []), *e], 0
    while f"layers.{layer}.norm.weight" in p:
        name = f"layers.{layer}"
        projected = sums(p, f"{name}.project", v)
        products = torch.stack([dot(one, y) for one in v for y in projected], dim=1)
        gain, bias = (p[f"{name}.norm_of_products.{part}"] for part in ("weight", "bias"))
        normed = norm(products, gain, bias)
        made = mlp(p, f"{name}.interaction", normed, last_linear=True).split(e[0].shape[1], dim=1)
        kept = sums(p, f"{name}.residual", v) if f"{name}.residual.weight" in p else v
        outs = [*made, *sums(p, f"{name}.compress", v)]
        gain, bias = p[f"{name}.norm.weight"], p[f"{name}.norm.bias"]
        v = [norm(out + one, gain, bias) for out, one in zip(outs, kept, strict=True)]
        layer += 1
    return mlp(p, "top", torch.cat(v, dim=1), last_linear=True)


def finalmlp(p, e, first, x, contexts=((), ())):
    x = flat(e, x)
    outs = []
    for number, context in enumerate(contexts):
        if context:
            given = torch.cat([e[f] for f in context], dim=1)
            gate = mlp(p, f"gates.{number}.mlp", given, last_linear=True)
        else:
            gate = p[f"gates.{number}.learnt"]
        outs.append(mlp(p, f"streams.{number}", x * 2 * torch.sigmoid(gate)))
    weight = p["fusion.bilinear_KSP"]
    num_heads, one, _ = weight.shape
    two = outs[1].shape[1] // num_heads
    logits = linear(p, "fusion.first", outs[0]) + linear(p, "fusion.second", outs[1])
    columns = []
    for task in range(logits.shape[1]):
        total = 0
        for h in range(num_heads):
            form = weight[h, :, task * two : (task + 1) * two]
            left, right = outs[0][:, h * one : (h + 1) * one], outs[1][:, h * two : (h + 1) * two]
            total = total + dot(left @ form, right)
        columns.append(total)
    return logits + torch.stack(columns, dim=1)


def batch_norm(x: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
    """Over all rows, by their mean and mean squared deviation."""
    centred = x - x.mean(0)
    return centred / (centred.square().mean(0) + 1e-5).sqrt() * gain + bias


def final_block(p, number, x, concat):
    places = sorted(
        int(k.split(".")[2])
        for k in p
        if k.startswith(f"blocks.{number}.") and k.endswith("maps.weight")
    )
    for place in places:
        name = f"blocks.{number}.{place}"
        one, two = p[f"{name}.maps.weight"].chunk(2)
        one_bias, two_bias = p[f"{name}.maps.bias"].chunk(2)
        a, c = x @ one.T + one_bias, x @ two.T + two_bias
        x = torch.cat([a, a * c], dim=1) if concat else a + a * c
        norm_name = f"blocks.{number}.{place + 1}"
        if f"{norm_name}.weight" in p:
            x = batch_norm(x, p[f"{norm_name}.weight"], p[f"{norm_name}.bias"])
        x = x.clamp(min=0)
    return linear(p, f"heads.{number}", x)


def finalnet_blocks(p, e, first, x, concat=True):
    """The logits of each block."""
    v = fields(p, e, x)
    inputs = [torch.cat(v, dim=1)] * 2
    if "gate.bias_N" in p:
        weight, bias = p["gate.weight_NN"], p["gate.bias_N"]
        gates = [b + sum(w * one for w, one in zip(row, v)) for row, b in zip(weight, bias)]
        inputs[0] = torch.cat([*v, *(g * one for g, one in zip(gates, v))], dim=1)
    num_blocks = sum(name.startswith("heads.") and name.endswith("weight") for name in p)
    return [final_block(p, k, inputs[k], concat) for k in range(num_blocks)]


def finalnet(p, e, first, x, concat=True):
    blocks = finalnet_blocks(p, e, first, x, concat)
    return sum(blocks) / len(blocks)


def eulernet(p, e, first, x):
    """In complex numbers: products of powers of the fields."""
    fields_1 = [torch.exp(1j * v) * mu for v, mu in zip(fields(p, e, x), p["moduli_N"])]
    z, layer = fields_1, 0
    while f"layers.{layer}.orders_KN" in p:
        name = f"layers.{layer}"
        logs = [0.5 * torch.log(one.real**2 + one.imag**2 + 1e-8) + 1j * one.angle() for one in z]
        parts = [torch.cat([part(one) for one in z], dim=1) for part in (torch.real, torch.imag)]
        implicit = [linear(p, f"{name}.implicit", part).clamp(min=0) for part in parts]
        outs, dim = [], e[0].shape[1]
        for k, orders in enumerate(p[f"{name}.orders_KN"]):
            shift = torch.complex(p[f"{name}.bias_CKD"][0, k], p[f"{name}.bias_CKD"][1, k])
            product = torch.exp(sum(a * log for a, log in zip(orders, logs)) + shift)
            own = slice(k * dim, (k + 1) * dim)
            made = [product.real + implicit[0][:, own], product.imag + implicit[1][:, own]]
            if f"{name}.norms.0.weight" in p:
                gains = [
                    (p[f"{name}.norms.{c}.weight"], p[f"{name}.norms.{c}.bias"]) for c in (0, 1)
                ]
                made = [norm(part, *gain) for part, gain in zip(made, gains)]
            outs.append(torch.complex(*made))
        z, layer = outs, layer + 1
    weight, bias = p["head.weight"], p["head.bias"]
    last = torch.cat(z, dim=1)
    return last.real @ weight.T + last.imag @ weight.T + bias


def fwfm(p, e, first, x):
    v = fields(p, e, x)
    pairs = [(i, j) for i in range(len(v)) for j in range(i)]
    weights = p["pairs.weight"].T
    logits = p["pairs.bias"] + sum(
        dot(v[i], v[j])[:, None] * r for (i, j), r in zip(pairs, weights)
    )
    if "by_field.weight" in p:
        dim = e[0].shape[1]
        vectors = p["by_field.weight"].split(dim, dim=1)
        return logits + sum(one @ w.T for one, w in zip(v, vectors))
    return logits + first_order(p, "by_id", first, x)


def gdcn(p, e, first, x, stacked=False):
    x0 = flat(e, x)
    crossed, layer = x0, 0
    while f"cross.layers.{layer}.weight" in p:
        gate = 1 / (1 + torch.exp(-linear(p, f"cross.gates.{layer}", crossed)))
        crossed = x0 * linear(p, f"cross.layers.{layer}", crossed) * gate + crossed
        layer += 1
    if stacked:
        return linear(p, "head", mlp(p, "deep", crossed))
    return linear(p, "head", torch.cat([crossed, mlp(p, "deep", x0)], dim=1))


def fibinet(p, e, first, x, kind="interaction"):
    v = fields(p, e, x)
    squeezed = torch.stack([one.mean(1) for one in v], dim=1)
    hidden = linear(p, "senet.excite.0", squeezed).clamp(min=0)
    weights = linear(p, "senet.excite.2", hidden).clamp(min=0)
    excited = [one * weights[:, n : n + 1] for n, one in enumerate(v)]
    crosses = []
    for name, vectors in (("pairs", v), ("senet_pairs", excited)):
        for number, (i, j) in enumerate(combinations(range(len(v)), 2)):
            matrix = p[f"{name}.weight_MDD"][{"interaction": number, "each": i, "all": 0}[kind]]
            crosses.append((vectors[i] @ matrix) * vectors[j])
    deep = mlp(p, "deep", torch.cat(crosses, dim=1), last_linear=True)
    return first_order(p, "first_order", first, x) + deep


def named_batch_norm(p, name, x):
    """Of the rows of x, by their own mean and variance."""
    centred = x - x.mean(0)
    normed = centred / (centred.square().mean(0) + 1e-5).sqrt()
    return normed * p[f"{name}.0.weight"] + p[f"{name}.0.bias"]


def edcn(p, e, first, x, bridge="hadamard_product", temperature=20.0):
    v = fields(p, e, x)
    shared, x0, layer = torch.cat(v, dim=1), None, 0
    while f"crosses.{layer}.bias" in p:
        views = []
        for network, numbers in enumerate(p[f"regulations.{layer}.gates_2N"]):
            shares = (numbers / temperature).exp() / (numbers / temperature).exp().sum()
            parts = shared.split(v[0].shape[1], dim=1)
            view = torch.cat([share * part for share, part in zip(shares, parts)], dim=1)
            views.append(named_batch_norm(p, f"regulations.{layer}.norms.{network}", view))
        x0 = views[0] if x0 is None else x0
        weight, bias = p[f"crosses.{layer}.linear.weight"][0], p[f"crosses.{layer}.bias"]
        cross_out = x0 * dot(views[0], weight)[:, None] + bias + views[0]
        deep_out = mlp(p, f"deep.{layer}", views[1])
        if bridge == "hadamard_product":
            shared = cross_out * deep_out
        elif bridge == "pointwise_addition":
            shared = cross_out + deep_out
        elif bridge == "concatenation":
            both = torch.cat([cross_out, deep_out], dim=1)
            shared = linear(p, f"bridges.{layer}.join.0", both).clamp(min=0)
        else:
            shared = 0
            for network, out in enumerate((cross_out, deep_out)):
                name = f"bridges.{layer}.attentions.{network}"
                scores = linear(p, f"{name}.2", linear(p, f"{name}.0", out).clamp(min=0))
                shared = shared + functional.softmax(scores, dim=1) * out
        layer += 1
    return linear(p, "head", torch.cat([cross_out, deep_out, shared], dim=1))


def afn(p, e, first, x):
    v = fields(p, e, x)
    is_deep = any(name.startswith("deep.") for name in p)
    dim = v[0].shape[1] // (2 if is_deep else 1)
    logs = torch.stack([one[:, :dim].abs().clamp(min=1e-5).log() for one in v], dim=2)
    normed = named_batch_norm(p, "neurons.before", logs.flatten(0, 1)).view_as(logs)
    powers = p["neurons.powers.weight"]
    products = torch.einsum("ln,bdn->bdl", powers, normed).exp()
    outs = named_batch_norm(p, "neurons.after", products.flatten(0, 1)).view_as(products)
    logits = mlp(p, "top", outs.flatten(1), last_linear=True)
    if is_deep:
        own = torch.cat([one[:, dim:] for one in v], dim=1)
        logits = logits + mlp(p, "deep", own, last_linear=True)
    return logits


def expert_outputs(p: Weights, name: str, x: Tensor) -> list[Tensor]:
    """Expert by expert, layer by layer."""
    deeper = sorted(key for key in p if key.startswith(f"{name}.weights."))
    num_experts = len(p[deeper[0]]) if deeper else p[f"{name}.count"]
    outs = []
    for number in range(num_experts):
        width = len(p[f"{name}.first.weight"]) // num_experts
        own = slice(number * width, (number + 1) * width)
        y = x @ p[f"{name}.first.weight"][own].T + p[f"{name}.first.bias"][own]
        for key in deeper:
            y = y.clamp(min=0) @ p[key][number] + p[key.replace("weights", "biases")][number, 0]
        outs.append(y.clamp(min=0))
    return outs


def mixed(p: Weights, name: str, x: Tensor, outs: Sequence[Tensor], gate: int = 0) -> Tensor:
    weight = p[f"{name}.gate.weight"][gate * len(outs) : (gate + 1) * len(outs)]
    shares = functional.softmax(x @ weight.T, dim=1)
    return sum(shares[:, i : i + 1] * out for i, out in enumerate(outs))


def esmm(p, e, first, x):
    """Products of probabilities, as the paper has them."""
    x, reached, logits = flat(e, x), 1.0, []
    while f"networks.{len(logits)}.0.weight" in p:
        step = mlp(p, f"networks.{len(logits)}", x, last_linear=True)
        reached = reached * torch.sigmoid(step)
        logits.append(torch.log(reached / (1 - reached)))
    return torch.cat(logits, dim=1)


def mmoe(p, e, first, x):
    x = flat(e, x)
    outs = expert_outputs(p, "experts", x)
    num_tasks = len(p["gates.gate.weight"]) // len(outs)
    towers = [
        mlp(p, f"towers.{t}", mixed(p, "gates", x, outs, gate=t), last_linear=True)
        for t in range(num_tasks)
    ]
    return torch.cat(towers, dim=1)


def ple(p, e, first, x, num_levels=2):
    x = flat(e, x)
    num_tasks = len({key.split(".")[1] for key in p if key.startswith("towers.")})
    own_inputs, shared_input = [x] * num_tasks, x
    for level in range(num_levels):
        name = f"levels.{level}"
        own = [expert_outputs(p, f"{name}.own.{t}", own_inputs[t]) for t in range(num_tasks)]
        shared = expert_outputs(p, f"{name}.shared", shared_input)
        next_inputs = [
            mixed(p, f"{name}.gates.{t}", own_inputs[t], own[t] + shared) for t in range(num_tasks)
        ]
        if level < num_levels - 1:
            everything = [out for outs in own for out in outs] + shared
            shared_input = mixed(p, f"{name}.shared_gate", shared_input, everything)
        own_inputs = next_inputs
    towers = [mlp(p, f"towers.{t}", own_inputs[t], last_linear=True) for t in range(num_tasks)]
    return torch.cat(towers, dim=1)


TWINS: dict[str, Twin] = {
    "dlrm": dlrm,
    "dcn": dcn,
    "dcn stacked": dcn_stacked,
    "dcn mixture": dcn,
    "deepfm": deepfm,
    "wide_and_deep": wide_and_deep,
    "wide_and_deep pairs": wide_and_deep_pairs,
    "wide_and_deep members": wide_and_deep_members,
    "mlp": plain_mlp,
    "xdeepfm": xdeepfm,
    "autoint": autoint,
    "autoint deep": lambda *given: autoint(*given, num_heads=1),
    "autoint_plus": lambda *given: autoint(*given, num_heads=1),
    "masknet": masknet,
    "wukong": wukong,
    "wukong one layer": wukong,
    "masknet serial": lambda *given: masknet(*given, serial=True),
    "finalmlp": finalmlp,
    "finalmlp contexts": lambda *given: finalmlp(*given, contexts=((1,), (2, 0))),
    "finalnet": finalnet,
    "finalnet one block": lambda *given: finalnet(*given, concat=False),
    "eulernet": eulernet,
    "eulernet without norm": eulernet,
    "fwfm": fwfm,
    "fwfm by id": fwfm,
    "esmm": esmm,
    "mmoe": mmoe,
    "ple": ple,
    "gdcn": gdcn,
    "gdcn stacked": lambda *given: gdcn(*given, stacked=True),
    "fibinet": fibinet,
    "fibinet each": lambda *given: fibinet(*given, kind="each"),
    "fibinet all": lambda *given: fibinet(*given, kind="all"),
    "edcn": lambda *given: edcn(*given, temperature=2.0),
    "edcn addition": lambda *given: edcn(*given, bridge="pointwise_addition"),
    "edcn concatenation": lambda *given: edcn(*given, bridge="concatenation"),
    "edcn attention": lambda *given: edcn(*given, bridge="attention_pooling"),
    "afn": afn,
    "afn deep": afn,
    "ple one level": lambda *given: ple(*given, num_levels=1),
}
