"""Batch size, epochs and warm-up that fit a number of train rows. No torch here.

A setting of `AUTO_KEYS` may be the word `auto`, which is replaced by the proposed number when the
train rows are counted, before anything is signed. So a run with `auto` equals a run with the
number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runner.distributed.global_batch import GLOBAL_BATCH_KEYS, batches_per_update, global_batch_size

UPDATES_PER_EPOCH = 60  # the minimum for a small table
BATCH_SIZES = (64, 4096)
FEW_UPDATES = 100  # with fewer, a run has hardly left its initial weights
# train rows up to -> passes over them, which early stopping cuts short
EPOCHS = ((100_000, 20), (1_000_000, 10), (10_000_000, 3))
PATIENCE = 3
# With at most so many train rows a table with a label is trained as long as validation improves,
# checked once in an epoch, or three times in `UPDATES_PER_EPOCH` updates if an epoch has fewer.
FEW_ROWS, MOST_FEW_EPOCHS, JUDGED_TIMES = 100_000, 60, 3
WARMUP_SHARE = 0.1  # of all updates, but at most one epoch
# A model of the next item learns at every place of a history. Of a million planted events, 1,500
# updates of 32 rows found .18 of the next items among 10; 1,000 of 128 rows, which cost half as
# much again, found .07.
NEXT_ITEM_ROWS, NEXT_ITEM_STEPS = 32, 3000
NEXT_ITEM_LENGTH = f"trainer.batch_size={NEXT_ITEM_ROWS} trainer.max_steps={NEXT_ITEM_STEPS}"
# Validation is judged by recall, which wavers while a model still repeats what is popular. Few
# histories are learnt by heart sooner, so that they are judged once in two passes over them.
NEXT_ITEM_JUDGED, NEXT_ITEM_PATIENCE, NEXT_ITEM_PASSES = (50, 500), 1500, 2  # updates, and passes
# So few updates are short for Adam's usual rates. Means of three seeds of test recall@10 rose on
# planted logs from .567 to .580 (8,600 histories), .587 to .598 (6,700) and .579 to .584 (3,700),
# one seed of 5,000 items, of which some are drawn, from .557 to .579, and one of Amazon Beauty from
# .058 to .082; it stayed at .18 where tastes drift. The decay at the end is worth .005 to .007 of
# NDCG@10. Few histories are learnt by heart sooner: test NDCG@10 of 2,200 fell from .341 to .335,
# and of 300 from .450 to .421. So larger rates are for at most so many passes over them.
NEXT_ITEM_RATES = "optimizer.dense.lr=0.002 optimizer.sparse.lr=0.01 scheduler=wsd"
MOST_PASSES_AT_RATES = 30
MOST_WARMUP = 2000  # 2 / (1 - beta2) for Adam's usual beta2 (arXiv:1910.04209)

AUTO = "auto"
AUTO_KEYS = (("trainer", "batch_size"), ("trainer", "max_epochs"), ("scheduler", "warmup"))
AUTO_OVERRIDES = tuple(f"{group}.{key}={AUTO}" for group, key in AUTO_KEYS)
# Rows for checks that precede the counting: their proposals break no rule.
UNKNOWN_ROWS = EPOCHS[-1][0] + 1


@dataclass(frozen=True)
class ProposedLength:
    """The length of training, rows per update, and warm-up."""

    batch_size: int  # rows of an update
    max_epochs: int
    warmup: int  # updates

    def overrides(self, parts: int = 1) -> list[str]:
        """Return the words of a command line.

        Args:
            parts: micro-batches of an update, over all ranks, which share its rows.
        """
        words = [
            f"trainer.batch_size={max(1, self.batch_size // parts)}",
            f"trainer.max_epochs={self.max_epochs}",
            f"scheduler.warmup={self.warmup}",
        ]
        return [*words, *stop_overrides(self)]

    def is_met(self, update_rows: int, max_epochs: int | None) -> bool:
        """Return whether a run with so many rows per update and so many epochs is no shorter."""
        return update_rows <= self.batch_size and (max_epochs or 0) >= self.max_epochs


def stop_overrides(length: ProposedLength) -> list[str]:
    """Return the overrides that stop a run of so many epochs when validation no longer improves."""
    if length.max_epochs <= PATIENCE:
        return []
    return [f"trainer.early_stop.patience={PATIENCE}"]


def next_item_overrides(train_rows: int) -> list[str]:
    """Return the overrides for training on so many histories that do not overlap."""
    low, high = NEXT_ITEM_JUDGED
    every = low * (NEXT_ITEM_PASSES * train_rows // (NEXT_ITEM_ROWS * low))
    every = min(max(low, every), high)
    patience = math.ceil(NEXT_ITEM_PATIENCE / every)
    words = [NEXT_ITEM_LENGTH, f"trainer.eval_every={every} trainer.early_stop.patience={patience}"]
    is_few = MOST_PASSES_AT_RATES * train_rows < NEXT_ITEM_ROWS * NEXT_ITEM_STEPS
    return words if is_few else [NEXT_ITEM_RATES, *words]


def table_overrides(train_rows: int) -> list[str]:
    """Return the overrides for training on a table with a label."""
    length = propose_length(train_rows)
    if train_rows > FEW_ROWS:
        return [*AUTO_OVERRIDES, *stop_overrides(length)]
    per_epoch = math.ceil(max(train_rows, 1) / length.batch_size)
    times = JUDGED_TIMES if per_epoch < UPDATES_PER_EPOCH else 1
    words = {word.partition("=")[0]: word for word in AUTO_OVERRIDES}
    epochs = MOST_FEW_EPOCHS * math.ceil(UPDATES_PER_EPOCH / per_epoch)
    words["trainer.max_epochs"] = f"trainer.max_epochs={epochs}"
    every = [f"trainer.eval_every={UPDATES_PER_EPOCH // times}"] if times > 1 else []
    return [*words.values(), f"trainer.early_stop.patience={PATIENCE * times}", *every]


def propose_length(train_rows: int) -> ProposedLength:
    """Return the largest power of two that leaves `UPDATES_PER_EPOCH`, within `BATCH_SIZES`."""
    low, high = BATCH_SIZES
    most = max(train_rows // UPDATES_PER_EPOCH, 1)
    batch_size = min(high, max(low, 1 << (most.bit_length() - 1)))
    epochs = next((epochs for rows, epochs in EPOCHS if train_rows <= rows), 1)
    per_epoch = math.ceil(train_rows / batch_size)
    return ProposedLength(batch_size, epochs, propose_warmup(per_epoch * epochs, per_epoch))


def propose_warmup(total_steps: int, steps_per_epoch: int) -> int:
    """Return the number of updates in which the rates should rise."""
    return min(int(WARMUP_SHARE * total_steps), steps_per_epoch, MOST_WARMUP)


def automatic_keys(config: Mapping[str, Any]) -> list[str]:
    """Return the dotted keys that are `auto`."""
    nodes = ((group, key, config.get(group)) for group, key in AUTO_KEYS)
    return [f"{g}.{k}" for g, k, node in nodes if isinstance(node, Mapping) and node.get(k) == AUTO]


def fill_automatic(config: Mapping[str, Any], train_rows: int) -> dict[str, Any]:
    """Return a configuration with a number in place of each `auto`.

    The rows of an update are shared by all ranks and micro-batches, so that they are the same for
    any number of these that divides them.
    """
    keys = automatic_keys(config)
    groups = {group: config.get(group) for group in ("trainer", "scheduler")}
    if not keys or not all(isinstance(node, Mapping) for node in groups.values()):
        return {**config}
    trainer, scheduler = ({**node} for node in groups.values() if node is not None)
    proposed = propose_length(train_rows)
    if "trainer.batch_size" in keys:
        parts = batches_per_update(*(_count(trainer, key) for key in GLOBAL_BATCH_KEYS[1:]))
        trainer["batch_size"] = max(1, proposed.batch_size // parts)
    if "trainer.max_epochs" in keys:
        trainer["max_epochs"] = proposed.max_epochs
    if "scheduler.warmup" in keys:
        update_rows = global_batch_size(*(_count(trainer, key) for key in GLOBAL_BATCH_KEYS))
        per_epoch = math.ceil(train_rows / update_rows)
        epochs = per_epoch * _count(trainer, "max_epochs")
        total = _count(trainer, "max_steps") if trainer.get("max_steps") else epochs
        scheduler["warmup"] = propose_warmup(total, per_epoch)
    return {**config, "trainer": trainer, "scheduler": scheduler}


def _count(trainer: Mapping[str, Any], key: str) -> int:
    """Return an integer from 1; 1 for values that another check refuses."""
    value = trainer.get(key)
    return value if type(value) is int and value > 0 else 1
