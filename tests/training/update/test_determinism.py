"""A user's own operation that does not repeat is named once, and nothing else is."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from runner.models.dlrm import DLRM
from runner.models.losses import BCE
from runner.training.state import TrainState
from runner.training.steps import steps
from runner.training.update.determinism import (
    UnrepeatableSums,
    is_of_own_class,
    warn_of_unrepeatable_sums,
)
from runner.training.update.row_threads import RowThreads
from runner.training.update.task import Supervised
from tests.tiny import CPU, make_context, snapshot
from tests.tiny_job import make_job

PLACES = torch.tensor([0, 0, 2])
COLUMNS = torch.tensor([0, 0, 1])


class Own(nn.Module):
    """Looks up rows of a weight by `how`."""

    def __init__(self, how) -> None:
        super().__init__()
        self.weight_ND = nn.Parameter(torch.ones(5, 3))
        self.how = how

    def forward(self) -> Tensor:
        return self.how(self.weight_ND).sum()


@pytest.fixture(autouse=True)
def two_threads():
    torch.set_num_threads(2)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        (lambda w: w[PLACES], True),
        (lambda w: w[PLACES[1:]], False),
        (lambda w: w[:, COLUMNS], True),
        (lambda w: w[:, COLUMNS[1:]], False),
        (lambda w: functional.embedding(PLACES, w), False),
        (lambda w: w.index_select(0, PLACES), False),
    ],
)
def test_places_that_repeat_are_told_with_the_cure(how, told):
    warnings: list[str] = []
    model = Own(how)
    with warn_of_unrepeatable_sums({"model": model, "loss": BCE}, CPU, warnings.append):
        model().backward()
    assert len(warnings) == told
    if told:
        assert "index_put" in warnings[0] and "(5, 3)" in warnings[0]
        assert "a model of your own" in warnings[0] and "embedding(index, x)" in warnings[0]


def test_the_threads_of_the_operation_count_and_not_those_around_it():
    torch.set_num_threads(2)
    one = RowThreads([], 2)
    with UnrepeatableSums() as sums, one.operation_threads():
        Own(lambda w: w[PLACES])().backward()
    assert not sums.found
    with one.operation_threads(), UnrepeatableSums() as sums:
        torch.set_num_threads(2)  # as a task of one's own may
        Own(lambda w: w[PLACES])().backward()
    assert sums.found


def test_one_thread_and_deterministic_mode_have_nothing_to_tell():
    with UnrepeatableSums(num_threads=1) as sums:
        Own(lambda w: w[PLACES])().backward()
    assert not sums.found
    torch.use_deterministic_algorithms(True)
    try:
        warnings: list[str] = []
        model = Own(lambda w: w[PLACES])
        with warn_of_unrepeatable_sums({"model": model}, CPU, warnings.append):
            model().backward()
        assert not warnings
    finally:
        torch.use_deterministic_algorithms(False)


class OwnDLRM(DLRM):
    """Adds numbers to repeated places in every update."""

    def dense(self, embeddings, batch):
        repeated = self.top[-1].bias[torch.zeros(4, dtype=torch.int64)]
        prediction = super().dense(embeddings, batch)
        prediction.logits_BT.add_(0.0 * repeated.sum())
        return prediction


def three_updates(monkeypatch, *, own: bool, watched: bool) -> tuple[dict, list[str], int]:
    """Return weights, warnings, and how many updates were watched."""
    context = make_context()
    if own:
        context.model.__class__ = OwnDLRM
    job = make_job(context)
    warnings: list[str] = []
    entered: list[str] = []
    enter = UnrepeatableSums.__enter__
    with monkeypatch.context() as patch:
        patch.setattr(job.view, "warn", warnings.append)
        patch.setattr(UnrepeatableSums, "__enter__", lambda s: entered.append("") or enter(s))
        if not watched:
            patch.setattr("runner.training.steps.watch_first_update", lambda job: nullcontext())
        for number, _ in enumerate(steps(job, TrainState()), start=1):
            if number == 3:
                break
    return snapshot(context), warnings, len(entered)


@pytest.mark.parametrize("own", [True, False])
def test_a_run_says_it_once_in_its_first_update_and_has_the_same_numbers(monkeypatch, own):
    weights, warnings, num_watched = three_updates(monkeypatch, own=own, watched=True)
    assert num_watched == len(warnings) == own
    others, warnings, num_watched = three_updates(monkeypatch, own=own, watched=False)
    assert num_watched == len(warnings) == 0
    assert all(torch.equal(others[name], tensor) for name, tensor in weights.items())


def test_a_task_of_ones_own_is_watched_too():
    class Mine(Supervised):
        pass

    with warn_of_unrepeatable_sums({"task": Mine()}, CPU, print):
        assert torch.utils._python_dispatch._len_torch_dispatch_stack() == 1
    with warn_of_unrepeatable_sums({"task": Supervised()}, CPU, print):
        assert torch.utils._python_dispatch._len_torch_dispatch_stack() == 0


@pytest.mark.parametrize(
    ("module", "is_own"),
    [
        *(("torch_project.nets", True), ("runners.nets", True), ("__main__", True)),
        *(("torch.nn.modules.linear", False), ("torchrec.modules", False), ("runner.a", False)),
    ],
)
def test_a_package_whose_name_begins_as_torchs_is_a_users_own(module, is_own):
    own = type("Own", (nn.Module,), {"__module__": module})
    assert is_of_own_class(own()) == is_own
