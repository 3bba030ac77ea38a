"""The documentation site: generated pages are current, it builds strictly, a browser shows it."""

from __future__ import annotations

import importlib.util
import re
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from docs.browser import CHROMIUM, open_browser
from docs.verbs import PAGE, render_verbs
from tests.conftest import ROOT, TINY, Zygote

DOCS = ROOT / "docs"
needs_site = pytest.mark.skipif(
    importlib.util.find_spec("furo") is None, reason="no Sphinx here (the extra `docs`)"
)


def listed() -> list[str]:
    """The pages that the lists of the site name, in their order."""
    trees = re.findall(r"```{toctree}\n(.*?)```", (DOCS / "site" / "index.md").read_text(), re.S)
    return [line for tree in trees for line in tree.splitlines() if re.match(r"\w+$", line)]


def test_the_page_of_verbs_is_current():
    assert PAGE.read_text() == render_verbs(), "python -m docs.verbs writes it anew"


def test_every_page_is_in_one_list_of_the_site():
    names = listed()
    assert len(names) == len(set(names))
    assert {path.stem for path in DOCS.glob("*.md")} - {"reference"} <= set(names)


def test_the_page_of_variables_names_those_that_the_code_reads():
    code = "".join(path.read_text() for path in (ROOT / "runner").rglob("*.py"))
    page = (DOCS / "exit_codes.md").read_text()
    assert set(re.findall(r"`(RUNNER_[A-Z_]+)`", page)) == set(re.findall(r"RUNNER_[A-Z_]+", code))


@pytest.mark.slow
def test_the_page_of_files_names_what_a_run_leaves(runner: Zygote, tmp_path: Path):
    words = (*TINY, "report=true", "trainer.profile.updates=2", "hydra.run.dir=run")
    runner.run(*words, cwd=tmp_path).check()
    left = {path.name for path in (tmp_path / "run").iterdir() if not path.name.startswith(".")}
    assert {"checkpoints", "profile", "report.html", "result.json"} <= left
    page = (DOCS / "files.md").read_text()
    assert not {name for name in left if f"`{name}" not in page}


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    from docs.build_site import build

    folder = tmp_path_factory.mktemp("site") / "site"
    assert build(folder) == 0, "a warning of Sphinx is an error; it stands above"
    return folder


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def address(site) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@needs_site
@pytest.mark.slow
def test_no_page_asks_another_host_for_anything(site):
    asked = {
        (page.name, found)
        for page in site.rglob("*.html")
        for found in re.findall(r"""(?:src|<link[^>]*href)="(https?:[^"]+)""", page.read_text())
    }
    styles = {
        (sheet.name, found)
        for sheet in (*site.rglob("*.css"), *site.rglob("*.svg"))
        for found in re.findall(r"url\(\W?(https?:[^)]+)|@import", sheet.read_text())
    }
    assert not asked | styles


@needs_site
@pytest.mark.slow
@pytest.mark.skipif(
    CHROMIUM is None or importlib.util.find_spec("playwright") is None,
    reason="no Chromium here (Debian's package chromium), or no playwright (the extra `docs`)",
)
def test_a_browser_shows_every_page_on_a_phone_and_finds_accumulate(site, address):
    problems = []
    with open_browser() as browser:
        page = browser.new_page(viewport={"width": 390, "height": 844})
        page.on("console", lambda m: m.type == "error" and problems.append((page.url, m.text)))
        page.on("pageerror", lambda error: problems.append((page.url, str(error))))
        for file in sorted(site.glob("*.html")):
            page.goto(f"{address}/{file.name}", wait_until="load")
            width = page.evaluate("document.documentElement.scrollWidth")
            if width > 390:
                problems.append((file.name, f"{width} pixels wide"))
        page.goto(f"{address}/training.html")
        for wide in (740, 1000, 1060, 1200, 1366, 1440, 1600):  # of tablets and laptops
            page.set_viewport_size({"width": wide, "height": 844})
            width = page.evaluate("document.documentElement.scrollWidth")
            if width > wide:
                problems.append(("training.html", f"{width} pixels wide of {wide}"))
        page.set_viewport_size({"width": 390, "height": 844})
        assert not problems

        page.goto(f"{address}/search.html?q=accumulate")
        first = page.wait_for_selector("ul.search li a")
        assert first is not None and first.inner_text() == "trainer.accumulate"
        first.click()
        page.wait_for_url("**/keys_trainer.html**")
        target = page.locator("tr:target")
        assert target.locator("td").first.inner_text() == "trainer.accumulate"
    assert not problems


def test_a_link_into_the_readme_leads_to_the_site_s_first_page(tmp_path: Path):
    """Which is another text, without the headings of the README; Sphinx would refuse the link."""
    from docs.build_site import with_links

    text = "[a](../README.md#everyday-use) [b](data.md#the-yardstick)"
    places = {"README.md": "index.md", "docs/data.md": "data.md"}
    shown = with_links(text, "docs/python.md", places, tmp_path)
    assert shown == "[a](index.md) [b](data.md#the-yardstick)"
