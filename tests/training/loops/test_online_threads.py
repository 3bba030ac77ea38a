"""Scores before an update are computed by as many threads as the update itself."""

import torch

from runner.training.loops.online import PrequentialTask
from runner.training.update.row_threads import RowThreads
from runner.training.update.task import Supervised
from tests.tiny import make_context, random_batch


class Spy(Supervised):
    def eval_step(self, ctx, batch):
        self.num_threads = torch.get_num_threads()
        return super().eval_step(ctx, batch)


def test_a_score_has_the_threads_of_operations_of_its_update():
    context, spy = make_context(), Spy()
    context.row_threads = RowThreads([], 3)
    torch.set_num_threads(3)  # as at the start of a process, in which products may be split
    PrequentialTask(spy, context).train_step(context, iter([random_batch(8)]))
    assert spy.num_threads == 1
