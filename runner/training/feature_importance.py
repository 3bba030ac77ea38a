"""Measures the importance of each feature of a trained model: first-order and by permutation.

Both look at the cut between the look-ups and the dense half, where a feature is a few columns of
the pooled embeddings, a sequence of them, or a number. First order is SHARK's estimate (Zhang and
others 2023, arXiv:2308.09395): with the gradient g of a row's loss at a look-up e, and the mean
look-up m, replacing e by m changes the loss by about g . (m - e). We take its absolute value row by
row, since where a table has been trained to the optimum the signed effects of its rows cancel.

N rows, B rows of a batch, W columns of a feature, L sequence length, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from runner.batch import Batch, Embeddings, Prediction, Schema, dense_rows
from runner.embeddings.interface import feature_columns
from runner.errors import ConfigError
from runner.models.layers.embedding import LINEAR_SUFFIX, TableLookup, count_equal_columns
from runner.models.layers.recommender import Recommender
from runner.models.layers.sequences import SequenceLookup, is_event
from runner.models.retrieval.retrieval_model import RetrievalModel
from runner.training.catalogue import open_catalogue
from runner.training.job import Job
from runner.training.loops.recorder import reduce_metrics


@dataclass(frozen=True)
class CutFeature:
    """The place of a feature at the cut."""

    name: str
    kind: str  # number, ids or sequence
    columns: tuple[int, ...] = ()  # of the numbers, or of the pooled embeddings
    place: int = 0  # among the sequences
    num_linear: int = 0  # how many of the columns, the last ones, are of first-order weights
    num_equal: int = 1  # and how many of those side by side stand for one weight, see FirstOrder


def find_cut_features(model: Recommender, schema: Schema) -> list[CutFeature]:
    """Return the features of a model, for a retrieval model without those of the item.

    Raises:
        ConfigError: for a model with its own look-ups, whose columns are unknown.
    """
    lookups = [module for module in model.modules() if isinstance(module, TableLookup)]
    if len(lookups) != 1:
        raise ConfigError(
            f"importance: {type(model).__name__} has {len(lookups)} look-ups of tables, not one, "
            "so the columns of its features are not known"
        )
    [lookup] = lookups
    sequences = lookup.sequences if isinstance(lookup, SequenceLookup) else ()
    features = lookup.pooled_features if isinstance(lookup, SequenceLookup) else schema.sparse
    columns = feature_columns(lookup.specs, lookup.features)
    num_equal = count_equal_columns(lookup.linear) if lookup.linear else 1
    pooled = {}
    for f in features:
        parts = [columns[f.name]]
        if lookup.linear:
            parts.append(columns[f"{f.name}{LINEAR_SUFFIX}"])
        pooled[f.name] = [column for part in parts for column in range(part.start, part.stop)]
    items = {f.name for f in model.item_features} if isinstance(model, RetrievalModel) else set()
    cut_features = [CutFeature(name, "number", (i,)) for i, name in enumerate(schema.dense)]
    cut_features += [
        CutFeature(n, "ids", tuple(c), num_linear=num_equal * lookup.linear, num_equal=num_equal)
        for n, c in pooled.items()
        if n not in items
    ]
    cut_features += [CutFeature(s.name, "sequence", place=i) for i, s in enumerate(sequences)]
    return cut_features


@dataclass(frozen=True)
class Cut:
    """Rows at the cut; nothing has a gradient yet."""

    batch: Batch
    embeddings: Embeddings
    split: str  # that the rows are of

    @classmethod
    def of(cls, job: Job, split: str, num_rows: int) -> Cut:
        """Look up the first rows of a split."""
        batch = next(iter(job.dataset.batches(split, batch_size=num_rows)))
        batch = batch.to(job.context.device)
        with torch.no_grad():
            return cls(batch, job.context.model.embed(batch), split)

    def rows(self, rows: slice) -> Cut:
        """Return some rows, whose look-ups and numbers collect gradients."""
        batch = dense_rows(self.batch, rows)
        batch = replace(batch, dense_BD=batch.dense_BD.clone().requires_grad_())
        return Cut(batch, self.embeddings.detached(rows), self.split)

    def values(self, feature: CutFeature) -> Tensor:
        """Return the values of a feature, [N, W], or [N, L, D] of a sequence."""
        leaf = self._leaf(feature)
        return leaf if feature.kind == "sequence" else leaf[:, list(feature.columns)]

    def gradients(self, feature: CutFeature) -> Tensor:
        """Return the gradient of `values`; zero for what the model does not read."""
        leaf = self._leaf(feature)
        gradient = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        if feature.kind == "sequence":
            return gradient
        gradient = gradient[:, list(feature.columns)]
        if feature.num_linear:  # each of the equal columns has the gradient of their mean
            gradient[:, -feature.num_linear :] /= feature.num_equal
        return gradient

    def is_event(self, feature: CutFeature) -> Tensor:
        """Return which places of a sequence hold an event, [N, L]."""
        length_N = self.embeddings.per_row[f"{feature.name}:length"]
        num_places = self.embeddings.sequences_BLD[feature.place].shape[1]
        return is_event(length_N, num_places)

    def mean(self, feature: CutFeature) -> Tensor:
        """Return the mean value, [W] over rows by their weight, or [D] over events."""
        values, weight = self.values(feature), self.batch.weights_B
        if feature.kind == "sequence":
            weight = (self.is_event(feature) * weight[:, None]).flatten()
            values = values.flatten(0, 1)
        return (weight @ values) / weight.sum().clamp_min(torch.finfo(weight.dtype).tiny)

    def with_mean(self, feature: CutFeature, mean: Tensor) -> Cut:
        """Return the rows with the mean in place of the feature's values."""
        values = self.values(feature)
        means = mean.expand_as(values)
        if feature.kind == "sequence":
            means = torch.where(self.is_event(feature)[:, :, None], means, values)
        return self._with_values(feature, means)

    def with_rows_of(self, other: Cut, feature: CutFeature, row_B: Tensor) -> Cut:
        """Return the rows with a feature's values taken from rows of another cut."""
        changed = self._with_values(feature, other.values(feature)[row_B])
        if feature.kind != "sequence":
            return changed
        names = (f"{feature.name}:ids", f"{feature.name}:length")
        permuted = {name: other.embeddings.per_row[name][row_B] for name in names}
        embeddings = changed.embeddings
        return replace(
            changed, embeddings=replace(embeddings, per_row={**embeddings.per_row, **permuted})
        )

    def _leaf(self, feature: CutFeature) -> Tensor:
        if feature.kind == "sequence":
            return self.embeddings.sequences_BLD[feature.place]
        return self.batch.dense_BD if feature.kind == "number" else self.embeddings.pooled_BE

    def _with_values(self, feature: CutFeature, values: Tensor) -> Cut:
        if feature.kind == "sequence":
            sequences = list(self.embeddings.sequences_BLD)
            sequences[feature.place] = values
            return replace(
                self, embeddings=replace(self.embeddings, sequences_BLD=tuple(sequences))
            )
        changed = self._leaf(feature).detach().clone()
        changed[:, list(feature.columns)] = values
        if feature.kind == "number":
            return replace(self, batch=replace(self.batch, dense_BD=changed))
        return replace(self, embeddings=replace(self.embeddings, pooled_BE=changed))


def first_order_effects(job: Job, cut: Cut, features: list[CutFeature]) -> list[float]:
    """Return the mean over rows of |g . (m - e)| for each feature, in units of the loss."""
    means = [cut.mean(feature) for feature in features]
    totals = torch.zeros(len(features), dtype=torch.float64, device=job.context.device)
    for rows in _row_slices(job, cut):
        part = cut.rows(rows)
        _, losses = _predict(job, part)
        row_loss_B = torch.stack(tuple(losses.values())).sum(0)
        torch.autograd.backward(torch.dot(row_loss_B, part.batch.weights_B))
        for place, (feature, mean) in enumerate(zip(features, means)):
            effect = part.gradients(feature) * (mean - part.values(feature).detach())
            if feature.kind == "sequence":
                effect = effect * part.is_event(feature)[:, :, None]
            totals[place] += effect.flatten(1).sum(1).abs().sum().double()
        job.context.model.zero_grad(set_to_none=True)
    total_weight = float(cut.batch.weights_B.sum())  # sync
    return [value / max(total_weight, 1e-30) for value in totals.tolist()]  # sync


def metrics_at_mean(job: Job, cut: Cut, feature: CutFeature) -> dict[str, float]:
    """Return the metrics of the rows with a feature's look-up replaced by its mean."""
    mean = cut.mean(feature)
    return measure_rows(job, cut, lambda part, rows: part.with_mean(feature, mean))


def metrics_permuted(job: Job, cut: Cut, feature: CutFeature, seed: int) -> dict[str, float]:
    """Return the metrics of the rows with a feature's values permuted among the rows."""
    row_N = torch.from_numpy(permuted_rows(cut.batch.size, feature.name, seed))
    row_N = row_N.to(cut.batch.labels_BT.device)
    return measure_rows(job, cut, lambda part, rows: part.with_rows_of(cut, feature, row_N[rows]))


def permuted_rows(num_rows: int, feature: str, seed: int) -> np.ndarray:
    """Return the row, [N], that each row takes a feature from; each feature has its own order."""
    return np.random.default_rng([seed, *feature.encode()]).permutation(num_rows)


@torch.no_grad()
def measure_rows(
    job: Job, cut: Cut, change: Callable[[Cut, slice], Cut] = lambda part, rows: part
) -> dict[str, float]:
    """Return the metrics of an evaluation of the rows, each batch changed before the dense half."""
    metrics = job.make_metrics(True)
    settings = job.metric_settings
    with open_catalogue(job.context.model, settings, job.dataset, cut.split):
        for rows in _row_slices(job, cut):
            metrics.update(*_predict(job, change(cut.rows(rows), rows)))
    return reduce_metrics(metrics, job.context.ranks)[0]


def _row_slices(job: Job, cut: Cut) -> list[slice]:
    size = job.trainer.eval_batch_size or job.trainer.batch_size
    return [slice(start, start + size) for start in range(0, cut.batch.size, size)]


def _predict(job: Job, cut: Cut) -> tuple[Prediction, dict[str, Tensor]]:
    context = job.context
    with context.autocast():
        prediction = context.model.predict_tasks(cut.embeddings, cut.batch)
    return prediction, dict(context.loss(prediction))
