"""What the figures and tables of the pages hold, against numbers worked out by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from runner.reporting.report.find import find_runs
from runner.reporting.report.overview import make_overview
from runner.reporting.report.overview_page import FileLinks, make_overview_page
from runner.reporting.report.plotly_bins import gain_figure, label_figure
from runner.reporting.report.plotly_curves import read_curves
from runner.reporting.report.plotly_parameters import history_figure
from runner.reporting.report.plotly_run import lr_figure, metric_figures
from runner.reporting.report.records import RunRecord
from runner.reporting.report.run_page import make_run_page, render_for_notebook
from runner.rundir.json_files import dumps
from tests.reporting.report.run_directories import make_grid, make_run


def run_with(folder: Path, rows: list[dict[str, Any]], metrics: Mapping[str, float]) -> RunRecord:
    """Return the record of a run with these rows and final metrics."""
    make_run(folder)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps({**result, "metrics": metrics}))
    return find_runs([folder]).runs[0]


def test_several_tasks_are_lines_of_their_metrics_figure_and_rows_of_one_table(tmp_path):
    rows = [
        {"split": "validation", "step": step, **{f"auc{t}": 0.5 + step / 100 for t in parts}}
        for step in (10, 20)
        for parts in [("", "/click", "/buy")]
    ]
    metrics = {"validation/auc": 0.7, "validation/auc/click": 0.8, "validation/auc/buy": 0.6}
    run = run_with(tmp_path / "run", rows, metrics)
    figures = metric_figures(read_curves(run), best=None)
    assert list(figures) == ["auc"]
    assert [trace["name"] for trace in figures["auc"]["data"]] == ["all", "click", "buy"]
    page = make_run_page(run).render()
    assert page.count("<h3>validation</h3>") == 1
    assert '<td>click</td><td class="num">0.80000</td>' in page


def test_a_train_loss_of_another_scale_has_a_figure_of_its_own(tmp_path):
    rows = [
        {"split": split, "step": step, "loss": loss}
        for step in (10, 20)
        for split, loss in (("train", 90.0), ("validation", 6.0))
    ]
    figures = metric_figures(read_curves(run_with(tmp_path / "run", rows, {})), best=None)
    names = {name: [t["name"] for t in f["data"]] for name, f in figures.items()}
    assert names == {"loss": ["validation"], "loss of the train rows": ["train"]}


def test_a_rate_that_was_logged_once_has_no_figure(tmp_path):
    rows = [{"split": "train", "step": 10, "loss": 0.5, "lr/dense": 0.1}]
    assert lr_figure(read_curves(run_with(tmp_path / "run", rows, {}))) is None


@pytest.mark.parametrize("rates", [(0.1, 0.2), ("NaN", 0.2), ("NaN", "Infinity")])
def test_rates_that_are_no_numbers_are_gaps(tmp_path, rates):
    rows = [
        {"split": "train", "step": step, "lr/dense": rate, "lr/tables": 10 * float(rate)}
        for step, rate in zip((10, 20), rates)
    ]
    path = run_with(tmp_path / "run", json.loads(dumps(rows)), {})
    figure = lr_figure(read_curves(path))
    expected = [None if isinstance(rate, str) else rate for rate in rates]
    assert figure["data"][0]["y"] == expected
    assert figure["layout"]["yaxis"].get("type") == (None if expected == [None, None] else "log")


def test_gain_and_labels_are_the_shares_counted_by_hand():
    # 4 rows in two bins; of the two with the high prediction both are positive, of the others none
    bins = {"predicted": [0.1, 0.9], "observed": [0.0, 1.0], "weight": [2.0, 2.0]}
    _, gain = gain_figure({"click": bins})["data"]
    assert (gain["x"], gain["y"], gain["text"]) == (
        [0, 0.5, 1],
        [0, 1, 1],
        ["0.00", "2.00", "1.00"],
    )
    positive, negative = label_figure({"click": bins})["data"]
    assert (positive["x"], positive["y"], negative["y"]) == ([0.1, 0.9], [0, 1], [1, 1])


def test_the_history_has_every_run_in_its_order_and_the_best_completed_one_so_far(tmp_path):
    values = [(0.6, "pruned"), (0.7, "completed"), (0.8, "pruned"), (0.65, "completed")]
    for number, (auc, status) in enumerate(values):
        created = f"2026-01-01T00:00:0{9 - number}+0000"  # their names are in the reverse order
        make_run(tmp_path / f"{9 - number}", auc=auc, status=status, created=created)
    runs = find_runs([tmp_path]).runs
    best, *points = history_figure(runs, "validation/auc", "max")["data"]
    assert {t["name"]: t["y"] for t in points} == {"completed": [0.65, 0.7], "pruned": [0.8, 0.6]}
    assert (best["x"], best["y"]) == ([1, 2, 3, 4], [0.65, 0.65, 0.7, 0.7])


def test_pruned_runs_are_drawn_with_one_point_and_have_a_line_over_their_settings(tmp_path):
    for seed, status in enumerate(("completed", "completed", "pruned", "pruned")):
        make_run(
            tmp_path / f"r{seed}",
            identity={"optimizer.dense.lr": 0.1 * (seed + 1)},
            auc=0.6 + seed / 100,
            status=status,
            num_rows=1 if status == "pruned" else 4,
        )
    page = make_overview_page(make_overview(find_runs([tmp_path]), "t"), FileLinks(tmp_path))
    figures = page.figures.values()
    [parallel] = [f["data"][0] for f in figures if f["data"][0]["type"] == "parcoords"]
    assert len(parallel["line"]["color"]) == 4
    modes = [t["mode"] for f in figures for t in f["data"] if "(pruned)" in t.get("name", "")]
    assert "markers" in modes


def test_a_seed_with_nan_or_a_failure_is_told_and_leaves_the_others_their_curves(tmp_path):
    for seed, status in enumerate(("completed", "completed", "failed")):
        run = make_run(tmp_path / f"r{seed}", seed=seed, auc=0.6 + seed / 100, status=status)
        log = run / "metrics.jsonl"
        rows = [json.loads(line) for line in log.read_text().splitlines()]
        if seed == 1:
            next(row for row in rows if row["split"] == "validation")["auc"] = "NaN"
        log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = make_overview_page(make_overview(find_runs([tmp_path]), "t"), FileLinks(tmp_path))
    assert "2 of 3" in page.render()
    figures = [f for f in page.figures.values() if f["data"][0]["type"] == "scatter"]
    titles = {f["layout"]["yaxis"]["title"]["text"]: f["data"] for f in figures}
    lines = [t["y"] for t in titles["validation/auc"] if t["legendgroup"] == "0"]
    assert sorted(line.count(None) for line in lines) == [0, 1]


def test_importance_is_that_of_runs_of_the_same_data(tmp_path):
    make_grid(tmp_path / "grid")
    for seed in (1, 2):
        make_run(tmp_path / f"other{seed}", identity={"data": "f11"}, seed=seed, auc=0.99)
    alone = make_overview(find_runs([tmp_path / "grid"]), "t").importances
    overview = make_overview(find_runs([tmp_path]), "t")
    shares = {one.key: one.variance_share for one in overview.importances}
    assert shares["optimizer.dense.lr"] == pytest.approx(alone[0].variance_share)
    assert "data" not in shares
    assert any(
        "2 different datasets" in note and "runs of one of them (12)" in note
        for note in overview.notes
    )


def test_tables_can_be_filtered_and_headings_are_reached_by_the_keyboard(tmp_path):
    grid = make_grid(tmp_path / "grid")
    text = make_overview_page(make_overview(find_runs([grid]), "t"), FileLinks(grid)).render()
    assert 'type="search" data-filter' in text
    assert 'data-column="0" checked> status' in text
    assert (
        '<th scope="col" class="num" title="validation/auc" tabindex="0" aria-sort="none">' in text
    )
    assert text.count('role="figure" aria-label="Figure: ') == text.count("data-figure=") > 3


def test_a_notebook_shows_the_result_and_the_curves_without_a_script(tmp_path):
    run = make_run(tmp_path / "run", auc=0.7654, name="<b>mine</b>")
    shown = render_for_notebook(run)
    assert "&lt;b&gt;mine&lt;/b&gt;" in shown
    assert "0.76540" in shown
    assert shown.count("<svg") == 1
    assert {">loss</text>", ">auc</text>", ">validation</text>"} <= set(
        re.findall(r">[a-z]+</text>", shown)
    )
    assert "<script" not in shown
    assert len(shown) < 60_000
    (run / "metrics.jsonl").unlink()
    assert "<svg" not in render_for_notebook(run)
