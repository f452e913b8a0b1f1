"""Running a case, and what came of it as a plain document."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from fairway.core.errors import FairwayError
from fairway.core.version import VERSION
from fairway.reproduce.case import Case, Figure, Findings, ResultTable, Setting, Verdicts

SCHEMA = "fairway.reproduction/1"
RAN, FAILED, NO_DATA, NO_GPU, NOT_QUICK = "ran", "failed", "needs data", "needs a GPU", "left out of a quick run"


def state_before(case: Case, setting: Setting) -> str:
    """Why a case cannot run here, or nothing."""
    if case.run is None:
        return NO_GPU
    if setting.quick and case.quick_cpu_s is None:
        return NOT_QUICK
    return NO_DATA if case.missing(setting) else ""


def run_case(case: Case, setting: Setting) -> dict[str, Any]:
    """Run a case if it can run here: its document."""
    state, started_s, error = state_before(case, setting), time.process_time(), ""
    findings = Findings()
    if not state and case.run is not None:
        try:
            findings, state = case.run(setting), RAN
        except FairwayError as problem:
            state, error = FAILED, str(problem)
    return {
        "name": case.name,
        "system": case.system,
        "title": case.title,
        "source": case.source,
        "page": case.page,
        "state": state,
        "error": error,
        "fetch": [str(file) for file in case.missing(setting)] if state == NO_DATA else [],
        "gpu": case.gpu,
        "cpu_s": round(time.process_time() - started_s, 2),
        **findings_document(findings),
    }


def findings_document(findings: Findings) -> dict[str, Any]:
    """Figures, tables and pictures in plain types."""
    return {
        "figures": [_figure(figure) for figure in findings.figures],
        "tables": {name: _table(table) for name, table in findings.tables.items()},
        "pictures": dict(findings.pictures),
    }


def _figure(figure: Figure) -> dict[str, Any]:
    published = figure.published
    return {
        "what": figure.what,
        "published": list(published) if isinstance(published, tuple) else published,
        "ours": figure.ours,
        "unit": figure.unit,
        "published_text": figure.written(published),
        "ours_text": figure.written(figure.ours),
        "rule": str(figure.yardstick),
        "verdict": str(figure.verdict),
        "why": figure.why if figure.verdict is Verdicts.NOT_REACHED else "",
        "headline": figure.headline,
    }


def _table(table: ResultTable) -> dict[str, Any]:
    return {"columns": list(table.columns), "rows": [list(row) for row in table.rows], "texts": table.texts}


def reproduction_document(cases: Sequence[Mapping[str, Any]], *, quick: bool) -> dict[str, Any]:
    """The document of all cases."""
    return {"schema": SCHEMA, "fairway": VERSION, "quick": quick, "cases": list(cases)}


def unexplained(cases: Sequence[Mapping[str, Any]]) -> list[str]:
    """What is wrong: cases that failed, and figures that are not reached for no known reason."""
    found = [f"{case['name']}: {case['error']}" for case in cases if case["state"] == FAILED]
    for case in cases:
        figures = (figure for figure in case["figures"] if figure["verdict"] == Verdicts.NOT_REACHED)
        found += [f"{case['name']}: {each['what']} is not reached" for each in figures if not each["why"]]
    return found
