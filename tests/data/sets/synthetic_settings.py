"""Settings of dataset options, as the configuration would give them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

CONF = Path(__file__).resolve().parents[3] / "conf" / "dataset"


def dataset_settings(name: str, **changes: Any) -> dict[str, Any]:
    """Return the YAML of a dataset option, with changes."""
    settings = yaml.safe_load((CONF / f"{name}.yaml").read_text())
    assert set(changes) <= set(settings)
    return {**settings, **changes}


def small_synthetic(**changes: Any) -> dict[str, Any]:
    rows = {"train": 20_000, "validation": 3_000, "test": 5_000}
    return dataset_settings("synthetic", **{"rows": rows, "max_cardinality": 500, **changes})


def instantiate(settings: dict[str, Any]) -> Any:
    """Call the `_target_`, as Hydra's instantiate does."""
    from importlib import import_module

    settings = dict(settings)
    module, _, name = settings.pop("_target_").rpartition(".")
    return getattr(import_module(module), name)(**settings)
