"""Exponents of `bench.growth`, its page and pictures; what `bench.gpu` says without a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bench import gpu, gpu_audit
from bench.growth import __main__ as growth
from bench.growth.axes import AXES
from bench.growth.page import Growth
from tests.conftest import python

NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="says what is where no GPU is")


def test_exponents_are_those_of_the_powers_that_made_the_values():
    sizes = [10, 100, 1000]
    assert growth.slopes(sizes, [3 * n**1.5 for n in sizes]) == pytest.approx((1.5, 1.5))
    fit, last = growth.slopes(sizes, [5 + n**2 / 1e4 for n in sizes])
    assert fit < 1 < last, "what a start costs hides growth in the fit and not in the last step"


def test_a_cost_grows_faster_than_its_work_if_every_turn_says_so():
    sure = Growth("an update", 1, (1.0, 2.0), fits=(1.3, 1.2), lasts=(1.2, 1.11))
    assert sure.is_faster
    assert not replace(sure, lasts=(1.5, 1.05)).is_faster
    assert not replace(sure, expected=2).is_faster


def test_an_axis_is_measured_drawn_and_written_between_its_marks(tmp_path, monkeypatch, capsys):
    def measure(name, sizes, folder):
        return [{"a report": 0.001 * n**2, "its page MB": 5.0} for n in sizes]

    monkeypatch.setattr(growth, "measure", measure)
    page = tmp_path / "growth.md"
    mark = "<!-- python -m bench.growth --only report -->"
    page.write_text(f"before\n{mark}\nold\n<!-- the end of what it wrote -->\nafter\n")
    words = ["--only", "report", "--turns", "2", "--largest", "1000", "--write", str(page)]
    assert growth.main(words) == 1, "a square is a defect"
    text = page.read_text()
    assert text.startswith(f"before\n{mark}\n`report`") and text.endswith("it wrote -->\nafter\n")
    assert "| exponent, all sizes | 2.00 (2.00 to 2.00) | 0.00 (0.00 to 0.00) |" in text
    assert "| exponent of the work | 1: GROWS FASTER | 1 |" in text and "old" not in text
    picture = (tmp_path / "growth_report.svg").read_text()
    assert "prefers-color-scheme: dark" in picture and ">1,000<" in picture
    assert "1: GROWS FASTER" in capsys.readouterr().out


@pytest.mark.slow
def test_sizes_are_measured_in_a_process_of_their_own(tmp_path):
    few, many = growth.measure("report", [3, 30], tmp_path)
    assert few.keys() == many.keys() == AXES["report"].costs.keys()
    assert few["a report"] > 0 and few["its page MB"] < many["its page MB"]
    with pytest.raises(RuntimeError, match="no_such_axis"):
        growth.measure("no_such_axis", [1], tmp_path)


@NO_GPU
@pytest.mark.parametrize("words", [[], ["--check"]])
def test_without_a_gpu_its_benchmark_says_why_and_measures_nothing(words, capsys):
    assert gpu.main(words) == 2
    assert f"no GPU to measure: torch {torch.__version__}" in capsys.readouterr().err


@pytest.mark.slow
def test_the_gpu_benchmark_trains_both_on_a_cpu_in_one_table():
    tiny = ["--pairs", "2", "--rows", "320", "--turn-rows", "96", "--batch-sizes", "32,64"]
    tiny += ["dataset.max_cardinality=200", "model.net.bottom=[8]", "model.net.top=[8]"]
    tiny += ["model.net.embedding_dim=4"]
    done = python("-m", "bench.gpu", "--device", "cpu", *tiny)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [line.split() for line in done.stdout.splitlines() if line[:3] in ("32 ", "64 ")]
    assert [row[0] for row in rows[-2:]] == ["32", "64"]
    for _, ours, theirs, share, *_ in rows:
        assert min(float(v.replace(",", "")) for v in (ours, theirs, share)) > 0


def test_operations_with_data_of_the_host_are_seen_and_numbers_are_not():
    with gpu_audit.Recorder() as recorder:
        on_gpu = torch.zeros(3, device=gpu_audit.GPU) * torch.tensor(2.0)
        assert not recorder.of_host and recorder.count >= 2
        on_gpu.copy_(torch.ones(3))
    assert any("copy_" in name for name in recorder.of_host)


@pytest.mark.slow
def test_no_graph_of_a_model_breaks_and_fbgemm_holds_the_tables_of_a_gpu(capsys, monkeypatch):
    # on a CPU its measured speed chooses; a busy machine may measure either
    monkeypatch.setattr("runner.embeddings.factory.adagrad_row_s", lambda: 0.0)
    assert gpu_audit.main(["--only", "dlrm,dcn"]) == 0
    said = [line.split() for line in capsys.readouterr().out.splitlines()]
    (breaks, count, blockers) = next(line for line in said if line[:1] == ["dlrm"])[1:]
    assert (breaks, blockers) == ("0", "0") and int(count) > 20
    assert ["rowwise_adagrad", "FbgemmTables", "FbgemmTables"] in said
    assert ["adam", "FbgemmTables", "CpuTables"] in said
    monkeypatch.setattr("runner.embeddings.factory.adagrad_row_s", lambda: 1.0)
    said = [line.split() for line in gpu_audit.engines().splitlines()]
    assert ["rowwise_adagrad", "FbgemmTables", "CpuTables"] in said
