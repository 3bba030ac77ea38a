"""A label that depends on numbers by hills and steps, beside ids, is learnt by the two commands."""

import numpy as np
from sklearn.metrics import roc_auc_score

from tests.whole.test_pairs import run_two_commands

ROWS = 30_000


def test_hills_and_steps_of_numbers_are_learnt_beside_ids(tmp_path, runner):
    rng = np.random.default_rng(3)
    user, item = rng.integers(0, 800, ROWS), rng.integers(0, 200, ROWS)
    age, price = rng.integers(15, 80, ROWS), rng.gamma(2, 20, ROWS).round(2)
    hours = rng.exponential(50, ROWS).round(1)
    logits = rng.normal(0, 0.5, 800)[user] + rng.normal(0, 0.5, 200)[item] - 3.5
    logits += 2 * np.exp(-(((age - 30) / 8) ** 2)) + 1.5 * (price < 15) + np.sin(hours / 12)
    chances = 1 / (1 + np.exp(-logits))
    click = (rng.random(ROWS) < chances).astype(int)
    columns = {"user": user, "item": item, "age": age, "price": price, "hours_since": hours}
    _, metrics, _ = run_two_commands(runner, tmp_path, {**columns, "click": click}, "click")
    declared = (tmp_path / "s.yaml").read_text()
    for name in ("age", "price", "hours_since"):
        assert f'"{name}_bucket": {{column: "{name}"' in declared
    # the users' and items' effects are known of few rows each: half of the way is the shapes'
    best = roc_auc_score(click, chances)
    assert metrics["test/auc"] > best - 0.045
