"""The files of the web page: small, complete, and without any way to run what a user named."""

from __future__ import annotations

import gzip
import re
from collections import Counter
from pathlib import Path

import fairway
from fairway.report.html import _SHARED

ASSETS = Path(fairway.__file__).parent / "web" / "assets"
FILES = {path.name: path.read_text(encoding="utf-8") for path in sorted(ASSETS.iterdir())}
MODULES = {name: text for name, text in FILES.items() if name.endswith(".js") and name != "theme.js"}
MOST_BYTES = 90_000


def test_all_files_together_are_small() -> None:
    assert sum(len(gzip.compress(text.encode(), 9)) for text in FILES.values()) <= MOST_BYTES


def test_every_import_is_there_and_is_used() -> None:
    for name, text in MODULES.items():
        for names, source in re.findall(r"^import \{ (.+) \} from \"\./(.+)\";$", text, re.MULTILINE):
            exported = set(
                re.findall(r"^export (?:const|class|(?:async )?function) (\w+)", FILES[source], re.MULTILINE)
            )
            for one in names.split(", "):
                assert one in exported, f"{name} imports {one}, which {source} does not have"
                assert len(re.findall(rf"\b{one}\b", text)) > 1, f"{name} imports {one} for nothing"
        assert len(re.findall(r"^import ", text, re.MULTILINE)) == len(
            re.findall(r"^import \{ .+;$", text, re.MULTILINE)
        )


def test_what_is_exported_is_used() -> None:
    report = (ASSETS.parents[1] / "report" / "assets" / "report.js").read_text(encoding="utf-8")
    for name, text in MODULES.items():
        users = "\n".join(
            re.findall(rf"^import (.+) from \"\./{name}\";$", "\n".join([*FILES.values(), report]), re.MULTILINE)
        )
        for one in re.findall(r"^export (?:const|class|(?:async )?function) (\w+)", text, re.MULTILINE):
            assert one == "show" or re.search(rf"\b{one}\b", users), f"{name} exports {one} for nobody"


def test_the_page_names_files_that_are_there() -> None:
    named = re.findall(r"(?:src|href)=\"/web/([^\"]+)\"", FILES["index.html"])
    assert len(named) > 10
    assert set(named) <= FILES.keys()
    for view in re.findall(r"\"?([\w-]+)\"?: \"", re.search(r"const TITLES = \{(.*)\}", FILES["main.js"])[1]):  # type: ignore[index]
        assert f"{view}.js" in FILES


def test_text_is_never_read_as_html_and_nothing_is_inline() -> None:
    for name, text in FILES.items():
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text), (
            name
        )
        assert not re.search(r"https?://(?!www\.w3\.org/)", text), name
    page = FILES["index.html"]
    assert not re.search(r"<style|style=|\son\w+=|<script>|<script(?![^>]*src)", page)


def test_the_shared_modules_can_be_one_script() -> None:
    """The report joins them, so no name may be there twice, and none may need a module that is not among them."""
    names = Counter(
        name
        for module in _SHARED
        for name in re.findall(r"^(?:export )?(?:const|let|class|function) (\w+)", FILES[module], re.MULTILINE)
    )
    assert max(names.values()) == 1
    for at, module in enumerate(_SHARED):
        assert set(re.findall(r"from \"\./(.+)\";", FILES[module])) <= set(_SHARED[:at]), module
