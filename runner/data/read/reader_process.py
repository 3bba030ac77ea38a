"""Makes batches in a separate process, so that its Python code does not delay the training's.

On a GPU an update is some hundred short calls from Python, and a decoding thread would take
Python's lock between any two. The process is a fork: it has the dataset already, and uses
neither the GPU nor the threads of PyTorch. It writes the bytes of batches into shared memory, in
pieces.
"""

from __future__ import annotations

import gc
import mmap
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from itertools import chain, count
from multiprocessing.connection import Connection, Pipe

import numpy as np
import torch
from torch import Tensor

from runner.batch import Batch
from runner.data.read.packed_batch import BatchLayout, PackedBatch
from runner.data.read.prefetch import prefetch_in_thread
from runner.errors import DataError, UserError

PIECE_BYTES = 8 << 20
NUM_PIECES = 8  # in shared memory, read or unread: how far the process is ahead
_ends_here: set[int] = set()  # file descriptors that a further fork must not keep open


def batches_from_process(
    make_batches: Callable[[], Iterator[Batch]], num_singles: int, *, pinned: bool
) -> Iterator[Batch]:
    """Yield the batches of an iterator that runs in a separate process.

    The process starts when the first batch is requested, is a few batches ahead, and ends with
    the iterator or with this process. Its errors are raised here, after the batches before them.

    Args:
        num_singles: number of first features of each batch with at most one id per row.
        pinned: whether batches are in pinned memory, from which a GPU copies them.

    Raises:
        DataError: if the process is ended from outside.
    """
    shared = mmap.mmap(-1, NUM_PIECES * PIECE_BYTES)
    pieces = np.frombuffer(shared, np.uint8).reshape(NUM_PIECES, PIECE_BYTES)
    written_reader, written_writer = Pipe(duplex=False)  # sends that a piece is written
    freed_reader, freed_writer = Pipe(duplex=False)  # sends a piece that has been read
    ends = {written_reader.fileno(), freed_writer.fileno()}
    try:
        pid = os.fork()
    except OSError:  # not enough memory for a second process of this size
        yield from make_batches()
        return
    if pid == 0:
        for end in ends | _ends_here:
            os.close(end)
        _serve(make_batches, num_singles, pieces, written_writer, freed_reader)
    written_writer.close()
    freed_reader.close()
    _ends_here.update(ends)
    process = _Process(pid)
    received = _receive(written_reader, freed_writer, pieces, process, pinned=pinned)
    try:
        first = next(received, None)
        if first is None:
            return
        # a core is slow to read what another one has written: a large batch takes a whole update
        is_large = first[0].num_bytes > PIECE_BYTES
        rest = prefetch_in_thread(received, 1) if is_large else received
        try:
            for layout, buffer in chain([first], rest):
                yield PackedBatch.of(layout, buffer) if pinned else layout.read(buffer)
        finally:
            process.end()  # first, so that no thread waits for its next batch
            rest.close()
    finally:
        process.end()
        _ends_here.difference_update(ends)
        written_reader.close()
        freed_writer.close()


class _Process:
    """A process without state to save, which may be ended at any time."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._code: int | None = None
        self._lock = threading.RLock()  # if two threads waited, one would not get the exit code

    def wait(self) -> int:
        """Wait until it has ended; return its exit code, below 0 for a signal."""
        with self._lock:
            if self._code is None:
                self._code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
            return self._code

    def end(self) -> None:
        with self._lock:
            if self._code is None:
                os.kill(self._pid, signal.SIGKILL)
                self.wait()


def _receive(
    written_reader: Connection,
    freed_writer: Connection,
    pieces: np.ndarray,
    process: _Process,
    *,
    pinned: bool,
) -> Generator[tuple[BatchLayout, Tensor], None, None]:
    """Yield the batches of a process as it writes them, and raise what it raises.

    Raises:
        DataError: if the process is ended from outside.
        Exception: the one that ended it.
    """
    turns = (number % NUM_PIECES for number in count())
    try:
        while isinstance(layout := pickle.loads(written_reader.recv_bytes()), BatchLayout):
            buffer = torch.empty(layout.num_bytes, dtype=torch.uint8, pin_memory=pinned)
            memory = buffer.numpy()
            for start in range(0, layout.num_bytes, PIECE_BYTES):
                if start:
                    written_reader.recv_bytes()
                part = memory[start : start + PIECE_BYTES]
                # not with PyTorch, whose threads would wait for cores that the other process uses
                np.copyto(part, pieces[next(turns)][: len(part)])
                with suppress(BrokenPipeError):  # the process has ended since it wrote this
                    freed_writer.send_bytes(b"")
            yield layout, buffer
    except EOFError as error:
        code = process.wait()
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        why = ", as the system ends it when memory runs out" * (code == -signal.SIGKILL)
        raise DataError(
            f"the process that makes the batches was ended by {name}{why}; dataset.workers=1 makes "
            "them in a thread of the training"
        ) from error
    if layout is not None:
        raise layout


def _serve(
    make_batches: Callable[[], Iterator[Batch]],
    num_singles: int,
    pieces: np.ndarray,
    written_writer: Connection,
    freed_reader: Connection,
) -> None:
    """Write batches until there are none left, or nobody reads them. Never returns."""
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # the training decides when it ends
        gc.freeze()  # a collection would visit all of the training's objects, and copy their pages
        torch.set_num_threads(1)  # the training's other threads do not exist here
        turns = count()
        try:
            for batch in prefetch_in_thread(make_batches(), 1):
                _write(batch, num_singles, pieces, written_writer, freed_reader, turns)
            last: Exception | None = None
        except (BrokenPipeError, EOFError):
            os._exit(0)
        except Exception as error:
            last = error
            if not isinstance(error, UserError):  # tracebacks are not sent between processes
                error.add_note(traceback.format_exc())
        try:
            payload = pickle.dumps(last)
            pickle.loads(payload)
        except Exception:  # of a class that cannot be sent
            payload = pickle.dumps(DataError(f"{type(last).__name__}: {last}"))
        written_writer.send_bytes(payload)
        while True:  # until the other process has read it
            freed_reader.recv_bytes()
    finally:
        os._exit(0)


def _write(
    batch: Batch,
    num_singles: int,
    pieces: np.ndarray,
    written_writer: Connection,
    freed_reader: Connection,
    turns: Iterator[int],
) -> None:
    """Write a batch, and send its layout with its first piece."""
    layout = BatchLayout.of(batch, num_singles)
    tensors = BatchLayout.tensors_of(batch)
    for start in range(0, layout.num_bytes, PIECE_BYTES):
        if (turn := next(turns)) >= NUM_PIECES:
            freed_reader.recv_bytes()
        piece = pieces[turn % NUM_PIECES]
        for name, place in layout.places.items():
            low, high = max(place.start, start), min(place.stop, start + PIECE_BYTES)
            if low < high:
                array = tensors[name].reshape(-1)[place.num_counted :].numpy()
                stored = np.int32 if place.stored == torch.int32 else array.dtype
                width = place.stored.itemsize
                part = array[(low - place.start) // width : (high - place.start) // width]
                target = piece[low - start : high - start].view(stored)
                np.copyto(target, part, casting="unsafe")  # the layout has checked the values
        written_writer.send_bytes(b"" if start else pickle.dumps(layout))
