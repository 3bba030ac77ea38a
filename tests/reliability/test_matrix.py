"""The matrix of faults: what it takes up after a kill, what it counts, what its page says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.data.faults import FAULTS as DATA
from tests.models.fault_same_seed import FAULTS as SAME_SEED
from tests.reliability.__main__ import main, parse, rows_of, run_part
from tests.reliability.cases import VARIABLE, Assignment, Cases, read_results, write_result
from tests.reliability.page import count_row, write_page
from tests.reliability.rows import ROWS, Faults, Row
from tests.rundir.checkpoint.faults import FAULTS as CHECKPOINT
from tests.sweep.faults import FAULTS as SWEEP
from tests.whole.faults import FAULTS as WHOLE


def assignment(file: Path, **more) -> Assignment:
    given = {"row": 9, "part": "p", "share": 1.0, "seed": 0, "commit": "c", "parent": os.getpid()}
    return Assignment(str(file), **{**given, **more})


def test_every_fault_of_every_script_stands_in_a_row_and_every_test_of_a_row_exists():
    assert [row.number for row in ROWS] == list(range(1, 28))
    parts = [part for row in ROWS for part in row.parts]
    named = {part.fault for part in parts if isinstance(part, Faults)}
    assert named == {*DATA, *SAME_SEED, *CHECKPOINT, *SWEEP, *WHOLE, "lost_ranks", "lost_nodes"}
    for part in parts:
        if not isinstance(part, Faults):
            name = part.test.partition("[")[0]
            assert re.search(rf"^def {name}\(", (ROOT / part.file).read_text(), re.M), name


def test_a_share_is_spread_evenly_and_a_larger_one_adds_to_it(tmp_path):
    file = tmp_path / "r.jsonl"
    seen: list[str] = []
    for share, wanted in ((0.1, 10), (0.1, 10), (0.3, 30), (1.0, 100)):
        mine = [row for row in read_results(file) if "case" in row]
        cases = Cases(assignment(file, share=share), done={row["case"] for row in mine})
        for number in range(100):
            if key := cases.next(f"n{number}"):
                cases.keep(key, "well", weight=1, s=0.0)
                seen.append(key)
        assert cases.offered == 100
        assert wanted <= len(seen) == len(set(seen)) <= wanted + 10


def matrix(folder: Path, *words: str) -> subprocess.Popen:
    to = ("--results", str(folder / "r.jsonl"), "--to", str(folder / "page.md"))
    command = [sys.executable, "-m", "tests.reliability", *words, *to]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


@pytest.mark.long
def test_a_killed_matrix_goes_on_and_runs_each_case_once(tmp_path):
    words = ("--rows", "9", "--share", "0.2", "--resume")
    first = matrix(tmp_path, *words)
    while len(read_results(tmp_path / "r.jsonl")) < 5:
        assert first.poll() is None, first.stdout.read()
        time.sleep(0.01)
    first.kill()
    first.communicate()  # the part has ended, too, as it holds the same output
    assert len(read_results(tmp_path / "r.jsonl")) < 100
    out, _ = matrix(tmp_path, *words).communicate()
    assert b"100 of     500  passed, below full" in out, out
    cases = Counter(x["case"] for x in read_results(tmp_path / "r.jsonl") if "case" in x)
    assert len(cases) == 100 and set(cases.values()) == {1}
    assert "| 500 | 500 | 100 | 0 |" in (tmp_path / "page.md").read_text()


@pytest.mark.long
def test_repeated_tests_are_cases_with_a_seed_each(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "import os, pytest\n"
        "def test_it():\n"
        "    seed = int(os.environ['FAULT_SEED'])\n"
        "    if seed == 12: pytest.skip('no such thing here')\n"
        "    assert seed != 13\n"
    )
    of = assignment(tmp_path / "r.jsonl", repetitions=4, seed=10)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.reliability.repeat"]
    script = "import subprocess, sys, json, os; os.environ.update(json.loads(sys.argv[1]))\n"
    script += "d = json.loads(os.environ[sys.argv[2]]); d['parent'] = os.getpid()\n"
    script += "os.environ[sys.argv[2]] = json.dumps(d); sys.exit(subprocess.call(sys.argv[3:]))"
    words = [json.dumps(of.as_environment()), VARIABLE, *command, str(tmp_path / "test_it.py")]
    done = subprocess.run(
        [sys.executable, "-c", script, *words],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    *cases, end = read_results(tmp_path / "r.jsonl")
    assert [row["outcome"] for row in cases] == ["passed", "passed", "skipped", "failed"]
    assert "no such thing here" in cases[2]["skipped"] and "13" in cases[3]["failure"]
    assert (end["offered"], end["share"]) == (4, 1.0)


ROW = Row(9, "ids", "3", (Faults("m", "p", 3),))


def results(file: Path, failures: list[str], *, share=1.0, part="p", **end) -> list[dict]:
    cases = Cases(assignment(file, share=share, part=part))
    for number, failure in enumerate(failures):
        key = cases.next(f"n{number}")
        cases.keep(key, "" if failure else "well", failure=failure, weight=1, s=1.0)
    cases.end(**end)
    return read_results(file)


@pytest.mark.parametrize(
    ("failures", "more", "result"),
    [
        (["", "", ""], {}, "passed"),
        (["", "", "bad"], {}, "**1 failed**"),
        (["", ""], {}, "**1 failed**"),  # a script that has lost a case
        ([], {"skipped": "no strace"}, "not run"),
        (["", "", ""], {"share": 0.5}, "passed"),
        ([""], {"share": 0.5}, "passed, below full"),
    ],
)
def test_a_row_is_passed_if_all_its_cases_were_run_and_none_failed(
    tmp_path, failures, more, result
):
    count = count_row(ROW, results(tmp_path / "r.jsonl", failures, **more))
    assert count.result == result
    assert count.skipped == ([more["skipped"]] if "skipped" in more else [])


def test_a_part_that_came_to_no_end_has_failed_until_it_is_run_again(tmp_path):
    file = tmp_path / "r.jsonl"
    write_result(file, {"row": 9, "part": "p", "broken": "exit code -9: killed"})
    assert count_row(ROW, read_results(file)).result == "**1 failed**"
    assert count_row(ROW, results(file, ["", "", ""])).result == "passed"


def test_a_part_whose_process_dies_is_told_even_if_it_once_came_to_an_end(tmp_path):
    file = tmp_path / "r.jsonl"
    results(file, [""], share=0.5)
    dies = Faults("tests.nowhere", "p", 3)
    options = parse(["--full", "--results", str(file)])
    run_part(ROW, dies, options, tmp_path)
    assert "No module named tests.nowhere" in count_row(ROW, read_results(file)).failures[0]


def test_the_page_names_what_failed_but_no_folder_of_the_machine(tmp_path):
    failure = "AssertionError: /tmp/tmpabc/case-3/run/log.txt differs | here"
    page = tmp_path / "page.md"
    write_page(page, results(tmp_path / "r.jsonl", ["", failure], part="bad_ids"), "Seed 0.")
    text = page.read_text()
    assert re.search(
        r"^\| 9 \|.*\| 500 \| 2 \| 2 \| 2 \| \*\*2 failed\*\* .*`c` \|$", text, re.M
    ), text
    assert "- Row 9, bad_ids has 2 cases, not 500" in text
    assert "- Row 9, 2 n1: AssertionError: log.txt differs / here" in text
    assert "/tmp/" not in text


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--rows", "3"], "one of the arguments --full --share --count --page is required"),
        (["--full", "--rows", "3,99"], "there is no row 99; rows: 1 to 27"),
        (["--share", "nan"], "nan is not above 0 and up to 1"),
        (["--count", "0"], "0 is below 1"),
    ],
)
def test_wrong_words_are_refused(capsys, words, says):
    with pytest.raises(SystemExit) as refused:
        main(words)
    assert refused.value.code == 2
    assert says in capsys.readouterr().err


def test_rows_are_numbers_and_ranges():
    assert [row.number for row in rows_of("3,7-9")] == [3, 7, 8, 9]
