"""Batch size and epochs that fit a number of train rows. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

UPDATES_PER_EPOCH = 60  # that a small table should have
BATCH_SIZES = (64, 4096)
FEW_UPDATES = 100  # a run of fewer has hardly left its initial weights
# train rows up to -> passes over them, which early stopping cuts short
EPOCHS = ((100_000, 20), (1_000_000, 10), (10_000_000, 3))
PATIENCE = 3


@dataclass(frozen=True)
class ProposedLength:
    """How long to train, and on how many rows at a time."""

    batch_size: int
    max_epochs: int

    def overrides(self) -> list[str]:
        """Return the words of a command line."""
        words = [f"trainer.batch_size={self.batch_size}", f"trainer.max_epochs={self.max_epochs}"]
        if self.max_epochs > PATIENCE:
            words.append(f"trainer.early_stop.patience={PATIENCE}")
        return words


def propose_length(train_rows: int) -> ProposedLength:
    """Return the largest power of two that leaves `UPDATES_PER_EPOCH`, within `BATCH_SIZES`."""
    low, high = BATCH_SIZES
    most = max(train_rows // UPDATES_PER_EPOCH, 1)
    batch_size = min(high, max(low, 1 << (most.bit_length() - 1)))
    epochs = next((epochs for rows, epochs in EPOCHS if train_rows <= rows), 1)
    return ProposedLength(batch_size, epochs)
