"""Ids of one row share a row with new ids, unless a label ends ids and so misleads these."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from runner.data.proposal.columns.guess_roles import Role
from runner.data.proposal.columns.judging_sample import draw_judging_sample
from runner.data.proposal.features.judge_rare_ids import keep_rare_ids

MONTHS, NEW = 10, 400


def customers(*, leave: bool) -> pa.Table:
    """Make snapshots of customers by month, who begin at any and may end with their label."""
    rng = np.random.default_rng(0)
    rows = []
    for number in range(MONTHS * NEW):
        for month in range(number // NEW, MONTHS):
            label = int(rng.random() < 0.2)
            rows.append((month, number, label))
            if leave and label:
                break
    month, customer, label = np.array(rows).T
    return pa.table({"month": month, "customer_id": customer, "churned": label})


@pytest.mark.parametrize("leave", [True, False])
def test_ids_that_a_label_ends_share_no_row_with_new_ones(leave):
    table = customers(leave=leave)
    ids = Role("categorical", "named like an id", {"encode": "vocabulary", "min_count": 2})
    roles = {"customer_id": ids, "churned": Role("labels", "named like a label")}
    seconds = table["month"].to_numpy().astype(float)
    by_time = draw_judging_sample(table, roles, seconds, is_whole=True)
    found = {
        name: role.settings["min_count"] for name, role in keep_rare_ids(by_time, roles).items()
    }
    assert found == ({"customer_id": 1} if leave else {})
    assert not keep_rare_ids(draw_judging_sample(table, roles, is_whole=True), roles)
