"""What tests of the page share: signing in, going to a view, and finding what is on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from live_cli import LiveCli

UP = ("--gpus", "4", "--policy", "fifo", "--web", "127.0.0.1:0")
"""A scheduler with four GPUs and the page, at a free port."""
Open = Callable[..., Any]


def link_of(cli: LiveCli, *options: str) -> str:
    """A link that signs in."""
    told = cli("web", "--json", *options)
    assert told.code == 0, told.err
    return str(told.json["url"])


def show(page: Any, view: str) -> None:
    """Go to another view."""
    page.evaluate(f"location.hash = '#/{view}'")
    page.wait_for_selector(f"[data-view='{view.partition('/')[0].partition('?')[0]}']")
    page.wait_for_selector("body[data-ready='1']")


def row(page: Any, job: str) -> Any:
    """The row of a job in the queue."""
    return page.locator(f".row[data-job='{job}']")


def said(page: Any, text: str) -> None:
    """Wait until the page has said something."""
    page.locator("#said", has_text=text).wait_for()
