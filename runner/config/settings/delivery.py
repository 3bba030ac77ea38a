"""The keys of conf/delivery/. None of them enters a signature (see config/signature.py)."""

from __future__ import annotations

from dataclasses import dataclass

from runner.config_key import setting

FOLDER_DELIVERY = "runner.serving.delivery.FolderDelivery"


@dataclass(frozen=True)
class DeliverySettings:
    """When a training writes what changed in its model, and where."""

    every: int | str | None = setting(
        None, "updates, or '5000ex', '1ep'; null: nothing is delivered", interval="progress"
    )
    to: str | None = setting(
        None, "the folder: full, a whole artifact, and a delta-STEP for each delivery"
    )
    rows_from: str | None = setting(
        None, "labelled rows that full is held against; null: the test split"
    )
