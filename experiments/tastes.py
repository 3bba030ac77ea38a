"""Prints what two commands find where clicks come from tastes, beside logistic regression.

Users have tastes and items properties, vectors of four normal numbers; the logit of a click is
their dot product beside an effect of the item. `python -m runner schema FILE`, then the command
that it prints, with no setting touched, on tables that name the user, a history of items that the
user likes, or both:

    python -m experiments.tastes

N rows, U users, I items.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.metrics import roc_auc_score

from tests.whole.test_never_below_yardstick import run_two_commands

FACTORS = 4
# rows, users, items, columns, and the correlation of the tastes of two labels
TABLES = {
    "users and items": (100_000, 500, 300, ("user_id", "item_id", "click"), 1.0),
    "20 rows of each user": (100_000, 5000, 500, ("user_id", "item_id", "click"), 1.0),
    "items and histories": (100_000, 3000, 500, ("item_id", "history", "click"), 1.0),
    "all three": (100_000, 3000, 500, ("user_id", "item_id", "history", "click"), 1.0),
    "two labels, tastes alike": (80_000, 800, 400, ("user_id", "item_id", "click", "like"), 0.7),
}


def plant(
    num_rows: int, users: int, items: int, columns: tuple[str, ...], alike: float, seed: int = 0
) -> tuple[pa.Table, float]:
    """Return a table of so many rows, and the mean AUC of the logits that draw its labels.

    Args:
        num_rows: N.
        users: U.
        items: I.
        columns: of the table: user_id, item_id, history, click, like.
        alike: the correlation of the tastes and properties that `like` and `click` come from.
        seed: of all draws.
    """
    rng = np.random.default_rng(seed)
    tastes, properties = rng.normal(size=(users, FACTORS)), rng.normal(size=(items, FACTORS))
    user_N, item_N = rng.integers(0, users, num_rows), rng.integers(0, items, num_rows)
    popularity = 0.6 * rng.normal(size=items)
    shares_UI = np.exp(1.5 * tastes @ properties.T / FACTORS**0.5 + popularity)
    histories = [
        [f"i{item}" for item in rng.choice(items, length, replace=False, p=row / row.sum())]
        for row, length in zip(shares_UI, rng.integers(3, 16, users))
    ]
    made = {
        "user_id": pa.array([f"u{user}" for user in user_N]),
        "item_id": pa.array([f"i{item}" for item in item_N]),
        "history": pa.array([histories[user] for user in user_N]),
    }
    aucs = []
    for label, intercept in (("click", -0.7), ("like", -2.0)):
        logits_N = intercept + (tastes[user_N] * properties[item_N]).sum(1) / FACTORS**0.5
        logits_N += 0.5 * rng.normal(size=items)[item_N]
        y_N = rng.random(num_rows) < 1 / (1 + np.exp(-logits_N))
        made[label] = pa.array(y_N.astype(np.int64))
        if label in columns:
            aucs.append(roc_auc_score(y_N, logits_N))
        rest = (1 - alike**2) ** 0.5
        tastes = alike * tastes + rest * rng.normal(size=tastes.shape)
        properties = alike * properties + rest * rng.normal(size=properties.shape)
    return pa.table({name: made[name] for name in columns}), float(np.mean(aucs))


def main() -> None:
    """Print a line for each table: test AUCs, means over its labels."""
    print("| table | logistic regression | two commands | the true logits |\n|---|---|---|---|")
    for name, settings in TABLES.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "clicks.parquet"
            table, best = plant(*settings)
            pq.write_table(table, path)
            labels = [c for c in ("click", "like") if c in settings[3]]
            found = run_two_commands(str(path), ("--label", ",".join(labels)), Path(folder))
        print(f"| {name} | {found.tuned:.4f} | {found.ours:.4f} | {best:.4f} |", flush=True)


if __name__ == "__main__":
    main()
