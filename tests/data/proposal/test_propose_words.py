"""Free texts that `schema` proposes as lists of words, where these tell of the label."""

import numpy as np
import pyarrow as pa
import pytest

from runner.data.proposal.columns.guess_roles import FREE_TEXT, UNIQUE_REASON, Role
from runner.data.proposal.columns.judging_sample import draw_judging_sample
from runner.data.proposal.features.words import propose_words

ROWS, NUM_WORDS = 2_000, 200


def texts_and_scores(rng: np.random.Generator) -> tuple[list[str], np.ndarray]:
    """Return texts of 15 words each, and the mean effect of their words, in deviations."""
    words = rng.integers(0, NUM_WORDS, (ROWS, 15))
    scores = rng.normal(size=NUM_WORDS)[words].mean(1)
    texts = [" ".join(f"w{w}{rng.choice(['', ',', '.'])}" for w in row) for row in words]
    return texts, (scores - scores.mean()) / scores.std()


def propose(texts: list[str | None], y: np.ndarray, reason: str, kind: dict | None = None):
    roles = {"text": Role("carried", reason), "y": Role("labels", settings=kind or {})}
    return propose_words(draw_judging_sample(pa.table({"text": texts, "y": y}), roles), roles)


@pytest.mark.parametrize("reason", [FREE_TEXT, UNIQUE_REASON])
@pytest.mark.parametrize("kind", [{}, {"type": "regression"}])
def test_words_that_tell_of_the_label_are_ids(kind, reason):
    rng = np.random.default_rng(0)
    texts, scores = texts_and_scores(rng)
    noisy = scores + rng.logistic(size=ROWS)
    some = [None if i % 9 == 0 else text for i, text in enumerate(texts)]
    found = propose(some, noisy if kind else (noisy > 0).astype(int), reason, kind)
    settings = {"separator": "words", "encode": "vocabulary", "min_count": 5}
    assert (found["text"].name, found["text"].settings) == ("categorical", settings)


def test_other_texts_stay_as_they_are():
    rng = np.random.default_rng(1)
    texts, scores = texts_and_scores(rng)
    assert propose(texts, rng.integers(0, 2, ROWS), FREE_TEXT) == {}
    tells = (scores > 0).astype(int)
    assert propose(texts, tells, "numbers the rows") == {}
    assert propose([f"k{i}" for i in range(ROWS)], tells, UNIQUE_REASON) == {}
    assert propose([None] * ROWS, tells, FREE_TEXT) == {}
    assert propose(texts, np.zeros(ROWS, int), FREE_TEXT) == {}
