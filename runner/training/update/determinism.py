"""Finds operations of a user's model whose results differ from run to run.

Tests check that our parts repeat bit for bit (tests/models/test_same_twice.py). A user's code is
watched during the first update only; later updates are not slower, and no number changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

# Operators of CUDA that add with atomics, as torch.use_deterministic_algorithms documents them
_ON_CUDA = (
    *("scatter_add", "scatter_reduce", "index_add", "histc", "kthvalue", "_ctc_loss_backward"),
    *("grid_sampler_2d_backward", "grid_sampler_3d_backward", "_embedding_bag_backward"),
    *("avg_pool3d_backward", "adaptive_avg_pool2d_backward", "adaptive_avg_pool3d_backward"),
    *("adaptive_max_pool2d_backward", "max_pool3d_with_indices_backward", "max_unpool2d"),
    *("upsample_linear1d_backward", "upsample_bilinear2d_backward", "reflection_pad1d_backward"),
    *("replication_pad1d_backward", "replication_pad2d_backward", "nll_loss2d_forward"),
)

_KNOWN_PACKAGES = ("runner", "torch", "torchrec", "fbgemm_gpu")


def set_deterministic(enabled: bool) -> None:
    """Refuse or allow nondeterministic kernels; calls torch only if that is a change.

    torch then imports its compiler, which takes a second.
    """
    if enabled != torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(enabled)


class UnrepeatableSums(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records sums whose order changes from run to run; `found` describes each once.

    Args:
        num_threads: of an operation; None: as set when it runs.
    """

    def __init__(self, *, num_threads: int | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_threads = num_threads
        self.found: dict[str, None] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        target = args[0] if args and isinstance(args[0], Tensor) else None
        if target is not None and target.is_floating_point():
            if target.is_cuda:
                if name.rstrip("_") in _ON_CUDA:
                    self.found[f"{name} on {tuple(target.shape)}"] = None
            elif (self.num_threads or torch.get_num_threads()) > 1 and "index_put" in name:
                accumulate = kwargs.get("accumulate", args[3] if len(args) > 3 else False)
                if accumulate and has_repeats(target, args[1], args[2]):
                    what = f"{name} into {tuple(target.shape)} at places that repeat"
                    self.found[f"{what}, which is the backward of x[index]"] = None
        return func(*args, **kwargs)


def has_repeats(target: Tensor, indices: Any, values: Tensor) -> bool:
    """Return whether `target.index_put_(indices, values)` writes to a place more than once."""
    places = torch.zeros(target.shape, dtype=torch.int64)
    ones = torch.ones_like(values, dtype=torch.int64)
    # the method refuses an index of None, by which x[:, i] keeps its first dimension whole
    torch.ops.aten.index_put_(places, indices, ones, True)
    return bool(places.max() > 1)


@contextmanager
def warn_of_unrepeatable_sums(
    parts: Mapping[str, object], device: torch.device, warn: Callable[[str], None]
) -> Iterator[None]:
    """Watch an update, and warn once if a user's part computes sums that do not repeat.

    Args:
        parts: model, loss and task by name; modules in them count, too.
    """
    kinds = sorted(name for name, part in parts.items() if _has_own_class(part))
    if not kinds or torch.are_deterministic_algorithms_enabled():
        yield
        return
    with UnrepeatableSums() as sums:
        yield
    if sums.found:
        cure = (
            "torch.nn.functional.embedding(index, x) adds repeats in one order, "
            "and so does trainer.num_threads=1"
            if device.type == "cpu"
            else "trainer.deterministic=true refuses or replaces them"
        )
        warn(
            f"two runs with the same seed will differ in their last digits: the first update, with "
            f"a {' and a '.join(kinds)} of your own, adds in an order that changes from run to "
            f"run: {'; '.join(sums.found)}. {cure}"
        )


def _has_own_class(part: object) -> bool:
    """Return whether a part, or a module in it, has a class of the user."""
    objects = part.modules() if isinstance(part, nn.Module) else [part]
    return any(is_of_own_class(o) for o in objects)


def is_of_own_class(owner: object) -> bool:
    """Return whether the class of an object is the user's: neither ours nor torch's."""
    return type(owner).__module__.partition(".")[0] not in _KNOWN_PACKAGES
