"""The pages for contributors name files, functions and a picture that are there."""

from __future__ import annotations

import re

import pytest

from docs.rooms import PICTURE, draw, room_imports
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


@pytest.mark.parametrize("page", PAGES)
def test_every_link_of_a_page_leads_somewhere(page):
    links = re.findall(r"\]\(([^)#]+)", (ROOT / page).read_text())
    assert not {x for x in links if not x.startswith("http") and not (ROOT / x).exists()}


def test_the_functions_that_the_walks_name_are_there():
    text = (ROOT / "ARCHITECTURE.md").read_text()
    code = "\n".join(path.read_text() for path in (ROOT / "runner").rglob("*.py"))
    names = set(
        re.findall(r"`([A-Za-z_]+(?:\.[a-z_]+)?)(?:\(\))?`", text.split("## The way of")[1])
    )
    parts = {part for name in names for part in name.split(".")} - {"runner", "trainer"}
    assert len(parts) > 15
    assert not {p for p in parts if not re.search(rf"(def|class) {p}\b|\b{p}\b *[:=]", code)}


def test_the_table_of_rooms_has_every_room():
    rows = re.findall(r"^\| `runner/(\w+)/` \|", (ROOT / "ARCHITECTURE.md").read_text(), re.M)
    folders = {p.name for p in (ROOT / "runner").iterdir() if (p / "__init__.py").exists()}
    assert set(rows) == folders
    assert folders <= MAY_IMPORT.keys() - EVERYWHERE


def test_the_picture_of_the_rooms_is_that_of_the_imports():
    assert PICTURE.read_text() == draw(room_imports()), "python -m docs.rooms draws it anew"
