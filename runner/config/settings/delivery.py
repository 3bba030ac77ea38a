"""The keys of conf/delivery/."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from runner.config_key import Key

FOLDER_DELIVERY = "runner.serving.delivery.FolderDelivery"


@dataclass(frozen=True)
class DeliverySettings:
    """When a training writes what changed in its model, and where."""

    every: Annotated[
        int | str | None,
        Key(
            "updates, or '5000ex', '1ep'; null: nothing is delivered",
            interval="progress",
            signed="no",
        ),
    ] = None
    to: Annotated[
        str | None,
        Key("the folder: full, a whole artifact, and a delta-STEP for each delivery", signed="no"),
    ] = None
    rows_from: Annotated[
        str | None,
        Key("labelled rows that full is held against; null: the test split", signed="no"),
    ] = None
