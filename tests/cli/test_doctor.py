"""`doctor` says what is here, and what does not fit."""

from __future__ import annotations

import sys
import tomllib

import pytest

from runner.__main__ import main
from runner.cli import doctor
from runner.errors import UserError
from runner.machine.cores import cpu_name
from runner.machine.imports import import_fbgemm
from tests.conftest import ROOT


def test_it_shows_each_part_of_the_machine_in_a_line(capsys):
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert names == [
        "packages",
        "cores",
        "memory",
        "start",
        "gpu",
        "bf16",
        "disk",
        "cache",
        "extras",
    ]


def test_packages_that_do_not_pair_are_named(monkeypatch, capsys):
    versions = {"torch": "2.13.0+cpu", "torchrec": "1.8.0", "fbgemm-gpu-cpu": "1.6.0"}
    monkeypatch.setattr("runner.rundir.provenance.package_versions", lambda: versions)
    shown, problem = doctor._packages()
    assert "fbgemm-gpu-cpu 1.6.0" in shown
    assert problem == "torch 2.13 goes with FBGEMM 1.8 and TorchRec 1.8"


def test_two_builds_of_fbgemm_in_one_folder_are_named_with_the_commands_that_mend_it(monkeypatch):
    versions = {"torch": "2.13.0", "torchrec": "1.8.0", "fbgemm-gpu-cpu": "1.8.0"}
    both = {**versions, "fbgemm-gpu": "1.9.0"}
    monkeypatch.setattr("runner.rundir.provenance.package_versions", lambda: both)
    _, problem = doctor._packages()
    assert problem is not None and "pip uninstall -y fbgemm-gpu && pip install" in problem
    assert problem.endswith("fbgemm-gpu-cpu==1.8.0")


def test_extras_are_those_that_the_package_declares():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = set(project["optional-dependencies"]) - {"cpu", "gpu", "dev", "docs"}
    assert set(doctor.EXTRAS) == declared


def test_a_full_disk_is_told(monkeypatch, tmp_path):
    usage = type("Usage", (), {"free": 1e9})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    value, problem = doctor._disk(tmp_path / "outputs", "elsewhere")
    assert value.startswith("1 GB free") and problem is not None and "clean" in problem


def test_a_cache_that_cannot_be_written_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))
    assert doctor._cache()[1] is None
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path)
    value, problem = doctor._cache()
    assert value.endswith("cannot be written") and problem is not None and "RUNNER_CACHE" in problem


@pytest.mark.parametrize("flags", ["fpu avx2 amx_bf16", "fpu avx2"])
def test_the_name_of_the_processor_has_what_decides_about_bf16(tmp_path, flags):
    path = tmp_path / "cpuinfo"
    path.write_text(f"processor\t: 0\nmodel name\t: A CPU\nflags\t\t: {flags}\n")
    assert cpu_name(path) == ", ".join(["A CPU", *sorted(flags.split()[1:])])


def test_a_build_of_fbgemm_whose_libraries_are_missing_is_told_with_what_takes_its_place(
    monkeypatch, capsys
):
    def fail(name: str) -> None:
        raise OSError("Could not load this library: fbgemm_gpu_py.so") from OSError(
            "libnvidia-ml.so.1: cannot open shared object file"
        )

    monkeypatch.setattr("runner.machine.imports.import_module", fail)
    with pytest.raises(UserError) as told:
        import_fbgemm()
    assert str(told.value) == (
        "FBGEMM does not load: libnvidia-ml.so.1: cannot open shared object file; its build for "
        "GPUs, fbgemm-gpu, needs NVIDIA's driver, and fbgemm-gpu-cpu takes its place where there "
        "is none"
    )
    monkeypatch.setattr("runner.machine.imports.import_alone", lambda name: None)
    monkeypatch.delitem(sys.modules, "runner.batch")
    assert main(["doctor"]) == 1
    assert f"! {told.value}" in capsys.readouterr().out
