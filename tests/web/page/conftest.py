"""The page in a real browser, under a live scheduler with real jobs.

Nothing on the page may go wrong unseen: a message in the browser's console, a breach of the content security policy or
a request to elsewhere fails the test that caused it.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "runtime"))
sys.path.insert(0, str(Path(__file__).parent))

from browsing import UP, Open, link_of, show
from live_cli import LiveCli, live_cli_in

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
OPTIONS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
WAIT_MS = 30_000


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without a browser all tests of this folder are skipped."""
    try:
        import playwright  # noqa: F401
    except ImportError:
        why = "Playwright is not installed"
    else:
        why = "" if CHROMIUM else "no Chromium on this machine"
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.web)
            if why:
                item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """One browser for all tests."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=list(OPTIONS))
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCli]:
    """A scheduler with four GPUs and the page."""
    yield from live_cli_in(tmp_path_factory.mktemp("page"), *UP)


@pytest.fixture
def open_page(browser: Any, cli: LiveCli) -> Iterator[Open]:
    """Open a view in a window of its own, signed in. `address` opens something else instead."""
    contexts, trouble = [], list[str]()

    def opened(view: str = "queue", *, address: str = "", allowed: str = "", **about: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1400, "height": 900}, "locale": "en-GB"} | about)
        contexts.append(context)
        context.set_default_timeout(WAIT_MS)
        page = context.new_page()
        page.add_init_script(
            "addEventListener('securitypolicyviolation', (e) => console.error('policy: ' + e.violatedDirective))"
        )

        def note(text: str) -> None:
            if not (allowed and re.search(allowed, text)):
                trouble.append(text)

        page.on("console", lambda said: note(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: note(str(error)))
        page.on("request", lambda asked: None if "//127.0.0.1:" in asked.url else note(f"asked for {asked.url}"))
        page.goto(address or link_of(cli))
        page.wait_for_selector("body[data-ready='1']")
        if not address and view != "queue":
            show(page, view)
        return page

    yield opened
    # A test that has failed leaves no job to the next one. Tasks go with their array.
    for job in {one["id"].partition("_")[0] for one in cli("ls", "--json").json}:
        cli("cancel", job)
    for context in contexts:
        context.close()
    assert not trouble
