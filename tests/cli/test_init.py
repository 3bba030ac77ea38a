"""`init NAME` makes a project that trains at once, and whose own tests pass."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from runner.__main__ import main
from runner.cli.init import FILES, render
from tests.conftest import ROOT, python


@pytest.mark.long
def test_the_project_trains_by_the_command_that_init_prints(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "shop"]) == 0
    said = capsys.readouterr().out
    command = next(line for line in said.splitlines() if "-m runner" in line).split()
    done = python(*command[1:], "trainer.max_epochs=4", cwd=tmp_path / "shop")
    assert done.returncode == 0, done.stderr
    assert "auc of logistic regression" in done.stdout
    page = (tmp_path / "shop" / "README.md").read_text()
    printed = [line.split()[2:] for line in page.splitlines() if line.startswith("$ python")]
    [other] = [words for words in printed if "model=dcn" in words]
    [export] = [words for words in printed if "export" in words]
    done = python(*other, "trainer.max_epochs=1", "report=false", cwd=tmp_path / "shop")
    assert done.returncode == 0, done.stderr
    done = python(*export, "--format", "pt2,onnx", cwd=tmp_path / "shop")
    assert done.returncode == 0, done.stderr
    assert "pt2: test loss" in done.stdout and "onnx: test loss" in done.stdout
    manifest = json.loads((tmp_path / "shop" / "model" / "manifest.json").read_text())
    assert manifest["run"]["name"] == "gated_clicks", "the project's model, not the last that ran"
    shifted = (*command[1:], "task._target_=shop.task.Shifted", "+task.distance=0.1")
    done = python(*shifted, "trainer.max_epochs=1", "trainer.log_every=1", cwd=tmp_path / "shop")
    assert done.returncode == 0, done.stderr
    assert "slope" in done.stdout + done.stderr


@pytest.mark.slow
def test_the_tests_of_the_project_pass(tmp_path):
    assert main(["init", str(tmp_path / "shop")]) == 0
    done = python("-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=tmp_path / "shop")
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout


def test_every_template_belongs_to_a_file_and_no_name_is_left_open():
    folder = ROOT / "runner/cli/project_template"
    assert sorted(FILES.values()) == sorted(p.stem for p in folder.glob("*.template"))
    assert not [path for path, text in render("shop").items() if "$name" in text]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("my-shop", "cannot be the name of a package"),
        ("class", "cannot be the name of a package"),
        ("kläng", "cannot be the name of a package"),
        ("conf", "cannot be the name of a package"),
        ("torch", "there is a package torch already"),
        ("full", "not an empty folder"),
        ("nowhere/shop", "is no folder that can be written"),
    ],
)
def test_a_name_that_cannot_be_taken_is_refused(tmp_path, monkeypatch, capsys, name, problem):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert main(["init", name]) == 2
    assert problem in capsys.readouterr().err
    assert [p.name for p in tmp_path.rglob("*")] == ["full", "file"]


def test_a_second_init_beside_the_project_says_that_its_folder_is_there(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # as of `python -m runner`
    (tmp_path / "shop").mkdir()
    assert main(["init", "shop"]) == 0, "an empty folder is no package"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["shop"]
    capsys.readouterr()
    assert main(["init", "shop"]) == 2
    assert "init shop: exists already, and is not an empty folder" in capsys.readouterr().err


def test_of_two_inits_at_once_one_makes_the_project_and_the_other_says_so(
    tmp_path, monkeypatch, capsys
):
    def write_text(path, *args, **more):
        if not (tmp_path / "mine").exists():
            (tmp_path / "mine").mkdir()
            (tmp_path / "mine" / "README.md").touch()  # of the other one
        return original(path, *args, **more)

    original = Path.write_text
    monkeypatch.setattr(Path, "write_text", write_text)
    assert main(["init", str(tmp_path / "mine")]) == 2
    assert "exists by now; nothing was written" in capsys.readouterr().err
    assert [p.name for p in tmp_path.rglob("*")] == ["mine", "README.md"]


def test_init_goes_on_where_another_was_killed(tmp_path):
    script = (
        "import os, sys, pathlib, runner.__main__ as m\n"
        "pathlib.Path.write_text = lambda *a, **k: os._exit(9)\n"
        f"m.main(['init', {str(tmp_path / 'mine')!r}])\n"
    )
    assert python("-c", script, cwd=tmp_path).returncode == 9
    assert main(["init", str(tmp_path / "mine")]) == 0
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]
    assert (tmp_path / "mine" / "data" / "clicks.csv").exists()


def test_a_full_disk_is_told_and_leaves_no_half_of_a_project(tmp_path, monkeypatch, capsys):
    def write_text(path, *_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", write_text)
    assert main(["init", str(tmp_path / "mine")]) == 1
    told = capsys.readouterr().err
    assert told.startswith("error: No space left on device: ") and "Traceback" not in told
    assert not any(tmp_path.iterdir())


def test_ctrl_c_leaves_no_half_of_a_project(tmp_path, monkeypatch):
    def interrupt(path, *_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", interrupt)
    assert main(["init", str(tmp_path / "mine")]) == 130
    assert not any(tmp_path.iterdir())
