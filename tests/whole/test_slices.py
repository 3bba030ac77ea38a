"""Metrics of each value of a column stand by the value's name wherever a run's results are read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.whole.compare_runs import read_rows

CITIES = ["red", "a/b=c", "<b>[bold] & co", "unknown", ""]
NAMES = ["red", "a%2Fb%3Dc", "<b>[bold] & co", "'unknown'", "missing", "unknown"]


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """Write rows whose city is one of CITIES, or one that the train split has once."""
    rng = np.random.default_rng(0)
    rows = []
    for n in range(1200):
        city = CITIES[n % 5] if n % 11 else f"new {n}"
        rows.append(f"{int(rng.random() < 0.2 + n % 5 * 0.1)},{city},{n % 7}")
    (tmp_path / "rows.csv").write_text("\n".join(["click,city,place", *rows]) + "\n")
    schema = {
        "path": "rows.csv",
        "split": {"random": {"train": 0.6, "validation": 0.2, "test": 0.2}},
        "labels": ["click"],
        "categorical": {
            "city": {"encode": "vocabulary", "min_count": 5},
            "place": {"num_rows": 7},
        },
    }
    (tmp_path / "rows.yaml").write_text(json.dumps(schema))
    words = ["dataset=csv", "dataset.schema=rows.yaml", "model=mlp", "metrics.slice_by=city"]
    return [*words, "trainer.batch_size=64", "trainer.max_steps=6", "trainer.num_threads=1"]


def sliced(run: Path) -> dict[str, float]:
    metrics = json.loads((run / "result.json").read_text())["metrics"]
    return {key: value for key, value in metrics.items() if "/city=" in key}


@pytest.mark.long
def test_slices_are_named_by_their_values_on_every_page_and_number_of_ranks(
    runner, words, tmp_path
):
    done = runner.run(*words, "hydra.run.dir=one", cwd=tmp_path).check()
    found = sliced(tmp_path / "one")
    keys = [f"test/auc/city={name}" for name in NAMES]
    assert sorted(key for key in found if key.startswith("test/auc/")) == sorted(keys)
    assert [key for key in read_rows(tmp_path / "one")[-1] if key.startswith("auc/")][:2] == [
        "auc/city=unknown",
        "auc/city=missing",
    ]
    for name in NAMES:
        assert f"city={name}" in done.text, name
    page = (tmp_path / "one" / "report.html").read_text()
    assert "city=&lt;b&gt;[bold] &amp; co" in page and "city=<b>" not in page
    assert "city=a%2Fb%3Dc" in page
    both = ("trainer.num_processes=2", "trainer.batch_size=32", "hydra.run.dir=two")
    runner.run(*words, *both, cwd=tmp_path).check()
    # weights differ by rounding, by which two rows of a slice may change places
    assert sliced(tmp_path / "two") == pytest.approx(found, nan_ok=True, abs=0.02)
    assert "city=a%2Fb%3Dc" in runner.run("diff", "one", "two", cwd=tmp_path).text
    runner.run("report", "one", "two", cwd=tmp_path).check()
    again = runner.run("loop=eval", "run=one", "hydra.run.dir=eval", cwd=tmp_path).check()
    assert "city=a%2Fb%3Dc" in again.text
    ours = {key: value for key, value in found.items() if key.startswith("test/")}
    assert sliced(tmp_path / "eval") == pytest.approx(ours, nan_ok=True)
