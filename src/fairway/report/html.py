"""One self-contained page that compares policies: it opens offline, from a file, and never asks the network.

Tables are HTML from the start; charts are drawn in the browser from condensed numbers. Whatever a user named (jobs,
policies, traces) reaches the page only escaped, and a content security policy allows the page's own script alone.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from fairway.core.errors import InputError
from fairway.report.columns import COLUMNS, Column, comparison_table, scale_of, swatch
from fairway.report.condense import condense_gantt, distribution, short, step_average
from fairway.report.table import RHO_KINDS, PolicyRuns, comparison_rows, finite, group_by_policy, knowledge

OWNERS_SHOWN = 200
POLICIES_SHOWN = 8
"""How many policies the page shows at first; a click shows the others. Lines have as many colours."""
_PRIZES = {
    "jct_mean_s": "Shortest mean completion",
    "jct_p99_s": "Shortest p99 completion",
    "makespan_s": "Shortest makespan",
    "ftf_static_unfair_fraction": "Fewest unfair jobs (static ρ)",
}
"""The columns whose winners are named at the top."""
_SHARED = ("dom.js", "numbers.js", "clock.js", "scales.js", "tip.js", "line-chart.js", "gantt.js")
"""The modules of the web page that draw charts, each after those that it needs."""


def render_html(results: Sequence[Mapping[str, Any]], *, title: str | None = None) -> str:
    """The comparison of the given results as the text of one HTML file."""
    if not results:
        raise InputError("there is no result to report on")
    fair_fight = len({(str(r.get("trace")), str(r.get("cluster"))) for r in results}) == 1
    groups, rows = group_by_policy(results), comparison_rows(results)
    if fair_fight and len(rows) > POLICIES_SHOWN:
        order = _best_first(rows)
        groups, rows = [groups[index] for index in order], [rows[index] for index in order]
    heading = title or f"{_several(results, 'trace')} on {_several(results, 'cluster')}"
    script = _joined([*(shared_asset(name) for name in _SHARED), asset("report.js")])
    style = shared_asset("colours.css") + shared_asset("charts.css") + asset("report.css")
    page = asset("report.html")
    parts = {
        "title": html.escape(heading),
        "csp": f"default-src 'none'; style-src 'sha256-{digest(style)}'; script-src 'sha256-{digest(script)}'",
        "style": style,
        "facts": _facts(results),
        "notes": _notes(results, rows, fair_fight),
        "tiles": _tiles(rows, groups) if fair_fight else "",
        "table": comparison_table(rows, mark_best=fair_fight),
        "data": _embed(_payload(groups, rows)),
        "script": script,
    }
    pieces = page.split("%%")
    text = "".join(parts[piece] if index % 2 else piece for index, piece in enumerate(pieces))
    return text.encode("utf-8", "replace").decode("utf-8")


def _payload(groups: Sequence[PolicyRuns], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    names: list[list[str]] = []
    policies = [_policy(group, row, len(groups), names) for group, row in zip(groups, rows, strict=True)]
    return {
        "policies": policies,
        "shown": min(POLICIES_SHOWN, len(policies)),
        "names": names,
        "users": _owners(groups, "per_user"),
        "queues": _owners(groups, "per_queue"),
    }


def _policy(group: PolicyRuns, row: Mapping[str, Any], shown: int, names: list[list[str]]) -> dict[str, Any]:
    """What the charts need of one policy: distributions over all its runs, the course of its first run."""
    first = group.runs[0]
    jobs = [job for run in group.runs for job in run.get("per_job") or ()]
    series = first.get("series") or {}
    times = series.get("time_s") or ()
    gpus = finite(first.get("gpus")) or 0.0
    busy = step_average(times, [(finite(v) or 0.0) / gpus for v in series.get("busy_gpus") or ()]) if gpus else None
    gantt = condense_gantt(first.get("gantt"), shown)
    if gantt is not None:
        _intern_names(gantt, first, names)
    return {
        "label": group.label,
        "runs": len(group.runs),
        "jct": distribution(job.get("jct_s") for job in jobs),
        "rho": {kind: distribution(job.get(f"rho_{kind}") for job in jobs) for kind in RHO_KINDS},
        "unfair": {kind: row[f"ftf_{kind}_unfair_fraction"] for kind in RHO_KINDS},
        "utilisation": row["utilisation"],
        "busy": busy,
        "waiting": step_average(times, series.get("waiting") or ()),
        "running": step_average(times, series.get("running") or ()),
        "gantt": gantt,
    }


def _intern_names(gantt: dict[str, Any], result: Mapping[str, Any], names: list[list[str]]) -> None:
    """Store each list of names once: every policy ran the same jobs on the same GPUs."""
    if gantt["kind"] == "segments":
        owner = {str(job.get("id")): str(job.get("user")) for job in result.get("per_job") or ()}
        if owner:
            gantt["users"] = [owner.get(job, "") for job in gantt["jobs"]]
    for key in ("rows", "jobs", "users"):
        if key in gantt:
            if gantt[key] not in names:
                names.append(gantt[key])
            gantt[key] = names.index(gantt[key])


def _owners(groups: Sequence[PolicyRuns], key: str) -> dict[str, Any]:
    """Users or queues with the most GPU hours first; per policy the mean over its runs."""
    gpu_h: dict[str, float] = {}
    jobs: dict[str, float] = {}
    for name, values in (item for group in groups for run in group.runs for item in (run.get(key) or {}).items()):
        gpu_h[name] = max(gpu_h.get(name, 0.0), finite(values.get("gpu_h")) or 0.0)
        jobs[name] = max(jobs.get(name, 0.0), finite(values.get("jobs")) or 0.0)
    if set(gpu_h) == {""}:
        gpu_h = {}
    kept = sorted(gpu_h, key=lambda name: (-gpu_h[name], name))[:OWNERS_SHOWN]
    return {
        "all": len(gpu_h),
        "names": [name or "(none)" for name in kept],
        "jobs": [round(jobs[name]) for name in kept],
        "gpu_h": short(gpu_h[name] for name in kept),
        "jct": [[_owner_mean(group, key, name, "jct_mean_s") for group in groups] for name in kept],
        "queue": [[_owner_mean(group, key, name, "queue_mean_s") for group in groups] for name in kept],
    }


def _owner_mean(group: PolicyRuns, key: str, name: str, metric: str) -> float | None:
    values = [finite(((run.get(key) or {}).get(name) or {}).get(metric)) for run in group.runs]
    known = [value for value in values if value is not None]
    return short([sum(known) / len(known)])[0] if known else None


def _facts(results: Sequence[Mapping[str, Any]]) -> str:
    """The line at the top: what ran, where, under which rules."""
    facts = [
        ("trace", _several(results, "trace")),
        ("cluster", f"{_several(results, 'cluster')} ({_several(results, 'gpus')} GPUs)"),
        ("rules", _several(results, "rules")),
        ("placement", _several(results, "placement")),
        ("round", "at events" if not any(r.get("round_s") for r in results) else _several(results, "round_s", " s")),
        ("restart cost", _several(results, "restart_cost_s", " s")),
        ("switching", _several(results, "switching")),
        ("seed" if len({r.get("seed") for r in results}) < 2 else "seeds", _several(results, "seed")),
        ("jobs", _several(results, "jobs")),
        ("finished", _several(results, "finished")),
        ("skipped", _several(results, "skipped")),
        ("Fairway", _several(results, "fairway")),
    ]
    shown = (f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>" for name, value in facts if value)
    return "".join(shown)


def _several(results: Sequence[Mapping[str, Any]], key: str, unit: str = "") -> str:
    """The value all results share, or the few they differ in, or their range."""
    values = list(dict.fromkeys(value for r in results if (value := r.get(key)) is not None))
    numbers = [number for value in values if (number := finite(value)) is not None]
    if len(numbers) == len(values) > 3:
        return f"{min(numbers):,g}–{max(numbers):,g}{unit}"
    shown = (
        [f"{number:,.10g}" for number in numbers] if len(numbers) == len(values) else [str(value) for value in values]
    )
    return ", ".join(shown[:4]) + (f" and {len(shown) - 4} more" if len(shown) > 4 else "") + (unit if shown else "")


def _notes(results: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]], fair_fight: bool) -> str:
    """What a reader must know before believing a column."""
    notes = []
    if not fair_fight:
        notes.append("These runs differ in trace or cluster, so no value is marked as the best.")
    unfinished = [str(row["policy"]) for row in rows if (row["finished"] or 0) < (row["jobs"] or 0)]
    if unfinished:
        notes.append(f"Not every job finished under {', '.join(unfinished)}; their means cover finished jobs only.")
    if any(row["skipped"] for row in rows):
        notes.append("Skipped jobs (for example jobs larger than the cluster) are not counted below.")
    if any(row["runs"] > 1 for row in rows):
        notes.append(
            "A policy with several runs shows their mean ± half the range; charts over time show its first run."
        )
    if not any(result.get("per_job") for result in results):
        notes.append("These results carry no per-job rows, so there are no distributions.")
    return "".join(f"<p>{html.escape(note)}</p>" for note in notes)


def _tiles(rows: Sequence[Mapping[str, Any]], groups: Sequence[PolicyRuns]) -> str:
    """Who won what, and by how much over the next one."""
    tiles = []
    for column in (column for column in COLUMNS if column.key in _PRIZES):
        ranked = _ranked(rows, column.key)
        if len(ranked) < 2 or ranked[0][0] == ranked[1][0]:
            continue
        (value, winner), (following, second) = ranked[:2]
        shown, next_shown = _tile_value(column, value), _tile_value(column, following)
        name, next_name = (html.escape(groups[index].label) for index in (winner, second))
        knows = html.escape(knowledge(groups[winner].runs[0]))
        tiles.append(
            f'<li><span class="what">{_PRIZES[column.key]}</span>'
            f'<span class="who">{swatch(winner)}{name} <b>{shown}</b></span>'
            f'<span class="next">next: {next_name} {next_shown} · knows {knows}</span></li>'
        )
    return f'<ul class="tiles">{"".join(tiles)}</ul>' if tiles else ""


def _ranked(rows: Sequence[Mapping[str, Any]], key: str) -> list[tuple[float, int]]:
    """The values of a column with the numbers of their rows, the smallest first."""
    return sorted((value, index) for index, row in enumerate(rows) if (value := row[key]) is not None)


def _best_first(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """The order in which policies are listed: by mean completion time.

    The winners that are named at the top are among those shown at first.
    """
    order = [index for _, index in _ranked(rows, "jct_mean_s")]
    order += [index for index in range(len(rows)) if index not in order]
    winners = {ranked[0][1] for key in _PRIZES if (ranked := _ranked(rows, key))}
    shown = winners | set([index for index in order if index not in winners][: POLICIES_SHOWN - len(winners)])
    return sorted(order, key=lambda index: index not in shown)


def _tile_value(column: Column, value: float) -> str:
    scale = scale_of(column, [value])
    return f"{scale.write(value)} {scale.unit}"


def asset(name: str) -> str:
    """The text of a file that pages are made of."""
    return (resources.files("fairway.report") / "assets" / name).read_text(encoding="utf-8")


def shared_asset(name: str) -> str:
    """A file that the web page has too."""
    return (resources.files("fairway") / "web" / "assets" / name).read_text(encoding="utf-8")


def _joined(modules: Sequence[str]) -> str:
    """Modules as one script: a page that opens from a file cannot load modules. Names are unique over all of them."""
    parts = (re.sub(r"^export ", "", re.sub(r"^import .*;\n", "", text, flags=re.M), flags=re.M) for text in modules)
    return '"use strict";\n' + "\n".join(parts)


def digest(text: str) -> str:
    """By which a content security policy allows a script or a style sheet."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _embed(value: object) -> str:
    """JSON that cannot end the element it sits in, whatever the names in it contain."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026").replace("\u2028", "\\u2028")
