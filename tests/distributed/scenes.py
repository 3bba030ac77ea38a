"""Scenes that two ranks play in the tests: `python -m tests.distributed.scenes NAME`.

A rank that finds a difference raises an error, with which the process ends.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from runner.batch import Batch
from runner.config.settings import TrainerSettings
from runner.distributed.all_reduce import all_reduce_gradients
from runner.distributed.launcher import ProcessResult, run_on_ranks
from runner.distributed.process_group import join_process_group, leave_process_group
from runner.distributed.ranks import Ranks
from runner.distributed.shards import LocalShards
from runner.embeddings.factory import build_tables
from runner.embeddings.frozen_tables import FROZEN_SETTINGS, FrozenTables
from runner.embeddings.interface import EmbeddingTables, TableSpec
from runner.embeddings.placement import shard_tables
from runner.embeddings.sharding_settings import PLANS, ShardingSettings, engine_name
from runner.errors import ConfigError, DataError, UserError
from runner.models.dlrm import DLRM
from runner.optim.penalties import resolve_penalties
from runner.optim.penalty_settings import parse_penalties
from runner.optim.settings import SPARSE_KINDS, ClipSettings, parse_sparse
from runner.training.job import Job
from runner.training.loops.evaluate_split import evaluate_split
from runner.training.state import TrainState
from runner.training.steps import steps
from runner.training.stop_signal import StopSignal
from runner.training.update.parameters import dense_parameters
from runner.training.update.sparse_dist_pipeline import SparseDistPipeline
from runner.training.update.task import Supervised
from tests.tiny import CPU, SCHEMA, make_context, random_batch
from tests.tiny_job import Rows, make_job

SPECS = [
    TableSpec("shared", 70_001, 8, ("a", "c")),
    TableSpec("mean", 11, 4, ("b",), pooling="mean"),
    TableSpec("one", 1, 8, ("d",)),
]
ANY_WIDTH = [replace(spec, dim=dim) for spec, dim in zip(SPECS, (10, 4, 7))]
FEATURES = ("a", "b", "c", "d")
SIZES = {"a": 70_001, "b": 11, "c": 70_001, "d": 1}
SEED, TIMEOUT_S = 7, 60


def ids(size: int, seed: int, *, weighted: bool = False) -> KeyedJaggedTensor:
    """Return 0 to 2 ids for each row and feature, many of them equal."""
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 3, (len(FEATURES), size), generator=g)
    values = [
        torch.randint(0, min(SIZES[f], 20), (int(n),), generator=g) * max(SIZES[f] // 20, 1)
        for f, n in zip(FEATURES, lengths.sum(1))
    ]
    weights = torch.randn(sum(map(len, values)), generator=g) if weighted else None
    return KeyedJaggedTensor(
        list(FEATURES), torch.cat(values), weights=weights, lengths=lengths.flatten()
    )


def concat_batches(batches: list[KeyedJaggedTensor]) -> KeyedJaggedTensor:
    values = [torch.cat([b[f].values() for b in batches]) for f in FEATURES]
    lengths = [torch.cat([b[f].lengths() for b in batches]) for f in FEATURES]
    weights = None
    if batches[0].weights_or_none() is not None:
        weights = torch.cat([b[f].weights() for f in FEATURES for b in batches])
    return KeyedJaggedTensor(
        list(FEATURES), torch.cat(values), weights=weights, lengths=torch.cat(lengths)
    )


def assert_holds(tables: EmbeddingTables, whole: EmbeddingTables, atol: float, where: str) -> None:
    """Check that every shard of this rank equals its part of the tables of one process."""
    ours, theirs = tables.state(), whole.state()
    assert ours.keys() == theirs.keys(), (where, sorted(ours), sorted(theirs))
    for name, tensor in ours.items():
        assert tensor.shape == theirs[name].shape, (where, name, tensor, theirs[name].shape)
        if isinstance(tensor, LocalShards):
            parts = [(p.offset, p.tensor) for p in tensor.shards]
        else:
            parts = [((0,) * tensor.dim(), tensor)]
        for offset, part in parts:
            region = tuple(slice(o, o + n) for o, n in zip(offset, part.shape))
            near = {"atol": atol, "rtol": 1e-6 if atol else 0.0}  # sums of squares grow large
            torch.testing.assert_close(part, theirs[name][region], **near, msg=f"{where}: {name}")


def steps_equal_one_process(
    ranks: Ranks,
    plan: str,
    kind: str,
    table_plans: dict[str, str],
    *,
    weighted: bool = False,
    specs: list[TableSpec] = SPECS,
    **settings: object,
) -> None:
    where = f"{plan} {table_plans} {kind} {settings}{' weighted' * weighted}"
    specs = [replace(spec, weighted=weighted) for spec in specs]
    settings = parse_sparse({"kind": kind, "lr": 0.1, **settings})
    sharding = ShardingSettings(plan=plan, tables=table_plans, min_columns=4)
    tables = shard_tables(
        specs,
        FEATURES,
        settings,
        sharding,
        ranks,
        seed=SEED,
        device=CPU,
        batch_size=8,
        scratch=Path(tempfile.gettempdir()),  # its files have no names
    )
    whole = build_tables(specs, FEATURES, settings, seed=SEED, device=CPU)
    assert_holds(tables, whole, 0, f"{where} at the start")
    sizes = [5, 4]  # as in the last batch of an epoch
    rows = slice(0, sizes[0]) if ranks.is_main else slice(sizes[0], None)
    for step in (1, 2, 3):
        batches = [ids(n, 10 * step + r, weighted=weighted) for r, n in enumerate(sizes)]
        for each in (tables, whole):
            each.set_lr_and_step(0.1, step)
        with torch.no_grad():
            whole(batches[0])  # an evaluation in between changes nothing
            tables(batches[ranks.rank])
        mine, all_of_it = tables(batches[ranks.rank]), whole(concat_batches(batches))
        torch.testing.assert_close(mine, all_of_it[rows], rtol=0, atol=2e-6)
        gradient = torch.randn(all_of_it.shape, generator=torch.Generator().manual_seed(step))
        mine.backward(gradient[rows])
        all_of_it.backward(gradient)
        assert_holds(tables, whole, 5e-6, f"{where} after update {step}")


def tables_scene(ranks: Ranks) -> None:
    for plan in PLANS:
        for kind in SPARSE_KINDS:  # every cell of the table of docs/ranks.md
            if engine_name(plan, kind, on_cpu=True):
                steps_equal_one_process(ranks, plan, kind, {})
                continue
            with pytest.raises(ConfigError, match=plan):
                steps_equal_one_process(ranks, plan, kind, {})
    mixed = {"mean": "table_wise", "one": "data_parallel"}
    for kind in ("rowwise_adagrad", "adam"):
        steps_equal_one_process(ranks, "row_wise", kind, mixed)
    for plan, kind in (
        ("row_wise", "rowwise_adagrad"),
        ("row_wise", "adam"),
        ("table_wise", "sgd"),
        ("table_wise", "adam"),
        ("column_wise", "adagrad"),
        ("table_row_wise", "adagrad"),
        ("data_parallel", "rowwise_adagrad"),
    ):
        steps_equal_one_process(ranks, plan, kind, {}, weighted=True)
    steps_equal_one_process(ranks, "row_wise", "sgd", mixed, weighted=True)
    for plan, kind in (
        ("row_wise", "rowwise_adagrad"),
        ("row_wise", "partial_rowwise_adam"),
        ("table_wise", "sgd"),
        ("column_wise", "adagrad"),
        ("data_parallel", "lamb"),
    ):
        steps_equal_one_process(ranks, plan, kind, {}, specs=ANY_WIDTH)
    steps_equal_one_process(ranks, "row_wise", "rowwise_adagrad", mixed, specs=ANY_WIDTH)
    for plan in ("row_wise", "table_wise", "data_parallel", "disk"):
        for dtype in ("bf16", "fp16"):
            steps_equal_one_process(ranks, plan, "adam", {}, specs=ANY_WIDTH, dtype=dtype)
    every_row = {"every_row": True, "l2_tables": 0.1}
    for plan in PLANS:
        if plan in ("column_wise", "disk"):
            with pytest.raises(ConfigError, match=f"{plan}: with"):
                steps_equal_one_process(ranks, plan, "sgd", {}, **every_row)
            continue
        steps_equal_one_process(ranks, plan, "sgd", {}, specs=ANY_WIDTH, l2_tables=0.1)
        kind = "rowwise_adagrad" if plan == "row_wise" else "adam"
        steps_equal_one_process(ranks, plan, kind, {}, specs=ANY_WIDTH, **every_row)


def updates_scene(ranks: Ranks) -> None:
    """Two ranks with micro-batches equal one process with all rows, also in a short last window.

    A NaN on one rank stops all.
    """
    every_row = {"every_row": True, "l2_tables": 0.01, "l2_lookups": 0.1}
    for kind, sparse in (
        ("sgd", {}),
        ("adagrad", {"l2_lookups": 0.1}),
        ("rowwise_adagrad", {}),
        ("adam", {}),
        ("adam", every_row),
        ("sgd", {"l2_tables": 0.1}),
    ):
        one = make_context(kind, **sparse)
        one.ranks = Ranks()
        two = make_context(kind, micro_batch_size=7, **sparse)
        lookup = two.model.embedding
        two.tables = shard_tables(
            lookup.specs,
            lookup.features,
            parse_sparse({"kind": kind, "lr": 0.1, **sparse}),
            ShardingSettings(plan="row_wise"),
            ranks,
            seed=0,
            device=CPU,
            batch_size=32,
        )
        lookup.attach_tables(two.tables)
        if kind != "rowwise_adagrad":  # clipping and penalties see the update of both ranks
            for context in (one, two):
                context.clip = ClipSettings(global_norm=0.1, parameter_norm=0.05, value=0.01)
                entries = [{"pattern": "weight$", "l1": 0.001, "l2": 0.01}]
                named = dense_parameters(context.model, context.loss)
                context.penalties = resolve_penalties(parse_penalties(entries), named, [])
                context.log_gradients = "parameters"
        for step, size in ((1, 64), (2, 64), (3, 25)):  # the last in micro-batches of 7 to 1 rows
            batch = random_batch(size, step)
            rows = slice(0, size * 5 // 8) if ranks.is_main else slice(size * 5 // 8, size)
            part = part_of(batch, rows)
            for context in (one, two):
                context.tables.set_lr_and_step(0.1, step)
            Supervised().train_step(one, iter([batch]))
            Supervised().train_step(two, iter([part]))
            assert_dense_equal(one, two, 2e-6, f"{kind} update {step}")
            assert_holds(two.tables, one.tables, 5e-6, f"{kind} update {step}")
        norms = [context.logged_means.means(context.ranks) for context in (one, two)]
        assert norms[1] == pytest.approx(norms[0], rel=1e-4), kind
        assert ("gradient_norm/tables.a" in norms[0]) == (kind != "rowwise_adagrad")
        before = {n: p.detach().clone() for n, p in two.model.named_parameters()}
        poisoned = part_of(random_batch(64, 9), slice(0, 8))
        if not ranks.is_main:
            poisoned.dense_BD[2, 1] = float("nan")
        two.tables.set_lr_and_step(0.1, 4)
        assert not Supervised().train_step(two, iter([poisoned])).applied
        for name, p in two.model.named_parameters():
            assert torch.equal(p, before[name]), name


def closures_scene(ranks: Ranks) -> None:
    """Every evaluation of L-BFGS's closure has the batches of both ranks; tables do not change."""
    one, two = make_context("sgd"), make_context("sgd", micro_batch_size=7)
    one.ranks = Ranks()
    lookup = two.model.embedding
    plan = ShardingSettings(plan="row_wise")
    where = {"seed": 0, "device": CPU}
    two.tables = FrozenTables(
        shard_tables(
            lookup.specs, lookup.features, FROZEN_SETTINGS, plan, ranks, batch_size=32, **where
        ),
        device=CPU,
    )
    one.tables = FrozenTables(
        build_tables(lookup.specs, lookup.features, FROZEN_SETTINGS, **where), device=CPU
    )
    before = {n: t.clone() for n, t in one.tables.state().items()}
    for context in (one, two):
        context.model.embedding.attach_tables(context.tables)
        parameters = list(dense_parameters(context.model, context.loss).values())
        context.dense_optimizer = torch.optim.LBFGS(parameters, lr=0.3, max_iter=4)
    for step in (1, 2):
        batch = random_batch(64, step)
        rows = slice(0, 40) if ranks.is_main else slice(40, 64)
        Supervised().train_step(one, iter([batch]))
        Supervised().train_step(two, iter([part_of(batch, rows)]))
        assert_dense_equal(one, two, 2e-5, f"L-BFGS update {step}")
    assert all(torch.equal(t, before[n]) for n, t in one.tables.state().items())
    assert_holds(two.tables, one.tables, 0, "frozen tables")
    initial = dict(make_context("sgd").model.named_parameters())
    moved = [not torch.equal(p, initial[n]) for n, p in two.model.named_parameters()]
    assert moved and all(moved), "all dense parameters have changed"
    assert two.dense_optimizer.state, "L-BFGS has made the step"


def pipelines_scene(ranks: Ranks) -> None:
    """TorchRec's pipeline changes when ids are sent, and no bit of any number."""
    for kind, plan, table_plans in (
        ("rowwise_adagrad", "row_wise", {}),
        ("sgd", "table_wise", {}),
        ("adagrad", "column_wise", {"m": "row_wise"}),
        ("rowwise_adagrad", "row_wise", {"a": "data_parallel", "b": "table_wise"}),
    ):
        plain, ahead = (
            trained(ranks, kind, plan, table_plans, ids_ahead=on) for on in (False, True)
        )
        where = f"{kind} {plan} {table_plans}"
        assert len(plain) == 9, where
        for number, (a, b) in enumerate(zip(plain, ahead, strict=True)):
            assert torch.equal(a, b), f"{where}: {number} of losses, metrics and weights"


def trained(
    ranks: Ranks, kind: str, plan: str, table_plans: dict[str, str], *, ids_ahead: bool
) -> list[torch.Tensor]:
    """Return the losses of two epochs, metrics of an evaluation in between, and all weights."""
    job = sharded_job(ranks, kind, plan, table_plans, ids_ahead=ids_ahead)
    losses, found = [], []
    for output in steps(job, TrainState()):
        losses.append(torch.cat([loss for part in output.losses for loss in part.values()]))
        if ids_ahead:  # those of the next batch are under way already, in every module
            assert job.context.sparse_dist is not None
            [stages] = job.context.sparse_dist._running
            requests = stages.contexts[1].input_dist_tensors_requests
            assert len(requests) == len(job.context.tables.torchrec_modules()) > 0
        if len(losses) == 3:  # in the middle of the pipeline
            for max_batches in (None, 2):
                metrics = evaluate_split(job, "train", max_batches=max_batches)
                found.append(torch.tensor(list(metrics.values())))
    assert len(losses) == 8
    shards = [s for _, t in sorted(job.context.tables.state().items()) for s in local_tensors(t)]
    flat = [torch.cat([s.flatten() for s in shards])]
    flat.append(torch.cat([p.detach().flatten() for p in job.context.model.parameters()]))
    return [torch.cat(losses[:3]), *losses[3:7], torch.cat(losses[7:]), *found, torch.cat(flat)]


def local_tensors(tensor: torch.Tensor) -> list[torch.Tensor]:
    return [p.tensor for p in tensor.shards] if isinstance(tensor, LocalShards) else [tensor]


def sharded_job(
    ranks: Ranks, kind: str, plan: str, table_plans: dict[str, str], *, ids_ahead: bool
) -> Job:
    """Return a job of two epochs of four updates; each last one has 24 rows on rank 0, else 21."""
    context = make_context(kind, micro_batch_size=20)
    context.ranks = ranks
    lookup = context.model.embedding
    context.tables = shard_tables(
        lookup.specs,
        lookup.features,
        parse_sparse({"kind": kind, "lr": 0.1}),
        ShardingSettings(plan=plan, tables=table_plans, min_columns=4),
        ranks,
        seed=0,
        device=CPU,
        batch_size=32,
    )
    context.table_groups = {"sparse": context.tables}
    lookup.attach_tables(context.tables)
    if ids_ahead:
        context.sparse_dist = SparseDistPipeline(lookup, context.dense_optimizer, CPU)
    trainer = TrainerSettings(batch_size=32, max_epochs=2)
    rows = Rows(120 - 3 * ranks.rank, seed=ranks.rank)
    return make_job(context, dataset=rows, trainer=trainer)


def pipeline_errors_scene(ranks: Ranks) -> None:
    """The pipeline refuses what it does not support.

    An error of the data is raised before exchanges that another rank may never enter.
    """
    job = sharded_job(ranks, "sgd", "row_wise", {}, ids_ahead=True)

    class Broken(Rows):
        def batches(self, *args, **more):
            yield from islice(super().batches(*args, **more), 3)
            raise DataError("row 97 is odd")

    job = replace(job, dataset=Broken(120))
    seen = []
    with pytest.raises(DataError, match="row 97"):
        seen.extend(output.rows_B.tolist() for output in steps(job, TrainState()))
    assert len(seen) == 1

    class Twice(Supervised):
        def train_step(self, ctx, batches):
            batch = next(batches)
            ctx.model.embed(batch)
            return super().train_step(ctx, iter([batch]))

    class Another(Supervised):
        def train_step(self, ctx, batches):
            next(batches)
            return super().train_step(ctx, iter([random_batch(32, 5)]))

    for task in (Twice(), Another()):
        job = replace(sharded_job(ranks, "sgd", "row_wise", {}, ids_ahead=True), task=task)
        with pytest.raises(UserError, match=r"trainer\.pipeline=none"):
            next(steps(job, TrainState()))
    context = job.context  # after a pass every batch can be looked up
    context.model.embed(random_batch(8, 1))
    context.model.embed(random_batch(8, 1))


def part_of(batch: Batch, rows: slice) -> Batch:
    data = Rows(8)
    data.all = batch
    return data.rows(*rows.indices(batch.size)[:2], batch.cursor)


def assert_dense_equal(one, two, atol: float, where: str) -> None:
    theirs = dict(one.model.named_parameters())
    for name, tensor in two.model.named_parameters():
        torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=atol, msg=f"{where}: {name}")


def gradients_scene(ranks: Ranks) -> None:
    """Gradients are summed, also of a parameter that only one rank, or none, has used."""
    parameters = [torch.nn.Parameter(torch.zeros(n)) for n in (3, 2, 4)]
    parameters[0].grad = torch.full((3,), 1.0 + ranks.rank)
    if not ranks.is_main:
        parameters[1].grad = torch.full((2,), 5.0)
    all_reduce_gradients(parameters, ranks)
    assert parameters[0].grad is not None and parameters[0].grad.tolist() == [3.0] * 3
    assert parameters[1].grad is not None and parameters[1].grad.tolist() == [5.0] * 2
    assert parameters[2].grad is None
    for flags, expected in (([True, True], True), ([True, False], False), ([False, True], False)):
        assert all_reduce_gradients(parameters, ranks, is_finite=flags[ranks.rank]) is expected
        assert all_reduce_gradients([], ranks, is_finite=flags[ranks.rank]) is expected


def norms_scene(ranks: Ranks) -> None:
    """Batch statistics of two ranks are those of one process, with rows that do not count.

    Ranks have different numbers of rows, at last one of them none; statistics within micro-batches
    leave equal running statistics on all ranks.
    """
    net = {"embedding_dim": 4, "bottom": [8], "top": [8], "norm": "batch", "activation": "dice"}
    one, two, own = (make_context("sgd", micro_batch_size=7) for _ in range(3))
    for context, scope in ((one, "update"), (two, "update"), (own, "micro_batch")):
        torch.manual_seed(0)
        model = DLRM(SCHEMA, **net, norm_scope=scope)
        model.embedding.attach_tables(context.tables)
        parameters = list(dense_parameters(model, context.loss).values())
        context.model, context.dense_optimizer = model, torch.optim.SGD(parameters, lr=0.1)
        context.__post_init__()
    one.ranks = Ranks()
    for norm in one.batch_norms:
        norm.ranks = Ranks()
    for step, (size, first) in enumerate(((64, 40), (64, 1), (25, 25))):
        batch = random_batch(size, step)
        batch.weights_B[::5] = 0.0
        rows = slice(0, first) if ranks.is_main else slice(first, size)
        for context, part in (
            (one, batch),
            (two, part_of(batch, rows)),
            (own, part_of(batch, rows)),
        ):
            table_states = {n: t.clone() for n, t in context.tables.state().items()}
            output = Supervised().train_step(context, iter([part]))
            context.end_update(applied=output.applied)
            for name, table in context.tables.state().items():  # one process's, not of these ranks
                table.copy_(table_states[name])
        assert_dense_equal(one, two, 2e-6, f"norms update {step}")
        for ours, theirs in zip(two.batch_norms, one.batch_norms, strict=True):
            torch.testing.assert_close(ours.running_mean, theirs.running_mean, rtol=0, atol=1e-6)
            torch.testing.assert_close(ours.running_var, theirs.running_var, rtol=1e-5, atol=1e-6)
        for context in (two, own):
            for norm in context.batch_norms:
                found = ranks.all_gather_object((norm.running_mean, norm.running_var))
                assert all(torch.equal(a, b) for a, b in zip(*found, strict=True)), step


def drops_scene(ranks: Ranks) -> None:
    """A dropout drops of each row what one process drops, whichever rank has the row.

    Of the last update's single row rank 0 has none, and in its place one of weight 0.
    """
    one, two = (make_context("sgd", micro_batch_size=n, model=dropping_model()) for n in (64, 7))
    one.ranks = Ranks()
    for step, (size, first) in enumerate(((64, 40), (64, 1), (25, 24), (1, 1))):
        batch = random_batch(size, step)
        rows = slice(0, first) if ranks.is_main else slice(first, size)
        own = part_of(batch, rows if size > 1 else slice(0, 1))
        if size == 1 and ranks.is_main:
            own = replace(own, weights_B=torch.zeros(1))
        for context, part in ((one, batch), (two, own)):
            # as in a training, rank 0 draws what one process does, and others draw their own
            torch.manual_seed(step + 100 * ranks.rank * (context is two))
            table_states = {n: t.clone() for n, t in context.tables.state().items()}
            Supervised().train_step(context, iter([part]))
            for name, table in context.tables.state().items():  # one process's, not of these ranks
                table.copy_(table_states[name])
        assert_dense_equal(one, two, 2e-6, f"drops update {step}")


def dropping_model() -> DLRM:
    torch.manual_seed(0)
    net = {"embedding_dim": 4, "bottom": [8], "top": [8]}
    return DLRM(SCHEMA, **net, dropout=0.3, embedding_dropout=0.2)


def exchanges_scene(ranks: Ranks) -> None:
    """An update exchanges its weight, its gradients and, at its end, clock and signal together."""
    context = make_context("sgd")
    context.ranks = ranks
    job, stop, seen = make_job(context), StopSignal(ranks), []
    if not ranks.is_main:
        stop.local_signal = 15
    counted = (
        "all_reduce",
        "all_gather",
        "all_gather_object",
        "broadcast",
        "broadcast_object_list",
    )
    with pytest.MonkeyPatch.context() as patch:
        for name in counted:
            call = getattr(torch.distributed, name)

            def count(*args, name=name, call=call, **more):
                seen.append(name)
                return call(*args, **more)

            patch.setattr(torch.distributed, name, count)
        state = TrainState()
        for _ in zip(range(2), steps(job, state, stop)):
            assert seen == ["all_reduce"] * 3, seen
            assert stop.signal == 15, "rank 0 knows the signal that rank 1 has received"
            assert stop.sync_ranks() and len(ranks.all_gather_object(state.active_s)) == 2
            seen.clear()
    assert len(set(ranks.all_gather_object(state.active_s))) == 1


def order_scene(ranks: Ranks) -> None:
    """A rank that enters another collective than the others is told so, before it waits."""
    assert hasattr(torch.distributed.all_reduce, "__wrapped__"), "the checks are on in all tests"
    ranks.all_gather_object(None)
    if not ranks.is_main:
        store = torch.distributed.distributed_c10d._get_default_store()
        torch.distributed.PrefixStore("collective order", store).wait(["/2"])
        with pytest.raises(RuntimeError) as told:
            ranks.all_reduce_max(1.0)
        said = str(told.value)
        assert "rank 1 enters all_reduce of () torch.float64 in order_scene (scenes.py:" in said
        assert "another rank has entered all_gather_object, rank 0 in order_scene" in said
    assert ranks.all_gather_object(ranks.rank) == [0, 1]


def collectives_scene(ranks: Ranks) -> None:
    rank = ranks.rank
    assert ranks.broadcast_object(f"from {rank}") == "from 0"
    assert ranks.all_gather_object(rank * 10) == [0, 10]
    assert ranks.all_reduce_max(rank + 1) == 2
    assert ranks.all_reduce_max_each([rank, -rank]) == [1, 0]
    assert ranks.all_reduce_sum(torch.tensor([1.0, rank])).tolist() == [2.0, 1.0]
    tensor = torch.tensor([float(rank)])
    ranks.broadcast_(tensor)
    assert tensor.item() == 0.0
    rows = ranks.all_gather_rows(torch.full((rank + 1, 2), float(rank)))
    assert [r.tolist() for r in rows] == [[[0.0, 0.0]], [[1.0, 1.0], [1.0, 1.0]]]
    states = ranks.gather_states({"x": torch.arange(rank + 2), "y": torch.ones(rank)})
    if ranks.is_main:
        assert states is not None
        assert [s["x"].tolist() for s in states] == [[0, 1], [0, 1, 2]]
        assert [len(s["y"]) for s in states] == [0, 1]
    else:
        assert states is None
    with_group = ranks.with_new_group()
    assert with_group.all_gather_object("again") == ["again", "again"]
    assert with_group.group is not None
    waits = with_group.group._get_backend(CPU).options._timeout
    assert waits.total_seconds() == TIMEOUT_S, (
        "it must notice a rank that hangs as soon as other groups do"
    )
    ranks.all_gather_object(None)


SCENES = {
    "tables": tables_scene,
    "updates": updates_scene,
    "closures": closures_scene,
    "gradients": gradients_scene,
    "exchanges": exchanges_scene,
    "norms": norms_scene,
    "drops": drops_scene,
    "collectives": collectives_scene,
    "order": order_scene,
    "pipelines": pipelines_scene,
    "pipeline_errors": pipeline_errors_scene,
}


def play(name: str) -> ProcessResult:
    ranks = join_process_group(CPU, timeout_s=TIMEOUT_S)
    SCENES[name](ranks)
    leave_process_group()
    return ProcessResult(0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for scene in sys.argv[1:]:
        result = run_on_ranks(2, lambda scene=scene: play(scene))
        print(scene, result.status, result.message, result.trace, flush=True)
        if result.code:
            sys.exit(result.code)
