"""`trainer.compile`: compiles the dense half such that a resume repeats its results."""

from __future__ import annotations

import os
import shutil

import torch

from runner.errors import ConfigError
from runner.models.layers.recommender import Recommender

_COMPILERS = ("g++", "clang++", "c++")


def compile_dense(model: Recommender, device: torch.device) -> None:
    """Replace the model's `dense` by a compiled version, in place.

    The names of the parameters stay. One kernel serves every batch size (`dynamic`): otherwise the
    kernel of a batch would depend on the sizes that this process has met before, and a resumed run
    would differ in the last bits. Results differ from eager ones by rounding.

    Raises:
        ConfigError: if the compiler that the device needs is not installed.
    """
    named = os.environ.get("CXX")
    candidates = [named] if named else _COMPILERS
    if device.type == "cpu" and not any(map(shutil.which, candidates)):
        raise ConfigError(
            "trainer.compile=true: needs a C++ compiler on CPU, and there is none of "
            f"{', '.join(candidates)}; trainer.compile=false needs none"
        )
    import torch._inductor.config  # takes two seconds, so only where it is needed
    from torch.utils._triton import has_triton

    if device.type == "cuda" and not has_triton():
        raise ConfigError("trainer.compile=true: needs Triton on CUDA, which is not installed")
    # no pool of compiling processes, which would outlive a run that is killed
    torch._inductor.config.compile_threads = 1
    model.dense = torch.compile(model.dense, dynamic=True)  # type: ignore[method-assign]
