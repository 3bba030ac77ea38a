"""The state of a training, and how it and all tensors are written to and read from checkpoints."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from torch import Tensor, nn

from runner.batch import DataPosition
from runner.config.early_stopping import PatienceState
from runner.distributed.shards import local_row, stack_by_rank
from runner.embeddings.step_counts import check_step_counts
from runner.errors import ConfigError
from runner.metrics.protocol import Metrics
from runner.optim.dense import create_dense_states, dense_state_tensors, dense_state_values
from runner.rundir.checkpoint import Checkpoint, load_tensors, read_tensors, tensor_shapes
from runner.training.job import Job
from runner.training.linear_weights import check_linear_weights
from runner.training.rng_state import (
    RNG_PREFIX,
    restore_rng_state,
    rng_state_tensors,
    rng_state_values,
    seed_rank,
)
from runner.training.update.context import Context
from runner.training.update.parameters import (
    LOSS_PREFIX,
    TASK_PREFIX,
    table_prefixes,
    trained_parameters,
)

GROWING_PREFIX = "growing/"  # prefix of the names of maps from ids to rows in a checkpoint
EMA_PREFIX = "ema/"  # prefix of the names of moving averages in a checkpoint
_METRICS_PREFIX = "metrics/train/"
_PER_RANK_PREFIXES = (_METRICS_PREFIX, RNG_PREFIX)  # of tensors that have a row for each rank


@dataclass
class BestEvaluation:
    """The best evaluation so far, by the monitored metric."""

    step: int
    examples: int
    value: float
    metrics: dict[str, float] = field(default_factory=dict)  # of the monitored split


@dataclass
class TrainState:
    """Position and history of a training. Counts are those of all ranks together."""

    step: int = 0  # updates done
    examples: int = 0
    cursor: DataPosition = field(default_factory=DataPosition)
    skipped: int = 0  # updates that changed nothing, since a gradient was not finite
    skipped_in_a_row: int = 0  # up to now
    active_s: float = 0.0  # spent training, over all restarts
    best: BestEvaluation | None = None
    evaluation_due: bool = False  # at `step`, where a signal stopped the run before it
    train_metrics: dict[str, float] = field(default_factory=dict)  # as last logged
    logged_step: int = -1
    rates: dict[str, float] = field(default_factory=dict)  # learning rates of the last update
    lr_scale: float = 1.0  # multiplies the rates of the schedule; lowered on a plateau
    batch_multiplier: int = 1  # original updates in one, raised on a plateau
    waits: dict[str, PatienceState] = field(default_factory=dict)  # by name of the trainer's rule
    stopped: str | None = None  # why the run ended early
    validation_metrics: dict[str, float] = field(default_factory=dict)  # of the last evaluation
    validation_step: int = -1  # of the weights that it evaluated
    notes: dict[str, Sequence[str]] = field(default_factory=dict)  # split -> of its last evaluation


def weight_tensors(ctx: Context) -> dict[str, Tensor]:
    """Return the live tensors of all weights: what evaluation, export and a warm start need."""
    tables = {
        f"tables/{name}": t for name, t in ctx.tables.state().items() if name.endswith("/weight")
    }
    prefixes = table_prefixes(ctx.model)
    dense = {
        f"dense/{name}": t
        for name, t in ctx.model.state_dict().items()
        if not name.startswith(prefixes)
    }
    if isinstance(ctx.loss, nn.Module):
        dense |= {f"dense/{LOSS_PREFIX}{name}": t for name, t in ctx.loss.state_dict().items()}
    for name, module in ctx.task_modules.items():
        dense |= {f"dense/{TASK_PREFIX}{name}.{key}": t for key, t in module.state_dict().items()}
    return tables | dense


def growing_tensors(ctx: Context) -> dict[str, Tensor]:
    """Return the live maps from ids to rows; empty if no table grows."""
    if ctx.growing is None:
        return {}
    return {f"{GROWING_PREFIX}{name}": t for name, t in ctx.growing.tensors().items()}


def rebuild_growing_ids(ctx: Context) -> None:
    """Rebuild the maps after their tensors were loaded in place."""
    if ctx.growing is not None:
        ctx.growing.rebuild()


def ema_tensors(ctx: Context) -> dict[str, Tensor]:
    """Return the live moving averages of the dense half; empty if the job keeps none."""
    if ctx.ema is None:
        return {}
    return {f"{EMA_PREFIX}{name}": t for name, t in ctx.ema.tensors().items()}


def checkpoint_tensors(ctx: Context, train_metrics: Metrics) -> dict[str, Tensor]:
    """Return the live tensors that a resumed run continues from, without the random states.

    Train metrics have a row for each rank: its sums since the last log, not yet merged.
    """
    state = weight_tensors(ctx) | ema_tensors(ctx) | growing_tensors(ctx)
    tables = ctx.tables.state() | ctx.tables.resume_state()
    state |= {f"tables/{name}": t for name, t in tables.items()}
    parameters = trained_parameters(ctx)
    for optimizer in ctx.optimizers().values():  # names are unique: a parameter has one owner
        state |= {
            f"dense_optimizer/{n}": t for n, t in dense_state_tensors(optimizer, parameters).items()
        }
    state |= {
        f"{_METRICS_PREFIX}{name}": stack_by_rank(t, ctx.ranks.rank, ctx.ranks.world_size)
        for name, t in train_metrics.state().items()
    }
    if ctx.loss_scale is not None:
        state["loss_scale"] = ctx.loss_scale.state
    return state


def checkpoint_values(state: TrainState, ctx: Context, **more: Any) -> dict[str, Any]:
    """Return the JSON of a checkpoint.

    It holds the state, the random states of all ranks, the placement of the tables, and what the
    caller adds as `more`. Collective.
    """
    fields = asdict(state)
    fields["growth"] = fields.pop("batch_multiplier")  # the key that checkpoints have always had
    return {
        **fields,
        "random": ctx.ranks.all_gather_object(rng_state_values()),
        "dense_optimizer": optimizer_values(ctx),
        "numbers": ctx.ranks.all_gather_object(ctx.logged_means.state()),
        "table_updates": ctx.prior_table_updates,
        "placement": [asdict(placement) for placement in ctx.tables.placement()],
        **more,
    }


def optimizer_values(ctx: Context) -> dict[str, Any]:
    """Return the JSON states of all optimizers but those of the tables, by parameter."""
    parameters = trained_parameters(ctx)
    values: dict[str, Any] = {}
    for optimizer in ctx.optimizers().values():
        values |= dense_state_values(optimizer, parameters)
    return values


def train_state_from_values(saved: Mapping[str, Any]) -> TrainState:
    """Return the state that the JSON of a checkpoint holds."""
    names = [f.name for f in fields(TrainState) if f.name in saved]  # older lack some
    known = {name: saved[name] for name in names}
    best, waits = saved["best"], saved.get("waits", {})
    known |= {
        "cursor": DataPosition(**saved["cursor"]),
        "best": best and BestEvaluation(**{**best, "value": float(best["value"])}),
        "batch_multiplier": saved.get("growth", 1),
        "waits": {name: _patience_state(values) for name, values in waits.items()},
    }
    return TrainState(**known)


def _patience_state(saved: Mapping[str, Any]) -> PatienceState:
    best = saved["best"]  # infinity is written as text
    return PatienceState(**{**saved, "best": None if best is None else float(best)})


def restore_checkpoint(job: Job, saved: Checkpoint) -> TrainState:
    """Restore a checkpoint into the job, in place, and return its state.

    On the number of ranks that saved it, each rank continues exactly where it was. On another
    number, all tensors and sums are kept, and ranks that did not exist then draw from new random
    states. On a device of another kind, a GPU's random state is dropped or starts anew.

    Raises:
        ConfigError: if its tasks share linear weights, and those of the job have their own.
    """
    ctx, ranks = job.context, job.context.ranks
    check_linear_weights(ctx.model, weight_tensors(ctx), saved)
    fresh = starts_optimizers_afresh(job)
    if not fresh:
        states = saved.values["dense_optimizer"]
        create_dense_states(list(ctx.optimizers().values()), trained_parameters(ctx), states)
    saved_shapes = tensor_shapes(saved)
    _restore_loss_parts(job.train_metrics, saved, saved_shapes)
    into = checkpoint_tensors(ctx, job.train_metrics)
    if fresh:
        into = _without_optimizer_states(ctx, into, saved_shapes)
    starts_ema = ctx.ema is not None and not any(n.startswith(EMA_PREFIX) for n in saved_shapes)
    if starts_ema:  # this resume asks for averages first: they start from the restored weights
        into = {n: t for n, t in into.items() if not n.startswith(EMA_PREFIX)}
    generators = rng_state_tensors(job.device, ranks)
    torch_rng = f"{RNG_PREFIX}torch"
    if saved_shapes.get(torch_rng) == tuple(generators[torch_rng].shape):
        generators = {n: t for n, t in generators.items() if saved_shapes.get(n) == tuple(t.shape)}
        unused = [n for n in saved_shapes if n.startswith(RNG_PREFIX) and n not in generators]
        spare = read_tensors(saved, unused) if unused else {}
        load_tensors(saved, into | generators | spare, partial=fresh)
        own_rows = {n: local_row(t) for n, t in generators.items()}
        restore_rng_state(own_rows, saved.values["random"][ranks.rank], job.device)
    else:
        _restore_on_other_ranks(job, saved, into, saved_shapes)
    if fresh and any(f"tables/{name}" not in into for name in ctx.tables.resume_state()):
        ctx.tables.take_over_weights()
    if starts_ema and ctx.ema is not None:
        ctx.ema.reset()
    rebuild_growing_ids(ctx)
    ctx.logged_means.load_state_for_rank(saved.values.get("numbers", []), ranks)
    job.learning_rates.load_states(saved.values.get("schedules", {}))
    state = train_state_from_values(saved.values)
    ctx.prior_table_updates = dict(saved.values.get("table_updates", {}))
    if fresh:  # added to the run's updates, it makes the moments' count 0 here
        names = [spec.name for t in ctx.table_groups.values() for spec in t.layout.tables]
        ctx.prior_table_updates |= dict.fromkeys(names, state.skipped - state.step)
    check_step_counts(ctx.table_groups, ctx.prior_table_updates)
    return state


def _restore_loss_parts(
    metrics: Metrics, saved: Checkpoint, saved_shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Make room for the sums of a checkpoint, and take the names of their parts."""
    names = saved.values.get("loss_parts", ())  # older lack them
    by_rank = saved_shapes.get(f"{_METRICS_PREFIX}losses")
    metrics.restore_loss_parts(names, room=by_rank[-1] - 1 if by_rank else 0)


def starts_optimizers_afresh(job: Job) -> bool:
    """Return whether a resume discards the optimizers' states of its checkpoint."""
    return job.checkpoint.optimizer_state == "fresh"


def _without_optimizer_states(
    ctx: Context, tensors: Mapping[str, Tensor], saved_names: Collection[str]
) -> dict[str, Tensor]:
    """Leave out states, and what tables resume from if the checkpoint has none of it."""
    states = {f"tables/{n}" for n in ctx.tables.state() if not n.endswith("/weight")}
    states |= {f"tables/{n}" for n in ctx.tables.resume_state()}.difference(saved_names)
    return {
        name: tensor
        for name, tensor in tensors.items()
        if name not in states and not name.startswith("dense_optimizer/")
    }


def _restore_on_other_ranks(
    job: Job, saved: Checkpoint, into: Mapping[str, Tensor], saved_names: Iterable[str]
) -> None:
    """Restore tensors and random states where another number of ranks saved them."""
    ranks, rng_values = job.context.ranks, saved.values["random"]
    shared = {n: t for n, t in into.items() if not n.startswith(_PER_RANK_PREFIXES)}
    load_tensors(saved, shared, partial=True)
    rows = read_tensors(saved, [n for n in saved_names if n.startswith(_PER_RANK_PREFIXES)])
    if ranks.is_main:
        names = [n for n in rows if n.startswith(_METRICS_PREFIX)]
        job.train_metrics.reset()
        for rank in range(len(rng_values)):
            sums = {n.removeprefix(_METRICS_PREFIX): rows[n][rank] for n in names}
            job.train_metrics.merge(sums)
    if ranks.rank < len(rng_values):
        own_rows = {n: t[ranks.rank] for n, t in rows.items() if n.startswith(RNG_PREFIX)}
        restore_rng_state(own_rows, rng_values[ranks.rank], job.device)
    else:
        seed_rank(job.seed, ranks.rank, step=saved.step)


def restore_weights(ctx: Context, saved: Checkpoint) -> None:
    """Restore only the weights, in place, and their averages if evaluations use them.

    The maps from ids to the rows of growing tables belong to the weights.

    Raises:
        ConfigError: if evaluations use averages and the checkpoint holds none, or if its tasks
            share linear weights, and those of the job have their own.
    """
    check_linear_weights(ctx.model, weight_tensors(ctx), saved)
    into = weight_tensors(ctx) | growing_tensors(ctx)
    if ctx.ema is not None and ctx.ema.use_in_evaluation and (averages := ema_tensors(ctx)):
        into |= averages
        if not any(name.startswith(EMA_PREFIX) for name in tensor_shapes(saved)):
            raise ConfigError(
                f"trainer.ema.evaluate=true: {saved.path} holds no moving average: its run kept "
                "none; trainer.ema.decay=null evaluates its weights"
            )
    # `resume_state` gives look-ups to the last bit; weights without it are taken over
    resumed = {f"tables/{name}": t for name, t in ctx.tables.resume_state().items()}
    if resumed and resumed.keys() <= tensor_shapes(saved).keys():
        load_tensors(saved, into | resumed, partial=True)
    else:
        load_tensors(saved, into, partial=True)
        ctx.tables.take_over_weights()
    rebuild_growing_ids(ctx)
