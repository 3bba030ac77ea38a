"""Which negatives a retrieval model is compared with, and what its losses make of them."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import pytest
import torch

from runner.batch import Prediction, SequenceFeature
from runner.models.losses import BPR, InBatchSoftmax, SampledSoftmax
from runner.models.retrieval.item_memory import ItemMemory
from runner.models.retrieval.known_positives import KnownPositives
from runner.models.retrieval.negatives import MASKED_SCORE, NegativeSampler
from runner.training.update.task import Supervised
from tests.models.scene import from_yaml
from tests.models.sequence_scene import LONGEST, NUM_ITEMS, SCHEMA, batch_of, ids_of, jagged
from tests.tiny import make_context

WITH_HARD = replace(
    SCHEMA, sequences=(*SCHEMA.sequences, SequenceFeature("refused", NUM_ITEMS, 3, "item"))
)
SMALL = {"embedding_dim": 4, "user_tower": [6], "out": 5}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def make(loss=None, schema=SCHEMA, name="two_tower", **settings):
    sizes = SMALL if name == "two_tower" else {"embedding_dim": 4, "dropout": 0.0}
    model = from_yaml(name, schema, **{**sizes, **settings})
    context = make_context("sgd", lr=0.1, model=model, loss=loss or InBatchSoftmax(schema))
    for tensor_name, tensor in context.tables.state().items():
        if tensor_name.endswith("/weight"):
            tensor.copy_(torch.randn(tensor.shape) * 0.5)
    return context


def forward(context, batch):
    with torch.no_grad():
        return context.model.dense(context.model.embed(batch), batch).aux


def update(context, batch):
    context.tables.set_lr_and_step(0.1, 1)
    output = Supervised().train_step(context, iter([batch]))
    context.end_update(applied=output.applied)
    return output.predictions[0].aux


def positive_rows(batch):
    return [i for i, label in enumerate(batch.labels_BT[:, 0]) if label > 0.5]


def test_the_mask_of_known_positives_equals_sets_of_pairs():
    g = torch.Generator().manual_seed(3)
    for size in (0, 1, 40):
        user_P = torch.randint(6, (9,), generator=g)
        users, items = (torch.randint(high, (25,), generator=g) for high in (6, 12))
        ids_C = torch.randint(-1, 15, (size,), generator=g)
        pairs = set(zip(users.tolist(), items.tolist()))
        expected = [[(u, i) in pairs for i in ids_C.tolist()] for u in user_P.tolist()]
        found = KnownPositives(user_P, users, items).mask(ids_C)
        assert found.shape == (9, size) and found.tolist() == expected


@pytest.mark.parity("E15")
@pytest.mark.parametrize("user", [None, "user"])
@pytest.mark.parametrize("as_group", [False, True])
def test_a_user_is_compared_with_no_item_that_the_user_is_known_to_like(user, as_group):
    schema = SCHEMA if as_group else replace(SCHEMA, groups=())  # a group column, or a feature
    context = make(schema=schema, exclude_known=True, user=user, uniform=20)
    batch = batch_of(40)
    batch = replace(batch, groups_BG=batch.groups_BG[:, : len(schema.groups)])
    rows, aux = positive_rows(batch), forward(context, batch)
    if user is None:
        owners = list(range(40))
    elif as_group:
        owners = batch.groups_BG[:, 0].tolist()
    else:
        owners = [row[0] for row in ids_of(batch, "user")]
    histories, items = ids_of(batch, "history"), [row[0] for row in ids_of(batch, "item")]
    candidates = [*(items[row] for row in rows), *context.model.negatives.sample(batch.cursor)]
    for query, row in enumerate(rows):
        same = [other for other in range(40) if owners[other] == owners[row]]
        known = {i for other in same for i in histories[other][-LONGEST:]}
        known |= {items[other] for other in same if other in rows}
        masked = [bool(s == MASKED_SCORE) for s in aux["candidates_PC"][query]]
        assert masked == [int(item) in known for item in candidates]


@pytest.mark.parametrize("name", ["sasrec", "gru4rec", "hstu", "bert4rec"])
def test_models_of_the_next_item_leave_out_the_items_of_a_rows_history(name):
    context = make(SampledSoftmax(SCHEMA), name=name, uniform=25, exclude_known=True)
    batch = batch_of(20)
    aux, candidates = forward(context, batch), context.model.negatives.sample(batch.cursor)
    histories, items = ids_of(batch, "history"), ids_of(batch, "item")
    for query, row in enumerate(aux["row_P"].tolist()):
        known = {*histories[row][-LONGEST:], *items[row]}
        masked = [bool(s == MASKED_SCORE) for s in aux["candidates_PC"][query]]
        assert masked == [int(item) in known for item in candidates]


@pytest.mark.parametrize("hardest", [1, 4, 25])
def test_the_hardest_candidates_are_those_of_the_highest_scores(hardest):
    sampler = NegativeSampler(30, uniform=25, hardest=hardest)
    query_PD, ids_P = torch.randn(6, 3), torch.arange(6)
    vectors_ID = torch.randn(30, 3)
    sampled = torch.randint(30, (25,))
    found = sampler.score(query_PD, (vectors_ID[:6], ids_P), (vectors_ID[sampled], sampled))
    assert "log_q_candidates_C" not in found, "what is kept was not drawn by q"
    for query in range(6):
        scores = [float(query_PD[query] @ vectors_ID[i]) for i in sampled.tolist() if i != query]
        kept = [s for s in found["candidates_PC"][query].tolist() if s > MASKED_SCORE]
        assert kept == pytest.approx(sorted(scores, reverse=True)[:hardest], abs=1e-6)


def with_refused(batch, lists):
    both = jagged(["history", "refused"], [ids_of(batch, "history"), lists])
    return replace(batch, sequences=both)


def test_ids_of_a_column_are_negatives_of_their_row_and_unknown_to_the_users_tower():
    context = make(schema=WITH_HARD, hard_negatives="refused", uniform=4, hardest=2)
    batch = batch_of(16)
    lists = [[(7 * row + k) % NUM_ITEMS for k in range(row % 4)] for row in range(16)]
    aux, without = (
        forward(context, with_refused(batch, ids)) for ids in (lists, [[] for _ in lists])
    )
    torch.testing.assert_close(aux["positive_P"], without["positive_P"])
    table, model = context.tables.state()["item/weight"], context.model
    items = ids_of(batch, "item")
    embeddings = model.embed(with_refused(batch, lists))
    with torch.no_grad():
        queries = model.query_vectors(
            replace(embeddings, pooled_BE=embeddings.pooled_BE[:, 4:]), batch.dense_BD
        )
        for query, row in enumerate(positive_rows(batch)):
            expected = [
                float(queries[row] @ model.item_vectors(table[[i]])[0]) if i != items[row][0] else 0
                for i in lists[row]
            ]
            kept = aux["candidates_PC"][query, 2:]
            found = [float(s) if s > MASKED_SCORE else 0 for s in kept]
            assert found == pytest.approx(expected + [0] * (3 - len(expected)), abs=1e-5)


def test_hard_negatives_of_a_column_learn_and_count_once():
    context = make(schema=WITH_HARD, hard_negatives="refused", in_batch=True)
    batch = batch_of(8, positive=1.0)
    unseen = next(i for i in range(NUM_ITEMS) if [i] not in ids_of(batch, "item"))
    context.model.negatives.counts_I.fill_(2)
    before = context.tables.state()["item/weight"].clone()
    aux = update(context, with_refused(batch, [[unseen]] * 8))
    assert (context.tables.state()["item/weight"][unseen] != before[unseen]).any()
    assert aux["log_q_candidates_C"][-3:].tolist() == [0, 0, 0]
    assert (aux["log_q_candidates_C"][:8] < 0).all()


def test_the_memory_is_a_queue_of_what_applied_updates_put_in():
    memory, twin, g = ItemMemory(7, 2, warmup=2), deque(maxlen=7), torch.Generator().manual_seed(0)
    for number, (size, applied) in enumerate([(3, True), (2, False), (3, True), (9, True), (4, 1)]):
        found_ids = memory.read()[1].tolist()
        if number < 3:  # one of the first three was not applied
            assert found_ids == [-1] * 7
        else:
            assert sorted(i for i in found_ids if i >= 0) == sorted(i for i, _ in twin)
        for part in (size - 1, 1):  # two micro-batches
            ids_N = torch.randint(100, (part,), generator=g)
            vectors_ND = torch.randn(part, 2, generator=g)
            memory.remember(vectors_ND, ids_N)
            if applied:
                twin.extend(zip(ids_N.tolist(), vectors_ND.tolist()))
        memory.end_update(applied=bool(applied))
    vectors_MD, ids_M = memory.read()
    assert sorted(zip(ids_M.tolist(), vectors_MD.tolist())) == sorted(twin)


def test_items_of_earlier_updates_are_scored_as_they_were_then():
    context = make(memory=64)
    first, second = batch_of(12, 1), batch_of(12, 2)
    with torch.no_grad():
        old = context.model.item_vectors(
            context.model.embed(first).pooled_BE[positive_rows(first), :4]
        )
    num_first, num_second = len(old), len(positive_rows(second))
    aux = update(context, first)
    assert (aux["candidates_PC"][:, num_first:] == MASKED_SCORE).all()
    embeddings = context.model.embed(second)
    with torch.no_grad():
        queries = context.model.query_vectors(
            replace(embeddings, pooled_BE=embeddings.pooled_BE[:, 4:]), second.dense_BD
        )[positive_rows(second)]
    aux = update(context, second)
    from_memory = aux["candidates_PC"][:, num_second : num_second + num_first]
    items = [ids_of(first, "item")[row][0] for row in positive_rows(first)]
    own = [ids_of(second, "item")[row][0] for row in positive_rows(second)]
    same = torch.tensor([[mine == old_id for old_id in items] for mine in own])
    expected = (queries @ old.t()).masked_fill(same, MASKED_SCORE)
    torch.testing.assert_close(from_memory, expected)
    share = context.model.negatives.counts_I / context.model.negatives.counts_I.sum()
    expected_q = ((num_first + num_second) * share[own]).log()
    torch.testing.assert_close(aux["log_q_positive_P"], expected_q)


def corrected_loss(positive_P, candidates_PC, log_q_C=None, **settings):
    aux = {"positive_P": positive_P, "candidates_PC": candidates_PC}
    if log_q_C is not None:
        aux |= {"log_q_candidates_C": log_q_C, "log_q_positive_P": torch.full_like(positive_P, 9.0)}
    size = len(positive_P)
    rows = torch.ones(size, 1)
    aux["row_P"] = torch.arange(size)
    prediction = Prediction(rows, rows, rows[:, 0], torch.zeros(size, 0), aux)
    return SampledSoftmax(SCHEMA, corrected=True, **settings)(prediction)["click"]


def test_the_corrected_loss_is_that_of_the_paper():
    positive_P = torch.randn(4, dtype=torch.float64)
    candidates_PC = torch.randn(4, 6, dtype=torch.float64)
    q_C = torch.rand(6, dtype=torch.float64) / 6  # draws: each other item is expected 6 q times
    found = corrected_loss(positive_P, candidates_PC, (6 * q_C).log())
    for row in range(4):
        right = positive_P[row].exp()
        terms = candidates_PC[row].exp() / q_C
        share = right / (right + terms.mean())  # section 3.3: estimated by the same draws
        expected = -(1 - share) * (right / (terms / 6).sum()).log()
        assert float(found[row]) == pytest.approx(float(expected), rel=1e-12)


def test_the_corrected_loss_over_all_items_has_the_gradient_of_the_full_softmax():
    scores_PI = torch.randn(5, 8, dtype=torch.float64, requires_grad=True)
    corrected_loss(scores_PI[:, 0], scores_PI[:, 1:]).sum().backward()
    expected = scores_PI.detach().softmax(1)
    expected[:, 0] -= 1
    torch.testing.assert_close(scores_PI.grad, expected)


def test_a_temperature_learns_by_its_gradient_and_stays_above_the_least():
    context = make(learn_temperature=True, temperature=0.5)
    fixed = make(temperature=0.5)
    assert "temperature" not in dict(fixed.model.named_parameters())
    batch = batch_of(12)

    def loss_at(temperature):
        with torch.no_grad():
            context.model.temperature.fill_(temperature)
            prediction = context.model.dense(context.model.embed(batch), batch)
            losses = context.loss(prediction)["click"].double()
        return float(losses @ batch.weights_B.double() / batch.weights_B.sum())

    slope = (loss_at(0.502) - loss_at(0.498)) / 0.004
    loss_at(0.5)
    update(context, batch)
    assert context.model.temperature.item() == pytest.approx(0.5 - 0.1 * slope, abs=2e-3 * 0.1)
    assert slope != pytest.approx(0, abs=1e-3)
    assert loss_at(0.01) == loss_at(0.001)


REFUSED = {
    "hardest of fewer": (
        {"in_batch": False, "uniform": 5, "hardest": 6},
        r"^model\.net\.hardest=6: must be from 0 to the 5 candidates$",
    ),
    "memory without a batch": (
        {"in_batch": False, "uniform": 5, "memory": 9},
        r"^model\.net\.memory=9: .* needs model\.net\.in_batch=true$",
    ),
    "user of nothing": ({"user": "user"}, "user=user: has no effect; set exclude_known=true"),
    "no such user": ({"user": "usr", "exclude_known": True}, "usr.*nearest: 'user'"),
    "rows of no batch": (
        {"user": "user", "exclude_known": True, "in_batch": False, "uniform": 5},
        "takes rows of the batch together; set in_batch=true",
    ),
    "no such column": ({"hard_negatives": "refusd"}, "hard_negatives=refusd.*'refused'"),
    "a cold start": ({"learn_temperature": True, "temperature": 0.001}, "below 0.01"),
    "a tower of statistics": (
        {"hard_negatives": "refused", "norm": "batch", "item_tower": [3]},
        "hard_negatives=refused: drawn items are no rows of the batch",
    ),
}


@pytest.mark.parametrize(("settings", "message"), REFUSED.values(), ids=REFUSED)
def test_negatives_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        from_yaml("two_tower", WITH_HARD, **{**SMALL, **settings})


def test_a_correction_of_no_correction_is_refused():
    with pytest.raises(ValueError, match="set log_q=true"):
        SampledSoftmax(SCHEMA, corrected=True, log_q=False)


def test_bpr_takes_the_mean_over_the_hardest():
    context = make(BPR(SCHEMA), in_batch=False, uniform=9, hardest=3)
    aux = update(context, batch_of(12))
    assert aux["candidates_PC"].shape[1] == 3
