"""Measures what bf16 brings to a matrix product on this machine, before a run relies on it.

On a CPU with AMX, or with AVX-512 BF16 at full rate, a product in bf16 is two to four times as
fast as in fp32; on others that have instructions for it it is slower, and so is all that
`trainer.amp` moves to bf16. On those without, see `emulated_bf16`.
"""

from __future__ import annotations

import statistics
import time
from contextlib import suppress
from pathlib import Path

import torch

from runner.errors import UserError
from runner.machine.cache_folder import cache_root
from runner.models.layers.linear import Linear
from runner.rundir.json_files import write_json
from runner.rundir.readers import read_optional_json
from runner.training.builder.emulated_bf16 import lacks_bf16

_ROWS, _WIDTH = 1024, 512  # a layer of an MLP: 0.5 GFLOP, some milliseconds on a core
_REPEATS = 5
_KINDS = (torch.float32, torch.bfloat16)
PAYS_FROM = 1.5  # times as fast as fp32: what lies beside the products costs some of the gain


def bf16_speed(cpu: str, cache: Path | None = None) -> float:
    """Return how many times as fast as fp32 a matrix product in bf16 is on this CPU.

    It takes some ten milliseconds once for a machine and a version of torch, and is then read from
    the cache. One thread measures, by its own processor time, so that others on the machine do not
    count.

    Args:
        cpu: the name of the processor.
        cache: the folder that remembers; by default the cache of prepared data.
    """
    path = (cache or cache_root()) / "bf16_speed.json"
    key = f"{cpu}, torch {torch.__version__}"
    known = _read(path)
    if key not in known:
        known[key] = _measure()
        with suppress(OSError, UserError):  # a cache that cannot be written is no reason not to run
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, known)
    return known[key]


def describe_bf16(cpu: str) -> str:
    """Return in a sentence what `trainer.amp=true` means on the processor of this name."""
    if lacks_bf16(cpu):
        return (
            "this CPU has no instructions for bf16: trainer.amp=true rounds to bf16, multiplies in "
            "float32, and costs time here"
        )
    speed = bf16_speed(cpu)
    ratio = f"a bf16 matrix product runs at {speed:.2g} times the speed of fp32 on this CPU"
    if speed >= PAYS_FROM:
        return f"{ratio}: trainer.amp=true pays for wide layers"
    return f"{ratio}: trainer.amp=true costs time here"


def _read(path: Path) -> dict[str, float]:
    known = read_optional_json(path).items()
    return {name: speed for name, speed in known if isinstance(speed, float) and speed > 0}


def _measure() -> float:
    with torch.random.fork_rng(devices=[]):  # a run draws what it would without
        x = torch.randn(_ROWS, _WIDTH)
        layers = [Linear(_WIDTH, _WIDTH, bias=False).to(kind) for kind in _KINDS]
    inputs = [x.to(kind) for kind in _KINDS]
    times: list[list[float]] = [[] for _ in _KINDS]
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for _ in range(1 + _REPEATS):  # in turns; the first of each chooses its kernel
            for layer, own, seconds in zip(layers, inputs, times, strict=True):
                begin = time.thread_time()
                layer(own)
                seconds.append(time.thread_time() - begin)
    finally:
        torch.set_num_threads(num_threads)
    fp32, bf16 = (statistics.median(seconds[1:]) for seconds in times)
    return round(fp32 / bf16, 3)
