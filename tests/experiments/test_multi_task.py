"""The loss on intermediate vectors, against loops over rows in plain Python."""

from __future__ import annotations

import math

import pytest
import torch

from experiments.multi_task import ClickAndRetrieval
from runner.batch import Prediction


def test_each_clicked_row_must_find_its_item_among_those_of_the_batch_that_count():
    torch.manual_seed(0)
    user_BD, item_BD = torch.randn(4, 3), torch.randn(4, 3)
    labels, weights, logits = [1.0, 0.0, 1.0, 1.0], [1.0, 2.0, 0.0, 1.0], [0.3, -1.0, 0.2, 2.0]
    prediction = Prediction(
        torch.tensor(logits)[:, None],
        torch.tensor(labels)[:, None],
        torch.tensor(weights),
        torch.empty(4, 0, dtype=torch.int64),
        aux={"user_BD": user_BD, "item_BD": item_BD},
    )
    loss = ClickAndRetrieval(None, retrieval=0.5, temperature=0.2)
    found = loss(prediction)

    def cosine(i: int, j: int) -> float:
        return float(torch.cosine_similarity(user_BD[i], item_BD[j], dim=0))

    for row in (0, 1, 3):  # row 2 has no weight: what it gets is multiplied by 0
        likely = 1 / (1 + math.exp(-logits[row]))
        click = -math.log(likely if labels[row] else 1 - likely)
        assert found["click"][row].item() == pytest.approx(click, rel=1e-5)
        among = sum(math.exp(cosine(row, j) / 0.2) for j in range(4) if weights[j])
        own = math.log(among) - cosine(row, row) / 0.2
        assert found["retrieval"][row].item() == pytest.approx(0.5 * own * labels[row], rel=1e-4)
