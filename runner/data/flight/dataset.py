"""A dataset whose windows are read, encoded and cut into batches by data servers."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from pyarrow import flight

from runner.data.core.fitted import FITTED_FILE, FittedTransforms, copy_fitted_transforms
from runner.data.flight.pieces import ALIGNMENT, from_message, misalignment
from runner.data.flight.protocol import (
    NAMES,
    SEEN,
    TRANSFORMS,
    Claim,
    NamesRequest,
    SeenRequest,
    ServedData,
    Ticket,
)
from runner.data.flight.servers import Servers
from runner.data.flight.settings import FlightRecipe
from runner.data.read.block_dataset import BlockDataset
from runner.data.read.decode import Rows
from runner.data.read.order import EpochPlan
from runner.data.read.stream import RankSlice, WindowSource
from runner.errors import DataError
from runner.parts import internal

ClaimT = TypeVar("ClaimT", bound=Claim)


@internal
class FlightDataset(BlockDataset):
    """Batches from data servers, identical to those from the servers' files.

    Args:
        workers: threads that prefetch windows, one window each.
    """

    def __init__(self, served: ServedData, servers: Servers, workers: int | None) -> None:
        super().__init__(
            {split: served.index(split) for split in served.blocks},
            served.columns,
            window_rows=served.window_rows,
            workers=workers,
            rest=served.rest,
            bad_rows=served.bad_rows,
            reachable=served.reachable,
        )
        self._served, self._servers = served, servers
        self._identity = served.identity
        self.pad = 0  # of tickets, see `Ticket`; determined with the first message

    def read_in_process(self, threads: int) -> None:
        """Read ahead in a thread instead: a fork must not use the client's connections."""
        self.read_ahead()

    def source_opener(self, split: str) -> Callable[[], WindowSource]:
        return partial(ServedWindows, self, self._servers, split)

    def claim(self, kind: type[ClaimT], **request: Any) -> ClaimT:
        """Return a request for this dataset."""
        return kind(self._identity, **request)

    def save_fitted_transforms(self, folder: Path) -> None:
        """Fetch the transforms with which the servers encoded the rows, and save them.

        Raises:
            DataError: if they are damaged.
        """
        if not self._served.has_transforms or (folder / FITTED_FILE).exists():
            return
        with tempfile.TemporaryDirectory() as temporary:
            for packed in self.act(TRANSFORMS, self.claim(Claim)):
                name, _, content = packed.partition(b"\n")
                if not re.fullmatch(rb"vocabulary-[0-9]+\.parquet|learnt\.json", name):
                    raise DataError(
                        f"a data server has sent a file called {name!r}: run the same version of "
                        "the package on both"
                    )
                (Path(temporary) / name.decode()).write_bytes(content)
            FittedTransforms.load(Path(temporary))  # refuses damaged files
            copy_fitted_transforms(Path(temporary), folder, self._served.table)

    def seen_items(self, split: str) -> ServedSeenItems | None:
        """Return the items that the users of a split have seen; see `Dataset.seen_items`."""
        if not self._served.has_seen or split == "train":
            return None
        return ServedSeenItems(self, split)

    def name_values(self, column: str, values: Sequence[int]) -> Mapping[int, str]:
        """Return names of values of a column; see `Dataset.name_values`."""
        request = self.claim(NamesRequest, column=column, values=list(values))
        [answer] = self.act(NAMES, request)
        return dict(json.loads(answer))

    def act(self, kind: str, request: Claim) -> list[bytes]:
        """Return a server's answer to an action."""

        def call(client: flight.FlightClient, options: flight.FlightCallOptions) -> list[bytes]:
            action = flight.Action(kind, request.to_bytes())
            return [part.body.to_pybytes() for part in client.do_action(action, options)]

        return self._servers.fetch(0, call)


@dataclass(frozen=True)
class ServedSeenItems:
    """Implements `runner.data.core.dataset.SeenItems`."""

    dataset: FlightDataset
    split: str

    def find(self, rows_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        request = self.dataset.claim(SeenRequest, split=self.split, rows=rows_B.tolist())
        row_V, item_V = (np.frombuffer(part, np.int64) for part in self.dataset.act(SEEN, request))
        return row_V.copy(), item_V.copy()  # torch may write to these copies


class ServedWindows(WindowSource):
    """Fetches the windows of a split, batch by batch."""

    def __init__(self, dataset: FlightDataset, servers: Servers, split: str) -> None:
        self._dataset, self._servers, self._split = dataset, servers, split
        self._is_cancelled = False
        self._stream: flight.FlightStreamReader | None = None

    def read_window(
        self, epoch_plan: EpochPlan, rank_slice: RankSlice, number: int
    ) -> Sequence[Rows]:
        low, high = epoch_plan.window_range(number)
        local = rank_slice.offsets_in_window(low, high)
        expected = len(local) if isinstance(local, np.ndarray) else len(range(high - low)[local])
        if not expected:
            return ()
        return self._fetch(epoch_plan, rank_slice, number, expected)

    def read_first_row(self, epoch_plan: EpochPlan) -> Rows:
        return self._fetch(epoch_plan, RankSlice(0, 1, 1, 0, 1), 0, 1, first_row=True)[0]

    def _fetch(
        self,
        epoch_plan: EpochPlan,
        rank_slice: RankSlice,
        number: int,
        expected: int,
        first_row: bool = False,
    ) -> list[Rows]:
        """Return the rows of a window from any server that answers.

        Raises:
            DataError: see `Servers.fetch`; and if rows are missing.
        """

        def call(client: flight.FlightClient, options: flight.FlightCallOptions) -> list[Rows]:
            ticket = self._dataset.claim(
                Ticket,
                split=self._split,
                seed=epoch_plan.seed,
                epoch=epoch_plan.epoch,
                window=number,
                first_row=first_row,
                pad=self._dataset.pad,
                **asdict(rank_slice),
            )
            self._stream = client.do_get(flight.Ticket(ticket.to_bytes()), options)
            try:
                return [self._receive(chunk.data, ticket) for chunk in self._stream]
            finally:
                self._stream = None

        parts = self._servers.fetch(number, call, lambda: self._is_cancelled)
        received = sum(map(len, parts))
        if received != expected:
            raise DataError(
                f"a data server has sent {received} rows of window {number}, not {expected}: "
                "run the same version of the package on both"
            )
        return parts

    def _receive(self, message: pa.RecordBatch, ticket: Ticket) -> Rows:
        if missed := misalignment(message):
            self._dataset.pad = (ticket.pad - missed) % ALIGNMENT
        return from_message(message, self._dataset.columns)

    def cancel(self) -> None:
        self._is_cancelled = True
        if (stream := self._stream) is not None:
            stream.cancel()

    def close(self) -> None:
        return


def open_flight(settings: FlightRecipe, *, workers: int | None) -> FlightDataset:
    """Return the dataset that the servers provide.

    Raises:
        DataError: if none answers, or their data differ.
    """
    served = Servers(settings).describe()
    return FlightDataset(served, Servers(settings, Claim(served.identity)), workers)
