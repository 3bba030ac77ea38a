"""The board: what it lists, that it changes with the runs, and that nobody can misuse it."""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from urllib.parse import quote

import pytest

from runner.cli.board import board
from runner.errors import UserError
from runner.reporting.board.server import Board
from runner.rundir.lock import FolderLock
from tests.conftest import ROOT
from tests.reporting.report.run_directories import forbid_reading, make_grid, make_run

HOSTILE = {
    "shape": {"meta.json": '{"signature": "x", "identity": [1]}'},
    "deep": {"meta.json": "[" * 100_000},
    "metrics": {"result.json": '{"status": ["x"], "metrics": {"validation/auc": "much"}}'},
    "steps": {"result.json": '{"status": "completed", "step": "ten", "best": {"step": [1]}}'},
    "rows": {"metrics.jsonl": '{"split": ["a"], "step": 1, "x/y": 2}\n\x00{{\n'},
    "name": {"result.json": '{"status": "<script>alert(1)</script>", "metrics": {}}'},
    "bins": {"calibration.json": '{"test": {"step": 1, "tasks": {"a": {"predicted": 7}}}}'},
}


class Browser:
    """Asks a board for pages."""

    def __init__(self, server: Board) -> None:
        self.port = server.server_port

    def ask(self, address: str, method: str = "GET", **headers: str) -> tuple[HTTPResponse, str]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request(method, address, headers=headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer, text

    def page(self, address: str) -> str:
        answer, text = self.ask(address)
        assert answer.status == 200, text
        return text


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "outputs"
    folder.mkdir()
    return folder


@pytest.fixture
def browser(root: Path, monkeypatch) -> Iterator[Browser]:
    monkeypatch.setattr("runner.reporting.board.snapshot._FRESH_S", 0.0)
    with Board(root, 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield Browser(server)
        server.shutdown()
        thread.join()


def test_it_lists_runs_sweeps_and_what_failed_with_its_last_line(browser, root):
    make_run(root / "good")
    make_run(root / "bad", status="failed", error="RuntimeError: out of rows", auc=None)
    grid = make_grid(root / "grid")
    (grid / "leaderboard.csv").write_text("folder,status,validation/auc\n")
    text = browser.page("/")
    assert "RuntimeError: out of rows" in text
    assert '<td class="wide"><a href="/run?run=bad">bad</a>' in text  # a long name is whole
    assert "12 completed" in text  # jobs of the sweep, which are not among the runs
    assert text.count('type="checkbox" name="run"') == 2
    assert "Over seeds" in browser.page(f"/sweep?sweep={quote(str(grid))}")
    assert "2 runs side by side" in browser.page("/compare?run=good&run=bad")
    assert "<h2>Curves</h2>" in browser.page("/run?run=good")


def test_the_best_value_of_a_sweep_has_the_settings_of_its_own_run_beside_it(browser, root):
    for rate, seed, auc in ((0.1, 1, 0.9), (0.1, 2, 0.5), (0.01, 1, 0.8), (0.01, 2, 0.8)):
        make_run(root / "s" / f"{rate}-{seed}", identity={"lr": rate}, seed=seed, auc=auc)
    (root / "s" / "leaderboard.csv").write_text("folder,status,validation/auc\n")
    row = re.sub(r"(<[^>]*>)+", "|", browser.page("/").partition("<h2>Sweeps</h2>")[2])
    assert "|s|4 completed|validation/auc|0.90000|lr=0.1|" in row


def test_a_page_changes_with_its_run_and_is_sent_only_then(browser, root):
    run = make_run(root / "live", status=None, num_rows=2)
    lock = FolderLock(run)
    try:
        answer, text = browser.ask("/", Accept="application/json")
        assert "Running: live" in json.loads(text)["body"]
        tag = answer.headers["ETag"]
        again = {"Accept": "application/json", "If-None-Match": tag}
        assert browser.ask("/", **again)[0].status == 304
        with (run / "metrics.jsonl").open("a") as file:
            file.write('{"split": "train", "step": 999, "loss": 0.5}\n')
        answer, text = browser.ask("/", **again)
        assert answer.status == 200
        assert "<b>999</b>" in json.loads(text)["body"]
        assert 999.0 in json.loads(text)["figures"]["f0"]["data"][0]["x"]
    finally:
        lock.release()


def test_a_finished_run_is_read_again_only_if_it_has_changed(browser, root):
    run = make_run(root / "done", auc=0.61)
    assert "0.61000" in browser.page("/")
    (run / "config.yaml").unlink()
    assert "0.61000" in browser.page("/")
    result = json.loads((run / "result.json").read_text())
    result["metrics"]["validation/auc"] = 0.777777
    (run / "result.json").write_text(json.dumps(result))
    assert "0.77778" in browser.page("/")


def test_an_empty_folder_says_what_to_do(browser):
    assert "python -m runner hydra.run.dir=" in browser.page("/")


def test_the_end_of_a_log_is_text(browser, root):
    run = make_run(root / "good")
    (run / "log.txt").write_text("old\n" * 50_000 + "<b>last</b>\n")
    answer, text = browser.ask("/log?run=good")
    assert answer.headers["Content-Type"].startswith("text/plain")
    assert text.endswith("<b>last</b>\n")
    assert len(text) <= 1 << 16


@pytest.mark.parametrize(
    "address",
    ["/run?run=../secret", "/run?run=/etc", "/log?run=..", "/sweep?sweep=/etc", "/etc/passwd"]
    + ["/compare", "/run", "/sweep", "/page.css", "/%2e%2e/%2e%2e/etc/passwd"],
)
def test_only_what_is_listed_can_be_asked_for(browser, root, address):
    make_run(root / "good")
    make_run(root.parent / "secret")
    assert browser.ask(address)[0].status == 404


def test_other_hosts_and_methods_are_refused_and_pages_run_no_foreign_script(browser, root):
    make_run(root / "good")
    assert browser.ask("/", Host="evil.example:80")[0].status == 403
    for method in ("POST", "PUT", "DELETE"):
        assert browser.ask("/", method)[0].status == 501
    policy = browser.ask("/")[0].headers["Content-Security-Policy"]
    assert "script-src 'self'" in policy
    assert "unsafe-inline" not in policy.partition("style-src")[0]


def test_names_that_are_html_links_and_pipes_do_no_harm(browser, root, tmp_path):
    make_run(root / "<img src=x onerror=alert(1)>")
    outside = make_run(tmp_path / "outside", name="outside")
    (root / "link").symlink_to(outside)
    for name, make in (("pipe", os.mkfifo), ("linked", lambda p: p.symlink_to("/etc/passwd"))):
        (root / name).mkdir()
        make(root / name / "meta.json")
    piped = make_run(root / "piped")
    (piped / "log.txt").unlink(missing_ok=True)
    os.mkfifo(piped / "log.txt")
    text = browser.page("/")
    assert "<img" not in text
    assert "outside" not in text
    assert "is a pipe, not a regular file" in text
    assert "root:" not in text
    assert browser.page("/log?run=piped") == ""
    assert "onerror" in browser.page(f"/run?run={quote('<img src=x onerror=alert(1)>')}")


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_damaged_run_leaves_the_others_in_sight(browser, root, kind):
    make_run(root / "good", auc=0.654321)
    bad = make_run(root / "bad")
    for name, content in HOSTILE[kind].items():
        (bad / name).write_text(content)
    text = browser.page("/")
    assert "0.65432" in text
    assert "<script>alert" not in text
    answer, text = browser.ask("/run?run=bad")
    assert answer.status in (200, 404, 500)
    assert "<h1>" in text


def test_a_name_that_is_no_utf_8_has_pages_as_any_other(browser, root):
    make_run(root / "cafe").rename(root / os.fsdecode(b"caf\xe9"))
    make_run(root / "good")
    assert '<a href="/run?run=caf%E9">' in browser.page("/")
    assert "validation/auc" in browser.page("/run?run=caf%E9")


def test_a_page_that_fails_says_why_and_not_only_a_number(browser, monkeypatch):
    def fail(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "log.txt")

    monkeypatch.setattr("runner.reporting.board.server.make_index", fail)
    answer, text = browser.ask("/")
    assert answer.status == 500 and "Permission denied: &#x27;log.txt&#x27;" in text


def test_a_browser_that_leaves_in_the_middle_of_an_answer_prints_nothing(browser, capfd):
    for request in (b"GET /plo", b"GET /plotly.js HTTP/1.1\r\nHost: localhost:%d\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", browser.port)) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.sendall(request.replace(b"%d", str(browser.port).encode()))
            if request.endswith(b"\n"):
                client.recv(10)
    browser.page("/")
    time.sleep(0.2)  # the threads of those that left
    assert capfd.readouterr() == ("", "")


def test_what_cannot_be_read_has_a_page_that_says_so(browser, root, monkeypatch):
    make_run(root / "good", auc=0.654321)
    forbid_reading(monkeypatch, root / "locked")
    text = browser.page("/")
    assert "0.65432" in text
    assert f"{root / 'locked'}: cannot be read: Permission denied" in text
    monkeypatch.setattr("runner.reporting.board.server.make_board_run_page", refuse)
    answer, text = browser.ask("/run?run=good")
    assert answer.status == 500
    assert "Permission denied" in text


def refuse(run):
    raise PermissionError("Permission denied")


def test_no_request_writes_anything(browser, root):
    make_run(root / "good")
    before = {p: p.lstat().st_mtime_ns for p in root.rglob("*")}
    for address in ("/", "/run?run=good", "/log?run=good", "/compare?run=good"):
        browser.ask(address)
    assert {p: p.lstat().st_mtime_ns for p in root.rglob("*")} == before


def test_a_wrong_folder_and_a_used_port_say_what_to_do(browser, root):
    with pytest.raises(UserError, match="python -m runner board outputs"):
        board([str(root / "none")], ())
    with pytest.raises(UserError, match=r"python -m runner board .* --port 0"):
        board([str(root), "--port", str(browser.port)], ())


def test_ctrl_c_ends_it_with_the_code_of_other_servers_and_without_a_message(
    root, monkeypatch, capsys
):
    def press_ctrl_c(server: Board) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Board, "serve_forever", press_ctrl_c)
    assert board([str(root), "--port", "0"], ()) == 130
    assert capsys.readouterr().err == ""


def test_sigterm_ends_it_with_its_own_code(root):
    words = [sys.executable, "-m", "runner", "board", str(root), "--port", "0"]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.terminate()
    assert process.returncode == 143
