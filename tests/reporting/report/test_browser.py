"""The pages as a browser sees them: no error, every figure drawn."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from runner.reporting.report.find import find_runs
from runner.reporting.report.html import Page
from runner.reporting.report.overview import make_overview
from runner.reporting.report.overview_page import FileLinks, make_overview_page
from runner.reporting.report.plotly_curves import read_curves
from runner.reporting.report.plotly_run import lr_figure
from runner.reporting.report.run_page import make_run_page
from runner.reporting.report.write import write_page
from tests.reporting.report.run_directories import make_grid, make_run

BROWSER = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)


def single(tmp_path: Path) -> Page:
    run = make_run(tmp_path / "run")
    bins = {"predicted": [0.1, 0.5], "observed": [0.12, 0.4], "weight": [50.0, 50.0]}
    calibration = {"test": {"step": 40, "tasks": {"click": bins}}}
    (run / "calibration.json").write_text(json.dumps(calibration))
    data = {
        "num_rows": {"train": 1000, "test": 100},
        "dense": ["price"],
        "sparse": [{"name": "user", "table": "user", "num_rows": 12345, "length": 1.0}],
        "reachable": {"test": {"auc": 0.8}},
    }
    (run / "data.json").write_text(json.dumps(data))
    perf = [{"step": s, "examples_per_s": 1000.0 + s} for s in (10, 20, 30)]
    (run / "perf.jsonl").write_text("".join(json.dumps(row) + "\n" for row in perf))
    return make_run_page(find_runs([run]).runs[0])


def several(tmp_path: Path) -> Page:
    grid = make_grid(tmp_path / "grid")
    make_run(grid / "failed", status="failed", error="RuntimeError: </script>", auc=None)
    return make_overview_page(make_overview(find_runs([grid]), "grid"), FileLinks(tmp_path))


PAGES = {"single": single, "several": several}


@pytest.mark.parametrize("name", PAGES)
def test_every_figure_holds_what_plotly_knows(name, tmp_path):
    from plotly.graph_objects import Figure

    page = PAGES[name](tmp_path)
    assert len(page.figures) >= 4
    for figure in page.figures.values():
        Figure(figure)  # raises for a property or a value that does not exist


def test_a_constant_rate_is_drawn_on_a_scale_of_its_own_size(tmp_path):
    figure = lr_figure(read_curves(find_runs([make_run(tmp_path / "run")]).runs[0]))
    assert figure is not None
    assert figure["data"][0]["y"] == [0.001] * 4
    assert figure["layout"]["yaxis"]["range"] == pytest.approx([0, 0.0011])


def test_the_mean_length_of_a_feature_is_rounded_for_people(tmp_path):
    run = make_run(tmp_path / "run")
    feature = {"name": "genres", "table": "genres", "num_rows": 18, "length": 2.099159686607759}
    data = {"num_rows": {}, "sparse": [feature], "sequences": [{**feature, "name": "history"}]}
    (run / "data.json").write_text(json.dumps(data))
    text = "".join(make_run_page(find_runs([run]).runs[0]).parts)
    assert ">2.099<" in text and "sequence features<" in text


@pytest.mark.long
@pytest.mark.skipif(BROWSER is None, reason="no Chromium here (Debian's package chromium)")
@pytest.mark.parametrize("name", PAGES)
def test_a_browser_draws_every_figure_without_an_error(name, tmp_path):
    page = PAGES[name](tmp_path)
    write_page(page, tmp_path / "page.html")
    done = subprocess.run(
        [
            str(BROWSER),
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"),
            *("--window-size=1280,9000", "--virtual-time-budget=10000", "--dump-dom"),
            f"--user-data-dir={tmp_path / 'profile'}",
            (tmp_path / "page.html").as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=180,
    )
    said = [line for line in done.stderr.splitlines() if ":CONSOLE:" in line]
    errors = [line for line in said if "rror" in line or "Uncaught" in line]
    assert not errors, errors
    places = re.findall(r'<div id="f\d+" data-figure="f\d+"[^>]*class="([^"]*)"', done.stdout)
    asked = "".join(page.parts).count("data-figure=")
    assert len(places) == asked
    assert all("js-plotly-plot" in classes for classes in places)
    assert f'data-drawn="{asked}"' in done.stdout  # the script came to its end
    assert done.stdout.count('class="main-svg"') >= asked
    assert ('class="parcoords' in done.stdout) == (name == "several")
