"""All cases as one self-contained page: verdicts, tables and pictures. No script; nothing is loaded from elsewhere."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from fairway.core.version import VERSION
from fairway.report.html import asset, digest, shared_asset
from fairway.reproduce.case import Verdicts

_STYLE = """
td.left, td.met, td.better, td.red { text-align: left; white-space: normal; }
th.left, th.verdict { text-align: left; }
td.met { color: var(--best-ink); }
td.better { background: var(--best); color: var(--best-ink); font-weight: 700; }
.red { color: var(--danger); font-weight: 700; }
figure { margin: 12px 0; overflow-x: auto; }
figure svg { max-width: 100%; height: auto; border-radius: 8px; }
section h3 { margin: 16px 0 4px; font-size: 14px; }
nav a { margin-right: 14px; color: var(--accent); }
"""
_CLASSES = {str(Verdicts.MET): "met", str(Verdicts.BETTER): "better", str(Verdicts.NOT_REACHED): "red"}


def render_page(document: Mapping[str, Any]) -> str:
    """The page as the text of one HTML file."""
    cases: Sequence[Mapping[str, Any]] = document["cases"]
    # Pictures have colours of their own, which the style sheet of charts would change.
    style = shared_asset("colours.css") + re.sub(r"(?m)^svg [^\n]*\n", "", asset("report.css")) + _STYLE
    policy = f"default-src 'none'; style-src 'sha256-{digest(style)}'"
    title = "Published figures, run again" + (" (quick)" if document["quick"] else "")
    systems = dict.fromkeys(case["system"] for case in cases)
    links = [f'<a href="#{_id(name)}">{escape(name)}</a>' for name in systems]
    parts = [
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark"><meta name="referrer" content="no-referrer">',
        f"<title>{title} · Fairway</title><style>{style}</style></head><body>",
        f'<header><p class="brand">Fairway {escape(VERSION)}</p><h1>{title}</h1>{_facts(cases)}',
        f"<nav>{''.join(links)}</nav></header><main>",
    ]
    for name in systems:
        parts.append(f'<div id="{_id(name)}">')
        parts += (_section(case) for case in cases if case["system"] == name)
        parts.append("</div>")
    return "\n".join([*parts, "</main></body></html>\n"])


def _id(name: str) -> str:
    return re.sub(r"\W+", "-", name.lower())


def _facts(cases: Sequence[Mapping[str, Any]]) -> str:
    verdicts = Counter(figure["verdict"] for case in cases for figure in case["figures"])
    facts = [(str(verdict), f"{verdicts[verdict]}") for verdict in Verdicts]
    facts.append(("CPU time", f"{sum(case['cpu_s'] for case in cases):,.0f} s"))
    shown = (f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts)
    return f"<dl class='facts'>{''.join(shown)}</dl>"


def _section(case: Mapping[str, Any]) -> str:
    head = f"<h2>{escape(case['system'])}: {escape(case['title'])}</h2>"
    took = f" · {case['cpu_s']:,.1f} CPU s" if case["figures"] else ""
    parts = [f'<section><div class="bar">{head}</div><p class="hint">{escape(case["source"])}{took}</p>']
    if case["figures"]:
        columns = ("what", "published", "here", "rule", "verdict")
        parts.append(_table(columns, [_figure_cells(figure) for figure in case["figures"]], 1))
    elif case["error"]:
        parts.append(f'<p class="red">failed: {escape(case["error"])}</p>')
    else:
        parts.append(f"<p>{escape('; '.join(said_instead(case)))}</p>")
    for name, picture in case["pictures"].items():
        parts.append(f'<figure aria-label="{escape(name)}">{picture}</figure>')
    for name, table in case["tables"].items():
        rows = [[_cell(text, at < table["texts"]) for at, text in enumerate(row)] for row in table["rows"]]
        parts.append(f"<h3>{escape(name.replace('_', ' '))}</h3>{_table(table['columns'], rows, table['texts'])}")
    return "".join([*parts, "</section>"])


def said_instead(case: Mapping[str, Any]) -> list[str]:
    """What is told about a case that did not run."""
    if case["fetch"]:
        return [f"needs data: {file}" for file in case["fetch"]]
    return [f"{case['state']}: {case['gpu']}" if case["gpu"] else str(case["state"])]


def _figure_cells(figure: Mapping[str, Any]) -> list[str]:
    verdict = escape(figure["verdict"] + (f": {figure['why']}" if figure["why"] else ""))
    texts = [_cell(figure["what"], left=True), _cell(figure["published_text"]), _cell(figure["ours_text"])]
    return [*texts, _cell(figure["rule"]), f'<td class="{_CLASSES[figure["verdict"]]}">{verdict}</td>']


def _cell(text: str, left: bool = False) -> str:
    return f"<td class='left'>{_inline(text)}</td>" if left else f"<td>{_inline(text)}</td>"


def _inline(text: str) -> str:
    """The little Markdown that cells have: code and bold."""
    shown = re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text))
    return re.sub(r"\*\*([^*]*)\*\*", r"<b>\1</b>", shown)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], texts: int) -> str:
    kinds = ["left" if at < texts else "verdict" if name == "verdict" else "right" for at, name in enumerate(columns)]
    head = "".join(f'<th class="{kind}">{_inline(name)}</th>' for kind, name in zip(kinds, columns, strict=True))
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
