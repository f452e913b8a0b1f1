"""What `fairway reproduce` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import rich.box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from fairway.cli.output import count, duration
from fairway.reproduce.case import Verdicts
from fairway.reproduce.page import said_instead
from fairway.reproduce.run import FAILED, NO_DATA, RAN, state_before

if TYPE_CHECKING:
    from fairway.reproduce import Case, Setting

_STYLES = {str(Verdicts.MET): "green", str(Verdicts.BETTER): "bold green", str(Verdicts.NOT_REACHED): "bold red"}


def verdict_lines(cases: Sequence[Mapping[str, Any]], took_s: float) -> list[RenderableType]:
    """All figures with their verdicts, then what did not run, then the sums."""
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    for heading, justify in (("system", "left"), ("figure", "left"), ("published", "right"), ("here", "right")):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    table.add_column("verdict")
    for case in (case for case in cases if case["state"] == RAN):
        table.add_row(Text(case["system"], "bold"), Text(f"{case['title']} ({case['cpu_s']:.1f} CPU s)", "bold"))
        for each in case["figures"]:
            why = f": {each['why']}" if each["why"] else f" ({each['rule']})"
            verdict = Text(each["verdict"], _STYLES[each["verdict"]]) + Text(why, "default")
            texts = (each["what"], each["published_text"], each["ours_text"])
            table.add_row("", *(Text(text) for text in texts), verdict)
    found: list[RenderableType] = [table] if table.row_count else []
    failed = (case for case in cases if case["state"] == FAILED)
    found += (Text(f"{case['name']}: failed: {case['error']}", "bold red") for case in failed)
    found += _not_run(cases)
    verdicts = Counter(each["verdict"] for case in cases for each in case["figures"])
    sums = " · ".join(f"{verdicts[each]} {each}" for each in Verdicts)
    cpu_s = sum(case["cpu_s"] for case in cases)
    found.append(Text(f"{sums} · {duration(cpu_s)} of CPU time in {duration(took_s)}"))
    return found


def _not_run(cases: Sequence[Mapping[str, Any]]) -> list[RenderableType]:
    waiting = [case for case in cases if case["state"] not in (RAN, FAILED)]
    if not waiting:
        return []
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("did not run", "because"):
        table.add_column(heading)
    for case in waiting:
        table.add_row(Text(f"{case['system']}: {case['title']}"), Text("\n".join(said_instead(case))))
    found: list[RenderableType] = [table]
    without = sum(case["state"] == NO_DATA for case in waiting)
    if without:
        need = "needs" if without == 1 else "need"
        found.append(Text(f"{count(without, 'case')} {need} published files: fetch them and give --data DIR"))
    return found


def cases_table(cases: Sequence[Case], setting: Setting) -> Table:
    """What there is, what it takes, and whether it can run here."""
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("case", "system", "what", "source", "CPU s", "quick", "here"):
        table.add_column(heading, justify="right" if heading in ("CPU s", "quick") else "left")
    for case in cases:
        quick = "–" if case.quick_cpu_s is None else f"{case.quick_cpu_s:g}"
        cost = "–" if case.run is None else f"{case.cpu_s:g}"
        state = state_before(case, setting) or "can run"
        texts = (case.name, case.system, case.title, case.source, cost, quick, state)
        table.add_row(*(Text(text) for text in texts))
    return table
