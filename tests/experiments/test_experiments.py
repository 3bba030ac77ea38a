"""Experiments compose, and the table has the results of their run directories."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from experiments import table
from runner.config.compose import compose
from runner.config.composed_checks import check_composed
from runner.config.targets import ALLOWED_PACKAGES

NAMES = [experiment.name for experiment in table.experiments()]


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_an_experiment_composes_and_describes_itself(name):
    composed = compose([f"experiments={name}"])
    check_composed(composed, ALLOWED_PACKAGES)
    assert composed.name == name
    [experiment] = table.experiments([name])
    assert experiment.notes.keys() - {"Models", "Below"} == {
        *("Command", "Protocol", "Seen", "Published")
    }
    assert f"experiments={name} " in experiment.notes["Command"]
    assert name.partition("_")[0] in table.DATA


def test_every_row_model_has_an_experiment():
    models = {"dlrm", "dcn", "deepfm", "wide_and_deep", "xdeepfm", "autoint", "masknet"}
    models |= {"finalmlp", "mmoe", "ple"}
    assert {f"movielens_{model}" for model in models} <= set(NAMES)


def write_run(folder, seed, status="completed", yardstick=None, **metrics):
    folder.mkdir(parents=True)
    result = {"status": status, "metrics": metrics, "active_s": 10.0 * (seed + 1)}
    if yardstick:
        result["yardstick"] = {"metrics": {"test/auc": yardstick}}
    (folder / "result.json").write_text(json.dumps(result))
    meta = {"seed": seed, "created": "2026-11-22T09:36:57+0000"}
    (folder / "meta.json").write_text(json.dumps(meta))


@pytest.fixture
def written(tmp_path):
    """A function that writes the page from the runs below `out` and returns its rows."""

    def write(*words):
        page = tmp_path / "page.md"
        paths = ("--out", str(tmp_path / "out"), "--page", str(page))
        assert table.main(["--write-only", *paths, *words]) == 0
        return table.read_rows(page)

    return write


@pytest.mark.parity("N8")
def test_the_table_has_mean_and_spread_of_completed_runs(tmp_path, written):
    out = tmp_path / "out"
    for seed, auc in enumerate((0.891, 0.895, 0.899)):
        write_run(out / "movielens_dcn" / str(seed), seed, **{"test/auc": auc, "test/loss": 1.0})
    write_run(out / "movielens_dcn" / "9", 9, "failed", **{"test/auc": 0.5})
    write_run(out / "amazon_sasrec" / "a", 0, **{"test/recall@10": 0.08, "test/auc": "nan"})
    rows = written()
    assert {name.split("`")[1] for name in rows} == set(NAMES)
    assert rows["`movielens_dcn`"][1:] == [
        *("0, 1, 2", "2026-11-22", "auc 0.8950 ± 0.0040", "", "20 s")
    ]
    assert rows["`amazon_sasrec`"][3] == "recall@10 0.0800"
    assert rows["`movielens_ple`"][1:4] == ["none yet", "", "not run"]
    with pytest.raises(SystemExit, match="no such experiment: movielens_dnc"):
        written("--only", "movielens_dnc")


def test_a_row_for_each_model_is_held_against_what_was_published_for_it(tmp_path, written):
    out = tmp_path / "out"
    for model, auc in {"dcn": 0.9002, "deepfm": 0.8957}.items():
        folder = out / "movielens_bars" / model / "a"
        write_run(folder, 0, yardstick=0.85, **{"test/auc": auc})
    written()
    lines = (tmp_path / "page.md").read_text().splitlines()
    last = {line.split("|")[1]: line.split("|")[-2] for line in lines if line.startswith("| `")}
    assert last[" `movielens_bars` `dcn` "] == " +0.0004 "
    assert last[" `movielens_bars` `deepfm` "] == " -0.0040 "
    assert last[" `movielens_finalmlp` "].strip() == ""  # nothing was published
    assert [line for line in lines if line.startswith("- `movielens_bars` `deepfm`: ")]
    assert not [line for line in lines if line.startswith("- `movielens_bars` `dcn`")]


def test_a_row_whose_runs_are_elsewhere_stays_as_it_was(tmp_path, written):
    folder = tmp_path / "out" / "movielens_bars" / "dcn" / "a"
    write_run(folder, 0, yardstick=0.85, **{"test/auc": 0.9002})
    before = written()["`movielens_bars` `dcn`"]
    shutil.rmtree(tmp_path / "out")
    assert written()["`movielens_bars` `dcn`"] == before
    assert before[4] == "auc 0.8500"


def test_every_result_far_below_the_published_one_has_a_reason():
    assert "no reason is known" not in (table.HERE / "README.md").read_text()


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
    [row] = [line for line in page.read_text().splitlines() if "| `amazon_sasrec` | 0, 1 |" in line]
    assert "| recall@5 0." in row
