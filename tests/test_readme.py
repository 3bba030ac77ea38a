"""Every command of the README and of the pages under docs/ runs, in its order, on smaller data."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Container
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from runner.cli.commands import VERBS
from tests.conftest import ROOT, Finished, Process, Zygote
from tests.serving.served import serving

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
README = PAGES[0].read_text()
SMALL = (
    "dataset.rows={train: 4000, validation: 1000, test: 1000}",
    "dataset.max_cardinality=200",
    "trainer.num_threads=1",
)
LONG = ("export", "-m", "trainer.num_processes=2")  # processes of their own, or compiled graphs
RUN_BY_CI = {"make run", "make test"}  # .ci/run calls them on a clean clone


def write_clicks(path: Path) -> None:
    """A stranger's Parquet: the file that "Your own data" begins with."""
    dice = np.random.default_rng(0)
    size = 2000
    columns = {
        "click": dice.integers(0, 2, size),
        "price": dice.gamma(2.0, 10.0, size),
        "city": [f"city {n}" for n in dice.integers(0, 30, size)],
        "user": dice.integers(0, 500, size),
    }
    path.parent.mkdir()
    pq.write_table(pa.table(columns), path)


def write_funnel(path: Path) -> None:
    """Impressions, of which some are clicked, and some of these bought."""
    dice = np.random.default_rng(0)
    click = dice.random(2000) < 0.3
    columns = {
        "user": dice.integers(0, 200, 2000),
        "item": dice.integers(0, 50, 2000),
        "click": click.astype(int),
        "conversion": (click & (dice.random(2000) < 0.4)).astype(int),
    }
    pq.write_table(pa.table(columns), path)


def write_interactions(path: Path) -> None:
    """A stranger's events, which have no histories."""
    dice = np.random.default_rng(0)
    lines = [
        f"{user},{item},{1_600_000_000 + 60 * time}"
        for time, (user, item) in enumerate(dice.integers(0, [200, 2600], (9000, 2)))
    ]
    path.write_text("\n".join(["user_id,item_id,timestamp", *lines]) + "\n")


def commands(text: str) -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", text, flags=re.DOTALL)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]


def smaller(words: list[str]) -> list[str]:
    """The same command on less data; what starts from a run keeps that run's."""
    if (words[:1] and words[0] in VERBS) or any(w.startswith("run=") for w in words):
        return words
    if any(w.startswith(("experiments=", "dataset=")) for w in words):
        words = [w for w in words if not w.startswith("trainer.max_epochs=")]
        return [*words, "trainer.max_epochs=null", "trainer.max_steps=3", "trainer.eval_every=null"]
    if any(w.startswith("search=") for w in words):
        words = [w for w in words if not w.startswith("search.num_trials=")]
        words += ["search.num_trials=2", "trainer.max_steps=20", "trainer.eval_every=10"]
    return [*words, *SMALL]


def serve_and_ask(runner: Zygote, words: list[str], folder: Path, text: str) -> Finished:
    """Serve a model at a free port, and send what the page sends to it by curl."""
    pattern = rf"^curl localhost:\d+(/v2/models/{Path(words[0]).name}/\S+) -d '(.*?)'$"
    with serving(runner, *words, cwd=folder) as server:
        asked = re.findall(pattern, text, re.S | re.M)
        assert asked, "the page sends no request"
        for path, body in asked:
            with urlopen(f"http://{server.address}{path}", body.encode(), timeout=60) as answer:
                assert answer.status == 200
        return Finished(server.stop(), server.process.text)


def start_data_server(runner: Zygote, words: list[str], folder: Path) -> tuple[Process, str]:
    """Start a data server at a free port; return the port."""
    process = runner.start(*words, "--port", "0", cwd=folder)
    until_s = time.monotonic() + 60
    while not (process.output.exists() and "at grpc://" in process.text):
        assert time.monotonic() < until_s, words
        time.sleep(0.05)
    return process, process.text.rsplit(":", 1)[1].strip()


def start_board_and_ask(words: list[str], folder: Path) -> Finished:
    """Start the board at a free port, and ask for its first page."""
    command = [sys.executable, "-m", "runner", *words, "--port", "0"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            [address] = re.findall(r"http://\S+", line)
            with urlopen(address, timeout=60) as answer:
                assert "<h2>Runs</h2>" in answer.read().decode()
        finally:
            process.send_signal(signal.SIGINT)
    return Finished(process.returncode, line)


def test_it_has_the_commands_that_a_new_user_needs():
    verbs = {
        command.split()[3] for command in commands(README) if command.startswith("python -m runner")
    }
    assert {"ls", "resume", "-m", "loop=eval", "loop=debug"} <= verbs


def test_a_step_of_ones_own_takes_under_thirty_lines():
    page = (ROOT / "docs" / "own_model.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    [own] = [b for b in blocks if "class Shifted" in b]
    code = [line for line in own.splitlines() if line.strip() and not line.startswith("#")]
    assert len(code) < 30


def test_the_readme_fits_into_a_few_minutes():
    assert len(README.splitlines()) <= 120


def test_the_readme_names_every_page():
    named = set(re.findall(r"\]\(docs/(\w+\.md)", README))
    assert named == {page.name for page in PAGES[1:]}


def test_the_commands_of_the_readme_run_but_those_that_take_long(runner: Zygote, tmp_path: Path):
    done = run_commands(PAGES[0], runner, tmp_path, left_out=LONG)
    assert failures_of(done) == []
    [(command, shown)] = [item for item in shown_outputs(README).items() if "adagard" in item[0]]
    assert done[command][0].text.strip() == shown  # word for word
    assert "scored 2,000 rows" in found(done, "predict")
    assert json.loads((tmp_path / "outputs/mine/result.json").read_text())["step"] == 300
    assert "completed at step 300" in found(done, "resume outputs/mine")
    assert "model=dcn" in found(done, "ls model=dcn")


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [pytest.param(p, id=p.stem) for p in PAGES if commands(p.read_text())]
)
def test_every_command_runs(page: Path, runner: Zygote, tmp_path: Path):
    assert failures_of(run_commands(page, runner, tmp_path)) == []


@pytest.mark.parametrize("page", [pytest.param(p, id=p.stem) for p in PAGES])
def test_hydra_reads_every_setting_of_a_printed_command(page: Path):
    blocks = re.findall(r"```(?:console|bash|sh)\n(.*?)```", page.read_text(), flags=re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    words = [word for line in lines if "-m runner" in line for word in shlex.split(line)]
    setting = re.compile(r"[~+]*(hydra/)?[\w.@]+=")
    settings = [word for word in words if setting.match(word)]
    assert settings or not any("=" in word for word in words), "its settings were not recognised"
    read = OverridesParser.create().parse_overrides(settings)  # a text that it cannot read raises
    assert [override.input_line for override in read] == settings


def shown_outputs(text: str) -> dict[str, str]:
    """Return what a page shows below its commands."""
    blocks = re.findall(r"```console\n(.*?)```", text, flags=re.DOTALL)
    parts = [part.partition("\n") for block in blocks for part in block.split("$ ")]
    return {command: output.strip() for command, _, output in parts if output.strip()}


Done = dict[str, tuple[Finished, int]]  # command -> how it ended, and the exit code that it has


def failures_of(done: Done) -> list[str]:
    return [
        f"{command}\nexit {ended.code}\n{ended.text}"
        for command, (ended, expected) in done.items()
        if ended.code != expected
    ]


def found(done: Done, words: str) -> str:
    """Return the output of the one command with these words."""
    [(ended, _)] = [ended for command, ended in done.items() if words in command]
    return ended.text


def run_commands(page: Path, runner: Zygote, tmp_path: Path, left_out: Container[str] = ()) -> Done:
    """Run the commands of a page in a folder, but those with one of the words that are left out."""
    text = page.read_text()
    for path, code in re.findall(r"```(?:python|yaml)\n# (\S+)\n(.*?)```", text, re.DOTALL):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(code)
    write_clicks(tmp_path / "data" / "clicks.parquet")
    write_interactions(tmp_path / "interactions.csv")
    write_funnel(tmp_path / "log.parquet")
    if page.name != "README.md":  # these begin where the README has left a run
        runner.run(*SMALL, "hydra.run.dir=outputs/mine", cwd=tmp_path).check()
    ran: Done = {}
    data_server: Process | None = None
    for command in commands(text):
        if command in RUN_BY_CI or command.startswith("source "):
            continue
        assert command.startswith("python -m runner"), command
        words = shlex.split(command)[3:]
        if any(word in left_out for word in words):
            continue
        data = [w.partition("=")[2] for w in words if w.startswith("dataset.path=")]
        if data and not (ROOT / data[0]).exists():
            continue
        words = [w.replace("../shared", str(ROOT.parent / "shared")) for w in words]
        if words[:1] == ["data-serve"]:
            data_server, port = start_data_server(runner, words, tmp_path)
            text_port = words[words.index("--port") + 1]
            continue
        if data_server is not None:
            words = [w.replace(f"localhost:{text_port}", f"localhost:{port}") for w in words]
        if words[:1] == ["serve"]:
            done = serve_and_ask(runner, words[1:], tmp_path, text)
            expected = 143  # it ends by SIGTERM
        elif words[:1] == ["board"]:
            done, expected = start_board_and_ask(words, tmp_path), 130  # Ctrl-C
        else:
            done = runner.run(*smaller(words), cwd=tmp_path)
            expected = 2 if "adagard" in command else 0
        ran[command] = done, expected
    if data_server is not None:
        data_server.kill(signal.SIGTERM)
        assert data_server.wait() == 143
    return ran
