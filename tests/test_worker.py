"""How a job that failed is described."""

from __future__ import annotations

import importlib
import warnings
from types import SimpleNamespace

import pytest

import runner.training.builder
from runner.config.compose import compose
from runner.config.targets import allowed_packages
from runner.worker import _describe_error, run_job

CODE = """
def dense(values):
    return sorted(values,
                  key=lambda v: v.size)
"""


def test_an_error_names_the_last_line_of_code_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "failing_model.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AttributeError) as raised:
        importlib.import_module("failing_model").dense([1, 2])
    message = "AttributeError: 'int' object has no attribute 'size'"
    own, ours = (allowed_packages(names) for names in (["failing_model"], []))
    place = " (failing_model.py, line 4, in <lambda>)"
    assert _describe_error(raised.value, own) == message + place
    assert _describe_error(raised.value, ours) == message


def test_a_warning_that_was_made_an_error_says_by_what_and_where(tmp_path, monkeypatch):
    (tmp_path / "warning_module.py").write_text(
        "import warnings\nwarnings.warn('\x1b[93m\\n  it is\\n old\x1b[0m', DeprecationWarning)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with (
        warnings.catch_warnings(action="error"),
        pytest.raises(DeprecationWarning) as raised,
    ):
        importlib.import_module("warning_module")
    told = _describe_error(raised.value, [])
    place = f"DeprecationWarning in {tmp_path}/warning_module.py, line 2: it is old; "
    assert told.startswith(place + "PYTHONWARNINGS or -W makes errors of warnings"), told


def test_a_loop_that_returns_no_result_is_told(monkeypatch):
    job = SimpleNamespace(loop=lambda job: None)
    monkeypatch.setattr(runner.training.builder, "build_job", lambda *args, **more: job)
    composed = compose(["trainer.max_steps=3"])
    outcome = run_job(composed, None, allowed_packages([]))
    assert (outcome.code, outcome.status) == (2, "refused")
    assert outcome.message == "loop: it returned NoneType; it must return a runner.Result"
