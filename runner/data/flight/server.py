"""The data server: answers tickets with batches, and keeps no state between tickets."""

from __future__ import annotations

import hmac
import json
import queue
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import flight

from runner.batch import DataPosition
from runner.data.core.fitted import FITTED_FILE
from runner.data.flight.pieces import MESSAGE, to_message
from runner.data.flight.protocol import (
    CHECK,
    DESCRIBE,
    NAMES,
    PROTOCOL_VERSION,
    SEEN,
    TRANSFORMS,
    NamesRequest,
    SeenRequest,
    ServedData,
    Ticket,
    read_claim,
)
from runner.data.read.collate import collate
from runner.data.read.order import EpochPlan, plan_epoch
from runner.data.read.parquet_dataset import ParquetDataset
from runner.data.read.seen_items import SeenItems
from runner.data.read.stream import BatchSlice, RankSlice, WindowSource
from runner.errors import DataError, UserError
from runner.machine.cores import usable_cores

MAX_SEEN_ROWS = 1 << 20  # of one request


class DataServer(flight.FlightServerBase):  # type: ignore[misc]  # it has no types
    """Serves one dataset to any number of trainings. It listens from the start.

    Args:
        table: format and schema of a user's table; empty: a known data set.
        location: `grpc://HOST:PORT` or `grpc+tls://HOST:PORT`; port 0: any free one.
        certificate: for TLS: certificate and private key, in PEM.
        token: required in each call; None: no token is needed.
    """

    def __init__(
        self,
        dataset: ParquetDataset,
        fingerprint: str,
        table: Mapping[str, Any],
        location: str,
        *,
        certificate: tuple[bytes, bytes] | None = None,
        token: str | None = None,
    ) -> None:
        self.dataset, self.fingerprint, self._table = dataset, fingerprint, table
        self._reading = threading.Semaphore(usable_cores())
        self._idle: dict[str, queue.SimpleQueue[WindowSource]] = {
            split: queue.SimpleQueue() for split in dataset.indexes
        }
        self._complaints: set[str] = set()
        self._seen: dict[str, SeenItems | None] = {}
        self._reading_seen = threading.Lock()
        self.identity = self.describe().identity
        more: dict[str, Any] = {}
        if certificate is not None:
            more["tls_certificates"] = [certificate]
        if token is not None:
            more["middleware"] = {"token": _TokenCheck(token, self.complain)}
        super().__init__(location, **more)

    def describe(self) -> ServedData:
        """Return the description that trainers get."""
        data = self.dataset
        folder = data.transforms_dir
        return ServedData(
            fingerprint=self.fingerprint,
            columns=data.columns,
            window_rows=data.window_rows,
            rest=data.rest,
            blocks={split: index.rows_N.tolist() for split, index in data.indexes.items()},
            bad_rows=dict(data.bad_rows),
            reachable={split: dict(best) for split, best in data.reachable.items()},
            table=self._table,
            has_transforms=folder is not None and (folder / FITTED_FILE).exists(),
            has_seen=any(self._seen_items(split) for split in data.indexes),
        )

    def do_get(
        self, context: flight.ServerCallContext, ticket: flight.Ticket
    ) -> flight.GeneratorStream:
        with self._refusing(context):
            claim = self._check(read_claim(ticket.ticket, Ticket))
            plan, rank_slice = self._find_window(claim)
        return flight.GeneratorStream(MESSAGE, self._messages(context, claim, plan, rank_slice))

    def do_action(
        self, context: flight.ServerCallContext, action: flight.Action
    ) -> Iterator[bytes]:
        with self._refusing(context):
            body = action.body.to_pybytes()
            if action.type == DESCRIBE:
                return iter([self._describe_to(body)])
            if action.type == CHECK:
                self._check(read_claim(body))
                return iter([b""])
            if action.type == TRANSFORMS:
                self._check(read_claim(body))
                return self._packed_transforms()
            if action.type == SEEN:
                return self._find_seen(self._check(read_claim(body, SeenRequest)))
            if action.type == NAMES:
                return self._name_values(self._check(read_claim(body, NamesRequest)))
            raise DataError(f"there is no action {action.type!r}")

    def complain(self, peer: str, problem: str) -> None:
        """Report a refusal on stderr, once for each kind and address."""
        host = peer.rpartition(":")[0]
        text = f"refused {host}: {problem}"
        if text not in self._complaints and len(self._complaints) < 1000:
            self._complaints.add(text)
            print(text, file=sys.stderr, flush=True)

    @contextmanager
    def _refusing(self, context: flight.ServerCallContext) -> Iterator[None]:
        """Report to the trainer, and to this server's user, why a call is refused.

        Raises:
            FlightServerError: in place of errors raised in the block.
        """
        try:
            yield
        except UserError as error:
            self.complain(context.peer(), str(error))
            raise flight.FlightServerError(str(error)) from error

    def _describe_to(self, body: bytes) -> bytes:
        if body != str(PROTOCOL_VERSION).encode():
            raise DataError(
                f"the trainer speaks version {body[:9].decode(errors='replace')} of the protocol, "
                f"and this server version {PROTOCOL_VERSION}"
            )
        return self.describe().to_json().encode()

    def _check(self, claim: Any) -> Any:
        if claim.fingerprint != self.identity:
            raise DataError(
                f"the trainer wants the data {claim.fingerprint[:64]}, and this server has "
                f"{self.identity}: other files, another schema or other settings"
            )
        return claim

    def _find_window(self, ticket: Ticket) -> tuple[EpochPlan, RankSlice]:
        """Return the epoch and the rank's part of it for a ticket.

        Raises:
            DataError: for a position outside these data.
        """
        if ticket.split not in self.dataset.indexes:
            raise DataError(f"there is no split {ticket.split!r}")
        index = self.dataset.indexes[ticket.split]
        plan = plan_epoch(
            index, seed=ticket.seed, epoch=ticket.epoch, window_rows=self.dataset.window_rows
        )
        is_there = (
            ticket.start < ticket.total <= index.num_rows and 0 <= ticket.rank < ticket.world_size
        )
        if not is_there or ticket.window >= plan.num_windows:
            raise DataError(f"there is no such position: {asdict(ticket)}")
        names = RankSlice.__dataclass_fields__
        return plan, RankSlice(**{name: getattr(ticket, name) for name in names})

    def _messages(
        self,
        context: flight.ServerCallContext,
        ticket: Ticket,
        plan: EpochPlan,
        rank_slice: RankSlice,
    ) -> Iterator[tuple[pa.RecordBatch, pa.Buffer]]:
        """Yield a window's batches; of batches shared with other windows, only its own rows."""
        data = self.dataset
        with self._refusing(context), self._reading, self._source(ticket.split) as source:
            if ticket.first_row:
                parts, low = [source.read_first_row(plan)], 0
            else:
                parts = list(source.read_window(plan, rank_slice, ticket.window))
                low, _ = plan.window_range(ticket.window)
        padding = pa.py_buffer(bytes(1 + ticket.pad))  # shifts what follows it in the message
        num_singles = len(data.columns.singles)
        for rows in parts:
            stop = -rank_slice.rows_before(low) % ticket.batch_size or ticket.batch_size
            at = 0
            while at < len(rows):
                batch_slice = BatchSlice(((rows, at, min(stop, len(rows))),), 0)
                batch = collate(batch_slice, data.sparse_keys, DataPosition(), data.sequence_keys)
                yield to_message(batch, num_singles), padding
                at, stop = stop, stop + ticket.batch_size

    @contextmanager
    def _source(self, split: str) -> Iterator[WindowSource]:
        """Lend a source of windows, whose files stay open for the next call."""
        try:
            source = self._idle[split].get_nowait()
        except queue.Empty:
            source = self.dataset.source_opener(split)()
        try:
            yield source
        finally:
            self._idle[split].put(source)

    def _packed_transforms(self) -> Iterator[bytes]:
        folder = self.dataset.transforms_dir
        if folder is None:
            raise DataError("no transforms were fitted to these data")
        paths: list[Path] = [*sorted(folder.glob("vocabulary-*.parquet")), folder / FITTED_FILE]
        return (path.name.encode() + b"\n" + path.read_bytes() for path in paths)

    def _find_seen(self, request: SeenRequest) -> Iterator[bytes]:
        rows_B = np.array(request.rows, np.int64)
        total = self.dataset.num_rows.get(request.split, 0)
        is_inside = len(rows_B) <= MAX_SEEN_ROWS and ((rows_B >= 0) & (rows_B < total)).all()
        with self._reading_seen:
            seen_items = self._seen_items(request.split) if is_inside and total else None
            if seen_items is None:
                raise DataError(f"what the users of {request.split} have seen is not known")
            return iter([array.astype(np.int64).tobytes() for array in seen_items.find(rows_B)])

    def _name_values(self, request: NamesRequest) -> Iterator[bytes]:
        if len(request.values) > MAX_SEEN_ROWS or any(type(v) is not int for v in request.values):
            raise DataError(
                f"{request.column}: the request holds no list of at most {MAX_SEEN_ROWS:,} "
                "whole numbers"
            )
        with self._reading_seen:
            names = self.dataset.name_values(request.column, request.values)
        return iter([json.dumps(list(names.items())).encode()])

    def _seen_items(self, split: str) -> SeenItems | None:
        if split not in self._seen:
            self._seen[split] = self.dataset.seen_items(split)
        return self._seen[split]


class _TokenCheck(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Refuses calls without the token."""

    def __init__(self, token: str, complain: Callable[[str, str], None]) -> None:
        self._expected = f"Bearer {token}".encode()
        self._complain = complain

    def start_call(self, info: flight.CallInfo, headers: Mapping[str, list[Any]]) -> None:
        header = (headers.get("authorization") or [""])[0]
        text = header if isinstance(header, bytes) else header.encode()
        if not hmac.compare_digest(text, self._expected):
            problem = "wrong token" if text else "no token; dataset.token_env names the variable"
            self._complain("a trainer:", problem)
            raise flight.FlightUnauthenticatedError(problem)
