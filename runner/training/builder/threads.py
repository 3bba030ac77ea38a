"""Decides how an update uses threads, and whether it is large enough for more than one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from threadpoolctl import threadpool_limits
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from runner.batch import Schema
from runner.data.core.dataset import Dataset
from runner.embeddings.cpu_tables import CpuTables
from runner.machine.cores import usable_cores
from runner.models.layers.dropout import Dropout
from runner.models.layers.members import MemberLinear
from runner.models.layers.mlp import RowSequential
from runner.models.layers.periodic import PeriodicNumbers
from runner.models.row_scope import UPDATE_SCOPE, loss_row_scope
from runner.training.update.context import Context
from runner.training.update.determinism import is_of_own_class
from runner.training.update.row_threads import RowThreads

# Multiplications of a forward pass. On two cores a second thread brings 0.9 to 0.95 of the speed up
# to 3.6e8 of them (DLRM, MLP and DeepFM of 4,096 rows), 1.1 at 3.9e8 and 1.6 at 1.8e9: `python -m
# bench.threads`. Small updates are many short operations, at each of which the threads wake.
LEAST_WORK = 380_000_000

# Parts of the rows of an update, each with a thread: Python runs in one of them at a time, so that
# with many a thread would wait for the others. Further cores share the operations of a part.
MAX_THREADS = 4
MAX_READERS = 3  # threads of the process that reads for a GPU; more wait for Python as well
LEAST_WORK_OF_PART = 25_000_000  # multiplications; less is not worth waking a thread


def choose_threads(
    context: Context, config: Mapping[str, Any], products: int, num_rows: int, dataset: Dataset
) -> None:
    """Choose what the threads of this process do, where the dense half is not compiled.

    Args:
        context: gets threads for rows of an update, where these do not depend on each other.
        products: multiplications of a row, from `count_products`.
        num_rows: of a rank, in one forward pass.
        dataset: reads ahead where operations leave a core to it, in a process if they are a GPU's.
    """
    is_cpu = context.device.type == "cpu"
    if is_cpu:
        threadpool_limits(1, user_api="blas")  # NumPy's products are within threads of the rows
    if is_cpu and (threads := thread_rows(context, config, products, num_rows)) is not None:
        context.row_threads = threads
        for tables in context.model.modules():
            if isinstance(tables, CpuTables):
                tables.use_threads(threads.run_all, threads.num_threads)
    # streams, and datasets of one's own, may lack these
    read_ahead = getattr(dataset, "read_ahead", lambda: None)
    if not is_cpu:
        # concurrent jobs of a sweep get their share of the cores as a number of threads
        share = config["trainer"]["num_threads"]
        cores = share or usable_cores() // context.ranks.local_world_size
        in_process = getattr(dataset, "read_in_process", lambda threads: read_ahead())
        in_process(min(max(cores - 2, 1), MAX_READERS))  # two: the training, and who collates
    elif config["trainer"]["num_threads"] is None and limit_threads(
        context.model, products, num_rows
    ):
        read_ahead()


def thread_rows(
    context: Context, config: Mapping[str, Any], products: int, num_rows: int
) -> RowThreads | None:
    """Return threads that compute different rows of an update, if rows do not depend on each other.

    Rows depend on each other in a loss that compares rows, and in a batch norm. For a batch norm
    the threads exchange sums, but not with a user's code: that is watched in the first update of a
    process, which one thread computes, so that a resume would differ by rounding. PyTorch's own
    dropout draws its numbers in sequence, and a user's class may not be thread-safe unless it
    declares `rows_in_threads = True`: such models use threads within operations instead.

    Args:
        products: multiplications of a row, from `count_products`.
        num_rows: of a rank, in one forward pass.
    """
    parts = [context.model, *([context.loss] if isinstance(context.loss, nn.Module) else [])]
    modules = [module for part in parts for module in part.modules()]
    are_coupled = bool(context.update_states)
    if (
        loss_row_scope(config, UPDATE_SCOPE) is not None
        or any(map(_draws_or_couples_rows, modules))
        or not all(map(_bears_threads, [*modules, context.loss]))
        or (are_coupled and not _may_exchange(context, config, [*modules, context.loss]))
    ):
        return None
    num_cores, work = torch.get_num_threads(), products * num_rows
    num_threads = min(num_cores, MAX_THREADS, work // LEAST_WORK_OF_PART)
    if num_threads < 2:
        return None
    within = num_cores // num_threads if work >= num_threads * LEAST_WORK else 1
    return RowThreads(modules, num_threads, num_threads_within=within, are_coupled=are_coupled)


def _may_exchange(context: Context, config: Mapping[str, Any], parts: Collection[object]) -> bool:
    """Return whether threads can exchange sums of their rows, see `thread_rows`."""
    has_own_task = not config["task"]["_target_"].startswith("runner.")
    norms_of_updates = [norm for norm in context.batch_norms if norm.scope == UPDATE_SCOPE]
    return (
        len(norms_of_updates) == len(context.update_states)
        and not context.ranks.is_distributed
        and context.amp_dtype is None
        and not has_own_task
        and not any(map(is_of_own_class, parts))
    )


def _draws_or_couples_rows(module: nn.Module) -> bool:
    """Return whether a module draws numbers in sequence, or computes statistics over rows."""
    if isinstance(module, Dropout):  # its draws belong to rows
        return False
    # p of modules that drop, dropout of attention and recurrent networks
    rates = (getattr(module, name, 0.0) for name in ("p", "dropout"))
    return isinstance(module, nn.RReLU | _NormBase) or any(
        isinstance(rate, float) and rate > 0 for rate in rates
    )


def _bears_threads(part: object) -> bool:
    # a subclass with methods of its own must declare it anew
    return not is_of_own_class(part) or bool(vars(type(part)).get("rows_in_threads", False))


def limit_threads(model: nn.Module, products: int, num_rows: int) -> bool:
    """Let operations of this process have one thread where more would make them slower.

    The size of the model decides and not a measurement, so that equal runs have equal threads. A
    model of a user's own keeps its threads, since what it computes is not known.

    Args:
        products: multiplications of a row, from `count_products`.
        num_rows: of a rank, in one forward pass.

    Returns:
        Whether there were more.
    """
    is_ours = type(model).__module__.startswith("runner.")
    if not is_ours or products * num_rows >= LEAST_WORK or torch.get_num_threads() == 1:
        return False
    torch.set_num_threads(1)
    return True


def count_products(
    model: nn.Module, weights: Collection[Tensor], schema: Schema, width: int
) -> int:
    """Return the multiplications of a row by the weights of the dense half, rather too many.

    Each weight of an MLP counts once, or for each of the members that share it, and those of the
    waves of a number once; every other one for each feature, as an attention over features has it,
    or each column of the widest table, as a CIN has it, whichever are more; and all of them for
    each event of the longest sequence.
    """
    times: dict[Tensor, int] = {}
    for module in model.modules():  # a module comes before those that it holds
        if isinstance(module, RowSequential | PeriodicNumbers):
            times |= dict.fromkeys(module.parameters(), 1)
        elif isinstance(module, MemberLinear):
            times[module.shared.weight] = module.num_members
    places = max(len(schema.dense) + len(schema.sparse), width)
    events = max((sequence.max_length for sequence in schema.sequences), default=1)
    return events * sum(
        weight.numel() * times.get(weight, places) for weight in weights if weight.dim() > 1
    )
