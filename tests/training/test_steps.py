"""An update that was skipped leaves nothing behind for any later update."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pytest
import torch

from runner.batch import Batch
from runner.training.state import TrainState
from runner.training.steps import steps
from tests.tiny import make_context, snapshot
from tests.tiny_job import Rows, make_job

BATCH = 32


class WithoutSecondBatch(Rows):
    """All batches but the second."""

    def batches(self, *args, **more) -> Iterator[Batch]:
        batches = list(super().batches(*args, **more))
        yield from (*batches[:1], *batches[2:])


def trained(kind: str, data: Rows, num_updates: int) -> tuple[dict[str, torch.Tensor], TrainState]:
    """All weights and states after `num_updates` updates, with Adam in the dense half."""
    context = make_context(kind, lr=0.05)
    context.dense_optimizer = torch.optim.Adam(context.dense_parameters, lr=0.05)
    job, state = make_job(context, dataset=data), TrainState()
    assert len(list(islice(steps(job, state), num_updates))) == num_updates
    return snapshot(context), state


@pytest.mark.parametrize("kind", ["adam", "lamb", "partial_rowwise_adam", "rowwise_adagrad"])
def test_later_updates_are_those_of_a_run_that_never_saw_the_batch(kind):
    """Bit for bit, bias correction included, which counts only updates that were applied."""
    with_nan = Rows()
    with_nan.all.dense_BD[BATCH + 8] = float("nan")
    ours, state = trained(kind, with_nan, 5)
    theirs, _ = trained(kind, WithoutSecondBatch(), 4)
    assert (state.step, state.skipped) == (5, 1)
    assert [name for name in theirs if not torch.equal(ours[name], theirs[name])] == []
    assert not torch.equal(ours["tables/a/weight"], trained(kind, Rows(), 1)[0]["tables/a/weight"])
