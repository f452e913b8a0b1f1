"""The comparison table: its columns, their units, and which value in each is the best.

A column has one unit for all policies, picked from its typical value, so that numbers can be compared by eye.
"""

from __future__ import annotations

import html
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairway.report.table import RHO_KINDS

_TIME_UNITS = ((86400.0, "d", 172800.0), (3600.0, "h", 5400.0), (60.0, "min", 120.0), (1.0, "s", 0.0))


@dataclass(frozen=True, slots=True)
class Column:
    """A metric as the table shows it; `better` is -1 where less is better, 1 where more is, 0 where neither."""

    key: str
    heading: str
    group: str
    kind: str
    better: int
    meaning: str
    rho: str = ""


@dataclass(frozen=True, slots=True)
class Scale:
    """How a column's numbers are written: divided by `size`, with `unit` in the heading."""

    size: float
    unit: str
    decimals: int

    def write(self, value: float | None) -> str:
        return "–" if value is None else f"{value / self.size:,.{self.decimals}f}"


def _columns() -> tuple[Column, ...]:
    jct, queue, cluster, cost, fair = "Completion time (JCT)", "Queueing", "Cluster", "Price paid", "Fairness"
    rho = []
    for kind in RHO_KINDS:
        rho.append(
            Column(f"ftf_{kind}_worst", "worst ρ", fair, "number", -1, f"largest {kind} finish-time fairness", kind)
        )
        rho.append(
            Column(
                f"ftf_{kind}_unfair_fraction", "unfair", fair, "share", -1, f"share of jobs with {kind} ρ > 1.05", kind
            )
        )
    told = "Promised ends"
    return (
        Column("jct_mean_s", "mean", jct, "time", -1, "from submission to completion, mean over finished jobs"),
        Column("jct_p50_s", "p50", jct, "time", -1, "median completion time"),
        Column("jct_p95_s", "p95", jct, "time", -1, "95 % of finished jobs took no longer"),
        Column("jct_p99_s", "p99", jct, "time", -1, "99 % of finished jobs took no longer"),
        Column("jct_max_s", "max", jct, "time", -1, "the slowest job"),
        Column("queue_mean_s", "mean", queue, "time", -1, "time a job was in the system and not running, mean"),
        Column("queue_p99_s", "p99", queue, "time", -1, "99 % of finished jobs queued no longer"),
        Column("feedback_mean_s", "feedback", queue, "time", -1, "until the first 100 mini-batches were done, mean"),
        Column("makespan_s", "makespan", cluster, "time", -1, "from the first submission to the last completion"),
        Column("utilisation", "utilised", cluster, "share", 1, "busy GPU time over available GPU time"),
        Column("throughput", "useful", cluster, "share", 1, "share of GPU time that did useful work"),
        Column("finished", "finished", cluster, "count", 1, "jobs that completed"),
        Column("preemptions", "preempted", cost, "count", -1, "times a running job was stopped for another"),
        Column("lost_gpu_h", "lost GPU-h", cost, "number", -1, "GPU hours spent on restarts and redone work"),
        Column(
            "cost",
            "cost",
            cost,
            "number",
            -1,
            "held GPU hours at the cluster's prices; jobs that share a GPU each pay for it",
        ),
        Column("deadline_misses", "missed", cost, "count", -1, "jobs that finished after their deadline"),
        Column("promise_error", "median error", told, "share", -1, "of the completion time that was told, median"),
        Column("promise_error_mean", "mean error", told, "share", -1, "of the completion time that was told, mean"),
        Column("promise_within", "within", told, "share", 0, "share of ends within the interval told, of 80 %"),
        *rho,
        Column("jain", "Jain", fair, "index", 1, "Jain's index; 1 means all got the same"),
    )


COLUMNS = _columns()


def scale_of(column: Column, values: Sequence[float]) -> Scale:
    """Unit and decimals from the middle of the column."""
    middle = statistics.median(abs(value) for value in values) if values else 0.0
    if column.kind == "share":
        return Scale(0.01, "%", 1)
    if column.kind == "index":
        return Scale(1.0, "", 3)
    if column.kind == "count":
        return Scale(1.0, "", 0)
    size, unit = 1.0, ""
    if column.kind == "time":
        size, unit = next((size, unit) for size, unit, least in _TIME_UNITS if middle >= least)
    scaled = middle / size
    return Scale(size, unit, 0 if scaled >= 100 else 1 if scaled >= 10 else 2 if scaled >= 0.1 else 3)


def best_rows(column: Column, values: Sequence[float | None]) -> set[int]:
    """The rows that hold the best value; none when all are equal, for then nothing won."""
    known = [value for value in values if value is not None]
    if column.better == 0 or len(known) < 2 or min(known) == max(known):
        return set()
    best = max(known) if column.better > 0 else min(known)
    return {row for row, value in enumerate(values) if value == best}


def comparison_table(rows: Sequence[Mapping[str, Any]], *, mark_best: bool) -> str:
    """The whole `<table>`; columns that say nothing (no value, or all jobs finished everywhere) are left out."""
    complete = all(row["finished"] == row["jobs"] for row in rows)
    columns = [c for c in COLUMNS if any(row[c.key] is not None for row in rows)]
    columns = [c for c in columns if not (c.key == "finished" and complete)]
    scales = {c.key: scale_of(c, [row[c.key] for row in rows if row[c.key] is not None]) for c in columns}
    best = {c.key: best_rows(c, [row[c.key] for row in rows]) if mark_best else set() for c in columns}
    body = []
    for index, row in enumerate(rows):
        cells = [_cell(c, scales[c.key], row, index in best[c.key]) for c in columns]
        body.append(f'<tr data-policy="{index}">{_row_head(index, row)}{"".join(cells)}</tr>')
    return (
        '<table class="compare" id="compare"><caption class="sr">Policies compared. '
        "The best value of a column is marked; a heading sorts by its column.</caption>"
        f"<thead>{_head(columns, scales)}</thead><tbody>{''.join(body)}</tbody></table>"
    )


def _head(columns: Sequence[Column], scales: Mapping[str, Scale]) -> str:
    groups = []
    for group in dict.fromkeys(c.group for c in columns):
        inside = [c for c in columns if c.group == group]
        visible = sum(c.rho in ("", "static") for c in inside)
        groups.append(f'<th scope="colgroup" colspan="{visible}">{html.escape(group)}</th>')
    heads = [_sorter("policy", "policy", "", "text", ""), _sorter("may know", "knows", "", "text", "")]
    previous = ""
    for c in columns:
        first = " first" if c.group != previous else ""
        previous = c.group
        heads.append(_sorter(c.heading, c.meaning, scales[c.key].unit, "number", first, c.rho))
    return f'<tr class="groups"><td colspan="2"></td>{"".join(groups)}</tr><tr>{"".join(heads)}</tr>'


def _sorter(heading: str, meaning: str, unit: str, kind: str, first: str, rho: str = "") -> str:
    shown = f' <br><span class="unit">{unit}</span>' if unit else ""
    place = f' data-rho="{rho}"' if rho else ""
    hidden = " hidden" if rho not in ("", "static") else ""
    name = html.escape(heading).replace("-", "&#8209;")  # a heading may wrap, but not inside GPU-h
    return (
        f'<th scope="col" class="{kind}{first}" aria-sort="none" title="{html.escape(meaning)}"{place}{hidden}>'
        f'<button type="button">{name}{shown}</button></th>'
    )


def swatch(index: int) -> str:
    """The coloured square that ties a name to its line in the charts: hollow or striped where lines are dashed."""
    dash = f" dash{index // 8 % 3}" if index >= 8 else ""
    return f'<span class="swatch s{index % 8}{dash}" aria-hidden="true"></span>'


def _row_head(index: int, row: Mapping[str, Any]) -> str:
    seeds = f' <span class="spread">{row["runs"]} runs</span>' if row["runs"] > 1 else ""
    label, knows = html.escape(str(row["policy"])), html.escape(str(row["knows"]))
    shown = label.replace("_", "_<wbr>")  # a long name breaks after an underscore
    return (
        f'<th scope="row" data-sort="{label}">{swatch(index)}{shown}{seeds}</th>'
        f'<td class="text" data-sort="{knows}">{knows}</td>'
    )


def _cell(column: Column, scale: Scale, row: Mapping[str, Any], best: bool) -> str:
    value, low, high = (row[column.key + end] for end in ("", "_min", "_max"))
    classes = "best" if best else ""
    spread = ""
    if value is not None and row["runs"] > 1 and high > low:
        spread = f' <span class="spread">±{scale.write((high - low) / 2)}</span>'
    shown = scale.write(value)
    if column.key == "finished" and value is not None and row["jobs"] is not None and value < row["jobs"]:
        spread += f' <span class="spread">of {row["jobs"]:,.0f}</span>'
    mark = '<span class="sr"> (best)</span>' if best else ""
    place = f' data-rho="{column.rho}"' if column.rho else ""
    hidden = " hidden" if column.rho not in ("", "static") else ""
    key = "" if value is None else repr(float(value))
    return f'<td class="{classes}" data-sort="{key}"{place}{hidden}>{shown}{mark}{spread}</td>'
