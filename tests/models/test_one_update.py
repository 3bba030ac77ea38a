"""One whole update in float64: tables, dense half and loss against a twin with tables of its own.

The twins are those of tests/models/twins.py; what a list feature looks up is summed.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from runner.batch import Embeddings, Schema, SparseFeature, TaskSpec
from runner.models.losses import BCE, SelfDistillation
from tests.models.scene import make_model
from tests.models.twins import TWINS, finalnet_blocks
from tests.tiny import random_batch

D, ROWS, LR = 4, 12, 0.1
ONE = Schema(dense=(), sparse=(SparseFeature("a", 9),), tasks=(TaskSpec("click"),))
SEVEN = replace(ONE, sparse=tuple(SparseFeature(name, 9) for name in "abcdefg"))
SCHEMAS = {
    "one feature": ONE,
    "one feature and a number": replace(ONE, dense=("x",)),
    "seven features": SEVEN,
    "three tasks and numbers": replace(
        SEVEN, dense=("x", "y"), tasks=tuple(TaskSpec(name) for name in "rst")
    ),
}
BATCH_NORM = {"norm": "batch"}
CASES = {
    "finalnet": ("finalnet", BATCH_NORM, None),
    "finalnet one block": ("finalnet one block", BATCH_NORM, None),
    "finalnet distilled": ("finalnet", BATCH_NORM, 0.7),
    "eulernet": ("eulernet", {}, None),
    "eulernet without norm": ("eulernet without norm", {}, None),
    "fwfm": ("fwfm", {}, None),
    "autoint_plus": ("autoint_plus", {}, None),
}


def draw(schema: Schema, generator: torch.Generator):
    """Tables, and the ids of each feature: a list of 0 to 3 for each row."""
    tables = [torch.randn(9, D, generator=generator).double() for _ in schema.sparse]
    lengths = torch.randint(0, 4, (len(tables), ROWS), generator=generator)
    ids = [
        [torch.randint(0, 9, (int(n),), generator=generator) for n in feature]
        for feature in lengths
    ]
    return tables, ids


def plain_loss(logits, labels):
    """Cross-entropy with labels or probabilities, summed over tasks."""
    losses = labels * functional.softplus(-logits) + (1 - labels) * functional.softplus(logits)
    return losses.sum(1)


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
@pytest.mark.parametrize("case", CASES)
def test_an_update_is_that_of_a_twin_with_its_own_tables(case, schema):
    name, settings, weight = CASES[case]
    num_fields = len(schema.sparse) + len(schema.dense)
    if num_fields == 1 and name in ("fwfm", "autoint_plus"):
        with pytest.raises(ValueError, match="at least 2 features"):
            make_model(name, schema)
        return
    generator = torch.Generator().manual_seed(3)
    model = make_model(name, schema, **settings).double()
    for key, parameter in model.named_parameters():
        torch.nn.init.uniform_(parameter, 0.2, 0.6, generator=generator)
        if key == "moduli_N":
            continue  # of an empty list below 0 the angle is pi or -pi, by the sign of a zero
        parameter.data *= torch.randint(0, 2, parameter.shape, generator=generator) * 2 - 1
    tables, ids = draw(schema, generator)
    batch = random_batch(ROWS, num_tasks=len(schema.tasks))
    dense = torch.randn(ROWS, len(schema.dense), generator=generator).double()
    batch = replace(batch, dense_BD=dense)
    weights = batch.weights_B / batch.weights_B.sum()

    twin_tables = [table.clone().requires_grad_() for table in tables]
    p = {n: w.detach().clone().requires_grad_() for n, w in model.named_parameters()}
    e = [
        torch.stack([table[row].sum(0) for row in feature])
        for table, feature in zip(twin_tables, ids)
    ]
    logits = TWINS[name](p, e, torch.zeros(ROWS).double(), dense).float()
    twin_loss = plain_loss(logits, batch.labels_BT)
    if weight is not None:
        own = logits.detach().sigmoid()
        for block in finalnet_blocks(p, e, None, dense):
            twin_loss = twin_loss + weight * plain_loss(block.float(), own)
    (twin_loss * weights).sum().backward()

    ours = [table.clone().requires_grad_() for table in tables]
    bags = [
        functional.embedding_bag(torch.cat(f), t, offsets(f), mode="sum") for f, t in zip(ids, ours)
    ]
    prediction = model.dense(Embeddings(torch.cat(bags, dim=1)), batch)
    loss = BCE(schema) if weight is None else SelfDistillation(schema, weight=weight)
    row_losses = torch.stack(tuple(loss(prediction).values())).sum(0)
    (row_losses * weights).sum().backward()

    torch.testing.assert_close(prediction.logits_BT, logits, rtol=2e-6, atol=2e-6)
    mine = dict(model.named_parameters()) | {f"table {n}": t for n, t in enumerate(ours)}
    theirs = p | {f"table {n}": t for n, t in enumerate(twin_tables)}
    before = {n: w.detach().clone() for n, w in mine.items()}
    torch.optim.SGD(mine.values(), lr=LR).step()
    for key, twin in theirs.items():
        # the loss is float32, so its slope has 7 digits; all else is float64
        torch.testing.assert_close(mine[key].grad, twin.grad, rtol=1e-5, atol=1e-7, msg=key)
        after = twin.detach() - LR * twin.grad
        torch.testing.assert_close(mine[key].detach(), after, rtol=1e-6, atol=1e-8, msg=key)
        assert key == "heads.1.bias" or not torch.equal(before[key], after) or not twin.grad.any()


def offsets(feature) -> torch.Tensor:
    lengths = torch.tensor([len(row) for row in feature])
    return lengths.cumsum(0) - lengths
