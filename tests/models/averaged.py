"""A plain MLP on averaged histories: what models of sequences must beat."""

from __future__ import annotations

from runner.models.din import DIN


class Averaged(DIN):
    """DIN without its activation unit: the mean of a history whatever the item is."""

    def __init__(self, schema, **settings) -> None:
        super().__init__(schema, **settings)
        self.candidates = [None] * len(self.candidates)
        self.activations = self.activations[:0]
