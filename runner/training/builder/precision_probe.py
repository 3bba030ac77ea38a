"""Measures the speed of bf16 on this CPU, and replaces its products where instructions lack.

On a CPU with AMX, or with AVX-512 BF16 at full rate, a product in bf16 is two to four times as
fast as in fp32; on others with instructions for bf16 it is slower, and so are all operations that
`trainer.amp` moves to bf16. For CPUs without them see `multiply_by_float32`.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.library import Library

from runner.errors import UserError
from runner.machine.cache_folder import cache_root
from runner.models.layers.linear import Linear, linear
from runner.rundir.json_files import write_json
from runner.rundir.readers import read_optional_json

_ROWS, _WIDTH = 1024, 512  # a layer of an MLP: 0.5 GFLOP, some milliseconds on a core
_REPEATS = 5
_KINDS = (torch.float32, torch.bfloat16)
PAYS_FROM = 1.5  # times as fast as fp32: operations other than products cost some of the gain
_aten = torch.ops.aten
# All products that autocast casts to a low precision on a CPU, except convolutions.
_PRODUCTS: dict[str, Callable[..., Tensor]] = {
    "linear": linear,
    "matmul": _aten.matmul.default,
    "mm": _aten.mm.default,
    "bmm": _aten.bmm.default,
    "addmm": _aten.addmm.default,
    "baddbmm": _aten.baddbmm.default,
    "addbmm": _aten.addbmm.default,
    "scaled_dot_product_attention": _aten.scaled_dot_product_attention.default,
}
_ROUNDED = (torch.float32, torch.float16, torch.bfloat16)


def bf16_speed(cpu: str, cache: Path | None = None) -> float:
    """Return how many times as fast as fp32 a matrix product in bf16 is on this CPU.

    It takes some ten milliseconds once per machine and version of torch, and is then read from the
    cache. One thread measures its own processor time, which other processes do not change.

    Args:
        cpu: the name of the processor.
        cache: the folder for the result; by default the cache of prepared data.
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
            "float32, and makes runs slower"
        )
    speed = bf16_speed(cpu)
    ratio = f"a bf16 matrix product runs at {speed:.2g} times the speed of fp32 on this CPU"
    if speed >= PAYS_FROM:
        return f"{ratio}: trainer.amp=true makes wide layers faster"
    return f"{ratio}: trainer.amp=true makes runs slower here"


def _read(path: Path) -> dict[str, float]:
    known = read_optional_json(path).items()
    return {name: speed for name, speed in known if isinstance(speed, float) and speed > 0}


def _measure() -> float:
    with torch.random.fork_rng(devices=[]):  # the random numbers of the run stay the same
        x = torch.randn(_ROWS, _WIDTH)
        layers = [Linear(_WIDTH, _WIDTH, bias=False).to(kind) for kind in _KINDS]
    inputs = [x.to(kind) for kind in _KINDS]
    times: list[list[float]] = [[] for _ in _KINDS]
    with ExitStack() as after:
        after.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)
        for _ in range(1 + _REPEATS):  # alternately; the first call of each chooses its kernel
            for layer, input_, seconds in zip(layers, inputs, times, strict=True):
                begin = time.thread_time()
                layer(input_)
                seconds.append(time.thread_time() - begin)
    fp32, bf16 = (statistics.median(seconds[1:]) for seconds in times)
    return round(fp32 / bf16, 3)


def lacks_bf16(cpu: str) -> bool:
    """Return whether a processor of this name lacks instructions for bf16."""
    return "avx2" in cpu and "bf16" not in cpu


@cache
def multiply_by_float32() -> Library:
    """Let autocast on a CPU multiply in float32, from now on and in all of this process.

    Factors, results and gradients are rounded to the low precision as usual; the product itself is
    computed in float32, in which instructions for bf16 accumulate, too. Without such
    instructions PyTorch's own products in bf16 take three to nine times as long.

    Returns:
        The object that keeps the replacement in place while it exists.
    """
    library = Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings(action="ignore"):  # of replaced products
        for name, multiply in _PRODUCTS.items():
            library.impl(  # type: ignore[no-untyped-call]
                name, _by_float32(multiply), "AutocastCPU"
            )
    return library


def _by_float32(multiply: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def multiply_rounded(*args: Any, **more: Any) -> Tensor:
        low = torch.get_autocast_dtype("cpu")

        def rounded(value: Any) -> Any:
            is_rounded = isinstance(value, Tensor) and value.dtype in _ROUNDED
            return value.to(low).float() if is_rounded else value

        with torch.autocast("cpu", enabled=False):
            product = multiply(*map(rounded, args), **{k: rounded(v) for k, v in more.items()})
            return product.to(low) if product.dtype is torch.float32 else product

    return multiply_rounded
