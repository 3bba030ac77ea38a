"""Types of the settings of dataset options, with the values that each may have. No torch here."""

from __future__ import annotations

from typing import Annotated

from runner.config_key import Key

LAST_BATCH_POLICIES = ("short", "drop", "pad")  # for rows of an epoch that fill no batch
MAX_ROWS = 2**31  # tables, windows and files have fewer

WindowRows = Annotated[int, Key(ge=1, lt=MAX_ROWS)]
Prefetch = Annotated[int, Key(ge=0, le=10_000)]
Workers = Annotated[
    int | None,
    Key(
        ge=0,
        le=256,
        note="null: one where the training leaves it a core, else none; for a GPU a process with "
        "up to three",
    ),
]
Rest = Annotated[str, Key(choices=LAST_BATCH_POLICIES)]
Count = Annotated[int, Key(ge=1, lt=MAX_ROWS)]
FromZero = Annotated[int, Key(ge=0, lt=MAX_ROWS)]
Seed = Annotated[int, Key(ge=0, lt=2**63)]
Seconds = Annotated[float, Key(gt=0)]
SecondsOrNone = Annotated[float | None, Key(gt=0, note="null: for ever")]
Few = Annotated[int, Key(ge=0, le=10_000)]  # of columns
Spread = Annotated[float, Key(ge=0)]  # a standard deviation
MeanLength = Annotated[float, Key(ge=0.5, le=10_000)]
Share = Annotated[float, Key(ge=0, le=1)]
DATA_SERVER = r"grpc(\+tls)?://(\[[0-9A-Fa-f:]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}"
Locations = Annotated[
    list[str], Key(pattern=DATA_SERVER, note="grpc://HOST:PORT or grpc+tls://HOST:PORT")
]
