"""Settings of a small synthetic dataset, as the configuration would give them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

CONF = Path(__file__).resolve().parents[2] / "conf" / "dataset"


def option(name: str, **changes: Any) -> dict[str, Any]:
    """The YAML of a dataset option, with changes."""
    settings = yaml.safe_load((CONF / f"{name}.yaml").read_text())
    assert set(changes) <= set(settings)
    return {**settings, **changes}


def small(**changes: Any) -> dict[str, Any]:
    rows = {"train": 20_000, "validation": 3_000, "test": 5_000}
    return option("synthetic", **{"rows": rows, "max_cardinality": 500, **changes})


def called(settings: dict[str, Any]) -> Any:
    """What Hydra's instantiate makes of it."""
    from importlib import import_module

    settings = dict(settings)
    module, _, name = settings.pop("_target_").rpartition(".")
    return getattr(import_module(module), name)(**settings)
