"""What a forecast changes: one small workload of seven jobs on three GPUs under three rules of forecast, as a picture.

The workload is one of a family that is drawn from seeds; it was chosen because the three schedules differ clearly. So
the means over the family stand beside it. The bars of the artifact's comparison are drawn here, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from fairway.core.event import RegimeEntered
from fairway.core.job import JobSpec, Regime, Workload
from fairway.report.line_chart import INK, SOFT, svg_head, svg_text
from fairway.reproduce.case import Figure, Findings, ResultTable, Setting, Yardstick
from fairway.simulator.result import Result
from fairway.simulator.run import simulate

RULES = ("agnostic", "reactive", "restatement")
CHOSEN, GPUS, JOBS = 106, 3, 7
FAMILY, QUICK_FAMILY = 45, 6
"""How many workloads of the family are run."""
UNFAIR = 1.05
COLOURS = ("#0072b2", "#d55e00", "#00875f", "#b8478a", "#b07c00", "#56708a", "#7b5ea7")
SHADES = (0.5, 0.75, 1.0)
BAD = "#c0262d"
WIDTH, LEFT, RIGHT, ROW, PANEL = 900, 178, 66, 19, 186


class ToldRun(NamedTuple):
    """A run, and when which job was seen at another batch size."""

    result: Result
    changes: list[tuple[float, int]]


class _Changes:
    """An observer that notes changes of batch size."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, int]] = []

    def after_events(self, state: Any, events: Sequence[Any]) -> None:
        """Note when a job entered a regime."""
        self.seen += [(each.time_s, each.job) for each in events if isinstance(each, RegimeEntered)]

    def after_round(self, snapshot: Any, decision: Any, actions: Any) -> None:
        """Nothing is noted here."""


def drawn(seed: int) -> Workload:
    """Seven jobs of 20 to 80 minutes: steady, growing their batch once (as Accordion does), or twice (as GNS does)."""
    rng = np.random.default_rng(seed)
    jobs = []
    for number in range(JOBS):
        submitted_s = 0.0 if number < 4 else float(rng.choice([600, 1200, 1800]))
        gpus, kind = int(rng.choice([1, 1, 1, 2])), int(rng.integers(3))
        duration_s = 60.0 * int(rng.choice([20, 30, 40, 60, 80]))
        regimes: tuple[Regime, ...] = ()
        if kind == 1:
            until = float(rng.choice([0.3, 0.4, 0.5]))
            regimes = (Regime(until, 32, 1.0), Regime(1.0, 256, float(rng.choice([3.0, 4.0]))))
        elif kind == 2:
            regimes = (Regime(0.2, 32, 1.0), Regime(0.5, 64, 1.8), Regime(1.0, 128, 3.2))
        name = "ABCDEFG"[number]
        jobs.append(JobSpec(name, submitted_s, gpus, duration_s=duration_s, regimes=regimes, batch_size=32))
    return Workload.of(jobs)


def told(workload: Workload, rule: str) -> ToldRun:
    """One run under native rules."""
    changes = _Changes()
    policy = f"shockwave:forecast={rule}"
    return ToldRun(simulate(workload, cluster=f"v100:{GPUS}x1", policy=policy, observer=changes), changes.seen)


def story(setting: Setting) -> Findings:
    """The chosen workload as a picture, and means over the family."""
    family, rows, worst = range(QUICK_FAMILY if setting.quick else FAMILY), [], {}
    for rule in RULES:
        several = [told(drawn(seed), rule).result.figures() for seed in family]
        makespan, mean, rho, unfair, preemptions = (
            float(np.mean([each["makespan_s"] for each in several])) / 60,
            float(np.mean([each["jct_s"]["mean"] for each in several])) / 60,
            float(np.mean([each["ftf"]["static"]["worst"] for each in several])),
            float(np.mean([each["ftf"]["static"]["unfair_fraction"] for each in several])),
            float(np.mean([each["preemptions"] for each in several])),
        )
        worst[rule] = rho
        rows.append(
            (f"`{rule}`", f"{makespan:.1f}", f"{mean:.1f}", f"{rho:.2f}", f"{100 * unfair:.0f} %", f"{preemptions:.0f}")
        )
    figures = tuple(
        Figure(
            f"{len(family)} workloads: worst ρ with the forecast over `{rule}`", 1.0, ratio, Yardstick.at_most(), "×", 2
        )
        for rule, ratio in ((rule, worst["restatement"] / worst[rule]) for rule in ("agnostic", "reactive"))
    )
    columns = ("forecast", "makespan, min", "mean JCT, min", "worst ρ", "ρ > 1.05", "preemptions")
    return Findings(figures, {"family": ResultTable(columns, tuple(rows))}, {"schedules": draw_story()})


def draw_story() -> str:
    """The picture: a panel for each rule, in it a row for each job."""
    workload = drawn(CHOSEN)
    runs = {rule: told(workload, rule) for rule in RULES}
    most_s = max(float(run.result.makespan_s or 0.0) for run in runs.values())
    height = 84 + PANEL * len(runs) + 30
    title = "The same seven jobs on three GPUs, planned with three forecasts"
    parts = [
        *svg_head(title, WIDTH, height, 12.5),
        svg_text(
            20, 49, "Minutes beside a job: its run time if the first batch size lasted → its true run time.", SOFT
        ),
        svg_text(
            20,
            66,
            "Bars: it runs, darker after each growth of its batch (black strokes). Lines: it waits. Numbers: its ρ.",
            SOFT,
        ),
    ]
    for at, (rule, run) in enumerate(runs.items()):
        parts += _panel(84 + PANEL * at, rule, run, most_s)
    return "\n".join([*parts, *_axis(84 + PANEL * len(runs), most_s), "</svg>"]) + "\n"


def _panel(top: float, rule: str, run: ToldRun, most_s: float) -> list[str]:
    result = run.result
    rho = result.rho["static"]
    about = f"all done after {float(result.makespan_s or 0) / 60:.0f} min · worst ρ {rho.max():.2f}"
    about += f" · mean completion {float(result.mean_jct_s or 0) / 60:.0f} min"
    about += f" · {int(result.ledger.preemptions.sum())} preemptions"
    parts = [svg_text(20, top + 16, rule, INK, 'font-weight="600"'), svg_text(LEFT, top + 16, about, INK)]
    for job, spec in enumerate(result.specs):
        y = top + 28 + ROW * job
        parts += _row(y, job, spec, run, most_s)
        late = rho[job] > UNFAIR
        end = _x(float(result.finished_s[job]), most_s)
        more = 'font-weight="600" font-size="11.5"' if late else 'font-size="11.5"'
        parts.append(svg_text(end + 5, y + 11, f"{rho[job]:.2f}", BAD if late else SOFT, more))
    return parts


def _row(y: float, job: int, spec: JobSpec, run: ToldRun, most_s: float) -> list[str]:
    """One job: its name, a line for its life, and bars for its runs in the shade of its batch size."""
    result, colour = run.result, COLOURS[job]
    asked, true = float(spec.duration_s or 0) / 60, float(result.ledger.exclusive_s[job]) / 60
    label = f"{asked:.0f} min" if abs(asked - true) < 0.5 else f"{asked:.0f} → {true:.0f} min"
    parts = [svg_text(24, y + 11, spec.id, colour, 'font-weight="700"')]
    parts.append(svg_text(42, y + 11, label + (", 2 GPUs" if spec.gpus > 1 else ""), SOFT, 'font-size="11.5"'))
    from_x, to_x = _x(spec.submitted_s, most_s), _x(float(result.finished_s[job]), most_s)
    parts.append(f'<path d="M{from_x:.1f} {y + 6.5:.1f}H{to_x:.1f}" stroke="{colour}" stroke-width="1.3"/>')
    grown_s = sorted({time_s for time_s, number in run.changes if number == job and time_s > spec.submitted_s})
    for number, start_s, end_s, _ in result.ledger.segments:
        if number != job:
            continue
        cuts = [start_s, *(each for each in grown_s if start_s < each < end_s), end_s]
        for a_s, b_s in pairwise(cuts):
            shade = SHADES[min(sum(each <= a_s for each in grown_s), len(SHADES) - 1)]
            parts.append(_bar(_x(a_s, most_s), _x(b_s, most_s), y, colour, shade))
    marks = (f"M{_x(each, most_s):.1f} {y - 2:.1f}v17" for each in grown_s if each < result.finished_s[job])
    return [*parts, *(f'<path d="{mark}" stroke="{INK}" stroke-width="1.4"/>' for mark in marks)]


def _bar(a: float, b: float, y: float, colour: str, shade: float) -> str:
    box = f'x="{a:.1f}" y="{y:.1f}" width="{b - a:.1f}" height="13"'
    # White below: the line of the job's life must not shine through.
    return f'<rect {box} fill="#ffffff"/><rect {box} fill="{colour}" fill-opacity="{shade}"/>'


def _axis(bottom: float, most_s: float) -> list[str]:
    parts = []
    for minutes in range(0, int(most_s / 60) + 1, 20):
        x = _x(60.0 * minutes, most_s)
        parts.append(svg_text(x, bottom + 6, f"{minutes}", SOFT, 'text-anchor="middle"'))
    return [*parts, svg_text((LEFT + WIDTH - RIGHT) / 2, bottom + 23, "minutes", SOFT, 'text-anchor="middle"')]


def _x(time_s: float, most_s: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * time_s / most_s


COLUMNS = {
    "makespan_s": ("all done after", "{:.1f} h", 3600.0),
    "mean_jct_s": ("mean completion", "{:.1f} h", 3600.0),
    "worst_rho": ("worst ρ", "{:.2f}", 1.0),
    "unfair": ("jobs with ρ > 1.05", "{:.1f} %", 0.01),
}


def draw_comparison(title: str, rows: Sequence[tuple[str, Any, Any]]) -> str:
    """Rows of a label, our figures and the published ones: bars for ours, strokes for the published."""
    height, step = 96 + 26 * len(rows), 182
    parts = svg_head(title, WIDTH, height, 12.5)
    parts.append(svg_text(20, 49, "Black strokes: the figures that the artifact publishes. Less is better.", SOFT))
    for at, (label, _, _) in enumerate(rows):
        parts.append(svg_text(20, 98 + 26 * at, label, INK, 'font-weight="600"' if not at else ""))
    for column, (name, (heading, form, unit)) in enumerate(COLUMNS.items()):
        left = 178 + step * column
        most = max(getattr(ours, name) for _, ours, _ in rows)
        parts.append(svg_text(left, 74, heading, SOFT))
        for at, (_, ours, theirs) in enumerate(rows):
            value = getattr(ours, name)
            y, long = 86 + 26 * at, (step - 62) * value / most
            colour = COLOURS[0] if not at else "#a9b6c4"
            parts.append(f'<rect x="{left}" y="{y}" width="{max(long, 1.0):.1f}" height="16" fill="{colour}"/>')
            end = left + long
            if theirs is not None:
                mark = left + (step - 62) * getattr(theirs, name) / most
                parts.append(f'<path d="M{mark:.1f} {y - 2}v20" stroke="{INK}" stroke-width="1.6"/>')
                end = max(end, mark)
            parts.append(svg_text(end + 5, y + 12.5, form.format(value / unit), INK, 'font-size="11.5"'))
    return "\n".join([*parts, "</svg>"]) + "\n"
