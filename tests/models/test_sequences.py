"""Models of sequences and items against plain PyTorch, in updates, and what they refuse."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from runner.models.layers.sequences import SequenceLookup
from tests.models.sequence_models import CAUSAL, assert_step_equals, leaves, make, step
from tests.models.sequence_scene import LONGEST, NUM_ITEMS, SCHEMA, batch_of, ids_of
from tests.models.sequence_twins import (
    bert4rec_row_losses,
    bst_logits,
    causal_row_losses,
    din_logits,
    mlp_logits,
    towers,
)


@pytest.mark.parametrize("candidates", [None, 1, 5, 13])
@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_look_ups_of_sequences_and_candidates_are_rows_of_the_tables(kind, candidates):
    context = make("din", kind)
    lookup = SequenceLookup(
        SCHEMA, 4, features=SCHEMA.sparse, sequences=SCHEMA.sequences, candidates="item"
    )
    lookup.attach_tables(context.tables)
    batch = batch_of()
    ids_C = None if candidates is None else torch.arange(candidates) * 2 + 1
    embeddings = lookup(batch, ids_C)
    tables = {n: context.tables.state()[f"{n}/weight"] for n in ("user", "item", "genres")}
    pooled = [[tables[n][row].sum(0) for row in ids_of(batch, n)] for n in tables]
    torch.testing.assert_close(embeddings.pooled_BE, torch.cat([torch.stack(x) for x in pooled], 1))
    for row, history in enumerate(ids_of(batch, "history")):
        kept = history[-LONGEST:]
        assert embeddings.per_row["history:length"][row] == len(kept)
        assert embeddings.per_row["history:ids"][row].tolist() == kept + [0] * (LONGEST - len(kept))
        torch.testing.assert_close(
            embeddings.sequences_BLD[0][row, : len(kept)], tables["item"][kept]
        )
        assert not embeddings.sequences_BLD[0][row, len(kept) :].any()
    if ids_C is not None:
        torch.testing.assert_close(embeddings.shared_CD[0], tables["item"][ids_C])
    assert torch.equal(lookup.embed_all_rows(NUM_ITEMS, torch.device("cpu"), 11), tables["item"])


def test_an_update_reaches_a_row_by_all_its_look_ups_at_once():
    context = make("din")
    lookup = context.model.embedding
    batch, tables = batch_of(), leaves(context)[1]
    lookup.num_candidate_slots, lookup.candidate_feature = LONGEST, "history"
    ids_C = torch.tensor([3, 3, 8])
    embeddings = lookup(batch, ids_C)
    grads = [torch.randn(t.shape) for t in embeddings.tensors()]
    torch.autograd.backward(embeddings.tensors(), grads)
    column = 0
    for name in ("user", "item", "genres"):
        for row, ids in enumerate(ids_of(batch, name)):
            (tables[name][ids].sum(0) @ grads[0][row, column : column + 4].double()).backward()
        column += 4
    for row, history in enumerate(ids_of(batch, "history")):
        for place, i in enumerate(history[-LONGEST:]):
            (tables["item"][i] @ grads[1][row, place].double()).backward()
    (tables["item"][ids_C] * grads[2].double()).sum().backward()
    for name, table in tables.items():
        found = context.tables.state()[f"{name}/weight"].double()
        torch.testing.assert_close(found, table.detach() - 0.1 * table.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "twin"), [("bst", bst_logits), ("din", din_logits), ("mlp", mlp_logits)]
)
def test_a_model_of_rows_and_all_its_gradients_equal_the_twins(name, twin):
    context, batch = make(name), batch_of()
    p, tables = leaves(context)
    output = step(context, batch)
    logits_BT = twin(p, tables, batch)
    torch.testing.assert_close(
        output.predictions[0].logits_BT.double(), logits_BT, rtol=1e-5, atol=1e-5
    )
    losses = functional.binary_cross_entropy_with_logits(
        logits_BT[:, 0], batch.labels_BT[:, 0].double(), reduction="none"
    )
    (losses @ batch.weights_B.double() / batch.weights_B.sum().double()).backward()
    assert_step_equals(context, None, p, tables, 0.1)


@pytest.mark.parametrize("name", CAUSAL)
def test_a_causal_model_of_all_items_and_all_its_gradients_equal_the_twins(name):
    context, batch = make(name, every=True, uniform=0), with_history(batch_of())
    p, tables = leaves(context)
    output = step(context, batch)
    losses = causal_row_losses(name, p, tables["item"], batch, 2)
    found_B = output.losses[0]["click"].double()
    for ours, twin in zip(found_B, losses):
        torch.testing.assert_close(ours, twin.detach(), rtol=1e-5, atol=1e-5)
    total = sum(w * loss for w, loss in zip(batch.weights_B.double(), losses))
    (total / batch.weights_B.sum().double()).backward()
    assert_step_equals(context, None, p, tables, 0.1)


def test_bert4rec_of_all_items_and_all_its_gradients_equal_the_twins():
    context, batch = make("bert4rec", every=True, uniform=0, mask_share=0.4), batch_of()
    p, tables = leaves(context)
    masks_BL = context.model.draw_masks(batch)
    output = step(context, batch)
    losses = bert4rec_row_losses(p, tables["item"], batch, masks_BL.tolist(), 2)
    found_B = output.losses[0]["click"].double()
    torch.testing.assert_close(found_B, torch.stack(losses).detach(), rtol=1e-5, atol=1e-5)
    total = sum(w * loss for w, loss in zip(batch.weights_B.double(), losses))
    (total / batch.weights_B.sum().double()).backward()
    assert_step_equals(context, None, p, tables, 0.1)


def test_masks_have_their_share_and_depend_on_seed_epoch_and_row():
    model, batch = make("bert4rec", mask_share=0.3).model, batch_of(2000)
    masks_BL = model.draw_masks(batch)
    places = 2000 * LONGEST  # four standard deviations of the mean of so many draws
    assert abs(float(masks_BL.float().mean()) - 0.3) < 4 * math.sqrt(0.3 * 0.7 / places)
    part = replace(batch, rows_B=batch.rows_B[700:900])
    assert torch.equal(model.draw_masks(part), masks_BL[700:900])
    later = model.draw_masks(replace(batch, cursor=replace(batch.cursor, epoch=1)))
    model.seed += 1
    for other_BL in (later, model.draw_masks(batch)):
        # of independent draws, 2 x 0.3 x 0.7 differ
        assert abs(float((other_BL != masks_BL).float().mean()) - 0.42) < 0.03


def with_history(batch):
    """Rows without a history get weight 0, since the twin does not define them."""
    lengths_B = batch.sequences.lengths()
    return replace(batch, weights_B=batch.weights_B * (lengths_B > 0))


@pytest.mark.parametrize("half_life", [None, 1.5])
def test_two_towers_and_all_their_gradients_equal_the_twins(half_life):
    context = make("two_tower", uniform=4, popularity=3, half_life=half_life)
    batch = batch_of(16)
    counts = torch.arange(NUM_ITEMS) % 7
    context.model.negatives.counts_I.copy_(counts)
    p, tables = leaves(context)
    sampled = context.model.negatives.sample(batch.cursor)
    output = step(context, batch)
    queries, items = towers(p, tables, batch, 0.1, half_life or math.inf)
    torch.testing.assert_close(
        output.predictions[0].logits_BT[:, 0].double(),
        (queries * items).sum(1).detach(),
        rtol=1e-5,
        atol=1e-5,
    )
    vectors = torch.stack([tower_of(p, tables["item"][i]) for i in sampled])
    ids = [i for [i] in ids_of(batch, "item")]
    positive = [b for b in range(16) if batch.labels_BT[b, 0] > 0.5]
    share = counts.clamp(min=1).double() / counts.sum()
    q = 4 / NUM_ITEMS + (3 + len(positive)) * share
    total = torch.zeros((), dtype=torch.float64)
    for b in positive:
        own = (queries[b] @ items[b] - q[ids[b]].log()).exp()
        others = [(items[a], ids[a]) for a in positive]
        others += [(vectors[c], int(i)) for c, i in enumerate(sampled)]
        rest = sum((queries[b] @ v - q[i].log()).exp() for v, i in others if i != ids[b])
        total = total - (own / (own + rest)).log() * batch.weights_B[b].double()
    (total / batch.weights_B.sum().double()).backward()
    assert_step_equals(context, None, p, tables, 0.1)


def test_dropout_applies_to_the_input_of_the_users_tower_only():
    context, batch = make("two_tower", embedding_dropout=0.5), batch_of(16)
    context.model.drop.p = 1.0  # no rate that a configuration may have, so that nothing is left
    seen = []
    context.model.user.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    context.model.thing.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    context.model(batch)
    context.model.eval()(batch)
    users, items, users_in_evaluation, items_in_evaluation = seen
    assert not users.any() and users_in_evaluation.any(1).all()
    assert torch.equal(items, items_in_evaluation)


def tower_of(p, embedded):
    vector = embedded @ p["thing.0.weight"].T + p["thing.0.bias"]
    return vector / vector.norm()
