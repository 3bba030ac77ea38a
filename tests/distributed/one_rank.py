"""One rank in a process group of its own, as torchrun starts it.

`python -m tests.distributed.one_rank cpu|cuda` checks that tables over ranks, TorchRec's and our
own, and FBGEMM's tables of one process hold the same numbers after the same updates. A difference
raises an error, with which the process ends.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import torch

from runner.distributed.process_group import join_process_group, leave_process_group
from runner.embeddings.factory import build_tables
from runner.embeddings.placement import shard_tables
from runner.embeddings.sharding_settings import ShardingSettings, engine_name
from runner.embeddings.torchrec_tables import TorchRecTables
from runner.optim.settings import SPARSE_KINDS, parse_sparse
from tests.devices import CPU, CUDA
from tests.distributed.scenes import FEATURES, SEED, SPECS, assert_holds, ids


def sharded_equals_whole(device: torch.device, plan: str, kind: str, *, weighted: bool) -> None:
    where = f"{device} {plan} {kind}{' weighted' * weighted}"
    specs = [replace(spec, weighted=weighted) for spec in SPECS]
    settings = parse_sparse({"kind": kind, "lr": 0.1})
    sharding = ShardingSettings(plan=plan, min_columns=4)
    sharded = shard_tables(
        specs, FEATURES, settings, sharding, ranks, seed=SEED, device=device, batch_size=8
    )
    by_torchrec = engine_name(plan, kind, on_cpu=device.type == "cpu") == "TorchRec"
    assert isinstance(sharded, TorchRecTables) == by_torchrec
    whole = build_tables(specs, FEATURES, settings, seed=SEED, device=device)
    assert_holds(sharded, whole, 0, f"{where} at the start")
    for step, size in ((1, 8), (2, 8), (3, 5)):
        batch = ids(size, step, weighted=weighted).to(device)
        outputs = []
        for tables in (sharded, whole):
            tables.set_lr_and_step(0.1 / step, step)
            with torch.no_grad():
                tables(batch)  # an evaluation in between changes nothing
            outputs.append(tables(batch))
        torch.testing.assert_close(*outputs, rtol=0, atol=2e-6, msg=where)
        generator = torch.Generator().manual_seed(step)
        gradient = torch.randn(outputs[0].shape, generator=generator).to(device)
        for pooled in outputs:
            pooled.backward(gradient)
        assert_holds(sharded, whole, 5e-6, f"{where} after update {step}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    device = {"cpu": CPU, "cuda": CUDA}[sys.argv[1]]
    ranks = join_process_group(device, timeout_s=60)
    assert torch.distributed.get_world_size() == 1 and not ranks.is_distributed
    for name in SPARSE_KINDS:
        for by in ("table_wise", "data_parallel"):
            sharded_equals_whole(device, by, name, weighted=False)
    for by in ("row_wise", "column_wise", "auto"):
        sharded_equals_whole(device, by, "adagrad", weighted=by == "row_wise")
    leave_process_group()
