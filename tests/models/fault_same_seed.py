"""Fault 23: the same seed gives the same run, to the last bit, whatever was chosen in `conf/`.

`python -m tests.models.fault_same_seed [--short] [every_combination] [whole_runs]` prints a table.
Each combination is trained three times in this process, and some of them twice as whole runs. What
does not fit together is refused, and counted as that.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

from runner.errors import UserError
from tests.fault_table import Table, count_faults
from tests.models.test_same_twice import (
    HISTORY,
    LOSSES,
    MODELS,
    OPTIMIZERS,
    RETRIEVAL,
    assert_same,
    losses_of,
    train,
)
from tests.whole.compare_runs import differences

THREADS, RUNS = (1, 2, 3), 3
# name of a pipeline -> its settings; base is for a GPU
PIPELINES = {
    "auto": (),
    "none": ("trainer.pipeline=none", "dataset.prefetch=0"),
    "workers": ("dataset.workers=2", "dataset.prefetch=2"),
    "none, two ranks": ("trainer.pipeline=none", "trainer.num_processes=2"),
    "sparse_dist, two ranks": ("trainer.pipeline=sparse_dist", "trainer.num_processes=2"),
}
SETTINGS = (
    "dataset.max_cardinality=200",
    "dataset.rows={train: 3000, validation: 300, test: 300}",
    "model.net.embedding_dim=8",
    "trainer.batch_size=256",
    "trainer.max_steps=6",
    "trainer.log_every=2",
    "trainer.eval_every=4",
    "trainer.rank_timeout_s=60",
    "report=false",
)


def every_combination(table: Table, top: Path, *, short: bool) -> None:
    """Train every model with every loss and optimizer on 1, 2 and 3 threads, in this process."""
    table.fault = "23: the same seed, every combination"
    cases = list(itertools.product(MODELS, LOSSES, OPTIMIZERS, THREADS))
    for model, loss, optimizer, threads in cases[:: 1009 if short else 1]:
        table.judge(
            f"{model}, {loss}, {optimizer}, {threads} threads",
            partial(train_alike, model, loss, optimizer, threads),
        )


def train_alike(model: str, loss: str, optimizer: str, threads: int) -> str:
    """Return `equal`, or `refused` where the model cannot be trained with the loss."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        first, *others = (train(model, loss, optimizer, 2) for _ in range(RUNS))
    except (UserError, ValueError) as error:
        assert loss not in losses_of(model), error
        return "refused"
    finally:
        torch.set_num_threads(before)
    for other in others:
        assert_same(first, other, f"{loss}, {optimizer}, {threads} threads")
    return "equal"


def covering_pairs(model: str) -> set[tuple[str, str]]:
    """Return losses and optimizers: each with the model; over all models, each with the other."""
    losses = losses_of(model)
    pairs = {(losses[n % len(losses)], optimizer) for n, optimizer in enumerate(OPTIMIZERS)}
    of_models_before = {loss for m in MODELS[: MODELS.index(model)] for loss in losses_of(m)}
    return pairs | set(itertools.product(set(losses) - of_models_before, OPTIMIZERS))


def covering_cases() -> Iterator[tuple[str, str, str, int]]:
    """Yield model, optimizer, pipeline, threads: every pair of a pipeline and one of the others."""
    models = [model for model in MODELS if model not in {*RETRIEVAL, *HISTORY}]
    for shift, pipeline in enumerate(PIPELINES):
        for number in range(max(len(models), len(OPTIMIZERS))):
            optimizer = OPTIMIZERS[(number + shift) % len(OPTIMIZERS)]
            threads = THREADS[(number + shift) % len(THREADS)]
            yield models[number % len(models)], optimizer, pipeline, threads


def whole_runs(table: Table, top: Path, *, short: bool) -> None:
    """Run whole commands under every pipeline, and compare logs and checkpoints.

    Models of sequences, whose data has other columns, are left to `every_combination`.
    """
    table.fault = "23: the same seed, whole runs"
    runner = table.runner()
    cases = list(covering_cases())
    for model, optimizer, pipeline, threads in cases[:: 61 if short else 1]:

        def outcome(model=model, optimizer=optimizer, pipeline=pipeline, threads=threads) -> str:
            place = top / f"{model}-{optimizer}-{pipeline}-{threads}"
            words = (f"model={model}", f"optimizer={optimizer}", *PIPELINES[pipeline])
            runs = [place / str(number) for number in range(2)]
            for run in runs:
                more = (f"trainer.num_threads={threads}", f"hydra.run.dir='{run}'")
                done = runner.run(*SETTINGS, *words, *more, env={"RUNNER_CACHE": str(top / "c")})
                if done.code == 2:
                    reason = done.text.rpartition("error: ")[2].partition(":")[0]
                    return f"refused ({reason.split('=')[0]})"
                assert done.code == 0, done.text[-500:]
            assert not (found := differences(*runs)), found
            return "equal"

        table.judge(f"{model}, {optimizer}, {pipeline}, {threads} threads", outcome)


FAULTS = {"every_combination": every_combination, "whole_runs": whole_runs}

if __name__ == "__main__":
    sys.exit(count_faults(FAULTS, __doc__))
