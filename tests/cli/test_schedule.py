"""`schedule`: rates against the log of a training and closed formulas; pictures of the curve."""

from __future__ import annotations

import itertools
import json
import math
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from matplotlib.image import imread

from runner.cli.schedule import ScheduleLength, build_learning_rates
from runner.optim.lr_shapes import SCHEDULE_KINDS
from runner.reporting.console.chart import Chart, Line, render_braille
from tests.conftest import TINY, Zygote, python
from tests.whole.compare_runs import read_rows

SVG = "{http://www.w3.org/2000/svg}"
ROWS = "dataset.rows={train: 6400, validation: 10, test: 10}"


def table(out: str) -> dict[str, dict[str, float]]:
    """Return the rows of the key points by their names."""
    lines = out.splitlines()
    (head,) = [i for i, line in enumerate(lines) if re.match(" +update +[a-z]", line)]
    names = lines[head].split()
    found = {}
    for line in lines[head + 1 :]:
        *label, rest = re.split(r"\s{2,}", line, maxsplit=1)
        values = rest.replace(",", "").split()
        found["".join(label)] = dict(zip(names, map(float, values)))
    return found


@pytest.mark.parametrize("kind", SCHEDULE_KINDS)
def test_every_kind_is_drawn(command, kind):
    code, out, err = command("schedule", f"scheduler={kind}", ROWS, "trainer.batch_size=64")
    assert code == 0, err
    assert f"{kind}: rate / full rate over 100 updates (1 epoch)" in out
    points = table(out)
    (last,) = [at for name, at in points.items() if name.endswith("last")]
    assert last["update"] == 100
    assert len(re.findall("[\u2801-\u28ff]", out)) > 20


def test_the_values_at_key_points_are_those_of_the_formula(command):
    words = ("scheduler=cosine", "scheduler.warmup=0.1", "scheduler.final=0.2")
    batch = ("trainer.batch_size=32", "trainer.accumulate=2", "trainer.max_epochs=3")
    code, out, _ = command("schedule", *words, *batch, ROWS)
    assert code == 0
    points = table(out)
    at = points["end of warm-up, peak"]
    assert (at["update"], at["epoch"], at["dense"], at["sparse"]) == (30, 0.3, 0.001, 0.02)
    assert points["first"]["dense"] == pytest.approx(0.001 / 30, rel=1e-3)
    cosine = 0.2 + 0.8 * (1 + math.cos(math.pi * 269 / 270)) / 2
    assert points["last"]["sparse"] == pytest.approx(0.02 * cosine, rel=1e-3)
    assert points["last"]["epoch"] == 3


def test_scaled_rates_and_given_rows_are_shown(command):
    words = ("trainer.lr_scaling.rule=linear", "trainer.accumulate=4", "trainer.batch_size=10")
    _, out, _ = command("schedule", *words, "--rows", "4000", "scheduler.warmup=1ep")
    at = table(out)["end of warm-up, peak, last"]
    assert (at["update"], at["dense"], at["sparse"]) == (100, 0.004, 0.08)


def test_parts_and_own_schedules_have_curves_of_their_own(command):
    parts = (
        'optimizer.parts=[{pattern: "bias$", name: biases, dense: {lr: 0.5}, '
        'schedule: {kind: linear}}, {pattern: "^tables.C1$", frozen: true}, '
        '{pattern: "^tables.C2$", name: items, sparse: {lr: 0.3}}]'
    )
    tables = "optimizer.schedules.sparse={kind: step, every: 50, gamma: 0.1}"
    code, out, err = command("schedule", parts, tables, ROWS, "trainer.batch_size=64")
    assert code == 0, err
    (last,) = [at for name, at in table(out).items() if name.endswith("last")]
    assert last["dense"] == 0.001
    assert last["sparse"] == pytest.approx(0.002)
    assert last["items"] == pytest.approx(0.03)
    assert last["biases"] == pytest.approx(0.005)
    assert "constant and step and linear: rate / full rate" in out
    assert {"dense x 0.001", "biases x 0.5"} < set(out.splitlines())


def test_pictures_show_the_curve(command, tmp_path):
    words = ("schedule", "scheduler=linear", ROWS, "trainer.batch_size=64")
    for suffix in ("svg", "html", "png"):
        code, out, err = command(*words, "--out", str(tmp_path / f"curve.{suffix}"))
        assert code == 0, err
        assert f"wrote {tmp_path / 'curve'}.{suffix}" in out
    svg = ET.parse(tmp_path / "curve.svg")
    paths = [re.findall(r"[ML] (\S+) (\S+)", path.get("d")) for path in svg.iter(f"{SVG}path")]
    points = [(float(x), float(y)) for x, y in max(paths, key=len)]
    assert len(points) == 100
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.pairwise(points)]
    assert slopes == pytest.approx([slopes[0]] * 99, rel=0.05) and slopes[0] > 0, "it falls evenly"
    html = (tmp_path / "curve.html").read_text()
    assert "<head><title>linear: rate / full rate over 100 updates" in html
    start = html.index("[", html.rindex("Plotly.newPlot("))
    [trace], end = json.JSONDecoder().raw_decode(html, start)
    layout, _ = json.JSONDecoder().raw_decode(html, html.index("{", end))
    assert trace["x"] == list(range(1, 101))
    assert trace["y"] == pytest.approx([1 - k / 100 for k in range(100)])
    assert trace["name"] == "dense x 0.001, sparse x 0.02"
    title = "linear: rate / full rate over 100 updates (1 epoch)"
    assert layout["title"]["text"] == title
    assert {title, trace["name"], "update"} <= {
        "".join(text.itertext()) for text in svg.iter(f"{SVG}text")
    }
    pixels = (imread(tmp_path / "curve.png")[:, :, :3] * 255).round()
    blue = np.argwhere((pixels == (0x1F, 0x6F, 0xEB)).all(2))  # rows, columns
    blue = blue[blue[:, 0] > 96]
    left, right = blue[blue[:, 1].argmin()], blue[blue[:, 1].argmax()]
    assert len(blue) > 500 and right[0] > left[0] + 400, "from the upper left to the lower right"


def test_braille_dots_lie_on_the_line():
    rising = Chart("", "x", [Line("y", [(0.0, 0.0), (10.0, 5.0)])])
    text = render_braille(rising, width=46)
    rows = [re.split("[│┤]", line) for line in text[:12]]
    assert max(map(len, text)) <= 46
    assert [rows[i][0].strip() for i in (0, -1)] == ["5", "0"]
    starts = [re.search("[\u2801-\u28ff]", dots).start() for _, dots in rows]
    assert starts == sorted(starts, reverse=True), "higher lines begin further to the right"
    assert starts[-1] == 0 and starts[0] > 30


def test_mistakes_are_told(command):
    assert "nearest: '--out'" in command.refused("schedule", "--ou", "x.png")
    assert ".png, .svg, .html" in command.refused("schedule", "--out", "x.pdf")
    assert "cosine" in command.refused("schedule", "scheduler=cosin")
    assert "rows of the train split" in command.refused("schedule", "--rows", "none")
    assert "train split; nearest: 10000" in command.refused("schedule", "--rows", "10k")
    assert "'10k'; nearest: 10000" in command.refused("predict", "--rows", "10k", "run")
    assert "no such run directory" in command.refused("schedule", "outputs/nowhere")
    assert "longer than the run" in command.refused(
        "schedule", "scheduler.warmup=50", "trainer.max_steps=10"
    )


@pytest.mark.long
def test_it_needs_no_torch():
    code = (
        "import sys\nfrom runner.__main__ import main\n"
        "assert main(['schedule', 'scheduler=wsd']) == 0\n"
        "print('torch' in sys.modules, file=sys.stderr)"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip() == "False"


@pytest.mark.long
def test_the_log_of_a_run_killed_and_resumed_is_the_curve(runner: Zygote, tmp_path):
    run = tmp_path / "run"
    words = (*TINY, "scheduler=cosine_restarts", "scheduler.period=13", "scheduler.warmup=7")
    more = ("trainer.log_every=1", "--allow", "tests", "task._target_=tests.whole.traced.Traced")
    for kill, code in (("step:23", -9), ("", 0)):
        env = {"TRACE_FILE": f"{run}.trace", "TRACE_KILL": kill}
        runner.run(*words, *more, f"hydra.run.dir={run}", env=env).check(code)
    logged = {r["step"]: (r["lr/dense"], r["lr/sparse"]) for r in read_rows(run, "train")}
    assert list(logged) == list(range(1, 41))
    for k, (dense, sparse) in logged.items():
        factor = k / 7 if k <= 7 else (1 + math.cos(math.pi * ((k - 8) % 13) / 13)) / 2
        assert dense == pytest.approx(0.001 * factor, abs=1e-12)
        assert sparse == pytest.approx(0.02 * factor, abs=1e-12)
    shown = runner.run("--allow", "tests", "schedule", str(run)).check()
    assert table(shown.text)["last"]["dense"] == pytest.approx(logged[40][0], rel=1e-3)


def test_what_it_draws_is_what_the_training_sets():
    config = {
        "optimizer": {"dense": {"lr": 0.5}, "sparse": {"lr": 2.0}},
        "scheduler": {"kind": "step", "every": 10, "gamma": 0.1},
        "trainer": {"lr_scaling": {"rule": "sqrt", "batches": 4}},
    }
    dense, sparse = build_learning_rates(config, ScheduleLength(40, None))
    assert [dense.lr_at(k) for k in (1, 10, 11, 40)] == pytest.approx([1.0, 1.0, 0.1, 0.001])
    assert sparse.lr_at(11) == pytest.approx(0.4)
