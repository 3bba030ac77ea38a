"""What makes two evaluations of a followed checkpoint the same one."""

from __future__ import annotations

from dataclasses import replace

import torch

from runner.training.job import Job
from runner.training.loops.follow import evaluation_hash
from runner.training.update.ema import MovingAverage
from tests.tiny import make_context
from tests.tiny_job import make_job


def job_of(averages: bool | None = None, amp: torch.dtype | None = None, **trainer) -> Job:
    context = make_context()
    context.amp_dtype = amp
    if averages is not None:
        context.ema = MovingAverage({}, decay=0.9, warmup=False, use_in_evaluation=averages)
    job = make_job(context, max_batches=None)
    config = {"dataset": {"_target_": "own.Rows"}, "metrics": {}, "model": {}, "task": {}}
    return replace(job, config=config, trainer=replace(job.trainer, **trainer))


def test_other_weights_precision_or_batches_are_another_evaluation():
    jobs = [
        job_of(),
        job_of(averages=True),
        job_of(averages=False),
        job_of(amp=torch.bfloat16),
        job_of(eval_batch_size=7),
    ]
    assert len({evaluation_hash(job) for job in jobs}) == len(jobs)
    assert evaluation_hash(job_of()) == evaluation_hash(jobs[0])
