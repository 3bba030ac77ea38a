"""Each way to choose negatives by its paper's formula, on two queries computed by hand."""

from __future__ import annotations

from math import exp, log

import pytest
import torch

from runner.batch import Prediction
from runner.models.losses import BPR, InBatchSoftmax, SampledSoftmax
from runner.models.retrieval.item_memory import ItemMemory
from runner.models.retrieval.known_positives import KnownPositives
from runner.models.retrieval.negatives import NegativeSampler
from tests.models.sequence_scene import SCHEMA

# queries and items of width 1, so that a score is a product: item 0 to 4 has the value below
VALUES = [0.5, -1.0, 2.0, 0.25, 1.5]
QUERIES, POSITIVES = [1.0, -0.5], [0, 2]
COUNTS = [4.0, 2.0, 1.0, 2.0, 1.0]  # of 10 sightings


def vectors(ids):
    return torch.tensor([[VALUES[i]] for i in ids]), torch.tensor(ids)


def loss_of(loss, sampler, *, sampled=None, known=None, hard=None) -> list[float]:
    sampler.counts_I.copy_(torch.tensor(COUNTS))
    queries = torch.tensor([[q] for q in QUERIES])
    drawn = None if sampled is None else vectors(sampled)
    aux = sampler.score(queries, vectors(POSITIVES), drawn, known=known, hard=hard)
    ones = torch.ones(2, 1)
    aux["row_P"] = torch.arange(2)
    prediction = Prediction(ones, ones, ones[:, 0], torch.zeros(2, 0), aux)
    return [float(x) for x in loss(prediction)["click"]]


def share_loss(query: float, right: int, others: list[int], draws: int) -> float:
    """-log of exp(s - log q) of the right item, where q of an item is its expected number."""

    def weight(i: int) -> float:
        return exp(query * VALUES[i]) / (draws * COUNTS[i] / 10)

    return -log(weight(right) / (weight(right) + sum(map(weight, others))))


@pytest.mark.parity("E15")
def test_cross_batch_negatives_stand_in_the_softmax_like_those_of_the_batch():
    memory = ItemMemory(3, 1)
    memory.remember(*vectors([4, 1]))
    memory.end_update(applied=True)
    sampler = NegativeSampler(5, in_batch=True, memory=memory)
    found = loss_of(InBatchSoftmax(SCHEMA), sampler)
    draws = 2 + 2  # of the batch and of the memory, one of whose slots is empty
    expected = [
        share_loss(QUERIES[n], POSITIVES[n], [POSITIVES[1 - n], 4, 1], draws) for n in (0, 1)
    ]
    assert found == pytest.approx(expected, rel=1e-6)


def test_a_hard_negative_is_there_once_whatever_its_popularity():
    ids = torch.tensor([[3, 1], [4, -1]])
    hard = (torch.tensor([[[VALUES[3]], [VALUES[1]]], [[VALUES[4]], [9.0]]]), ids)
    found = loss_of(InBatchSoftmax(SCHEMA), NegativeSampler(5, in_batch=True), hard=hard)
    for n, others in enumerate(([3, 1], [4])):
        q, right, other = QUERIES[n], POSITIVES[n], POSITIVES[1 - n]
        terms = [exp(q * VALUES[i]) / (2 * COUNTS[i] / 10) for i in (right, other)]
        total = sum(terms) + sum(exp(q * VALUES[i]) for i in others)
        assert found[n] == pytest.approx(-log(terms[0] / total), rel=1e-6)


def test_the_correction_leaves_the_right_item_out_of_log_q():
    sampler = NegativeSampler(5, in_batch=True)
    found = loss_of(InBatchSoftmax(SCHEMA, corrected=True), sampler)
    for n in (0, 1):
        q, right, other = QUERIES[n], exp(QUERIES[n] * VALUES[POSITIVES[n]]), POSITIVES[1 - n]
        others = exp(q * VALUES[other]) / (2 * COUNTS[other] / 10)
        p = right / (right + others)  # of the right item in the full softmax, as it is estimated
        assert found[n] == pytest.approx(-(1 - p) * log(right / others), rel=1e-6)


def test_the_hardest_of_the_draws_alone_push_a_pair():
    sampler = NegativeSampler(5, uniform=4, hardest=1)
    found = loss_of(BPR(SCHEMA), sampler, sampled=[1, 3, 4, 0])
    # query 1 scores items 1, 3, 4 by -1, .25, 1.5, and 0 is its right item; query 2 by .5, ...
    expected = [-log(1 / (1 + exp(-(0.5 - 1.5)))), -log(1 / (1 + exp(-(-1.0 - 0.5))))]
    assert found == pytest.approx(expected, rel=1e-6)


def test_known_positives_leave_the_softmax_and_the_right_item_stays():
    known = KnownPositives(torch.tensor([0, 1]), torch.tensor([0, 0, 1]), torch.tensor([0, 3, 2]))
    sampler = NegativeSampler(5, uniform=3)
    found = loss_of(SampledSoftmax(SCHEMA, log_q=False), sampler, sampled=[3, 1, 4], known=known)
    for n, others in enumerate(([1, 4], [3, 1, 4])):
        terms = [exp(QUERIES[n] * VALUES[i]) for i in (POSITIVES[n], *others)]
        assert found[n] == pytest.approx(-log(terms[0] / sum(terms)), rel=1e-6)
