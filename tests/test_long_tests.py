"""`make test` runs an eighth of the tests marked `long`, another at each commit."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests import conftest


class Item:
    def __init__(self, nodeid: str, *marks: str) -> None:
        self.nodeid, self.marks = nodeid, marks

    def get_closest_marker(self, name: str) -> bool:
        return name in self.marks


def kept(monkeypatch, which: str) -> tuple[list[str], list[str]]:
    """Return the names of the items that stay, and of those that are reported as left out."""
    monkeypatch.setenv("LONG_TESTS", which)
    items = [Item(f"long {n}", "long") for n in range(80)] + [Item("short", "slow")]
    told: list[Item] = []
    hook = SimpleNamespace(pytest_deselected=lambda items: told.extend(items))
    conftest.pytest_collection_modifyitems(SimpleNamespace(hook=hook), items)
    return [item.nodeid for item in items], [item.nodeid for item in told]


def test_eight_eighths_are_all_long_tests_once_and_the_others_are_always_run(monkeypatch):
    everything, none = kept(monkeypatch, "")
    assert len(everything) == 81 and not none
    eighths = []
    for which in "01234567":
        stay, left_out = kept(monkeypatch, which)
        assert stay[-1] == "short" and 0 < len(stay) < 21
        assert sorted(stay + left_out) == sorted(everything)
        eighths += stay[:-1]
    assert sorted(eighths) == sorted(everything[:-1])


def test_the_eighth_of_a_commit_is_a_number_and_another_word_is_refused(monkeypatch):
    monkeypatch.setenv("LONG_TESTS", "eighth")
    conftest.pytest_configure(None)
    assert conftest.os.environ["LONG_TESTS"] in tuple("01234567")
    monkeypatch.setenv("LONG_TESTS", "half")
    with pytest.raises(pytest.UsageError, match="LONG_TESTS=half: it is eighth, a digit"):
        conftest.pytest_configure(None)
