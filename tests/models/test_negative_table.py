"""Hard negatives of a table: they are those of a column with the same lists, in training alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from runner.models.losses import SampledSoftmax
from tests.models.sequence_scene import NUM_ITEMS, SCHEMA, batch_of, ids_of
from tests.models.test_negatives import SMALL, WITH_HARD, from_yaml, make, update, with_refused

NUM_USERS, LISTS = (
    20,
    [[(3 * user + 5 * k) % NUM_ITEMS for k in range(user % 4)] for user in range(20)],
)
SETTINGS = {"in_batch": False, "uniform": 4}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def with_table(*, micro_batch: int | None = None, **settings):
    torch.manual_seed(0)
    context = make(SampledSoftmax(SCHEMA), hard_table="hard.csv", **SETTINGS, **settings)
    offsets = torch.from_numpy(np.cumsum([0, *map(len, LISTS)]))
    items = torch.tensor([item for items in LISTS for item in items])
    context.model.negative_table.fill("user", offsets, items)
    if micro_batch:
        context.micro_batch_size = micro_batch
    return context


def weights(context):
    return {**context.tables.state(), **dict(context.model.named_parameters())}


def lists_of(batch):
    return [LISTS[user] for [user] in ids_of(batch, "user")]


@pytest.mark.parity("E15")
@pytest.mark.parametrize("hardest", [0, 2])
def test_an_update_is_that_of_a_column_with_the_same_lists(hardest):
    batch = batch_of(16)
    ours = with_table(hardest=hardest)
    torch.manual_seed(0)
    theirs = make(
        SampledSoftmax(SCHEMA),
        schema=WITH_HARD,
        hard_negatives="refused",
        hardest=hardest,
        **SETTINGS,
    )
    theirs.model.load_state_dict(ours.model.state_dict(), strict=False)
    for name, tensor in theirs.tables.state().items():
        tensor.copy_(ours.tables.state()[name])
    theirs.model.negatives.seed = ours.model.negatives.seed
    found, expected = update(ours, batch), update(theirs, with_refused(batch, lists_of(batch)))
    torch.testing.assert_close(found["candidates_PC"], expected["candidates_PC"])
    assert (found["candidates_PC"][:, -3:] > -1e29).any()
    after, other = weights(ours), weights(theirs)
    assert after.keys() == other.keys()
    for name in after:
        torch.testing.assert_close(after[name], other[name], msg=name)


@pytest.mark.parametrize("more", [{}, {"item_tower": [6], "dropout": 0.3}])
def test_micro_batches_are_one_batch(more):
    """Also where the tower drops: the same of each negative, in batches with rows of label 0."""
    batch = batch_of(16)
    whole, parts = with_table(**more), with_table(micro_batch=3, **more)
    before = whole.tables.state()["item/weight"].clone()
    for context in (whole, parts):
        torch.manual_seed(1)  # of the draws
        update(context, batch)
    assert (whole.tables.state()["item/weight"] != before).any()
    for name, tensor in weights(whole).items():
        torch.testing.assert_close(weights(parts)[name], tensor, msg=name)


def test_only_negatives_of_queries_are_looked_up_and_none_in_an_evaluation():
    context, batch = with_table(), batch_of(16)
    model = context.model
    embeddings = model.embed(batch)
    asked = [items for items, label in zip(lists_of(batch), batch.labels_BT[:, 0]) if label > 0.5]
    found = embeddings.per_batch["candidates"][4:].tolist()
    assert found == sorted({item for items in asked for item in items})
    model.eval()
    embeddings = model.embed(batch)
    assert len(embeddings.per_batch["candidates"]) == 4 and "hard" not in embeddings.per_row
    assert model.dense(embeddings, batch).aux["candidates_PC"].shape[1] == 4


def test_a_batch_whose_users_have_none_is_like_one_without_a_table():
    context, batch = with_table(), batch_of(16)
    users = batch.sparse["user"].values()
    empty = replace(batch, weights_B=torch.where(users % 4 == 0, batch.weights_B, 0.0))
    assert update(context, empty)["candidates_PC"].shape[1] == 4


def test_a_table_of_items_with_more_features_is_refused():
    with pytest.raises(ValueError, match=r"hard_table=null, or item=\[item\]"):
        from_yaml(
            "two_tower", SCHEMA, **{**SMALL, "item": ["item", "genres"], "hard_table": "hard.csv"}
        )
