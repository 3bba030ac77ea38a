"""Checks that an artifact scores as its run was evaluated, on a split of the run's dataset.

B batch, T tasks, R rows.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from runner.batch import Batch, Prediction
from runner.data.columns.raw_ids import RawIds
from runner.data.prepare.progress import show_progress
from runner.models.retrieval.retrieval_model import RetrievalModel
from runner.serving.artifact.raw_rows import EncodedRows
from runner.serving.export.run_inputs import RunInputs
from runner.serving.items.item_vectors import all_item_vectors
from runner.serving.scorer import Scorer
from runner.training.catalogue import attach_slices, open_catalogue
from runner.training.job import Job
from runner.training.loops.recorder import reduce_metrics
from runner.training.update.context import Context

# How far a metric may differ from that of the evaluation. The graph of a .pt2 has the operators of
# the model; a compiler or another runtime adds in another order.
BOUNDS: Mapping[str | None, float] = {None: 1e-5, "fp16": 1e-4, "int8": 2e-3, "int4": 2e-2}
LOGIT_BOUND = 1e-4  # of a whole graph, relative to the largest logit or 1
MOVED_ROWS = 4  # number of rows whose ranks rounding may change
# of a whole graph, relative to the logit or 1: metrics are computed with the model's logit where it
# is so close, since rounding would order rows that are equal for the model
ROUNDING = 1e-5
LATENCY_ROWS = (1, 64, 1024)


@dataclass
class Comparison:
    """The comparison of an artifact with its evaluation."""

    metrics: dict[str, float]
    without_rounding: dict[str, float] | None = None  # the metrics if rounding changed no logit
    largest_difference: float = 0.0  # of a logit
    largest_logit: float = 0.0
    problems: list[str] = field(default_factory=list)


def compare(
    job: Job, scorer: Scorer, inputs: RunInputs, split: str, evaluated: Mapping[str, float]
) -> Comparison:
    """Score a split from its raw rows, and compare metrics and logits with the model's own.

    A model trained with `trainer.amp=true` scores in float32 here, as its artifact does.

    Args:
        job: with the weights of the artifact.
        scorer: of the artifact, whose transforms are used.
        evaluated: metrics of `loop=eval` on this split.
    """
    context, model = job.context, job.context.model
    is_amp = context.amp_dtype is not None
    quantise = scorer.artifact.manifest["quantise"]
    metrics, of_model, rounded = (job.make_metrics(True) for _ in range(3))
    settings = job.metric_settings
    rows = RowQueue(replace(inputs, raw=scorer.artifact.raw).encoded_rows(split))
    result = Comparison({})
    context.set_eval_mode()
    catalogue = open_catalogue(model, settings, job.dataset, split)
    label = f"scoring the {split} split from its files"
    shown = show_progress(label, job.dataset.num_rows[split])
    weights = context.evaluation_weights()
    with without_autocast(context), weights, torch.no_grad(), catalogue, shown as advance:
        if isinstance(model, RetrievalModel) and model.items_ID is not None:
            items_ID = torch.from_numpy(all_item_vectors(scorer, model.item.num_rows))
        else:
            items_ID = None
        for batch in job.dataset.batches(split, batch_size=job.trainer.batch_size):
            prediction, own_losses = job.task.eval_step(context, batch)
            scored = _score(scorer, rows.take(batch.size), prediction, batch, model, items_ID)
            # rows skipped as bad have weight 0, and any score
            counted_B1 = (batch.weights_B > 0)[:, None]
            difference_BT = (scored.logits_BT - prediction.logits_BT).abs() * counted_B1
            result.largest_difference = max(result.largest_difference, float(difference_BT.max()))
            size_BT = prediction.logits_BT.abs()
            result.largest_logit = max(result.largest_logit, float((size_BT * counted_B1).max()))
            losses = dict(context.loss(scored))
            slices = batch, job.dataset.schema, settings.slice_by, model
            metrics.update(attach_slices(scored, *slices), losses)
            if quantise is None:
                is_rounding_BT = difference_BT <= ROUNDING * size_BT.clamp(min=1.0)
                logits_BT = torch.where(is_rounding_BT, prediction.logits_BT, scored.logits_BT)
                rounded.update(attach_slices(replace(scored, logits_BT=logits_BT), *slices), losses)
            if is_amp:
                of_model.update(attach_slices(prediction, *slices), own_losses)
            advance(batch.size)
    result.metrics, _ = reduce_metrics(metrics, context.ranks)
    if quantise is None:
        result.without_rounding, _ = reduce_metrics(rounded, context.ranks)
    if is_amp:
        evaluated, _ = reduce_metrics(of_model, context.ranks)
    if isinstance(model, RetrievalModel):  # losses are of sampled items
        evaluated, result.metrics = _without_losses(evaluated), _without_losses(result.metrics)
    result.problems = _find_problems(result, evaluated, scorer, job, split)
    return result


@contextmanager
def without_autocast(context: Context) -> Iterator[None]:
    """Switch autocast off within the block, so that the model computes in float32."""
    dtype, context.amp_dtype = context.amp_dtype, None
    try:
        yield
    finally:
        context.amp_dtype = dtype


def _score(
    scorer: Scorer,
    rows: EncodedRows,
    prediction: Prediction,
    batch: Batch,
    model: torch.nn.Module,
    items_ID: torch.Tensor | None,
) -> Prediction:
    """Return the model's prediction with its values replaced by those of the artifact."""
    aux = dict(prediction.aux)
    if isinstance(model, RetrievalModel) and items_ID is not None:
        embeddings = model.embed(batch)
        query_BD = torch.from_numpy(scorer.vectors("query", rows))
        own_ID, model.items_ID = model.items_ID, items_ID
        per_row = embeddings.per_row
        aux |= model.rank_in_catalogue(query_BD, per_row["item"], per_row, batch.rows_B)
        model.items_ID = own_ID
    logits_BT = torch.from_numpy(np.ascontiguousarray(scorer.logits(rows)))
    return replace(prediction, logits_BT=logits_BT, aux=aux)


def _without_losses(metrics: Mapping[str, float]) -> dict[str, float]:
    return {n: value for n, value in metrics.items() if n.partition("/")[0] != "loss"}


def _find_problems(
    result: Comparison, evaluated: Mapping[str, float], scorer: Scorer, job: Job, split: str
) -> list[str]:
    quantise = scorer.artifact.manifest["quantise"]
    bound = BOUNDS[quantise]
    moved = MOVED_ROWS / job.dataset.num_rows[split]
    compared = result.metrics if result.without_rounding is None else result.without_rounding
    problems = []
    for name, value in evaluated.items():
        now = compared.get(name, math.nan)
        if math.isnan(value) and math.isnan(now):
            continue
        if not abs(now - value) <= bound * max(1.0, abs(value)) + moved * bound**0.5:
            problems.append(f"{split}/{name} is {now:.6f}, and {value:.6f} in the evaluation")
    allowed = LOGIT_BOUND * max(1.0, result.largest_logit)
    if quantise is None and not result.largest_difference <= allowed:
        problems.append(
            f"a logit differs by {result.largest_difference:.3g}; at most {allowed:.3g} is rounding"
        )
    return problems


class RowQueue:
    """A queue of encoded rows, from which any number of rows can be taken."""

    def __init__(self, chunks: Iterator[EncodedRows]) -> None:
        self._chunks = chunks
        self._rest: EncodedRows | None = None
        self._at = 0

    def take(self, count: int) -> EncodedRows:
        parts: list[EncodedRows] = []
        while count:
            if self._rest is None or self._at == self._rest.num_rows:
                self._rest, self._at = next(self._chunks), 0
                continue
            stop = min(self._at + count, self._rest.num_rows)
            parts.append(row_range(self._rest, self._at, stop))
            count -= stop - self._at
            self._at = stop
        return parts[0] if len(parts) == 1 else concat_rows(parts)


def row_range(rows: EncodedRows, start: int, stop: int) -> EncodedRows:
    """Return consecutive rows, which are there."""
    ids = {}
    for name, raw in rows.ids.items():
        offsets = None if raw.offsets_R1 is None else raw.offsets_R1[start : stop + 1]
        low, high = (start, stop) if offsets is None else offsets[[0, -1]]
        ids[name] = RawIds(
            raw.values[low:high],
            raw.missing[low:high],
            None if offsets is None else offsets - low,
            weights=None if raw.weights is None else raw.weights[low:high],
        )
    dense = {name: x_R[start:stop] for name, x_R in rows.dense.items()}
    return EncodedRows(stop - start, dense, ids, rows.bad_R[start:stop])


def concat_rows(parts: list[EncodedRows]) -> EncodedRows:
    """Return the rows of several parts, one after another."""
    ids = {}
    for name, first in parts[0].ids.items():
        raws = [part.ids[name] for part in parts]
        offsets = None
        if first.offsets_R1 is not None:
            lengths = [np.diff(raw.offsets_R1) for raw in raws if raw.offsets_R1 is not None]
            offsets = np.cumsum(np.concatenate([[0], *lengths]))
        weights = [raw.weights for raw in raws if raw.weights is not None]
        ids[name] = RawIds(
            np.concatenate([raw.values for raw in raws]),
            np.concatenate([raw.missing for raw in raws]),
            offsets,
            weights=np.concatenate(weights) if weights else None,
        )
    dense = {n: np.concatenate([part.dense[n] for part in parts]) for n in parts[0].dense}
    bad_R = np.concatenate([part.bad_R for part in parts])
    return EncodedRows(sum(part.num_rows for part in parts), dense, ids, bad_R)


def first_rows(inputs: RunInputs, split: str, count: int) -> EncodedRows:
    """Return the first rows of a split, repeated if it has fewer."""
    rows = next(chunk for chunk in inputs.encoded_rows(split) if chunk.num_rows)
    while rows.num_rows < count:
        rows = concat_rows([rows, rows])
    return row_range(rows, 0, count)


def measure_latency(job: Job, scorer: Scorer, rows: EncodedRows, split: str) -> dict[str, Any]:
    """Time model and graphs on prepared inputs, microseconds of the fastest call.

    Args:
        rows: of the split, as many as are scored at once.
    """
    model = job.context.model
    batches: dict[int, Batch] = {}
    for size in LATENCY_ROWS:
        long_enough = [s for s in (split, *job.dataset.num_rows) if job.dataset.num_rows[s] >= size]
        if long_enough:
            batches[size] = next(iter(job.dataset.batches(long_enough[0], batch_size=size)))
    times: dict[str, Any] = {"eager": {}, "exported": {}}
    for size, batch in batches.items():
        first = row_range(rows, 0, size)
        ready = [(spec.name, scorer.arrays(spec.name, first)) for spec in scorer.artifact.graphs]

        def exported(ready: list[tuple[str, list[np.ndarray]]] = ready) -> None:
            for name, arrays in ready:
                scorer.run_arrays(name, arrays)

        with torch.no_grad(), job.context.evaluation_weights():
            eager_us, exported_us = _fastest_us(partial(model, batch), exported)
        times["eager"][str(size)], times["exported"][str(size)] = eager_us, exported_us
    return times


def _fastest_us(*calls: Callable[[], object]) -> list[float]:
    """Time functions in turns for a second; return the fastest call of each, as least disturbed."""
    times_of_calls: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call()
    while sum(map(sum, times_of_calls)) < 1.0 and len(times_of_calls[0]) < 200:
        for call, times in zip(calls, times_of_calls):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
    return [round(min(times) * 1e6, 1) for times in times_of_calls]
