"""The two commands beside scikit-learn's models, on tables whose labels are linear."""

import numpy as np
import pandas as pd
import pytest

from experiments import two_commands
from runner.errors import UserError


@pytest.mark.long
def test_the_two_commands_are_held_against_models_of_scikit_learn(capsys, tmp_path):
    rng = np.random.default_rng(0)
    shops, x = rng.integers(0, 9, 1500), rng.normal(size=1500)
    logits = 2 * x + rng.normal(size=9)[shops] + rng.logistic(size=1500)
    columns = {"shop": [f"s{n}" for n in shops], "x": x, "noise": rng.normal(size=1500)}
    labels = {"late": np.where(logits > 0, "yes", "no"), "price": logits}
    labels["kind"] = np.array(["a", "b", "c"])[np.digitize(logits, [-1, 1])]
    tasks = {"late": "", "price": ":regression", "kind": ":classes"}
    for name, values in labels.items():
        pd.DataFrame({**columns, name: values}).to_csv(tmp_path / f"{name}s.csv", index=False)
    words = [f"{tmp_path / name}s.csv:{name}{task}" for name, task in tasks.items()]
    assert two_commands.main(words) == 0
    said = capsys.readouterr().out
    for name in labels:
        row = next(line for line in said.splitlines() if line.startswith(f"| {name}s | 1,500 |"))
        ours, _, linear = (float(cell) for cell in row.split("|")[5:8])
        assert ours == pytest.approx(linear, abs=0.05) and 0.3 < linear < 0.9


def test_a_command_that_fails_is_told_with_its_reason(tmp_path):
    path = tmp_path / "x.csv"
    pd.DataFrame({"late": ["a", "b"] * 50, "x": [1.0] * 100}).to_csv(path, index=False)
    with pytest.raises(UserError, match=r"schema train.csv --label late .*no column to learn from"):
        two_commands.main([f"{path}:late"])
