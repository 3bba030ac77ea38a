"""`trainer.compile`: torch.compile of the dense half, with results that a resume repeats."""

from __future__ import annotations

import os
import shutil

import torch

from runner.errors import ConfigError
from runner.models.layers.recommender import Recommender

_COMPILERS = ("g++", "clang++", "c++")


def compile_dense(model: Recommender, device: torch.device) -> None:
    """Replaces the model's `dense` by its compiled self; names of parameters stay. In place.

    One kernel serves every batch size (`dynamic`): otherwise what a batch is computed by would
    depend on which sizes this process has met, and a resumed run would differ in the last bits.
    Against eager the results differ by rounding.
    Raises: ConfigError where there is no compiler to do it with.
    """
    chosen = os.environ.get("CXX")
    found = [name for name in ([chosen] if chosen else _COMPILERS) if shutil.which(name)]
    if device.type == "cpu" and not found:
        raise ConfigError(
            "trainer.compile=true: needs a C++ compiler on CPU, and there is none of "
            f"{', '.join([chosen] if chosen else _COMPILERS)}; trainer.compile=false needs none"
        )
    import torch._inductor.config  # two seconds that only those pay who compile
    from torch.utils._triton import has_triton

    if device.type == "cuda" and not has_triton():
        raise ConfigError("trainer.compile=true: needs Triton on CUDA, which is not installed")
    # no pool of compiling processes: nothing is left behind when a run is killed
    torch._inductor.config.compile_threads = 1
    model.dense = torch.compile(model.dense, dynamic=True)  # type: ignore[method-assign]
