"""Ranks, micro-batches, losses and negatives of the sequence and retrieval models."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from runner.batch import DataPosition
from runner.models.losses import BPR, SampledBCE, SampledSoftmax
from runner.models.retrieval.negatives import MASKED_SCORE, NegativeSampler
from runner.training.update.task import Supervised
from tests.models.sequence_models import CAUSAL, SMALL, leaves, make, step
from tests.models.sequence_scene import LONGEST, NUM_ITEMS, SCHEMA, batch_of, ids_of
from tests.models.sequence_twins import STATES
from tests.tiny import snapshot


@pytest.mark.parametrize(
    ("name", "leave_out", "special"), [*((n, True, 0) for n in CAUSAL), ("sasrec", False, 3)]
)
def test_ranks_among_all_items_are_those_of_a_plain_count(name, leave_out, special):
    context, batch = make(name), batch_of()
    p, tables = leaves(context)
    model = context.model.eval()
    model.item = replace(model.item, num_special=special)  # rows that stand for no item
    length = NUM_ITEMS - special
    model.open_catalogue(leave_history_out=leave_out, list_length=length)
    model.popularity_I = torch.arange(NUM_ITEMS)
    aux = model(batch).aux
    ranks, lists = aux["rank_B"], aux["top_BK"].tolist()
    assert aux["popularity_I"].tolist() == list(range(special, NUM_ITEMS))
    model.close_catalogue()
    assert "rank_B" not in model(batch).aux
    rows = zip(ids_of(batch, "history"), ids_of(batch, "item"))
    for row, (history, [target]) in enumerate(rows):
        if not history:
            continue
        scores = tables["item"] @ STATES[name](p, tables["item"], history, 2)[-1]
        gone = set(history[-LONGEST:]) if leave_out else set()
        items = range(special, NUM_ITEMS)
        better = [i for i in items if scores[i] >= scores[target]]
        is_ranked = target >= special and target not in gone
        assert ranks[row] == (1 + len(set(better) - gone - {target}) if is_ranked else math.inf)
        allowed = [i for i in items if i not in gone]
        best = [i - special for i in sorted(allowed, key=lambda i: -scores[i])]
        assert lists[row] == best + [-1] * (length - len(best))


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("bst", {}),
        ("dien", {}),
        ("din", {}),
        ("sasrec", {}),
        ("bert4rec", {}),
        ("gru4rec", {}),
        ("hstu", {}),
        ("sasrec", {"every": True, "uniform": 0}),
        ("sasrec", {"every_place": False, "popularity": 5}),
        ("two_tower", {"in_batch": False, "uniform": 5}),
        ("two_tower", {"in_batch": False, "uniform": 6, "item_tower": [6], "dropout": 0.3}),
    ],
)
@pytest.mark.parametrize("kind", ["rowwise_adagrad", "adam"])
def test_micro_batches_equal_one_batch(name, more, kind):
    states = []
    for micro in (24, 7):
        loss = SampledSoftmax(SCHEMA) if name == "two_tower" else None
        context = make(name, kind, micro=micro, loss=loss, **more)
        for seed in range(3):
            step(context, batch_of(24, seed))
        states.append(snapshot(context))
    for key, value in states[0].items():
        # Adam divides by the gradient's size, which magnifies a difference in the last digit
        atol = 2e-3 if kind == "adam" and "exp_avg" not in key else 1e-5
        torch.testing.assert_close(states[1][key], value, rtol=0, atol=atol, msg=key)


@pytest.mark.parametrize("name", SMALL)
def test_bf16_autocast_is_close_to_full_precision(name):
    outputs = [step(make(name, amp=amp), batch_of(32)) for amp in (False, True)]
    full, half = (output.predictions[0].logits_BT for output in outputs)
    assert half.dtype == torch.float32
    assert 0 < (full - half).abs().max() < 0.25 * full.abs().max()


@pytest.mark.parametrize("name", SMALL)
def test_a_batch_without_a_row_of_label_1_or_with_one_row_is_no_trouble(name):
    for batch in (batch_of(4, positive=0.0), batch_of(1, positive=1.0)):
        context = make(name)
        output = step(context, batch)
        assert output.applied
        assert torch.isfinite(output.losses[0]["click"]).all()


def test_losses_over_candidates_are_their_formulas():
    own = torch.tensor([1.0, -0.5])
    others = torch.tensor([[0.3, MASKED_SCORE, 2.0], [0.1, 0.2, -1.0]])
    log_q_own, log_q = torch.tensor([0.2, 0.1]), torch.tensor([-1.0, 0.4, 0.7])
    aux = {"positive_P": own, "candidates_PC": others, "row_P": torch.tensor([2, 0])}
    prediction = step(make("sasrec"), batch_of(3)).predictions[0]
    plain = replace(prediction, aux=aux)
    corrected = replace(
        prediction, aux={**aux, "log_q_positive_P": log_q_own, "log_q_candidates_C": log_q}
    )

    def rows(loss, p):
        return loss(SCHEMA)(p)["click"].tolist()

    def softmax(row, q_own, q):
        logits = torch.cat(((own - q_own)[row : row + 1], (others - q)[row]))
        return float(functional.cross_entropy(logits, torch.tensor(0)))

    for p, q_own, q in ((plain, 0 * own, 0 * log_q), (corrected, log_q_own, log_q)):
        expected = [softmax(1, q_own, q), 0, softmax(0, q_own, q)]
        assert rows(SampledSoftmax, p) == pytest.approx(expected)
    assert SampledSoftmax(SCHEMA, log_q=False)(corrected)["click"].tolist() == rows(
        SampledSoftmax, plain
    )
    sp = functional.softplus
    first = (sp(others[0, 0] - own[0]) + sp(others[0, 2] - own[0])) / 2
    second = sp(others[1] - own[1]).mean()
    assert rows(BPR, plain) == pytest.approx([float(second), 0, float(first)])
    first = sp(-own[0]) + (sp(others[0, 0]) + sp(others[0, 2])) / 2
    second = sp(-own[1]) + sp(others[1]).mean()
    assert rows(SampledBCE, plain) == pytest.approx([float(second), 0, float(first)])


def test_negatives_depend_on_the_place_in_the_stream_and_follow_the_counts():
    torch.manual_seed(0)
    negatives = NegativeSampler(1000, uniform=200, popularity=1000)
    counts = torch.zeros(1000)
    counts[:10] = torch.arange(1, 11)
    negatives.counts_I.copy_(counts)
    first, again, other = (negatives.sample(batch_of(4, seed).cursor) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    uniform, popular = first.split([200, 1000])
    assert len(uniform.unique()) > 150
    seen = torch.bincount(popular, minlength=1000)
    expected = counts / counts.sum() * 1000
    chi_square = ((seen - expected)[:10] ** 2 / expected[:10]).sum()
    assert seen[10:].sum() == 0
    assert chi_square < 27.9  # 9 degrees of freedom, one in a thousand
    q = negatives.log_q(torch.tensor([9, 500]), 50).exp()
    assert q.tolist() == pytest.approx([0.2 + 1000 * 10 / 55, 0.2 + 1000 / 55])


def test_all_batches_of_evaluations_have_the_same_negatives_and_trainings_go_on_as_before():
    negatives = NegativeSampler(1000, uniform=20, popularity=20)
    cursors = [DataPosition(epoch, offset) for epoch, offset in ((0, 4), (0, 8), (1, 0), (3, 64))]
    trained = [negatives.sample(cursor).tolist() for cursor in cursors]
    negatives.eval()
    first, *others = (negatives.sample(cursor).tolist() for cursor in cursors)
    assert others == [first] * 3
    assert first not in trained
    negatives.train()
    assert [negatives.sample(cursor).tolist() for cursor in cursors] == trained


@pytest.mark.long
@pytest.mark.parametrize("name", SMALL)
def test_one_batch_is_memorised(name):
    context = make(name, "adam")
    context.dense_optimizer = torch.optim.Adam(context.dense_parameters, lr=0.02)
    losses = []
    for number in range(1, 81):
        context.tables.set_lr_and_step(0.02, number)
        output = Supervised().train_step(context, iter([batch_of(24)]))
        losses.append(float(output.losses[0]["click"].mean()))
    assert losses[-1] < 0.35 * losses[0]
