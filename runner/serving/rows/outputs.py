"""The output columns of a prediction in addition to the kept ones. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runner.data.core.columns import LabelColumn
from runner.errors import UserError, unknown_choice

EMBEDDINGS = ("user", "item", "pooled")
TOP_ITEMS, TOP_SCORES = "top_items", "top_scores"


@dataclass(frozen=True)
class Outputs:
    """The outputs that are written for each row.

    Args:
        logits: whether logits are written instead of probabilities; regressions have none.
        embeddings: names of `EMBEDDINGS` whose vectors are written as well.
        top_k: how many of the best items are written as well; 0 for none.
        index: a folder of `python -m runner index`, in which they are searched; None: all items
            are compared.

    Raises:
        UserError: for an embedding that does not exist, a number below 0, or an index for nothing.
    """

    logits: bool = False
    embeddings: tuple[str, ...] = ()
    top_k: int = 0
    index: str | None = None

    def __post_init__(self) -> None:
        for name in self.embeddings:
            if name not in EMBEDDINGS:
                raise UserError(unknown_choice("--embeddings", name, EMBEDDINGS))
        if not isinstance(self.top_k, int) or self.top_k < 0:
            raise UserError(f"--top-k {self.top_k}: must be a number of items, 0 for none")
        if self.index is not None and not self.top_k:
            raise UserError(f"--index {self.index}: is for --top-k, which is not set")

    @property
    def needs_retrieval(self) -> bool:
        """Whether they need a retrieval model, which multiplies a user's and an item's vector."""
        return bool(self.top_k) or bool({"user", "item"} & set(self.embeddings))

    def score_name(self, label: LabelColumn) -> str:
        """Return the name of a task's column."""
        return f"{'logit' if self.logits and label.kind == 'binary' else 'score'}_{label.name}"

    def column_names(self, labels: Sequence[LabelColumn]) -> list[str]:
        """Return the names of all columns that are written in addition to the kept ones."""
        names = [self.score_name(label) for label in labels]
        names += [f"class_{name}" for name in dict.fromkeys(c.one_of for c in labels) if name]
        names += [f"embedding_{name}" for name in self.embeddings]
        return names + ([TOP_ITEMS, TOP_SCORES] if self.top_k else [])
