"""The worked example of Hare: three jobs on three GPUs under three policies, run by `simulate` and drawn.

`examples/hare_toy` has the same as files. Times and totals are explained in docs/policies/hare.md.
"""

from __future__ import annotations

import numpy as np

from fairway.core.cluster import Cluster, GpuType, Node
from fairway.core.job import JobSpec, Workload
from fairway.models.names import ProfileKey
from fairway.report.line_chart import COLOURS, GRID, INK, SOFT, svg_head, svg_text
from fairway.reproduce.case import Figure, Findings, ResultTable, Setting, Yardstick
from fairway.simulator.result import Result
from fairway.simulator.run import simulate
from fairway.solvers.task_jobs import TaskGpus, TaskJobs
from fairway.solvers.task_relaxation import relax

TASK_S = {"J1": (1.0, 2.0, 2.0), "J2": (2.0, 2.0, 3.0), "J3": (1.0, 3.0, 3.0)}
"""Seconds of a task on G1, G2 and G3."""
ROUNDS, TASKS = {"J1": 2, "J2": 1, "J3": 1}, {"J1": 2, "J2": 2, "J3": 1}
PANELS = {
    "sched_homo:order=arrival,group_s=0.5": ("(a) gangs in order of arrival, types not looked at", 13.0),
    "sched_homo:types=aware,group_s=0.5": ("(b) gangs on the GPUs that suit them best", 11.0),
    "hare:assign=earliest_available,group_s=0.5": ("(c) Hare: tasks", 9.0),
}
"""By policy: what a panel says, and the published total."""
WIDTH, LEFT, RIGHT, ROW, PANEL = 760, 76, 40, 30, 146
LONGEST_S = 8.0


class ToyProfile:
    """The speeds of the example, in tasks a second."""

    name = "the example"
    models = tuple(TASK_S)

    def rate(self, model: str, batch_size: int | None, gpu_type: str, gpus: int, *, spread: bool = False) -> float:
        """So many tasks at a time."""
        return gpus / TASK_S[model][("g1", "g2", "g3").index(gpu_type)]

    def pair_rates(self, a: ProfileKey, b: ProfileKey, gpu_type: str) -> tuple[float, float] | None:
        """Nothing is known of jobs that share."""
        return None


def _run(policy: str) -> Result:
    """One run of the example. A switch costs nothing."""
    kinds = [GpuType(name, 16 << 30, 0.0, speed) for name, speed in (("g1", 1.0), ("g2", 0.5), ("g3", 0.4))]
    machines = Cluster.of([Node(f"node-{kind.name}", kind.name, 1) for kind in kinds], kinds)
    jobs = [JobSpec(name, 0.0, TASKS[name], steps=ROUNDS[name] * TASKS[name], model=name) for name in TASK_S]
    return simulate(Workload.of(jobs), cluster=machines, profile=ToyProfile(), policy=policy, switching="0")


def _relaxed() -> float:
    none_s, tasks = np.zeros(3), np.array(list(TASKS.values()))
    rounds, times_s = np.array(list(ROUNDS.values())), np.array(list(TASK_S.values()))
    jobs = TaskJobs(np.ones(3), none_s, rounds, tasks, tasks, none_s, times_s, np.zeros((3, 3)))
    return relax(jobs, TaskGpus(np.array([0, 1, 2]), none_s)).value


def example(_: Setting) -> Findings:
    """Completion times and totals of the panels, and of the default policy; the value of the relaxation."""
    results = {policy: _run(policy) for policy in (*PANELS, "hare:group_s=0.5")}
    exact, figures, rows = Yardstick.equal(2), [], []
    for policy, result in results.items():
        ended, total_s = result.jct_s.tolist(), float(result.jct_s.sum())
        told, published = PANELS.get(policy, ("Hare by default", 9.0))
        what = f"{told.split(') ')[-1]}: sum of completion times"
        figures.append(Figure(what, published, total_s, exact, "s", headline=policy in PANELS))
        rows.append((f"`{policy}`", *(f"{each:g}" for each in ended), f"{total_s:g}"))
    figures.append(Figure("value of the relaxation", 6.25, _relaxed(), exact, decimals=2))
    table = ResultTable(("policy", *TASK_S, "sum"), tuple(rows))
    return Findings(tuple(figures), {"ends": table}, {"panels": _drawn(results)})


def _drawn(results: dict[str, Result]) -> str:
    """A panel for each policy, in it a row for each GPU."""
    height = 62 + PANEL * len(PANELS) + 16
    parts = svg_head("Three jobs on three GPUs", WIDTH, height, 12.5)
    about = "Each box is a task. Seconds along the axis; a line where each job is complete."
    parts.append(svg_text(20, 48, about, SOFT))
    for at, (policy, (label, _)) in enumerate(PANELS.items()):
        parts += _panel(68 + PANEL * at, label, results[policy])
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(top: float, label: str, result: Result) -> list[str]:
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
