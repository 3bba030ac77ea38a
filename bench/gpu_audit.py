"""What can be seen of a GPU's work where there is none.

    python -m bench.gpu_audit [--only dlrm,dcn]

For each model in a small size: the breaks in the graph that `torch.compile` makes of its dense half
(0: it is one graph; batch norms stay out of it, since they exchange statistics between ranks), the
operations of its forward, loss and backward, and those that keep a CUDA graph from being captured:
they read a value, or move data between host and GPU. They run on torch's meta device, which has no
values to read and takes the place of the GPU. Then the engine that holds the tables on a GPU and on
a CPU under each optimizer. That an update waits once at most is what
tests/training/test_pretended_gpu.py checks.

The exit code is 1 if a graph breaks elsewhere or cannot be captured.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bench.paired import table
from runner.batch import Batch, Embeddings
from runner.embeddings import factory
from runner.models.layers.batch_norm import has_batch_statistics
from runner.models.layers.recommender import Recommender
from runner.models.losses import BCE
from runner.optim.settings import SPARSE_KINDS, parse_sparse
from tests.models.scene import SMALL, batch_of, make_model
from tests.tiny import SCHEMA, make_context

GPU = torch.device("meta")
ENGINES = ("FbgemmTables", "CpuTables", "DenseTables")


class Recorder(TorchDispatchMode):
    """Counts operations, and keeps the names of those that touch data of the host."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.of_host: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        touched = tree_leaves((args, kwargs, out))
        self.count += 1
        # a number may come from the host: a kernel takes it as an argument
        if any(isinstance(t, torch.Tensor) and t.device != GPU and t.dim() for t in touched):
            self.of_host.append(str(func))
        return out


def looked_up(model: Recommender) -> tuple[Embeddings, Batch]:
    """Return what the dense half takes: look-ups in real tables, and their batch."""
    make_context(model=model)  # gives the model its tables
    batch = batch_of(SCHEMA, 8)
    return model.embed(batch).detached(), batch


def graph_breaks(model: Recommender) -> int:
    torch._dynamo.reset()
    return int(torch._dynamo.explain(model.dense)(*looked_up(model)).graph_break_count)


def record(model: Recommender) -> Recorder:
    """Run forward, loss and backward of the dense half on the pretended GPU.

    Raises:
        NotImplementedError, RuntimeError: where an operation needs a value.
    """
    embeddings, batch = looked_up(model)
    model.to(GPU)
    on_gpu = replace(
        embeddings,
        pooled_BE=embeddings.pooled_BE.detach().to(GPU).requires_grad_(),
        per_row={name: t.to(GPU) for name, t in embeddings.per_row.items()},
        per_batch={name: t.to(GPU) for name, t in embeddings.per_batch.items()},
    )
    there, loss = batch.to(GPU), BCE(SCHEMA)
    # autocast does not know the pretended GPU
    with patch.object(torch, "is_autocast_enabled", lambda kind: False), Recorder() as recorder:
        torch.stack([one.mean() for one in loss(model.dense(on_gpu, there)).values()]).backward(
            torch.ones(len(SCHEMA.tasks), device=GPU)
        )
    return recorder


def audit(name: str) -> tuple[list[str], bool]:
    """Return a model's row, and whether nothing is in the way."""
    breaks, by_norms = graph_breaks(make_model(name)), has_batch_statistics(make_model(name))
    shown = f"{breaks}, by batch norms" if breaks and by_norms else str(breaks)
    try:
        found = record(make_model(name))
    except (NotImplementedError, RuntimeError) as error:
        said = str(error).splitlines()[0][:60]
        return [name, shown, "", f"it needs a value: {said}"], False
    why = ", ".join(sorted(set(found.of_host))) or "0"
    is_free = not found.of_host and (not breaks or by_norms)
    return [name, shown, str(found.count), why], is_free


def engines() -> str:
    """Return which engine holds the tables of one process under each optimizer."""
    lookup, rows = make_model("dlrm").embedding, []
    for kind in SPARSE_KINDS:
        settings, row = parse_sparse({"kind": kind, "lr": 0.1}), [kind]
        for device in ("cuda", "cpu"):
            with ExitStack() as stack:
                made = [
                    stack.enter_context(patch.object(factory, name)) for name in ENGINES
                ]  # none is built: there is no GPU that could hold it
                factory.build_uninitialized_tables(
                    lookup.specs, lookup.features, settings, torch.device(device)
                )
            row.append(next(n for n, engine in zip(ENGINES, made) if engine.called))
        rows.append(row)
    return table(("optimizer.sparse.kind", "on a GPU", "on a CPU"), rows)


def main(argv: Sequence[str] | None = None) -> int:
    words = argparse.ArgumentParser(
        prog="python -m bench.gpu_audit",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    words.add_argument("--only", default=",".join(sorted(SMALL)), help="models of tests/models")
    given = words.parse_args(argv)
    logging.getLogger("torch._dynamo").setLevel(logging.ERROR)
    audited = [audit(name) for name in given.only.split(",")]
    header = ("model", "graph breaks", "operations", "of them in a CUDA graph's way")
    print(table(header, [row for row, _ in audited]))
    print(f"\n{engines()}")
    return int(not all(is_free for _, is_free in audited))


if __name__ == "__main__":
    sys.exit(main())
