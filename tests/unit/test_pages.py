"""The pages: tables hold together, links lead somewhere, and what they say of options is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer.main

from fairway.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
VERBS = [
    "up",
    "down",
    "status",
    "reload",
    "submit",
    "run",
    "ls",
    "show",
    "logs",
    "cancel",
    "suspend",
    "resume",
    "requeue",
    "hold",
    "release",
    "update",
    "why",
    "what-if",
    "top",
    "nodes",
    "share",
    "history",
    "salvage",
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_row_of_a_table_belongs_to_one(page: Path) -> None:
    """A blank line inside a table ends it, and what follows is shown as text."""
    lines, fenced = page.read_text(encoding="utf-8").splitlines(), False
    for at, line in enumerate(lines):
        fenced ^= line.startswith("```")
        row = line.startswith("|") and line.endswith("|")
        if row and not fenced and not lines[at - 1].startswith("|"):
            assert re.fullmatch(r"\|[-:| ]+\|", lines[at + 1]), f"line {at + 1} is a row without a head: {line}"


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as they are made on the web: letters and digits, with a dash for a blank."""
    prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    heads = [head.lower() for head in re.findall(r"^#+ (.+)$", prose, flags=re.MULTILINE)]
    return {re.sub(r"[^\w\- ]", "", head).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if link.startswith("http"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in _anchors(target), link


def test_the_first_page_is_short_and_shows_a_picture() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(page.splitlines()) <= 120
    assert re.search(r"^!\[.+\]\(docs/pictures/.+\)$", page, flags=re.MULTILINE)


def test_the_glossary_is_in_order() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    words = re.findall(r"^\*\*(.+?)\*\*: ", page, flags=re.MULTILINE)
    assert len(words) > 40
    assert words == sorted(words, key=str.lower)


def test_the_page_names_the_verbs_that_lack_a_shared_option() -> None:
    page = " ".join((ROOT / "docs" / "cli.md").read_text(encoding="utf-8").split())
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for option in ("--state", "--url", "--json"):
        lacking = [verb for verb in VERBS if not any(option in one.opts for one in commands[verb].params)]
        names = [f"`{verb}`" for verb in lacking]
        listed = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
        assert (f"`{option}` does not apply to {listed}" in page) == bool(lacking), (option, lacking)
