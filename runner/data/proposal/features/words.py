"""Proposes free texts whose words predict a label as lists of their words.

N words of all texts, one text after the other, of W kinds; K rows with a label.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from runner.data.files.read_files import is_text
from runner.data.files.text_values import WORDS, split_texts
from runner.data.proposal.columns.guess_roles import FREE_TEXT, UNIQUE_REASON, Role
from runner.data.proposal.columns.judging_sample import JudgingSample, Rows
from runner.data.proposal.columns.label_leaks import chance_error, rank_auc

LEAST_GAIN = 0.01  # of AUC, beyond chance
ERRORS = 4.0  # standard errors of the AUC of random words
PRIOR_ROWS = 20.0  # the weight of the mean label in the effect of a word
MIN_COUNT = 5  # a rarer word only memorises its own rows


def propose_words(sample: JudgingSample, roles: Mapping[str, Role]) -> dict[str, Role]:
    """Return new roles for carried texts whose words predict a label.

    The effect of a word is fitted to one half of the sample; the mean effect of the words of a
    text is judged on the other half.
    """
    reason = "free text whose words help to predict the label"
    settings = {"separator": WORDS, "encode": "vocabulary", "min_count": MIN_COUNT}
    return {
        name: Role("categorical", reason, settings)
        for name, role in roles.items()
        if role in (Role("carried", FREE_TEXT), Role("carried", UNIQUE_REASON))
        and is_text(sample.table[name].type)
        and _tell_of_label(sample.table[name], sample)
    }


def _tell_of_label(column: pa.ChunkedArray, sample: JudgingSample) -> bool:
    lists = split_texts(column.combine_chunks().cast(pa.string()), WORDS)
    row_N = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False)
    words = lists.flatten().dictionary_encode()
    word_N = words.indices.to_numpy(zero_copy_only=False)
    for label in sample.judged_labels():
        known_N, number_R = label.known_R[row_N], np.cumsum(label.known_R) - 1
        judge = partial(_judge, number_R[row_N[known_N]], word_N[known_N], label.y_K)
        least = max(LEAST_GAIN, ERRORS * chance_error(label.y_K))
        if label.mean_both_ways(judge) - 0.5 >= least:
            return True
    return False


def _judge(
    row_N: np.ndarray, word_N: np.ndarray, y_K: np.ndarray, fitted: Rows, held_out: Rows
) -> float:
    """Return the AUC of the mean effect of words on one half of the rows, fitted to the other."""
    is_fitted_N = np.isin(np.arange(len(y_K)), fitted)[row_N]
    own_words, num_words = word_N[is_fitted_N], int(word_N.max(initial=-1)) + 1
    counts_W = np.bincount(own_words, minlength=num_words)
    ones_W = np.bincount(own_words, weights=y_K[row_N[is_fitted_N]], minlength=num_words)
    rate = y_K[fitted].mean()
    effects_W = (ones_W + PRIOR_ROWS * rate) / (counts_W + PRIOR_ROWS) - rate
    sums_K = np.bincount(row_N, weights=effects_W[word_N], minlength=len(y_K))
    score_K = sums_K / np.maximum(np.bincount(row_N, minlength=len(y_K)), 1)
    return rank_auc(score_K[held_out], y_K[held_out])
