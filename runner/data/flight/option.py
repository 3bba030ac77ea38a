"""The option `dataset=flight`: batches come from data servers. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runner.data.core.argument_types import Workers
from runner.data.flight.settings import FlightRecipe
from runner.parts import dataset_option

if TYPE_CHECKING:
    from runner.data.flight.dataset import FlightDataset

recipe = FlightRecipe


@dataset_option
def flight(*, workers: Workers = 2, **settings: Any) -> FlightDataset:
    """Return the dataset of the option `flight`.

    Args:
        workers: the number of windows that are prefetched, by as many threads.
        settings: the fields of `FlightRecipe`.
    """
    from runner.data.flight.dataset import open_flight  # imports torch

    flight_recipe = recipe(**settings)
    flight_recipe.check()
    return open_flight(flight_recipe, workers=workers)
