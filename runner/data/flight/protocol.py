"""The protocol between trainers and data servers: JSON and Arrow, never code. No torch here.

A ticket is a position: a window of an epoch's order, and a rank's part of it. Any server with the
same data can answer any ticket, so servers keep no state between tickets.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from runner.data.core.columns import (
    CategoricalColumn,
    Columns,
    LabelColumn,
    NumericColumn,
    SequenceColumn,
)
from runner.data.growing.settings import Eviction, Growth
from runner.data.read.index import BlockIndex
from runner.errors import DataError

PROTOCOL_VERSION = 1
# actions
DESCRIBE, CHECK, TRANSFORMS, SEEN, NAMES = "describe", "check", "transforms", "seen", "names"
_LOOPBACK = re.compile(r"localhost|127(\.[0-9]{1,3}){3}|::1")


def is_loopback(host: str) -> bool:
    """Return whether an address is reachable from this machine only."""
    return _LOOPBACK.fullmatch(host.strip("[]")) is not None


@dataclass(frozen=True)
class Claim:
    """What a trainer expects of a server, which refuses other requests.

    Args:
        fingerprint: of the data and their division into blocks, see `ServedData.identity`.
    """

    fingerprint: str
    version: int = PROTOCOL_VERSION

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()


@dataclass(frozen=True)
class Ticket(Claim):
    """The rows that a rank has in one window of an epoch.

    Args:
        seed: of the shuffle; None: the order of the files.
        start: offset in the epoch of the first batch.
        total: offset at which the batches end.
        batch_size: rows of a batch on one rank.
        first_row: whether only the first row of the window's blocks is requested.
        pad: bytes before the body of a message, so that the trainer receives it aligned.
    """

    split: str = "train"
    seed: int | None = None
    epoch: int = 0
    window: int = 0
    start: int = 0
    total: int = 1
    batch_size: int = 1
    rank: int = 0
    world_size: int = 1
    first_row: bool = False
    pad: int = 0


@dataclass(frozen=True)
class SeenRequest(Claim):
    """Requests the items that the users of a split's rows have seen."""

    split: str = "validation"
    rows: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class NamesRequest(Claim):
    """Requests names of values of a column of ids or groups."""

    column: str = ""
    values: list[int] = field(default_factory=list)


def read_claim(text: bytes, kind: type[Claim] = Claim) -> Any:
    """Parse a claim or a ticket.

    Raises:
        DataError: if it is invalid, or of another version of the protocol.
    """
    try:
        values = json.loads(text)
        version = values.pop("version")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise DataError("this is not a request of a training with dataset=flight") from error
    if version != PROTOCOL_VERSION:
        raise DataError(
            f"the trainer speaks version {version!r} of the protocol, and this server version "
            f"{PROTOCOL_VERSION}: run the same version of the package on both"
        )
    ranges = dict.fromkeys(("window", "epoch", "start", "seed"), (0, 2**63))
    ranges |= dict.fromkeys(("total", "batch_size", "world_size"), (1, 2**62)) | {"pad": (0, 64)}
    try:
        claim = kind(**values)
    except TypeError as error:
        raise DataError(
            f"this is not a request of a training with dataset=flight: {error}"
        ) from error
    for name, default in vars(kind("")).items():
        value = getattr(claim, name)
        is_of_type = type(value) is type(default) or (name == "seed" and type(value) is int)
        low, stop = ranges.get(name, (0, 0))
        if not is_of_type or (value is not None and name in ranges and not low <= value < stop):
            raise DataError(
                f"this is not a request of a training with dataset=flight: {name}={value!r}"
            )
    return claim


@dataclass(frozen=True)
class ServedData:
    """The description of its data that a server sends before a training.

    Args:
        window_rows: determines the order.
        rest: policy for the last rows of an epoch.
        blocks: split -> rows of each block.
        bad_rows: count and examples of the rows that were skipped.
        reachable: split -> metric -> best possible value.
        table: format and schema of a user's table, for predictions; empty: a known data set.
        has_transforms: whether transforms were fitted, see `TRANSFORMS`.
        has_seen: whether the items that users have seen are known.
    """

    fingerprint: str
    columns: Columns
    window_rows: int
    rest: str
    blocks: Mapping[str, list[int]]
    bad_rows: Mapping[str, Any]
    reachable: Mapping[str, Mapping[str, float]]
    table: Mapping[str, Any]
    has_transforms: bool
    has_seen: bool

    @property
    def identity(self) -> str:
        """The identity that all servers of a training share, so that any server answers any ticket.

        The same data may be divided into other blocks if another version has prepared them.
        """
        text = json.dumps([_plain(self.columns), self.blocks, self.window_rows], sort_keys=True)
        return f"{self.fingerprint}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    def to_json(self) -> str:
        return json.dumps({**vars(self), "columns": _plain(self.columns)})

    @classmethod
    def from_json(cls, text: str | bytes) -> ServedData:
        """Parse what `to_json` has written.

        Raises:
            DataError: for any other text.
        """
        try:
            values = json.loads(text)
            return cls(**{**values, "columns": _read_columns(values["columns"])})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError(
                f"the server's description of its data cannot be read ({error!r}): run the same "
                "version of the package on both"
            ) from error

    def index(self, split: str) -> BlockIndex:
        """Return the blocks of a split, whose files only the servers know."""
        return BlockIndex.of_file((), self.blocks[split])


def _plain(columns: Columns) -> dict[str, Any]:
    return {k: v for k, v in asdict(columns).items() if k not in ("singles", "lists")}


def _read_columns(values: Mapping[str, Any]) -> Columns:
    labels = ({**c, "allowed": c["allowed"] and tuple(c["allowed"])} for c in values["labels"])
    return Columns(
        labels=tuple(LabelColumn(**c) for c in labels),
        numeric=tuple(NumericColumn(**c) for c in values["numeric"]),
        categorical=tuple(CategoricalColumn(**_with_growth(c)) for c in values["categorical"]),
        sequences=tuple(SequenceColumn(**_with_growth(c)) for c in values["sequences"]),
        weight=values["weight"],
        groups=tuple(values["groups"]),
        carried=tuple(values["carried"]),
    )


def _with_growth(values: Mapping[str, Any]) -> dict[str, Any]:
    if (growth := values["growth"]) is not None:
        evict = growth["evict"] and Eviction(**growth["evict"])
        growth = Growth(growth["min_count"], evict)
    return {**values, "growth": growth}
