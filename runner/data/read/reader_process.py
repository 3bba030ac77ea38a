"""Batches that a process of its own makes, so that its Python holds up none of the training's.

On a GPU an update is some hundred short calls from Python, and a thread that decodes beside them
takes Python's lock between any two. The process is a fork: it has the dataset already, and touches
neither the GPU nor the threads of PyTorch. It writes the bytes of batches into shared memory, in
pieces.
"""

from __future__ import annotations

import gc
import mmap
import os
import pickle
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from multiprocessing.connection import Connection, Pipe

import numpy as np
import torch
from torch import Tensor

from runner.batch import Batch, BatchLayout
from runner.data.read.prefetch import prefetch_in_thread
from runner.errors import DataError

PIECE_BYTES = 8 << 20
NUM_PIECES = 8  # in shared memory, read or not yet: how far the process is ahead
_ends_here: set[int] = set()  # file descriptors that a further fork must not keep open


def batches_from_process(
    make_batches: Callable[[], Iterator[Batch]], *, pinned: bool
) -> Iterator[Batch]:
    """Yield the batches of an iterator that a process of its own goes through.

    The process begins with the first batch that is asked for, is a few batches ahead, and ends with
    the iterator or with this process. An error of its own is raised here, after the batches before.

    Args:
        make_batches: returns the iterator.
        pinned: whether batches lie in pinned memory, from which a GPU copies them.

    Raises:
        DataError: if the process is ended from outside.
    """
    shared = mmap.mmap(-1, NUM_PIECES * PIECE_BYTES)
    pieces = torch.frombuffer(shared, dtype=torch.uint8).view(NUM_PIECES, PIECE_BYTES)
    told, tell = Pipe(duplex=False)  # that a piece is written
    free, give_back = Pipe(duplex=False)  # a piece that has been read
    ends = {told.fileno(), give_back.fileno()}
    try:
        pid = os.fork()
    except OSError:  # the system has no room for a second process of this size
        yield from make_batches()
        return
    if pid == 0:
        for end in ends | _ends_here:
            os.close(end)
        _serve(make_batches, pieces, tell, free)
    tell.close()
    free.close()
    _ends_here.update(ends)
    turns = (number % NUM_PIECES for number in count())
    try:
        while isinstance(message := pickle.loads(_receive(told, pid)), BatchLayout):
            buffer = torch.empty(message.num_bytes, dtype=torch.uint8, pin_memory=pinned)
            for start in range(0, message.num_bytes, PIECE_BYTES):
                if start:
                    _receive(told, pid)
                part = buffer[start : start + PIECE_BYTES]
                part.copy_(pieces[next(turns)][: len(part)])
                give_back.send_bytes(b"")
            yield message.read(buffer)
        if message is not None:
            raise message
    finally:
        _ends_here.difference_update(ends)
        with suppress(ProcessLookupError, ChildProcessError):  # where it has ended by itself
            os.kill(pid, signal.SIGKILL)  # it keeps nothing
            os.waitpid(pid, 0)
        told.close()
        give_back.close()


def _receive(told: Connection, pid: int) -> bytes:
    """Return the next message of a process.

    Raises:
        DataError: if it has ended.
    """
    try:
        return told.recv_bytes()
    except EOFError as error:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        why = ", as the system ends it when memory runs out" * (code == -signal.SIGKILL)
        raise DataError(
            f"the process that makes the batches was ended by {name}{why}; dataset.workers=1 makes "
            "them in a thread of the training"
        ) from error


def _serve(
    make_batches: Callable[[], Iterator[Batch]], pieces: Tensor, tell: Connection, free: Connection
) -> None:
    """Write batches until there are no more, or nobody reads them. Never returns."""
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # the training decides when it ends
        gc.disable()  # it would visit all that the training has, and copy those pages
        torch.set_num_threads(1)  # others of the training do not exist here
        turns = count()
        try:
            for batch in prefetch_in_thread(make_batches(), 1):
                _write(batch, pieces, tell, free, turns)
            last: Exception | None = None
        except (BrokenPipeError, EOFError):
            os._exit(0)
        except Exception as error:
            last = error
        try:
            told = pickle.dumps(last)
        except Exception:  # of a class that cannot be sent
            told = pickle.dumps(DataError(f"{type(last).__name__}: {last}"))
        tell.send_bytes(told)
        while True:  # until the other process has read it
            free.recv_bytes()
    finally:
        os._exit(0)


def _write(
    batch: Batch, pieces: Tensor, tell: Connection, free: Connection, turns: Iterator[int]
) -> None:
    """Write a batch, and tell its layout with its first piece."""
    layout = BatchLayout.of(batch)
    parts = [
        (place.start, tensor.contiguous().view(-1).view(torch.uint8).numpy())
        for place, tensor in zip(layout.places.values(), BatchLayout.tensors_of(batch).values())
        if tensor.numel()
    ]
    for start in range(0, layout.num_bytes, PIECE_BYTES):
        if (turn := next(turns)) >= NUM_PIECES:
            free.recv_bytes()
        piece: np.ndarray = pieces[turn % NUM_PIECES].numpy()
        stop = start + PIECE_BYTES
        for first, data in parts:
            low, high = max(first, start), min(first + len(data), stop)
            if low < high:
                piece[low - start : high - start] = data[low - first : high - first]
        tell.send_bytes(b"" if start else pickle.dumps(layout))
