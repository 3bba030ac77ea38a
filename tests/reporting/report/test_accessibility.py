"""The pages for people who use a keyboard or a screen reader, by the rules of axe-core."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from docs.browser import CHROMIUM, open_browser
from runner.reporting.board.server import Board
from runner.reporting.report.html import Page
from runner.reporting.report.write import write_page
from tests.reporting.report.run_directories import make_grid, make_run
from tests.reporting.report.test_browser import PAGES

AXE = importlib.util.find_spec("axe_playwright_python")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(AXE is None, reason="no axe-core here (the extra `docs`)"),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (Debian's package chromium)"),
]
THEMES = ("light", "dark")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as opened:
        yield opened


@pytest.fixture
def board(tmp_path: Path) -> Iterator[str]:
    root = tmp_path / "outputs"
    make_grid(root / "grid")
    (root / "grid" / "leaderboard.csv").write_text("folder,status,validation/auc\n")
    make_run(root / "good")
    make_run(root / "bad", status="failed", error="RuntimeError: out of rows", auc=None)
    make_run(root / "cut", status="pruned")
    with Board(root, 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def violations(browser: Any, address: str, theme: str, width: int = 1280) -> list[str]:
    """Return what axe finds on a page with all figures drawn and all parts open."""
    assert AXE is not None and AXE.origin is not None
    context = browser.new_context(
        color_scheme=theme, viewport={"width": width, "height": 900}, bypass_csp=True
    )
    page = context.new_page()
    page.goto(address)
    page.wait_for_function("document.documentElement.dataset.drawn !== undefined")
    page.evaluate("document.querySelectorAll('details').forEach((part) => (part.open = true))")
    page.evaluate("drawAll('[data-figure]')")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.add_script_tag(path=str(Path(AXE.origin).parent / "axe.min.js"))
    found = page.evaluate("axe.run()")["violations"]
    context.close()
    return [f"{v['id']}: {v['help']}: {v['nodes'][0]['html'][:120]}" for v in found]


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", PAGES)
def test_a_report_has_no_barrier(browser, tmp_path, name, theme):
    page: Page = PAGES[name](tmp_path)
    write_page(page, tmp_path / "page.html")
    assert violations(browser, (tmp_path / "page.html").as_uri(), theme) == []


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("address", ["/", "/run?run=bad", "/compare?run=good&run=cut"])
def test_the_board_has_no_barrier_and_fits_a_phone(browser, board, address, theme):
    assert violations(browser, board + address, theme, width=390) == []


def test_a_table_is_sorted_and_filtered_by_the_keyboard(browser, tmp_path):
    page_file = tmp_path / "page.html"
    write_page(PAGES["several"](tmp_path), page_file)
    page = browser.new_page()
    page.goto(page_file.as_uri())
    head = page.locator("th[title='validation/auc']").first
    head.focus()
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"
    page.locator("[data-filter]").first.focus()
    page.keyboard.type("sgd validation/auc>0.7")
    assert page.locator("[data-count]").first.text_content() == "3 of 13 rows"
    page.close()
