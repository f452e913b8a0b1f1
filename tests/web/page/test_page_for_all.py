"""The page for everybody: with thousands of jobs, on a phone, in the dark, and by ear."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from browsing import Open, row, show
from live_cli import LiveCli, until

VIEWS = ("queue", "cluster", "what-if", "submit")
MOST_BYTES = 300_000

LOOK = (Path(__file__).parent / "readable.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def some_jobs(cli: LiveCli) -> list[str]:
    """A job that runs, one that waits, and one that has ended."""
    runs = cli.submit("--gpus", "4", "--name", "a-rather-long-name-of-a-job-that-runs", "--", "sleep", "1000")
    waits = cli.submit("--gpus", "2", "--name", "waits", "--", "sleep", "1000")
    ended = cli.submit("--gpus", "1", "--hold", "--", "true")
    cli("cancel", ended)
    cli.wait_for(runs, "RUNNING")
    return [runs, waits, ended]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_and_controls_have_names(scheme: str, some_jobs: list[str], open_page: Open) -> None:
    page = open_page(color_scheme=scheme)
    row(page, some_jobs[0]).wait_for()
    for view in (*VIEWS, f"job/{some_jobs[0]}", f"job/{some_jobs[1]}"):
        show(page, view)
        page.wait_for_timeout(300)
        assert page.evaluate(f"{LOOK}.hardToRead()") == [], f"{view}, {scheme}"
        assert page.evaluate(f"{LOOK}.nameless()") == [], view
        assert page.locator("h1").count() == 1, view


def test_the_page_fits_a_phone(some_jobs: list[str], open_page: Open) -> None:
    page = open_page(viewport={"width": 320, "height": 640}, has_touch=True)
    for view in (*VIEWS, f"job/{some_jobs[0]}"):
        show(page, view)
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 320, f"{view} is {wide} px wide"


def test_the_look_is_chosen_and_remembered(some_jobs: list[str], open_page: Open) -> None:
    page = open_page()
    shade = "getComputedStyle(document.body).backgroundColor"
    seen = {page.evaluate(shade)}
    for _ in range(3):
        page.locator("#theme-button").click()
        seen.add(page.evaluate(shade))
    assert len(seen) == 2
    page.locator("#theme-button").click()
    chosen = page.evaluate(shade)
    page.reload()
    page.wait_for_selector("body[data-ready='1']")
    assert page.evaluate(shade) == chosen


def test_ten_thousand_jobs_are_listed_with_few_bytes_and_few_rows(cli: LiveCli, open_page: Open) -> None:
    assert cli("submit", "--array", "1-10000", "--hold", "--name", "many", "--gpus", "1", "--", "sleep", "1").code == 0
    page = open_page()
    row(page, "").or_(page.locator(".row[data-job]")).first.wait_for()
    # Everything again, with nothing kept by the browser.
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")
    session.send("Network.setCacheDisabled", {"cacheDisabled": True})
    bytes_of = list[float]()
    session.on("Network.loadingFinished", lambda told: bytes_of.append(told["encodedDataLength"]))
    page.reload()
    page.wait_for_selector("body[data-ready='1']")
    page.wait_for_timeout(1500)
    assert 10_000 < sum(bytes_of) <= MOST_BYTES
    until(lambda: "10,0" in page.locator("[data-group=waiting]").inner_text(), "all jobs to be counted")
    assert page.locator(".row").count() < 200
    page.locator("[role=grid]").evaluate("grid => { grid.scrollTop = grid.scrollHeight; }")
    page.locator("input[type=search]").fill("_9876")
    until(lambda: shown(page) == 1, "the one job that was searched for")


def shown(page: Any) -> int:
    return int(page.locator(".row[data-job]:visible").count())
