"""`index MODEL --evaluate DIR`: the rankings of a run's evaluation, through an index as served.

B rows of a batch, K items that are searched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from runner.errors import UserError
from runner.metrics.factory import make_metrics
from runner.metrics.names import parse_cutoff, split_task
from runner.reporting.console import View
from runner.serving.artifact.model_facts import checkpoint_hash
from runner.serving.artifact.raw_rows import EncodedRows
from runner.serving.export.plan import files_in_place_of_split
from runner.serving.export.promise import RowQueue
from runner.serving.export.run_inputs import find_run_inputs
from runner.serving.items.item_index import ItemIndex
from runner.serving.items.item_table import find_item_feature
from runner.serving.scorer import Scorer
from runner.training.builder import build_job
from runner.training.job import Job
from runner.training.loops.evaluate_split import evaluate_split, select_splits
from runner.training.loops.recorder import reduce_metrics
from runner.training.state import restore_weights

MRR_DEPTH = 100  # items searched for mrr, which has no cutoff; later ranks count 0


def evaluate_index(
    config: Mapping[str, Any], model: Path, format: str, index: ItemIndex, allowed: Sequence[str]
) -> dict[str, Any]:
    """Measure the rankings of a split exactly and through an index.

    Args:
        config: by `plan_evaluation`.
        model: the folder of the artifact, whose graph makes the queries.
        format: of that graph. The caller has asked whether machine code (aoti) is trusted.
        allowed: packages that a `_target_` may name besides ours.

    Returns:
        `split`, `rows_from`, and `evaluated` and `through_index`: ranking metric -> value. An item
        that the index does not find has an infinite rank.

    Raises:
        UserError: if the run is not the one that was exported.
    """
    view = View()
    job = build_job(config, None, view=view, allowed=allowed)
    assert job.source_checkpoint is not None
    scorer = Scorer.load(model, format=format, trust_native_code=True)
    exported = scorer.artifact.manifest["checkpoint"]
    if checkpoint_hash(job.source_checkpoint.path) != exported["sha256"]:
        raise UserError(
            f"--evaluate {config['run']}: {model} was exported from another checkpoint; name its "
            f"run, and checkpoint.step={exported['step']}"
        )
    restore_weights(job.context, job.source_checkpoint)
    split = select_splits(job)[0]
    with view.evaluation(job.dataset.num_rows[split]):
        evaluated = evaluate_split(job, split)
    assert evaluated is not None
    through_index = _evaluate_through(job, scorer, index, split)
    names = {split_task(name)[0] for name in job.metric_settings.ranking_metrics}
    shown = [key for key in evaluated if key in through_index and split_task(key)[0] in names]
    return {
        "split": split,
        "rows_from": files_in_place_of_split(config["dataset"]),
        "evaluated": {key: evaluated[key] for key in shown},
        "through_index": {key: through_index[key] for key in shown},
    }


def _evaluate_through(job: Job, scorer: Scorer, index: ItemIndex, split: str) -> dict[str, float]:
    """Return the metrics of a split with ranks taken from the results of the index."""
    assert job.source_checkpoint is not None
    run_dir = job.source_checkpoint.path.parent.parent
    inputs = find_run_inputs(job.config, job.dataset, run_dir)
    rows = RowQueue(replace(inputs, raw=scorer.artifact.raw).encoded_rows(split))
    settings = job.metric_settings
    depth = max(parse_cutoff(name)[1] or MRR_DEPTH for name in settings.ranking_metrics)
    rankings = replace(settings, eval=list(settings.ranking_metrics), slice_by=None)
    metrics = make_metrics(job.dataset.schema, job.device, rankings, True)
    job.context.set_eval_mode()
    with job.context.evaluation_weights(), torch.no_grad():
        for batch in job.dataset.batches(split, batch_size=job.trainer.batch_size):
            prediction, losses = job.task.eval_step(job.context, batch)
            rank_B = torch.from_numpy(find_ranks(scorer, index, rows.take(batch.size), depth))
            metrics.update(replace(prediction, aux={**prediction.aux, "rank_B": rank_B}), losses)
    return reduce_metrics(metrics, job.context.ranks)[0]


def find_ranks(scorer: Scorer, index: ItemIndex, rows: EncodedRows, depth: int) -> np.ndarray:
    """Return the rank of each row's item among the items found, [B]; infinite if it is not found.

    Ties count against the item, as in an evaluation.
    """
    item = find_item_feature(scorer.artifact)
    assert item is not None
    positions_BK, scores_BK = scorer.search(index, rows, depth)
    found_BK = np.where(positions_BK < 0, -1, index.rows_I[positions_BK])
    is_item_BK = found_BK == rows.ids[item.name].values[:, None]
    own_B1 = np.where(is_item_BK, scores_BK, np.inf).min(axis=1, keepdims=True)
    rank_B = (scores_BK >= own_B1).sum(axis=1).astype(np.float32)
    return np.where(is_item_BK.any(axis=1), rank_B, np.float32(np.inf))
