"""The page of one run: its parent, its norms, the drift of its features."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from runner.errors import UserError
from runner.reporting.report.feature_importance import importance_figure
from runner.reporting.report.find import find_runs
from runner.reporting.report.html import Page
from runner.reporting.report.run_page import make_run_page
from tests.reporting.report.run_directories import make_run


def page_of(run: Path) -> Page:
    return make_run_page(find_runs([run]).runs[0])


def test_a_warm_start_stands_beside_its_parent_and_says_when_that_is_gone(tmp_path):
    parent = make_run(tmp_path / "parent", auc=0.7, identity={"optimizer.dense.lr": 0.1})
    step = parent / "checkpoints" / "step-40"  # a checkpoint may be named in place of its run
    identity = {"checkpoint.init_from": str(step), "optimizer.dense.lr": 0.25}
    run = make_run(tmp_path / "run", auc=0.75, identity=identity)
    (run / "warm_start.json").write_text(json.dumps({"lines": ["14 of 15 <weights> taken"]}))
    page = page_of(run)
    text = page.body()
    assert "14 of 15 &lt;weights&gt; taken" in text
    assert '>validation/auc</td><td class="num" data-v="0.75">' in text and "+0.05000" in text
    assert ">optimizer.dense.lr</td>" in text and ">0.25<" in text and ">0.1<" in text
    pairs = [
        f for f in page.figures.values() if [t.get("name") for t in f["data"]] == ["parent", "run"]
    ]
    assert [t["y"][-1] for t in pairs[0]["data"]] == [0.7, 0.75]
    shutil.rmtree(parent)
    text = page_of(run).body()
    assert "The run it started from cannot be read" in text and "weights&gt; taken" in text
    assert (
        "Compared with the run it started from" not in page_of(make_run(tmp_path / "other")).body()
    )


def test_the_page_has_the_words_of_every_start_that_was_not_refused(tmp_path):
    resumes = [
        {"at": "2026-01-02T00:00:00+0000", "overrides": ["trainer.max_steps=300"]},
        {"at": "2026-01-03T00:00:00+0000", "overrides": []},
        {"at": "2026-01-04T00:00:00+0000", "overrides": ["seed=2"], "refused": "another seed"},
    ]
    text = page_of(make_run(tmp_path / "run", overrides=["seed=1"], resumes=resumes)).body()
    assert "Given on the command line:" in text and "<li>seed=1</li>" in text
    assert "Given to resume on 2026-01-02" in text and "<li>trainer.max_steps=300</li>" in text
    assert "2026-01-03" not in text and "seed=2" not in text


def test_norms_are_figures_of_their_own_and_no_rows_of_the_results(tmp_path):
    run = make_run(tmp_path / "run")
    rows = []
    for step in (10, 20):
        norms = {"gradient_norm": 2.0, **{f"gradient_norm/p{n}": n + 1.0 for n in range(12)}}
        rows.append({"split": "train", "step": step, "loss": 0.5, **norms})
        rows.append({"split": "weights", "step": step, "tables/item/row_norm_mean": 0.1 * step})
    with (run / "metrics.jsonl").open("a") as log:
        log.writelines(json.dumps(row) + "\n" for row in rows)
    result = json.loads((run / "result.json").read_text())
    result["metrics"] |= {"train/gradient_norm": 2.0, "train/gradient_norm/p3": 4.0}
    (run / "result.json").write_text(json.dumps(result))
    page = page_of(run)
    text = page.body()
    assert "norms of gradients</h3>" in text and "row norm mean of embeddings</h3>" in text
    assert "<td>p3</td>" not in text and "gradient_norm/p3" not in text
    lines = next(f for f in page.figures.values() if f["data"][0]["name"] == "p11")["data"]
    assert [t["name"] for t in lines] == [f"p{n}" for n in range(11, 3, -1)]  # the highest eight
    assert "Of many lines the eight that end highest are drawn" in text
    assert "tasks and slices" not in text and "Dotted curves" not in text  # norms are neither


def test_metrics_that_were_never_a_number_are_named_and_have_no_empty_figure(tmp_path):
    run = make_run(tmp_path / "run", auc="NaN")
    rows = [{"split": "validation", "step": s, "auc": "NaN", "loss": 0.5} for s in (10, 20)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = page_of(run).body()
    assert "Never a finite number, and not drawn: auc.<" in text
    assert "loss</h3>" in text and "auc</h3>" not in text


def test_names_of_many_slices_are_below_their_lines_and_do_not_take_their_room(tmp_path):
    run = make_run(tmp_path / "run")
    for places, is_below in ((("Rome", "Oslo"), False), ("abcdefgh", True)):
        slices = {f"auc/city={place}": 0.6 for place in places}
        rows = [{"split": "validation", "step": step, **slices} for step in (10, 20)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        [figure] = page_of(run).figures.values()
        layout = figure["layout"]
        assert (layout["legend"]["y"] < 0) == is_below
        assert layout["height"] - 17 * len(slices) * is_below == 280


def test_features_are_listed_by_drift_and_other_shapes_are_damage(tmp_path):
    run = make_run(tmp_path / "run")
    features = [
        {"name": "a", "kind": "number", "splits": {"test": {"psi": 0.01}}},
        {"name": "b", "kind": "ids", "splits": {"train": {"unknown": 0.125}, "test": {"psi": 0.5}}},
    ]
    (run / "data.json").write_text(json.dumps({"num_rows": {"train": 5}, "features": features}))
    text = page_of(run).body().partition("Coverage and drift")[2]
    assert text.index("<td>b</td>") < text.index("<td>a</td>")
    assert "12.50%" in text and "▲ 0.500" in text and "▲ 0.010" not in text
    (run / "data.json").write_text(json.dumps({"features": [{"name": "a", "splits": [1]}]}))
    with pytest.raises(UserError, match="damaged"):
        page_of(run)


def test_rows_of_the_largest_loss_are_a_table_of_each_split(tmp_path):
    run = make_run(tmp_path / "run")
    row = {"row": 1385, "loss": 4.5, "labels": {"click": 1.0}, "predicted": {"click": 0.011}}
    (run / "hardest.json").write_text(json.dumps({"test": {"step": 40, "rows": [row]}}))
    text = page_of(run).body()
    assert "test, at update 40" in text and ">1,385<" in text and ">0.011<" in text
    (run / "hardest.json").write_text(json.dumps({"test": {"rows": [3]}}))
    with pytest.raises(UserError, match=r"hardest\.json"):
        page_of(run)
    for damage in ({"test": {"rows": [row]}}, {"test": {"step": None, "rows": [row]}}):
        (run / "hardest.json").write_text(json.dumps(damage))
        with pytest.raises(UserError, match=r"hardest\.json: damaged: test has no step"):
            page_of(run)
    (run / "hardest.json").write_text(json.dumps({"test": None}))
    assert "Rows with the largest loss" not in page_of(run).body()


BINS = {"predicted": [0.1, 0.9], "observed": [0.0, 1.0], "weight": [2.0, 2.0]}


def test_bins_that_are_no_numbers_are_gaps_and_other_shapes_of_a_calibration_are_damage(tmp_path):
    run = make_run(tmp_path / "run")
    path = run / "calibration.json"

    def figure_of(**bins):
        split = {"step": 40, "tasks": {"click": {**BINS, **bins}}}
        path.write_text(json.dumps({"validation": None, "test": split}))
        page = page_of(run)
        assert "test, at update 40" in page.body()
        return next(f["data"] for f in page.figures.values() if len(f["data"][-1]["x"]) == 2)

    assert figure_of()[-1]["x"] == [0.1, 0.9]
    diagonal, line = figure_of(predicted=[0.1, "NaN"])
    assert (diagonal["x"], line["x"]) == ([0, 1.0], [0.1, None])
    for split, told in (
        ({"tasks": {"click": BINS}}, "test has no step"),
        ({"step": 40, "tasks": {"click": {**BINS, "weight": [2.0, "two"]}}}, "no lists of numbers"),
        ({"step": 40, "tasks": {"click": None}}, "no lists of numbers"),
    ):
        path.write_text(json.dumps({"test": split}))
        with pytest.raises(UserError, match=rf"calibration\.json: damaged: .*{told}"):
            page_of(run)


def test_methods_of_many_features_are_named_above_their_bars():
    features = [{"name": f"C{n}", "first_order": 0.1, "permuted": 0.2} for n in range(40)]
    figure, _ = importance_figure({"features": features, "metric": "auc", "rows": 9, "split": "x"})
    assert figure["layout"]["legend"]["yanchor"] == "bottom"
    assert figure["layout"]["legend"]["y"] > 1
