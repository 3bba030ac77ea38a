"""The wheel works where there is no checkout: installed into an empty environment, it trains."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT, TINY

PARTS = ("runner", "conf", "experiments", "pyproject.toml", "setup.py", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that no build folder is left beside the package."""
    source = tmp_path_factory.mktemp("source")
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(
                ROOT / part, source / part, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(ROOT / part, source / part)
    built = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", str(built), str(source)], check=True)
    [found] = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment that holds the wheel and nothing else of ours.

    What the project depends on is taken from this environment by a line in a `.pth` file, which
    does not make an editable installation importable as well.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    found = folder / "bin" / "python"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "lib" / version / "site-packages"
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, "--target", str(packages), str(wheel)], check=True)
    return found


def run(python: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    command = [str(python), "-m", "runner", *words]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


@pytest.mark.long
def test_it_holds_the_yamls_the_types_and_the_page_of_reports(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    for path in [*(ROOT / "conf").rglob("*.yaml"), *(ROOT / "experiments").glob("*.yaml")]:
        assert f"runner/bundled/{path.relative_to(ROOT).as_posix()}" in names
    stubs = {p.relative_to(ROOT).as_posix() for p in (ROOT / "runner").rglob("*.pyi")}
    assert stubs and stubs <= names
    assert {"runner/py.typed", "runner/reporting/report/page.css"} <= names
    templates = {p.relative_to(ROOT).as_posix() for p in (ROOT / "runner").rglob("*.template")}
    assert templates and templates <= names
    assert not [name for name in names if name.startswith(("tests/", "bench/"))]


@pytest.mark.long
def test_it_composes_trains_evaluates_and_resumes_elsewhere(python, tmp_path):
    where = [str(python), "-c", "import runner; print(runner.__file__)"]
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(where, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).is_relative_to(python.parents[1])

    trained = run(python, tmp_path, *TINY, "hydra.run.dir=first")
    assert trained.returncode == 0, trained.stderr
    assert "completed at step 40" in trained.stdout
    evaluated = run(python, tmp_path, "loop=eval", "run=first", "hydra.run.dir=evaluated")
    assert evaluated.returncode == 0, evaluated.stderr
    resumed = run(python, tmp_path, "resume", "first", "trainer.max_steps=45")
    assert resumed.returncode == 0, resumed.stderr


@pytest.mark.long
def test_its_options_and_experiments_are_listed_and_composed(python, tmp_path):
    listed = run(python, tmp_path, "ls", "trainer=default")
    assert "whole number" in listed.stdout, listed.stderr  # types come from the settings' records
    listed = run(python, tmp_path, "ls", "model=dcn")
    assert "whole number" in listed.stdout, listed.stderr  # and from the source of the classes
    shown = run(python, tmp_path, "experiments=bandit", "--cfg", "job")
    assert "experiments.bandit" in shown.stdout, shown.stderr


@pytest.mark.long
def test_code_beside_an_experiment_runs(python, tmp_path):
    data = ROOT.parent / "shared" / "data" / "ml-1m"
    if not data.exists():
        pytest.skip("MovieLens-1M is not there")
    few = ("trainer.max_epochs=null", "trainer.max_steps=2", "trainer.eval_every=null")
    words = ("experiments=bandit", f"dataset.path={data}", *few, "report=false")
    done = run(python, tmp_path, *words)
    assert done.returncode == 0, done.stderr
