"""The plot of a bandit's regret, from a log written by hand."""

from __future__ import annotations

import json

from experiments.regret import curve, plot


def test_the_curve_is_that_of_the_train_rows_and_the_picture_names_the_run(tmp_path):
    run = tmp_path / "greedy"
    run.mkdir()
    rows = [
        {"split": "train", "decisions": 10.0, "regret": 0.5, "regret_so_far": 5.0},
        {"split": "validation", "loss": 0.3},
        {"split": "train", "decisions": 20.0, "regret": 0.25, "regret_so_far": 7.5},
    ]
    (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    assert curve(run) == [(10.0, 0.5, 5.0), (20.0, 0.25, 7.5)]
    plot([run], tmp_path / "regret.html")
    page = (tmp_path / "regret.html").read_text()
    assert "greedy" in page and "regret so far" in page
