"""A plugin of pytest: runs tests as the cases of a row, several times with a seed each.

`pytest -p tests.reliability.repeat NODES`, with the assignment in the environment.
"""

from __future__ import annotations

import os

import pytest

from tests.reliability.cases import Cases

_cases: Cases | None = Cases.from_environment()
_keys: dict[str, str] = {}  # node id -> case
_first_seed = int(os.environ.get("FAULT_SEED", 0))


@pytest.fixture(autouse=True)
def repetition(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT_SEED", str(_first_seed + request.param))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    number = _cases.of.repetitions if _cases else 1
    metafunc.parametrize("repetition", range(number), indirect=True)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if _cases is None:
        return
    left_out = []
    for item in list(items):
        if key := _cases.next(item.nodeid):
            _keys[item.nodeid] = key
        else:
            items.remove(item)
            left_out.append(item)
    config.hook.pytest_deselected(items=left_out)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    is_told = report.when == "call" or report.outcome != "passed"
    if _cases is None or not is_told or (key := _keys.pop(report.nodeid, "")) == "":
        return
    failure = skipped = ""
    if report.outcome == "skipped":
        skipped = str(report.longrepr[-1] if isinstance(report.longrepr, tuple) else "")
    elif report.outcome == "failed":
        failure = report.longreprtext[-1000:]
    _cases.keep(
        key, report.outcome, failure=failure, skipped=skipped, weight=1, s=round(report.duration, 2)
    )


def pytest_sessionfinish() -> None:
    if _cases is not None and not _keys:
        _cases.end()
