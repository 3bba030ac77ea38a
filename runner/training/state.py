"""TrainState: all that a checkpoint holds beside the tensors, and how both go out and come back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from runner.batch import Cursor
from runner.config.early_stopping import Wait
from runner.distributed.shards import own_row, stack_of_ranks
from runner.embeddings.step_counts import check_counts
from runner.errors import ConfigError
from runner.metrics.protocol import Metrics
from runner.models.layers.embedding import TableLookup
from runner.models.losses import Loss
from runner.optim.dense import create_states, dense_state, dense_values
from runner.rundir.checkpoint import Saved, load_tensors, read_tensors, tensor_shapes
from runner.training.rng_state import (
    RNG,
    continue_randomly,
    random_tensors,
    random_values,
    seed_rank,
)
from runner.training.update.context import Context

if TYPE_CHECKING:
    from runner.training.job import Job

EMA = "ema/"  # before the names of moving averages in a checkpoint
# before the names of what a loss and a task bring: no part of a model may be called so
LOSS, TASK = "loss.", "task."


@dataclass
class Best:
    """The best evaluation so far, by the monitored metric."""

    step: int
    examples: int
    value: float
    metrics: dict[str, float] = field(default_factory=dict)  # of the monitored split


@dataclass
class TrainState:
    """Position and history of a training. Counts are of all ranks together."""

    step: int = 0  # updates done
    examples: int = 0
    cursor: Cursor = field(default_factory=Cursor)
    skipped: int = 0  # updates whose gradient was not finite: counted as steps, changed nothing
    active_s: float = 0.0  # spent training, over all restarts
    best: Best | None = None
    evaluated_step: int = -1  # of the last evaluation
    evaluation_due: bool = False  # it was due at `step` and a signal came first
    train_metrics: dict[str, float] = field(default_factory=dict)  # as last logged
    logged_step: int = -1
    rates: dict[str, float] = field(default_factory=dict)  # of the last update
    lr_scale: float = 1.0  # of the schedule's rates, lowered on a plateau
    growth: int = 1  # original updates in one, raised on a plateau
    waits: dict[str, Wait] = field(default_factory=dict)  # of the rules in trainer.*, by name
    stopped: str | None = None  # why the run ended before its length


def dense_parameters(model: nn.Module, loss: Loss) -> dict[str, nn.Parameter]:
    """What the dense optimizer trains, by name: the model but its tables, and the loss.

    Names of a loss's parameters, such as learnt weights of tasks, begin with `loss.`.
    """
    prefixes = _table_prefixes(model)
    found = {name: p for name, p in model.named_parameters() if not name.startswith(prefixes)}
    if isinstance(loss, nn.Module):
        found |= {f"{LOSS}{name}": p for name, p in loss.named_parameters()}
    return {name: p for name, p in found.items() if p.requires_grad}


def parameters_of(ctx: Context) -> dict[str, nn.Parameter]:
    """All that is trained, by name, but the tables."""
    found = dense_parameters(ctx.model, ctx.loss)
    for name, module in ctx.own_modules.items():
        own = {f"{TASK}{name}.{n}": p for n, p in module.named_parameters()}
        found |= {n: p for n, p in own.items() if p.requires_grad}
    return found


def _table_prefixes(model: nn.Module) -> tuple[str, ...]:
    return tuple(f"{name}." for name, m in model.named_modules() if isinstance(m, TableLookup))


def weights(ctx: Context) -> dict[str, Tensor]:
    """Live tensors of all weights: what evaluation, export and a warm start need."""
    tables = {
        f"tables/{name}": t for name, t in ctx.tables.state().items() if name.endswith("/weight")
    }
    prefixes = _table_prefixes(ctx.model)
    dense = {
        f"dense/{name}": t
        for name, t in ctx.model.state_dict().items()
        if not name.startswith(prefixes)
    }
    if isinstance(ctx.loss, nn.Module):
        dense |= {f"dense/{LOSS}{name}": t for name, t in ctx.loss.state_dict().items()}
    for name, module in ctx.own_modules.items():
        dense |= {f"dense/{TASK}{name}.{key}": t for key, t in module.state_dict().items()}
    return tables | dense


def averages(ctx: Context) -> dict[str, Tensor]:
    """Live tensors of the moving averages of the dense half, where they are kept."""
    if ctx.average is None:
        return {}
    return {f"{EMA}{name}": t for name, t in ctx.average.tensors().items()}


def tensors(ctx: Context, train_metrics: Metrics) -> dict[str, Tensor]:
    """Live tensors of everything that a resumed run continues from, but the random states.

    Train metrics have a row for each rank: their sum since the last log, before it is merged.
    """
    state = weights(ctx) | averages(ctx)
    state |= {f"tables/{name}": t for name, t in ctx.tables.state().items()}
    parameters = parameters_of(ctx)
    for optimizer in ctx.optimizers().values():  # each parameter has one owner, so no name twice
        state |= {f"dense_optimizer/{n}": t for n, t in dense_state(optimizer, parameters).items()}
    state |= {
        f"metrics/train/{name}": stack_of_ranks(t, ctx.ranks.rank, ctx.ranks.world_size)
        for name, t in train_metrics.state().items()
    }
    if ctx.loss_scale is not None:
        state["loss_scale"] = ctx.loss_scale.state
    return state


def values(state: TrainState, ctx: Context, **more: Any) -> dict[str, Any]:
    """Collective. JSON of a checkpoint: the state, the random states of all ranks, the plan of the
    tables, and what the caller adds."""
    return {
        **asdict(state),
        "random": ctx.ranks.gather(random_values()),
        "dense_optimizer": optimizer_values(ctx),
        "numbers": ctx.ranks.gather(ctx.numbers.state()),
        "table_updates": ctx.table_updates,
        "placement": [asdict(piece) for piece in ctx.tables.placement()],
        **more,
    }


def optimizer_values(ctx: Context) -> dict[str, Any]:
    """JSON of the states of all optimizers but the tables', by parameter."""
    parameters = parameters_of(ctx)
    found: dict[str, Any] = {}
    for optimizer in ctx.optimizers().values():
        found |= dense_values(optimizer, parameters)
    return found


def from_values(saved: Mapping[str, Any]) -> TrainState:
    best = saved["best"]
    return TrainState(
        step=saved["step"],
        examples=saved["examples"],
        cursor=Cursor(**saved["cursor"]),
        skipped=saved["skipped"],
        active_s=saved["active_s"],
        best=None if best is None else Best(**{**best, "value": float(best["value"])}),
        evaluated_step=saved["evaluated_step"],
        evaluation_due=saved["evaluation_due"],
        train_metrics=dict(saved["train_metrics"]),
        # what came later is not in the checkpoints of older runs
        logged_step=saved.get("logged_step", -1),
        rates=dict(saved.get("rates", {})),
        lr_scale=saved.get("lr_scale", 1.0),
        growth=saved.get("growth", 1),
        waits={name: _wait(wait) for name, wait in saved.get("waits", {}).items()},
        stopped=saved.get("stopped"),
    )


def _wait(saved: Mapping[str, Any]) -> Wait:
    best = saved["best"]  # infinity is written as text
    return Wait(**{**saved, "best": None if best is None else float(best)})


def restore(job: Job, saved: Saved) -> TrainState:
    """Puts a checkpoint back into the job, in place, and returns its state.

    On as many ranks as have saved it, each goes on where it was; on others all of the tensors and
    sums are kept, and ranks that there were not draw from random states of their own. Where the
    device is of another kind, a GPU's random state stays behind, or begins anew.
    """
    ctx, ranks = job.context, job.context.ranks
    states = saved.values["dense_optimizer"]
    create_states(list(ctx.optimizers().values()), parameters_of(ctx), states)
    into = tensors(ctx, job.train_metrics)
    generators = random_tensors(job.device, ranks)
    theirs, known = saved.values["random"], tensor_shapes(saved)
    begins = ctx.average is not None and not any(name.startswith(EMA) for name in known)
    if begins:  # asked for at this resume: the averages begin with the weights as they are
        into = {n: t for n, t in into.items() if not n.startswith(EMA)}
    if known.get(f"{RNG}torch") == tuple(generators[f"{RNG}torch"].shape):
        generators = {n: t for n, t in generators.items() if known.get(n) == tuple(t.shape)}
        unused = [n for n in known if n.startswith(RNG) and n not in generators]
        spare = read_tensors(saved, unused) if unused else {}
        load_tensors(saved, into | generators | spare)
        continue_randomly(
            {n: own_row(t) for n, t in generators.items()}, theirs[ranks.rank], job.device
        )
    else:
        whole = {n: t for n, t in into.items() if not n.startswith(_OF_RANKS)}
        load_tensors(saved, whole, partial=True)
        rows = read_tensors(saved, [n for n in known if n.startswith(_OF_RANKS)])
        if ranks.is_chief:
            sums = {n.removeprefix(_METRICS): t for n, t in rows.items() if n.startswith(_METRICS)}
            job.train_metrics.reset()
            for rank in range(len(theirs)):
                job.train_metrics.merge({n: rows_R[rank] for n, rows_R in sums.items()})
        if ranks.rank < len(theirs):
            own = {n: t[ranks.rank] for n, t in rows.items() if n.startswith(RNG)}
            continue_randomly(own, theirs[ranks.rank], job.device)
        else:
            seed_rank(job.seed, ranks.rank, step=saved.step)
    if begins and ctx.average is not None:
        ctx.average.restart()
    ctx.numbers.load_of_rank(saved.values.get("numbers", []), ranks)
    ctx.table_updates = dict(saved.values.get("table_updates", {}))
    check_counts(ctx.table_groups, ctx.table_updates)
    return from_values(saved.values)


_METRICS = "metrics/train/"
_OF_RANKS = (_METRICS, RNG)  # names of tensors that have a row for each rank


def restore_weights(job: Job, saved: Saved) -> None:
    """Only the weights, in place, and their averages where they are evaluated.

    Raises: ConfigError if the checkpoint holds no averages.
    """
    ctx = job.context
    into = weights(ctx)
    if ctx.average is not None and ctx.average.evaluate:
        into |= averages(ctx)
        if not any(name.startswith(EMA) for name in tensor_shapes(saved)):
            raise ConfigError(
                f"trainer.ema.evaluate=true: {saved.path} holds no moving average: its run kept "
                "none; trainer.ema.decay=null evaluates its weights"
            )
    copy_in(saved, into)


def copy_in(saved: Saved, into: Mapping[str, Tensor]) -> None:
    """Some tensors of a checkpoint, in place."""
    load_tensors(saved, into, partial=True)
