"""Tables of the pages, written from results: what stands between two marks in a page is made, never edited.

    <!-- reproduce: CASE -->          the figures of a case beside the published ones; of several: CASE+CASE
    <!-- reproduce: CASE TABLE -->    one of its tables
    <!-- reproduce: everything -->    the headlines of all cases
    <!-- end -->                      ends each of them

`policies/results.json` below the pages holds the results they are made from, so that a test can tell whether a page
was edited by hand. A picture is written beside the pages if one of them shows it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairway.core.errors import InputError
from fairway.reproduce.run import RAN

RESULTS = "policies/results.json"
PICTURES = "pictures"
_MARK = re.compile(r"(<!-- reproduce: ([^\n]*?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
_KEPT = ("system", "title", "source", "page", "tables")
_NUMBERS = ("published", "ours", "unit")


def write_pages(folder: Path, cases: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[Path]:
    """Write results, pictures and tables of all pages in a folder; what was written.

    `names` are all cases there are. Results of earlier runs are kept for those that did not run now.
    """
    store = folder / RESULTS
    if not store.parent.is_dir():
        raise InputError(f"there is no {Path(RESULTS).parent} in it", path=str(folder))
    ran = {case["name"]: _kept(case) for case in cases if case["state"] == RAN}
    earlier = read_results(folder) if store.exists() else {}
    results = {name: ran.get(name, earlier.get(name)) for name in names if name in ran or name in earlier}
    written = [store] if _put(store, _json(results)) else []
    pages = sorted(folder.rglob("*.md"))
    shown = "".join(page.read_text(encoding="utf-8") for page in pages)
    for case in cases:
        for name, picture in case["pictures"].items():
            path = folder / PICTURES / picture_file(case["name"], name)
            if f"{PICTURES}/{path.name}" in shown and _put(path, picture):
                written.append(path)
    return written + [page for page in pages if _put(page, filled(page.read_text(encoding="utf-8"), results))]


def read_results(folder: Path) -> dict[str, Any]:
    """The results that the pages in a folder are made from, by case."""
    path = folder / RESULTS
    try:
        cases: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise InputError(f"not JSON: {error.msg}", path=str(path), line=error.lineno) from None
    return cases


def picture_file(case: str, name: str) -> str:
    """The name of a picture's file among the pages."""
    return f"{case}_{name}.svg".replace("-", "_")


def filled(text: str, results: Mapping[str, Any]) -> str:
    """A page with the tables that belong between its marks; a mark without results keeps what it has."""

    def fill(found: re.Match[str]) -> str:
        made = _content(found[2].split(), results)
        return found[0] if made is None else f"{found[1]}\n{made}\n\n{found[4]}"

    return _MARK.sub(fill, text)


def marks(text: str) -> list[list[str]]:
    """What the marks of a page ask for."""
    return [found[2].split() for found in _MARK.finditer(text)]


def _content(asked: Sequence[str], results: Mapping[str, Any]) -> str | None:
    """What belongs between two marks; nothing if there are no results for it yet."""
    if list(asked) == ["everything"]:
        return "\n".join(_headlines(results))
    names = asked[0].split("+") if asked else [""]
    if not set(names) <= results.keys():
        return None
    cases = [results[name] for name in names]
    if len(asked) == 1:
        return "\n".join(figure_lines(figure for case in cases for figure in case["figures"]))
    case = cases[0]
    table = case["tables"].get(asked[1])
    if table is None:
        raise InputError(f"a page asks for the table {asked[1]!r} of {asked[0]}; it has {', '.join(case['tables'])}")
    kinds = "t" * table["texts"] + "n" * (len(table["columns"]) - table["texts"])
    return "\n".join(table_lines(table["columns"], table["rows"], kinds))


def _headlines(results: Mapping[str, Any]) -> Iterable[str]:
    rows = []
    for case in results.values():
        for at, figure in enumerate(each for each in case["figures"] if each["headline"]):
            run = "" if at else f"[{case['system']}]({case['page']}): {case['title']}"
            rows.append((run, figure["what"], figure["published_text"], figure["ours_text"], _verdict(figure)))
    return table_lines(("run", "what", "published", "here", "verdict"), rows, "ttnnt")


def figure_lines(figures: Iterable[Mapping[str, Any]]) -> list[str]:
    """Figures beside the published ones, as lines of Markdown."""
    rows = [(f["what"], f["published_text"], f["ours_text"], f["rule"], _verdict(f)) for f in figures]
    return table_lines(("what", "published", "here", "rule", "verdict"), rows, "tnntt")


def _verdict(figure: Mapping[str, Any]) -> str:
    why = f": {figure['why']}" if figure["why"] else ""
    return f"**{figure['verdict']}**{why}" if figure["verdict"] == "not reached" else figure["verdict"]


def table_lines(columns: Sequence[str], rows: Iterable[Sequence[str]], kinds: str) -> list[str]:
    """A table as lines of Markdown. For each column `kinds` has t (text) or n (numbers, aligned to the right)."""
    lines = [f"| {' | '.join(columns)} |", f"|{'|'.join('--:' if kind == 'n' else '---' for kind in kinds)}|"]
    return lines + [f"| {' | '.join(row)} |" for row in rows]


def _kept(case: Mapping[str, Any]) -> dict[str, Any]:
    """What the pages need of a case: texts. The last digits of numbers may differ from CPU to CPU."""
    digests = {name: picture_digest(text) for name, text in case["pictures"].items()}
    figures = [{key: value for key, value in each.items() if key not in _NUMBERS} for each in case["figures"]]
    return {key: case[key] for key in _KEPT} | {"figures": figures, "pictures": digests}


def picture_digest(picture: str) -> str:
    """By which a picture among the pages is known to belong to the results."""
    return hashlib.sha256(picture.encode()).hexdigest()


def _json(results: Mapping[str, Any]) -> str:
    return json.dumps(results, indent=1, ensure_ascii=False) + "\n"


def _put(path: Path, text: str) -> bool:
    """Write a file if its content changes."""
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    path.write_text(text, encoding="utf-8")
    return True
