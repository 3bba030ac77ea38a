"""Experiments compose, and the table has the results of their run directories."""

from __future__ import annotations

import json

import numpy as np
import pytest

from experiments import table
from runner.config.compose import compose
from runner.config.targets import ALLOWED_PACKAGES
from runner.launch import check_composed

NAMES = [experiment.name for experiment in table.experiments()]


@pytest.mark.parametrize("name", NAMES)
def test_an_experiment_composes_and_describes_itself(name):
    composed = compose([f"experiments={name}"])
    check_composed(composed, ALLOWED_PACKAGES)
    assert composed.name == name
    [experiment] = table.experiments([name])
    assert experiment.notes.keys() == {"Command", "Protocol", "Seen", "Published"}
    assert f"experiments={name} " in experiment.notes["Command"]
    assert name.partition("_")[0] in table.DATA


def test_every_row_model_has_an_experiment():
    models = {"dlrm", "dcn", "deepfm", "wide_and_deep", "xdeepfm", "autoint", "masknet"}
    models |= {"finalmlp", "mmoe", "ple"}
    assert {f"movielens_{model}" for model in models} <= set(NAMES)


def write_run(folder, seed, status="completed", **metrics):
    folder.mkdir(parents=True)
    result = {"status": status, "metrics": metrics, "active_s": 10.0 * (seed + 1)}
    (folder / "result.json").write_text(json.dumps(result))
    (folder / "meta.json").write_text(json.dumps({"seed": seed}))


@pytest.mark.parity("N8")
def test_the_table_has_mean_and_spread_of_completed_runs(tmp_path):
    out, page = tmp_path / "out", tmp_path / "page.md"
    for seed, auc in enumerate((0.891, 0.895, 0.899)):
        write_run(out / "movielens_dcn" / str(seed), seed, **{"test/auc": auc, "test/loss": 1.0})
    write_run(out / "movielens_dcn" / "9", 9, "failed", **{"test/auc": 0.5})
    write_run(out / "amazon_sasrec" / "a", 0, **{"test/recall@10": 0.08, "test/auc": "nan"})
    words = ["--write-only", "--out", str(out), "--page", str(page)]
    assert table.main(words) == 0
    rows = {line.split("`")[1]: line for line in page.read_text().splitlines() if "| `" in line}
    assert rows.keys() == set(NAMES)
    assert "| 0, 1, 2 | auc 0.8950 ± 0.0040 | 20 s |" in rows["movielens_dcn"]
    assert "| 0 | recall@10 0.0800 | 10 s |" in rows["amazon_sasrec"]
    assert "| none yet | not run |" in rows["movielens_ple"]
    with pytest.raises(SystemExit, match="no such experiment: movielens_dnc"):
        table.main([*words, "--only", "movielens_dnc"])


@pytest.mark.slow
def test_seeds_run_as_a_sweep_and_land_in_the_table(tmp_path):
    random = np.random.default_rng(0)
    folder = tmp_path / "data" / "amazon-beauty"
    folder.mkdir(parents=True)
    lines = [[user, *random.integers(1, 40, 6)] for user in range(1, 60)]
    (folder / "Beauty.txt").write_text("\n".join(" ".join(map(str, line)) for line in lines))
    page = tmp_path / "page.md"
    words = ["--data", str(folder.parent), "--only", "amazon_sasrec", "--seeds", "0,1"]
    words += ["--out", str(tmp_path / "out"), "--page", str(page), "--set", "trainer.max_epochs=1"]
    words += ["model.net.uniform=5", "trainer.num_threads=1", "launcher.slots=1"]
    assert table.main(words) == 0
    assert "| `amazon_sasrec` | 0, 1 | recall@5 0." in page.read_text()
