"""The worked example of Hare: three jobs on three GPUs under three policies, run by `simulate` and drawn.

The files are in `examples/hare_toy`. Times and totals are explained in docs/policies/hare.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fairway
from fairway.report.line_chart import COLOURS, GRID, INK, SOFT, svg_head, svg_text

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "hare_toy"
PANELS = {
    "sched_homo:order=arrival,group_s=0.5": "(a) gangs in order of arrival, types not looked at",
    "sched_homo:types=aware,group_s=0.5": "(b) gangs on the GPUs that suit them best",
    "hare:assign=earliest_available,group_s=0.5": "(c) Hare: tasks",
}
WIDTH, LEFT, RIGHT, ROW, PANEL = 760, 76, 40, 30, 146
LONGEST_S = 8.0


def toy_run(policy: str) -> fairway.Result:
    """One run of the example. A switch costs nothing."""
    jobs, cluster, speeds = (str(FOLDER / name) for name in ("jobs.jsonl", "cluster.toml", "speeds.json"))
    return fairway.simulate(jobs, cluster=cluster, profile=speeds, policy=policy, switching="0")


def toy_figures() -> list[dict[str, Any]]:
    """Completion times and totals of the panels, and of the default policy."""
    rows = []
    for policy in (*PANELS, "hare:group_s=0.5"):
        result = toy_run(policy)
        ended = {spec.id: float(jct_s) for spec, jct_s in zip(result.specs, result.jct_s, strict=True)}
        rows.append({"policy": policy, **ended, "total": sum(ended.values())})
    return rows


def draw_toy() -> str:
    """A panel for each policy, in it a row for each GPU."""
    height = 62 + PANEL * len(PANELS) + 16
    parts = svg_head("Three jobs on three GPUs", WIDTH, height, 12.5)
    parts.append(
        svg_text(20, 48, "Each box is a task. Seconds along the axis; a line where each job is complete.", SOFT)
    )
    for at, (policy, label) in enumerate(PANELS.items()):
        parts += _panel(68 + PANEL * at, label, toy_run(policy))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(top: float, label: str, result: fairway.Result) -> list[str]:
    ended = {spec.id: float(jct_s) for spec, jct_s in zip(result.specs, result.jct_s, strict=True)}
    told = " + ".join(f"{ended[job]:g}" for job in sorted(ended))
    floor = top + 18 + ROW * 3
    parts = [
        svg_text(20, top + 10, label, INK, 'font-weight="600"'),
        svg_text(WIDTH - RIGHT, top + 10, f"{told} = {sum(ended.values()):g} s", INK, 'text-anchor="end"'),
    ]
    for second in range(int(LONGEST_S) + 1):
        parts.append(f'<path d="M{_x(second):.1f} {top + 18}V{floor}" stroke="{GRID}"/>')
        parts.append(svg_text(_x(second), floor + 14, f"{second}", SOFT, 'text-anchor="middle" font-size="11"'))
    names = (f"G{gpu + 1}" for gpu in range(result.cluster.gpu_count))
    parts += [svg_text(LEFT - 24, top + 38 + ROW * at, name, SOFT) for at, name in enumerate(names)]
    for job, start_s, end_s, gpus in result.ledger.segments:
        for gpu in gpus:
            parts += _task(result.specs[job].id, COLOURS[job], start_s, end_s, top + 20 + ROW * gpu)
    for job, spec in enumerate(result.specs):
        x = _x(ended[spec.id]) - 2 * (job - 1)
        parts.append(f'<path d="M{x:.1f} {top + 14}V{floor + 2}" stroke="{COLOURS[job]}" stroke-dasharray="3 3"/>')
    return parts


def _task(label: str, colour: str, start_s: float, end_s: float, y: float) -> list[str]:
    width = _x(end_s) - _x(start_s) - 2
    box = f'<rect x="{_x(start_s) + 1:.1f}" y="{y:.1f}" width="{width:.1f}" height="{ROW - 6}" rx="3" fill="{colour}"/>'
    middle = _x((start_s + end_s) / 2)
    return [box, svg_text(middle, y + 16.5, label, "#ffffff", 'text-anchor="middle" font-weight="600"')]


def _x(time_s: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * time_s / LONGEST_S
