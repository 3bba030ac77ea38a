"""Makes one update. A custom task replaces `train_step` and keeps everything else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Protocol

import torch
from torch import Tensor

from runner.batch import (
    Batch,
    DataPosition,
    Embeddings,
    Prediction,
    row_counts,
    split_micro_batches,
)
from runner.errors import ConfigError, UserError
from runner.models.layers.part_exchange import PartExchange
from runner.models.layers.row_draws import RowDraws, row_draws
from runner.optim.penalties import penalty_values
from runner.training.update.closure import needs_closure
from runner.training.update.context import Context
from runner.training.update.gradients import add_gradients
from runner.training.update.row_seed import draw_seed


@dataclass(frozen=True)
class StepOutput:
    """The outcome of one update. Tensors stay on the device: reading them synchronises."""

    predictions: tuple[Prediction, ...]  # of each micro-batch, detached
    losses: tuple[dict[str, Tensor], ...]  # per row, by name, of each micro-batch, detached
    rows_B: Tensor  # numbers of the examples that it used
    cursor: DataPosition
    applied: bool  # False: a gradient was not finite and nothing was changed


class Task(Protocol):
    """What an update and an evaluation of a batch do.

    One return of `train_step` is one global step, however many optimizers stepped in it.

    A task may also have `setup(ctx)`, called once before a checkpoint is restored: it adds modules
    and optimizers of the task to the context, and raises ConfigError for what the task cannot do.
    A class attribute `looks_up_once = True` declares that the task looks up each batch that it
    takes once, and nothing else; a subclass with methods of its own must declare it anew.
    """

    def train_step(self, ctx: Context, batches: Iterator[Batch]) -> StepOutput: ...

    def eval_step(self, ctx: Context, batch: Batch) -> tuple[Prediction, dict[str, Tensor]]: ...


@dataclass
class StepCapture:
    """The outputs of the forward passes of one update, one entry for each micro-batch."""

    boundaries: list[Embeddings] = field(default_factory=list)
    predictions: list[Prediction] = field(default_factory=list)
    losses: list[dict[str, Tensor]] = field(default_factory=list)
    loss_shares: list[Tensor] = field(default_factory=list)  # of the update's loss


@dataclass(frozen=True)
class ComputedPart:
    """The outputs of the forward and backward pass of some rows."""

    loss: Tensor  # their share of the update's loss, detached
    boundary: Embeddings  # with the gradient of these rows
    prediction: Prediction  # detached
    losses: dict[str, Tensor]  # per row, by name, detached
    gradients: Sequence[Tensor | None] | None  # of the dense half; None: its parameters have them


class Supervised:
    """One update of a model by a loss, for each batch.

    The tables are looked up once for the whole batch and the graph is cut there; the dense half
    runs over micro-batches; the gradient gathered at the cut goes through the tables once. So N
    micro-batches equal one batch of N times the size, also for optimizers fused into the backward
    of the tables, and a gradient that is not finite changes nothing.
    """

    looks_up_once = True  # so that the ids of a batch can be sent early

    def setup(self, ctx: Context) -> None:
        """Check the optimizers that need a closure.

        Raises:
            ConfigError: for one that this job cannot use.
        """
        check_closure_optimizers(ctx)

    def train_step(self, ctx: Context, batches: Iterator[Batch]) -> StepOutput:
        batch = next(batches)
        with ctx.operation_threads():
            embeddings = ctx.model.embed(batch)
            if not isinstance(embeddings, Embeddings):
                raise UserError(
                    f"model.net: embed of {type(ctx.model).__name__} returned "
                    f"{type(embeddings).__name__}; it must return the runner.Embeddings that its "
                    "TableLookup returns"
                )
            # divided by the weight of the whole update: a short micro-batch counts only its rows
            total_weight = ctx.total_weight(batch)
            if needs_closure(ctx.dense_optimizer):
                capture, applied = self.update_with_closure(ctx, batch, embeddings, total_weight)
            else:
                capture = StepCapture()
                self.forward_backward(ctx, batch, embeddings, total_weight, capture)
                applied = ctx.update(embeddings, capture.boundaries)
        return StepOutput(
            tuple(capture.predictions), tuple(capture.losses), batch.rows_B, batch.cursor, applied
        )

    def forward_backward(
        self,
        ctx: Context,
        batch: Batch,
        embeddings: Embeddings,
        total_weight: Tensor,
        capture: StepCapture,
    ) -> None:
        """Gather the gradients of all micro-batches.

        Collective.

        Args:
            batch: of the whole update, on this rank.
            total_weight: of the rows of the update, over all ranks.
            capture: gets an entry for each micro-batch.

        Raises:
            UserError: if the model or the loss returns something else than it should.
        """
        penalties = penalty_values(ctx.penalties) if ctx.penalties else {}
        threads, num_rows = ctx.row_threads, ctx.rows_at_once(batch.size)
        at_once = threads is not None and threads.may_run_at_once()
        if threads is not None:
            num_rows = threads.rows_of_part(min(num_rows, batch.size), at_once=at_once)
        seed, first_row = draw_seed(ctx.ranks, batch.weights_B, is_shared=ctx.drops_by_row)
        compute = partial(compute_part, ctx, total_weight, penalties, seed, at_once)
        parts = zip(count(first_row, num_rows), split_micro_batches(batch, embeddings, num_rows))
        if threads is not None and at_once:
            num_parts = -(-batch.size // num_rows)
            exchange = PartExchange(num_parts) if threads.are_coupled else None
            computed = threads.map(compute, parts, exchange=exchange)
        else:
            computed = map(compute, parts)
        with ctx.operation_threads():  # also for tasks with another `train_step`
            for part in computed:
                if part.gradients is not None:
                    add_gradients(ctx.dense_parameters, part.gradients)
                capture.loss_shares.append(part.loss)
                capture.boundaries.append(part.boundary)
                capture.predictions.append(part.prediction)
                capture.losses.append(part.losses)

    def update_with_closure(
        self, ctx: Context, batch: Batch, embeddings: Embeddings, total_weight: Tensor
    ) -> tuple[StepCapture, bool]:
        """Step once by an optimizer that evaluates the loss several times.

        Every evaluation goes over all micro-batches.

        Returns:
            The forward passes of the first evaluation, and whether the update was applied.
        """
        evaluations: list[StepCapture] = []

        def closure() -> Tensor:
            capture = StepCapture()
            evaluations.append(capture)
            self.forward_backward(ctx, batch, embeddings, total_weight, capture)
            return torch.stack(capture.loss_shares).sum()

        applied = ctx.step(ctx.dense_optimizer, closure)
        return evaluations[0], applied

    def eval_step(self, ctx: Context, batch: Batch) -> tuple[Prediction, dict[str, Tensor]]:
        with ctx.autocast():
            prediction = ctx.model.predict_tasks(ctx.model.embed(batch), batch)
        return prediction, row_losses(ctx, prediction, batch)


def compute_part(
    ctx: Context,
    total_weight: Tensor,
    penalties: Mapping[str, Tensor],
    seed: int,
    at_once: bool,
    part: tuple[int, tuple[Batch, Embeddings]],
) -> ComputedPart:
    """Run the dense half forward and backward for some rows of an update.

    Args:
        total_weight: of the rows of the update, over all ranks.
        penalties: their values are part of each row's losses.
        seed: of random draws for rows, such as those of a dropout.
        at_once: whether other threads compute other rows, so that gradients are returned instead
            of being added to those of the parameters.
        part: the number of the first row in the update, the rows, and their look-ups, which get
            their gradient.

    Raises:
        UserError: if the model or the loss returns something else than it should.
    """
    first_row, (micro_batch, boundary) = part
    with row_draws(RowDraws(seed, first_row, micro_batch.size)):
        with ctx.autocast():
            prediction = ctx.model.predict_tasks(boundary, micro_batch)
        losses = row_losses(ctx, prediction, micro_batch)
    row_loss_B = (
        torch.stack(tuple(losses.values())).sum(0)
        if len(losses) > 1
        else next(iter(losses.values()))
    )
    if row_loss_B.dtype != micro_batch.weights_B.dtype:
        kind, needed = (
            str(t.dtype).removeprefix("torch.") for t in (row_loss_B, micro_batch.weights_B)
        )
        raise UserError(
            f"model.loss: {type(ctx.loss).__name__} returned losses in {kind}; it must return the "
            f"loss of each row in {needed}, as .to(torch.{needed}) makes it"
        )
    # The last bit of a dot product depends on the alignment of its rows in memory, which is another
    # in what a resume reads, and L-BFGS searches by this number. A copy begins at an aligned place.
    loss = torch.dot(row_loss_B, micro_batch.weights_B.clone()) / total_weight
    if not loss.requires_grad:
        raise UserError(
            f"model.loss: no gradient leads from {type(ctx.loss).__name__} to the model: something "
            "on the way cuts the graph, such as detach(), no_grad, item() or NumPy"
        )
    gradients = None
    if at_once:
        gradients = ctx.part_gradients(loss, boundary)
    else:
        ctx.backward(loss)
    if ctx.l2_lookups:
        ctx.add_lookup_penalty(boundary, micro_batch.weights_B, total_weight)
    detached = {name: loss_B.detach() for name, loss_B in losses.items()}
    for name, value in penalties.items():  # the same in every row, so the mean is the value
        detached[name] = value.to(row_loss_B.dtype).expand(len(row_loss_B))
    return ComputedPart(loss.detach(), boundary, prediction.detached(), detached, gradients)


def row_losses(ctx: Context, prediction: Prediction, batch: Batch) -> dict[str, Tensor]:
    """Return the losses of each row by name, [B] each, checking the outputs of model and loss.

    Raises:
        UserError: if the model or the loss returns something else than it should, or the tensors of
            the batch have different lengths.
    """
    model, expected = type(ctx.model).__name__, list(batch.labels_BT.shape)
    if not isinstance(prediction, Prediction):
        raise UserError(
            f"model.net: dense of {model} returned {type(prediction).__name__}; it must return a "
            "runner.Prediction, which Prediction.of(logits_BT, batch) makes"
        )
    if prediction.logits_BT.shape != batch.labels_BT.shape:
        sizes = row_counts(batch)
        if len(set(sizes.values())) > 1:
            listed = ", ".join(f"{name} {size:,}" for name, size in sizes.items())
            raise UserError(f"dataset: the rows of a batch differ in number: {listed}")
        raise UserError(
            f"model.net: dense of {model} returned logits of {list(prediction.logits_BT.shape)}; "
            f"they must be {expected}: the rows of the batch, and a column for each task"
        )
    losses = ctx.losses(prediction)
    if not isinstance(losses, Mapping) or not losses:
        what = type(losses).__name__ if losses is None or not isinstance(losses, Mapping) else "{}"
    else:
        rows = batch.weights_B.shape
        shapes = {name: getattr(loss, "shape", ()) for name, loss in losses.items()}
        bad = {name: list(shape) for name, shape in shapes.items() if shape != rows}
        what = ", ".join(f"{name!r} of {shape}" for name, shape in bad.items())
    if what:
        raise UserError(
            f"model.loss: {type(ctx.loss).__name__} returned {what}; it must return tensors of "
            f"{expected[:1]}, the loss of each row, by name, and neither their sum nor their mean"
        )
    return dict(losses)


def check_closure_optimizers(ctx: Context) -> None:
    """Check that an optimizer that needs a closure trains the whole dense half, and alone.

    Raises:
        ConfigError: with the reason why its closure could not compute the whole loss.
    """
    need_closure = {name: o for name, o in ctx.optimizers().items() if needs_closure(o)}
    if not need_closure:
        return
    [(name, optimizer), *others] = need_closure.items()
    kind = type(optimizer).__name__
    if name != "dense" or others or ctx.part_optimizers:
        raise ConfigError(
            f"{kind}: evaluates the loss several times in an update and moves its parameters in "
            "between, so it must be optimizer.dense and own all that is trained; parts may only "
            "freeze"
        )
    if ctx.table_groups:
        raise ConfigError(
            f"optimizer.dense: {kind} evaluates the loss several times in an update, and tables "
            "are updated inside every backward; freeze them with "
            "optimizer.parts=[{pattern: '^tables', frozen: true}]"
        )
    why = f"optimizer.dense: {kind} searches along the gradient of the loss, of which"
    if ctx.loss_scale:
        raise ConfigError(
            f"{why} fp16 scaling would make another one; trainer.amp_dtype=bf16 works"
        )
    if ctx.clip.is_enabled:
        raise ConfigError(
            f"{why} trainer.clip would make another one; set its bounds to null, as in "
            "trainer.clip.global_norm=null"
        )
