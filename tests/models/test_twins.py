"""Each model against a twin of its paper with the same weights: values, gradients, sizes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch.nn import functional

from runner.batch import Embeddings, Prediction
from runner.models.layers.embedding import count_equal_columns
from runner.models.layers.experts import Experts
from runner.training.update.parameters import dense_parameters
from tests.models.scene import NO_NUMBERS, SCHEMAS, SMALL, TWO_TASKS, batch_of, make_model
from tests.models.twins import TWINS
from tests.tiny import SCHEMA, make_context

D, F, NUMBERS = 4, 3, 2
# float32 against float64: powers of moduli near 0 magnify rounding, see test_one_update.py; and
# the norm of AFN's exponentials takes away most of what a shift before them adds, so that little is
# left of a gradient
TOLERANCES = dict.fromkeys(SMALL, 1e-5) | {
    **dict.fromkeys(("eulernet", "eulernet without norm"), 1e-4),
    **dict.fromkeys((name for name in SMALL if name.startswith("afn")), 1e-3),
}
IN_FLOAT64 = ("afn", "edcn", "fibinet", "gdcn")
CLOSE = {"rtol": 1e-9, "atol": 1e-12}
FLAT, WIDTH = F * D + NUMBERS, (F + NUMBERS) * D  # of the input, with numbers or their vectors


def test_every_model_has_a_twin():
    assert TWINS.keys() == SMALL.keys()


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
@pytest.mark.parametrize("name", SMALL)
def test_logits_and_all_gradients_equal_the_twins(name, schema):
    model, batch = make_model(name, schema), batch_of(schema)
    generator = torch.Generator().manual_seed(1)
    widths = model.embedding.widths
    embeddings_BFD = torch.randn(batch.size, F, model.embedding.dim, generator=generator)
    num_sums = model.embedding.linear or 1
    first_BFS = torch.randn(batch.size, F, num_sums, generator=generator)
    for parameter in model.parameters():  # no weight at a value that hides a mistake, such as 0
        torch.nn.init.normal_(parameter, std=0.5, generator=generator)

    parts = [embeddings_BFD.flatten(1)]
    if len(widths) > 1:
        equal = count_equal_columns(num_sums)
        parts.append(first_BFS.repeat_interleave(equal, dim=2).flatten(1))
    embeddings = Embeddings(torch.cat(parts, dim=1)).detached()
    prediction = model.dense(embeddings, batch)
    weights_BT = torch.randn(prediction.logits_BT.shape, generator=generator)
    prediction.logits_BT.backward(weights_BT)

    def leaf(tensor):
        return tensor.detach().double().requires_grad_()

    p = {n: leaf(w) for n, w in model.named_parameters()}
    counts = expert_counts(model)
    e, first = [leaf(part) for part in embeddings_BFD.unbind(1)], leaf(first_BFS.sum(1))
    twin_BT = TWINS[name](p | counts, e, first, batch.dense_BD.double())
    twin_BT.backward(weights_BT.double())

    def assert_close(ours, twins, what):
        scale = max(1.0, float(twins.abs().max()))
        torch.testing.assert_close(
            ours.double() / scale,
            twins / scale,
            rtol=0,
            atol=TOLERANCES[name],
            msg=lambda m: f"{what}: {m}",
        )

    assert_close(prediction.logits_BT.detach(), twin_BT.detach(), "logits")
    for parameter_name, parameter in model.named_parameters():
        assert_close(parameter.grad, p[parameter_name].grad, parameter_name)
    grads = embeddings.pooled_BE.grad.split(widths, dim=1)
    assert_close(grads[0], torch.cat([part.grad for part in e], dim=1), "embeddings")
    if len(widths) > 1:
        # every one of the equal columns of every feature gets the gradient of its sum
        columns = first.grad.repeat_interleave(equal, dim=1).repeat(1, F)
        assert_close(grads[1], columns, "first order")


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
@pytest.mark.parametrize("name", [n for n in SMALL if n.split()[0] in IN_FLOAT64])
def test_one_update_in_float64_equals_the_twins(name, schema, monkeypatch):
    """Logits, gradients, and weights after a step of Adam, which is known by hand for the first."""
    monkeypatch.setattr(Prediction, "of", lambda logits_BT, batch: logits_BT)  # not in float32
    model, batch = make_model(name, schema).double(), batch_of(schema, size=7)
    batch = replace(batch, dense_BD=batch.dense_BD.double())
    generator = torch.Generator().manual_seed(2)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5, generator=generator)
    widths = model.embedding.widths
    e = [torch.randn(7, widths[0] // F, generator=generator).double() for _ in range(F)]
    num_sums = model.embedding.linear or 1
    first = torch.randn(7, num_sums, generator=generator).double()
    equal = (first / F).repeat_interleave(count_equal_columns(num_sums), dim=1)
    columns = [*e, *([equal] * F if len(widths) > 1 else ())]
    embeddings = Embeddings(torch.cat(columns, dim=1)).detached()
    p = {n: w.detach().clone().requires_grad_() for n, w in model.named_parameters()}
    e = [part.requires_grad_() for part in e]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    labels_BT, weights_B1 = batch.labels_BT.double(), batch.weights_B.double()[:, None]
    ours_BT = model.dense(embeddings, batch)
    bce = functional.binary_cross_entropy_with_logits
    bce(ours_BT, labels_BT, weights_B1).backward()
    optimizer.step()
    twin_BT = TWINS[name](p, e, first, batch.dense_BD)
    loss_BT = (1 + twin_BT.exp()).log() - labels_BT * twin_BT
    (loss_BT * weights_B1).mean().backward()

    torch.testing.assert_close(ours_BT, twin_BT, **CLOSE)
    grads = embeddings.pooled_BE.grad.split(widths, dim=1)[0]
    torch.testing.assert_close(grads, torch.cat([part.grad for part in e], dim=1), **CLOSE)
    for weight_name, weight in model.named_parameters():
        theirs = p[weight_name]
        torch.testing.assert_close(weight.grad, theirs.grad, **CLOSE, msg=weight_name)
        stepped = theirs - 0.01 * theirs.grad / (theirs.grad.abs() + 1e-8)
        torch.testing.assert_close(weight, stepped, rtol=0, atol=1e-5, msg=weight_name)


def expert_counts(model) -> dict[str, int]:
    """The number of experts, which weights of a single layer do not tell."""
    modules = model.named_modules()
    return {f"{n}.count": m.num_experts for n, m in modules if isinstance(m, Experts)}


def layers(*widths: int) -> int:
    """Weights and biases of a chain of linear layers."""
    return sum(a * b + b for a, b in pairwise(widths))


# by hand, on SCHEMA: 3 sparse features of width 4 and 2 numbers
COUNTS = {
    "dlrm": layers(2, 8, 4) + layers(4 + 6, 8, 1),
    "dcn": 2 * layers(FLAT, FLAT) + layers(FLAT, 8, 5) + layers(FLAT + 5, 1),
    "dcn stacked": 2 * layers(FLAT, FLAT) + layers(FLAT, 8, 5) + layers(5, 1),
    "dcn mixture": 2 * (2 * (2 * FLAT * 3 + 9 + FLAT) + FLAT)
    + layers(FLAT, 8)
    + layers(FLAT + 8, 1),
    "deepfm": NUMBERS * D + layers(NUMBERS, 1) + layers(WIDTH, 8, 5, 1),
    "wide_and_deep": layers(NUMBERS, 1) + layers(FLAT, 8, 5, 1),
    "wide_and_deep pairs": layers(NUMBERS, 1) + layers(FLAT, 8, 5, 1),
    # matrices once; factors, biases and last layers of each member
    "wide_and_deep members": layers(NUMBERS, 1)
    + (FLAT * 8 + 8 * 5)
    + 3 * (FLAT + 2 * 8 + 8 + 2 * 5 + layers(5, 1)),
    "mlp": layers(FLAT, 8, 5, 1),
    "xdeepfm": NUMBERS * D
    + layers(NUMBERS, 1)
    + (5 * 5 * 6 + 6 * 5 * 5)
    + 11
    + layers(WIDTH, 8, 1),
    "autoint": NUMBERS * D + 4 * 6 * 4 + 4 * 6 * 6 + layers(5 * 6, 1),
    "autoint deep": NUMBERS * D + 4 * 3 * 4 + 4 * 3 * 3 + layers(5 * 3, 1) + layers(WIDTH, 8, 1),
    "autoint_plus": NUMBERS * D
    + (4 * 3 * 4 + 4 * 3 * 3)
    + layers(5 * 3, 1)
    + layers(WIDTH, 8, 5, 1),
    "masknet": NUMBERS * D
    + 2 * WIDTH
    + sum(layers(WIDTH, 10, WIDTH) + WIDTH * w + 2 * w for w in (6, 5))
    + layers(11, 7, 1),
    "masknet serial": NUMBERS * D
    + 2 * WIDTH
    + (layers(WIDTH, 10, WIDTH) + WIDTH * 6 + 2 * 6)
    + (layers(WIDTH, 10, 6) + 6 * 5 + 2 * 5)
    + layers(5, 1),
    # bottom; of each layer projection, norm, MLP, compression, map of what it keeps, norm; top
    "wukong": layers(NUMBERS, 7, D)
    + (4 * 3 + 2 * 12 + layers(12, 6, 12) + 4 * 2 + 4 * 5 + 2 * D)
    + (5 * 3 + 2 * 15 + layers(15, 6, 12) + 5 * 2 + 2 * D)
    + layers(5 * D, 8, 1),
    "wukong one layer": layers(NUMBERS, 7, D)
    + (4 * 2 + 2 * 8 + layers(8, 8) + 4 * 1 + 4 * 3 + 2 * D)
    + layers(3 * D, 8, 5, 1),
    "finalmlp": 2 * FLAT + layers(FLAT, 8, 6) + layers(FLAT, 4) + 7 + 4 + 2 * 3 * 2,
    "finalmlp contexts": layers(4, 5, FLAT)
    + layers(8, 5, FLAT)
    + layers(FLAT, 6)
    + layers(FLAT, 4)
    + (7 + 4 + 2 * 3 * 2),
    # gates of 5 fields; the first block reads fields and gated fields
    "finalnet": NUMBERS * D + (5 * 5 + 5) + layers(2 * WIDTH, 8, 6, 1) + layers(WIDTH, 4, 1),
    "finalnet one block": NUMBERS * D + 2 * layers(WIDTH, 5) + 2 * layers(5, 3) + layers(3, 1),
    # moduli; orders, both biases, implicit map, norms of both parts
    "eulernet": NUMBERS * D
    + 5
    + (3 * 5 + 2 * 3 * D + layers(5 * D, 3 * D) + 4 * D)
    + (2 * 3 + 2 * 2 * D + layers(3 * D, 2 * D) + 4 * D)
    + layers(2 * D, 1),
    "eulernet without norm": NUMBERS * D
    + 5
    + (2 * 5 + 2 * 2 * D + layers(5 * D, 2 * D))
    + layers(2 * D, 1),
    "fwfm": NUMBERS * D + layers(10, 1) + WIDTH,
    "fwfm by id": NUMBERS * D + layers(10, 1) + layers(NUMBERS, 1),
    "esmm": layers(FLAT, 8, 5, 1),
    "mmoe": 3 * layers(FLAT, 6, 5) + 3 * FLAT + layers(5, 4, 1),
    # one task: 2 experts of its own and 1 shared on each level, its gate and the shared gate
    "ple": 3 * (layers(FLAT, 6, 5) + layers(5, 6, 5)) + 2 * 3 * FLAT + 3 * 5 + layers(5, 4, 1),
    "gdcn": 2 * (layers(FLAT, FLAT) + FLAT * FLAT) + layers(FLAT, 8, 5) + layers(FLAT + 5, 1),
    "gdcn stacked": 3 * (layers(FLAT, FLAT) + FLAT * FLAT) + layers(FLAT, 8, 1),
    **{
        name: NUMBERS * D
        + layers(NUMBERS, 1)
        + 2 * 5 * width
        + 2 * matrices * D * D
        + layers(2 * 10 * D, 8, 1)
        for name, width, matrices in (
            ("fibinet", 2, 10),
            ("fibinet each", 1, 4),
            ("fibinet all", 1, 1),
        )
    },
    **{
        name: NUMBERS * D
        # the numbers of a regulation and its two norms; cross, deep layer, bridge
        + depth * (2 * 5 + 4 * WIDTH + 2 * WIDTH + layers(WIDTH, WIDTH) + bridge)
        + layers(3 * WIDTH, 1)
        for name, depth, bridge in (
            ("edcn", 3, 0),
            ("edcn addition", 2, 0),
            ("edcn concatenation", 2, layers(2 * WIDTH, WIDTH)),
            ("edcn attention", 2, 2 * (layers(WIDTH, WIDTH) + WIDTH * WIDTH)),
        )
    },
    "afn": NUMBERS * D + 2 * 5 + 5 * 3 + 2 * 3 + layers(3 * D, 6, 1),
    "afn deep": NUMBERS * 2 * D
    + (2 * 5 + 5 * 3 + 2 * 3 + layers(3 * D, 6, 1))
    + layers(WIDTH, 8, 5, 1),
    "ple one level": 4 * layers(FLAT, 6) + 4 * FLAT + layers(6, 4, 1),
}


@pytest.mark.parametrize("name", SMALL)
def test_the_number_of_weights_is_the_papers(name):
    context = make_context(model=make_model(name))
    dense = dense_parameters(context.model, context.loss)
    assert sum(w.numel() for w in dense.values()) == COUNTS[name]
    tables = {n: tuple(t.shape) for n, t in context.tables.state().items()}
    rows = {feature.name: feature.num_rows for feature in SCHEMA.sparse}
    width = 2 * D if name == "afn deep" else D
    expected = {f"{n}/weight": (r, width) for n, r in rows.items()}
    with_linear = name.startswith(("deepfm", "wide_and_deep", "xdeepfm", "fwfm by id"))
    if with_linear or name.startswith("fibinet"):
        expected |= {f"{n}:linear/weight": (r, count_equal_columns(1)) for n, r in rows.items()}
    assert tables == expected


@pytest.mark.parametrize("schema", [SCHEMA, TWO_TASKS, NO_NUMBERS], ids=SCHEMAS)
@pytest.mark.parametrize("name", SMALL)
def test_a_whole_forward_looks_up_what_embedding_bags_look_up(name, schema):
    context, batch = make_context(model=make_model(name, schema)), batch_of(schema)
    state, ids = context.tables.state(), batch.sparse.to_dict()
    for table in state.values():
        table.normal_()
    parts, first = [], 0
    for feature in schema.sparse:
        bags = (ids[feature.name].values(), ids[feature.name].offsets()[:-1])
        parts.append(
            functional.embedding_bag(bags[0], state[f"{feature.name}/weight"], bags[1], mode="sum")
        )
        wide = state.get(f"{feature.name}:linear/weight")
        if wide is not None:
            equal = count_equal_columns(context.model.embedding.linear)
            wide[:] = wide[:, ::equal].repeat_interleave(equal, dim=1)
            first = first + functional.embedding_bag(
                bags[0], wide[:, ::equal].contiguous(), bags[1], mode="sum"
            )
    p = {n: w.double() for n, w in context.model.named_parameters()}
    p |= expert_counts(context.model)
    wide_BS = first.double() if torch.is_tensor(first) else torch.zeros(batch.size, 1)
    e = [part.double() for part in parts]
    expected = TWINS[name](p, e, wide_BS, batch.dense_BD.double()).detach()
    with torch.no_grad():
        found = context.model(batch).logits_BT.double()
    scale = max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(found / scale, expected / scale, rtol=0, atol=TOLERANCES[name])
