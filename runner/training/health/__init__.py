"""How a run is doing: a yardstick beside the model, and what is remarkable about the data."""
