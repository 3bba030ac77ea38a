"""The pages lead to what is there; those for contributors name files and functions that are."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from docs.rooms import PICTURE, draw, room_imports
from runner.training import EVENTS
from tests.conftest import ROOT
from tests.test_architecture import EVERYWHERE, MAY_IMPORT

PAGES = ["ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"]
FOLDERS = ("runner", "tests", "conf", "docs", "bench", "experiments", ".ci")


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_a_page_names_is_there(page):
    named = set(re.findall(r"`([\w.]+/[\w./]*)`", (ROOT / page).read_text()))
    paths = {name for name in named if name.startswith(FOLDERS)}
    assert page == "CHANGELOG.md" or paths
    assert not {name for name in paths if "NAME" not in name and not (ROOT / name).exists()}


LINK = re.compile(r"""\]\(([^)\s#]*)#?([^)\s]*)\)|(?:src|srcset)="([^"]+)\"""")
LINKED = [
    *ROOT.glob("*.md"),
    *(p for d in ("docs", "docs/site", "experiments", "outputs") for p in (ROOT / d).glob("*.md")),
]


def without_code(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub and the site give to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", without_code(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", LINKED, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_and_picture_of_a_page_leads_somewhere(page):
    for target, anchor, picture in LINK.findall(re.sub("`[^`\n]*`", "", without_code(page))):
        if not target.startswith("http"):
            file = page.parent / (target or picture or page.name)
            assert file.exists(), file
            assert not anchor or file.suffix != ".md" or anchor in anchors(file), (file, anchor)


@pytest.mark.parametrize("page", LINKED, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_rows_of_a_table_have_as_many_cells_as_its_head(page):
    for table in re.findall(r"(?:^\|.*\n)+", without_code(page), re.MULTILINE):
        counts = [len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()]
        assert set(counts) == {counts[0]}, table.splitlines()[0]


def test_the_examples_import_public_names_alone():
    examples = "".join(page.read_text() for page in (ROOT / "docs").glob("*.md"))
    imported = re.findall(r"^from (runner[\w.]*) import ([\w, ]+)$", examples, re.MULTILINE)
    assert ("runner.serving", "next_delta") in imported
    for module, names in imported:
        assert module.count(".") < 2, module
        assert set(names.split(", ")) <= set(importlib.import_module(module).__all__), module


def test_the_functions_that_the_walks_name_are_there():
    text = (ROOT / "ARCHITECTURE.md").read_text()
    code = "\n".join(path.read_text() for path in (ROOT / "runner").rglob("*.py"))
    names = set(
        re.findall(r"`([A-Za-z_]+(?:\.[a-z_]+)?)(?:\(\))?`", text.split("## The way of")[1])
    )
    parts = {part for name in names for part in name.split(".")} - {"runner", "trainer"}
    assert len(parts) > 15
    assert not {p for p in parts if not re.search(rf"(def|class) {p}\b|\b{p}\b *[:=]", code)}


def test_the_page_of_models_begins_with_all_of_them():
    table = (ROOT / "docs" / "models.md").read_text().split("\n## ")[0]
    options = {path.stem for path in (ROOT / "conf" / "model").glob("*.yaml")}
    assert options == set(re.findall(r"`(\w+)`", table))


def test_the_table_of_rooms_has_every_room():
    rows = re.findall(r"^\| `runner/(\w+)/` \|", (ROOT / "ARCHITECTURE.md").read_text(), re.M)
    folders = {p.name for p in (ROOT / "runner").iterdir() if (p / "__init__.py").exists()}
    assert set(rows) == folders
    assert folders - {"machine"} <= MAY_IMPORT.keys() - EVERYWHERE


def test_the_picture_of_the_rooms_is_that_of_the_imports():
    assert PICTURE.read_text() == draw(room_imports()), "python -m docs.rooms draws it anew"


def test_the_page_of_callbacks_has_every_method_with_its_arguments():
    page = (ROOT / "docs" / "callbacks.md").read_text()
    assert [m for m in (f"`{n}({a})`" for n, a in EVENTS.items()) if m not in page] == []
