"""Proposes how often a list holds the id of its row, where that predicts the label.

R rows of the sample, K rows with a label.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa

from runner.data.columns.column_specs import COUNT, SHARE
from runner.data.columns.list_matches import count_matches
from runner.data.columns.vectors import split_vectors
from runner.data.core.columns import is_list
from runner.data.files.read_files import is_numeric, single_array, unpacked_type
from runner.data.proposal.columns.guess_roles import Role
from runner.data.proposal.columns.judging_sample import (
    JudgedLabel,
    JudgingSample,
    Proposed,
    is_single_id,
    value_codes,
)
from runner.data.proposal.columns.label_leaks import LEAK_AUC, find_only_label, leak_auc
from runner.data.proposal.features.crosses import add_effects, gain_of_cells

FEWEST_MATCHES = 0.002  # share of rows; with fewer matches, the list holds ids of another kind
MOST_PAIRS = 100  # of a list and a column of ids, that are tried
BUCKETS = 10  # of the rows with a match
# What a match must gain over the effects of all ids, in AUC on the half of the rows that it was not
# fitted to. It is a single number, so that chance gains less by it than by a cross.
LEAST_GAIN, CHANCE_GAIN = 0.001, 0.3  # the latter divided by the root of the rows


def propose_matches(
    sample: JudgingSample, roles: Mapping[str, Role], used_names: Collection[str]
) -> Proposed:
    """Propose the number of a list's values that are the id of another column, or their share.

    No sum of effects of ids can represent whether a history holds the shown item or its category,
    and a model with embeddings learns it id by id. One that gives the label away is not proposed
    but warned of, since the history was probably written after the label.
    """
    table = sample.table
    ids = {n: r.settings for n, r in roles.items() if r.name == "categorical"}
    lists = [n for n in ids if not is_single_id(roles[n])]
    single = [n for n in ids if n not in lists and _is_comparable(table[n].type)]
    lists = [n for n in lists if _is_comparable(table[n].type)]
    if not (lists and single and sample.labels):
        return {}, []
    codes = [value_codes(table[n]) for n in single]
    judges = []  # each label with the logits [K] by the ids of a row, fitted to either half
    for label in sample.judged_labels():
        ids_K = [codes_R[label.known_R] for codes_R in codes]
        judges.append((label, [add_effects(ids_K, label.y_K, half) for half in label.halves]))
    proposed: dict[str, dict[str, Any]] = {}
    notes = []
    for history, item in list(product(lists, single))[:MOST_PAIRS]:
        name, separator = f"{item}_in_{history}", ids[history].get("separator", "")
        values = split_vectors(single_array(table, history), separator)
        counts_R, shares_R = count_matches(values, single_array(table, item))
        if name in used_names or (counts_R > 0).mean() < FEWEST_MATCHES:
            continue
        if any(_gives_away(counts_R, y_R) for y_R in sample.labels):
            notes.append(
                f"warning: whether {item} is in {history} gives the label away: make sure that "
                f"{history} was known before the label"
            )
            continue
        by_count, by_share = (
            max((_gain(x_R, *judge) for judge in judges), default=0.0)
            for x_R in (counts_R, shares_R)
        )
        encode = SHARE if by_share > by_count + LEAST_GAIN else COUNT  # most matches are single
        if max(by_count, by_share) >= max(LEAST_GAIN, CHANCE_GAIN / table.num_rows**0.5):
            written = {"separator": separator} if separator else {}
            scaled = {"log1p": True} if encode == COUNT else {}
            proposed[name] = {"column": history, **written, "encode": encode, "of": item, **scaled}
            proposed[name]["standardise"] = True
            notes.append(
                f"whether {item} is in {history} helps to predict the label: proposed as {name}"
            )
    return proposed, notes


def _is_comparable(type_: pa.DataType) -> bool:
    inner = type_.value_type if is_list(type_) else type_
    return is_numeric(inner) or unpacked_type(inner) in (pa.string(), pa.large_string())


def _gives_away(counts_R: np.ndarray, y_R: np.ndarray) -> bool:
    """Tell whether matches predict a label nearly perfectly, or occur in rows of label 1 only."""
    column = pa.chunked_array([pa.array(counts_R, mask=counts_R == 0)])
    return leak_auc(column, y_R) >= LEAK_AUC or find_only_label(column, y_R) == 1


def _gain(x_R: np.ndarray, label: JudgedLabel, logits_by_half: Sequence[np.ndarray]) -> float:
    """Return the AUC that the buckets of a number add to the logits of the other columns."""
    x_K = x_R[label.known_R]
    edges = np.unique(np.quantile(x_K[x_K > 0], np.linspace(0, 1, BUCKETS + 1)[:-1]))
    cells_K = np.searchsorted(edges, x_K, "right")
    return gain_of_cells(cells_K, label.y_K, logits_by_half, label.halves)
