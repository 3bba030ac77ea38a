"""Interacting layers take rows in blocks in a training, with the numbers of all rows at once."""

from __future__ import annotations

import pytest
import torch

from runner.models import autoint
from runner.models.autoint import InteractingLayers

ROWS, FIELDS, WIDTH = 50, 7, 4


@pytest.mark.parametrize("rows_at_once", [1, 8, 49, 50])
def test_blocks_of_rows_give_what_all_rows_give(rows_at_once, monkeypatch):
    torch.manual_seed(0)
    layers = InteractingLayers(WIDTH, 6, 2, 2)
    x = torch.randn(ROWS, FIELDS, WIDTH, requires_grad=True)
    numbers = FIELDS * (2 * FIELDS + 4 * 6)
    sizes = []
    layers[0].register_forward_pre_hook(lambda _, given: sizes.append(len(given[0])))

    def run() -> list[torch.Tensor]:
        y = layers(x)
        weights = list(layers.parameters())
        return [y, *torch.autograd.grad(y.square().sum(), [x, *weights])]

    whole = run()
    assert sizes == [ROWS]
    monkeypatch.setattr(autoint, "BLOCK_NUMBERS", rows_at_once * numbers + numbers - 1)
    blocks = run()
    assert sizes[1] == rows_at_once and sum(sizes[1:]) == ROWS
    torch.testing.assert_close(blocks, whole)
    sizes.clear()
    with torch.no_grad():
        torch.testing.assert_close(layers.eval()(x), whole[0])
    assert sizes == [ROWS]
    assert layers.train()(x[:0]).shape == (0, FIELDS, 6)
