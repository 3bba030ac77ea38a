"""DIEN: one update in float64 against the paper's equations row by row, and the drawn items."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from runner.batch import DataPosition, Embeddings
from runner.models.losses import BCE, AuxiliaryBCE
from runner.models.losses.retrieval import check_loss_inputs
from tests.models.scene import from_yaml
from tests.models.sequence_models import make
from tests.models.sequence_scene import LONGEST, NUM_ITEMS, SCHEMA, batch_of, ids_of

D, LR, WEIGHT = 4, 0.1, 0.7
FEATURES = ("user", "item", "genres")


def gru(p, name, inputs, attention=None):
    """The paper's gates; with attention u' = a u."""
    w = p[f"{name}.input.weight"].chunk(3), p[f"{name}.input.bias"].chunk(3)
    state = p[f"{name}.state.weight"].chunk(3)
    h, states = torch.zeros(D).double(), []
    for t, i in enumerate(inputs):
        u = torch.sigmoid(w[0][0] @ i + w[1][0] + state[0] @ h)
        r = torch.sigmoid(w[0][1] @ i + w[1][1] + state[1] @ h)
        candidate = torch.tanh(w[0][2] @ i + r * (state[2] @ h) + w[1][2])
        u = u if attention is None else attention[t] * u
        h = (1 - u) * h + u * candidate
        states.append(h)
    return states


def twin_row(p, tables, pooled, item, history, drawn, age):
    """Return the logit and the auxiliary loss of a row.

    Args:
        drawn: item for each event but the first.
    """
    events = [tables["item"][i] for i in history]
    states = gru(p, "evolutions.0.extractor", events)
    interest = torch.zeros(D).double()
    if history:
        e = tables["item"][item]
        scores = torch.stack([h @ p["evolutions.0.attention.weight"] @ e for h in states])
        attention = scores.exp() / scores.exp().sum()
        interest = gru(p, "evolutions.0.evolution", states, attention)[-1]
    total = torch.zeros(()).double()
    for h, event, other in zip(states, events[1:], drawn):
        right, wrong = torch.sigmoid(h @ event), torch.sigmoid(h @ tables["item"][other])
        total = total - right.log() - (1 - wrong).log()
    x = torch.cat((*pooled, interest, age))
    hidden = p["top.0.weight"] @ x + p["top.0.bias"]
    hidden = torch.where(hidden > 0, hidden, p["top.1.weight"] * hidden)
    return p["top.2.weight"] @ hidden + p["top.2.bias"], total / (LONGEST - 1)


def test_an_update_in_float64_is_that_of_the_papers_equations():
    context, batch = make("dien"), batch_of()
    model = context.model.double()
    found = model.embed(batch)
    batch = replace(batch, dense_BD=batch.dense_BD.double())
    weights = batch.weights_B / batch.weights_B.sum()
    start = {n.removesuffix("/weight"): t.double() for n, t in context.tables.state().items()}
    ours, twins = ({n: t.clone().requires_grad_() for n, t in start.items()} for _ in range(2))
    p = {n: w.detach().clone().requires_grad_() for n, w in model.named_parameters()}

    at_BL, ids_U = found.per_row["history:drawn"], found.per_batch["candidates"]
    losses = []
    rows = zip(*(ids_of(batch, n) for n in (*FEATURES, "history")), batch.dense_BD, at_BL)
    for *ids, history, age, at_L in rows:
        pooled = [twins[n][own].sum(0) for n, own in zip(FEATURES, ids)]
        drawn = [int(ids_U[at]) for at in at_L if at >= 0]
        history = history[-LONGEST:]
        assert len(drawn) == max(len(history) - 1, 0)
        assert all(a != b for a, b in zip(drawn, history[1:]))
        logit, auxiliary = twin_row(p, twins, pooled, ids[1][0], history, drawn, age)
        losses.append((logit, auxiliary))
    logits = torch.stack([logit for logit, _ in losses])
    plain = functional.softplus(logits) - batch.labels_BT * logits
    auxiliary = torch.stack([loss for _, loss in losses])
    ((plain[:, 0] + WEIGHT * auxiliary) * weights).sum().backward()

    pooled = [torch.stack([ours[n][own].sum(0) for own in ids_of(batch, n)]) for n in FEATURES]
    length = found.per_row["history:length"]
    is_event = torch.arange(LONGEST) < length[:, None]
    events = ours["item"][found.per_row["history:ids"]] * is_event[:, :, None]
    embeddings = Embeddings(
        torch.cat(pooled, 1), (events,), (ours["item"][ids_U],), found.per_row, found.per_batch
    )
    prediction = model.dense(embeddings, batch)
    by_name = AuxiliaryBCE(SCHEMA, weight=WEIGHT)(prediction)
    assert list(by_name) == ["click", "auxiliary"]
    (sum(by_name.values()) * weights).sum().backward()

    torch.testing.assert_close(prediction.logits_BT, logits.float(), rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(by_name["auxiliary"], WEIGHT * auxiliary.float())
    mine, theirs = dict(model.named_parameters()) | ours, p | twins
    torch.optim.SGD(mine.values(), lr=LR).step()
    for key, twin in theirs.items():  # the losses are float32, so slopes have 7 digits
        torch.testing.assert_close(mine[key].grad, twin.grad, rtol=1e-5, atol=1e-7, msg=key)
        after = twin.detach() - LR * twin.grad
        torch.testing.assert_close(mine[key].detach(), after, rtol=1e-6, atol=1e-8, msg=key)
        assert twin.grad.any(), key


def drawn_of(model, batch):
    found = model.embed(batch)
    at_BL, ids_U = found.per_row["history:drawn"], found.per_batch["candidates"]
    return torch.where(at_BL >= 0, ids_U[at_BL.clamp(min=0)], -1)


def test_drawn_items_depend_on_seed_epoch_and_row_and_on_no_division():
    model, batch = make("dien").model, batch_of(40)
    whole = drawn_of(model, batch)
    later = replace(batch, cursor=DataPosition(0, 999), rows_B=batch.rows_B)
    assert (drawn_of(model, later) == whole).all()
    assert (drawn_of(model, replace(batch, cursor=DataPosition(1, 0))) != whole).any()
    moved = drawn_of(model, replace(batch, rows_B=batch.rows_B + 1))
    assert (moved != whole).any()


def test_each_item_but_the_events_own_is_drawn_alike():
    model, counts = make("dien").model, torch.zeros(NUM_ITEMS)
    for epoch in range(60):
        batch = replace(batch_of(60), cursor=DataPosition(epoch, 0))
        drawn = drawn_of(model, batch)
        counts += torch.bincount(drawn[drawn >= 0], minlength=NUM_ITEMS)
    expected = counts.sum() / NUM_ITEMS
    assert float(((counts - expected) ** 2 / expected).sum()) < 60  # of a chi-square of 29: 0.0006


def test_an_evaluation_draws_nothing_and_has_the_loss_of_labels_alone():
    model, batch = make("dien").model.eval(), batch_of()
    embeddings = model.embed(batch)
    assert not embeddings.shared_CD and "history:drawn" not in embeddings.per_row
    prediction = model.dense(embeddings, batch)
    ours, plain = AuxiliaryBCE(SCHEMA)(prediction), BCE(SCHEMA)(prediction)
    assert list(ours) == ["click"] and (ours["click"] == plain["click"]).all()


def test_a_loss_that_needs_drawn_items_is_refused_without_them():
    settings = {"embedding_dim": 4, "top": [6], "auxiliary": False}
    model = from_yaml("dien", SCHEMA, **settings)
    with pytest.raises(ValueError, match=r"needs drawn items.*auxiliary=true"):
        check_loss_inputs(model, AuxiliaryBCE(SCHEMA))
    check_loss_inputs(model, BCE(SCHEMA))
    assert not model.embedding.draws_candidates
    with pytest.raises(ValueError, match="weight=-1"):
        AuxiliaryBCE(SCHEMA, weight=-1)
