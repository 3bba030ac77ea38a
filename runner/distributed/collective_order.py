"""A debug mode that checks that all ranks enter the same collectives in the same order.

Ranks that do not would wait for each other until the timeout, or exchange unrelated values.
With RUNNER_CHECK_COLLECTIVES=1 each rank announces the collective that it is about to enter: the
first one writes it into the store used for the rendezvous, and the others compare.
TORCH_DISTRIBUTED_DEBUG=DETAIL does the same, but TorchRec does not run under it.
"""

from __future__ import annotations

import functools
import inspect
import queue
import sys
import threading
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

VARIABLE = "RUNNER_CHECK_COLLECTIVES"
_SAME_SHAPE = ("all_reduce", "broadcast", "reduce", "all_gather_into_tensor")  # equal on all ranks
_ANY_SHAPE = (
    *("all_gather", "all_gather_object", "all_to_all", "all_to_all_single", "barrier"),
    *("broadcast_object_list", "gather_object", "reduce_scatter", "reduce_scatter_tensor"),
)
_OWN_FILES = (__file__, str(Path(__file__).with_name("ranks.py")))


class CollectiveOrderError(RuntimeError):
    """This rank enters another collective than the rank before it."""


def check_collective_order(timeout: timedelta) -> None:
    """Check every collective called through `torch.distributed` from now on.

    The process group must have been joined.

    Args:
        timeout: after which a rank fails if the rank that serves the store does not answer.
    """
    store = PrefixStore("collective order", _get_default_store())
    counts: Counter[str] = Counter()
    # without the check of a group that was joined earlier
    original = {name: inspect.unwrap(getattr(dist, name)) for name in (*_SAME_SHAPE, *_ANY_SHAPE)}

    def check(name: str, arguments: tuple[Any, ...], group: Any) -> None:
        what = name
        if name in _SAME_SHAPE:
            tensor = next(a for a in arguments if isinstance(a, Tensor))
            what += f" of {tuple(tensor.shape)} {tensor.dtype}"
        of_group = "" if group is None else group.group_name
        counts[of_group] += 1
        entry = f"{what}|rank {dist.get_rank()} in {_caller()}"
        key = f"{of_group}/{counts[of_group]}"
        first = _call_within(timeout, lambda: store.compare_set(key, "", entry)).decode()
        if first.split("|")[0] != what:
            raise CollectiveOrderError(
                f"rank {dist.get_rank()} enters {what} in {_caller()}, where another rank has "
                f"entered {first.replace('|', ', ')} (collective {counts[of_group]} of its group)"
            )

    def checked(name: str) -> Callable[..., Any]:
        @functools.wraps(original[name])
        def enter(*arguments: Any, **named: Any) -> Any:
            check(name, (*arguments, *named.values()), named.get("group"))
            return original[name](*arguments, **named)

        return enter

    for name in original:
        setattr(dist, name, checked(name))


def _call_within(timeout: timedelta, call: Callable[[], bytes]) -> bytes:
    """Return what the call returns; the store itself would wait without a limit.

    Raises:
        TimeoutError: if it has not returned in time; its thread is left behind.
    """
    answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=lambda: answers.put(call()), daemon=True).start()
    try:
        return answers.get(timeout=timeout.total_seconds())
    except queue.Empty:
        raise TimeoutError(
            f"rank 0, which keeps the store of the ranks, has not answered for {timeout}"
        ) from None


def _caller() -> str:
    """Return the function outside this module and `Ranks` that enters the collective."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename in _OWN_FILES:
        frame = frame.f_back
    return f"{frame.f_code.co_name} ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})"
