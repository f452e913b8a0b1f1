"""Sia: the mixed cluster of its simulator, and generated jobs on one."""

from __future__ import annotations

from fairway.models.profile import load_profile
from fairway.reproduce.case import Case, Figure, Findings, ResultTable, Setting, Yardstick
from fairway.reproduce.curves import completion_chart, shares_done
from fairway.reproduce.data import POLLUX_PROFILES, SATURN
from fairway.simulator.run import simulate
from fairway.traces import pollux_like

SYSTEM, PAGE = "Sia", "sia.md"
PAPER = "Jayaram Subramanya et al., SOSP'23"
CLUSTER = "aws:6x4,dgx-ext:2x8,rtx:3x8"
PUBLISHED_S = {"sia": 2091.0, "pollux": 3246.3, "sia:p=-0.5,begin_gpus=1": 2091.0}
"""Mean completion times that the published simulator prints for saturn 1."""
GAVEL_S = 6474.2
"""The same for Gavel's `max_sum_throughput_perf` there."""
SLACK = 0.05
SHOWN_S = 4 * 3600.0


def saturn(setting: Setting) -> Findings:
    """The first Saturn workload, 160 jobs."""
    path, profile = setting.file(SATURN) / "workload-1.csv", load_profile(str(setting.file(POLLUX_PROFILES)))
    asked = ("sia",) if setting.quick else (*PUBLISHED_S, "tiresias")
    means, rows, lines = dict[str, float](), [], {}
    for policy in asked:
        result = simulate(path, cluster=CLUSTER, policy=policy, rules="sia", profile=profile)
        means[policy], told = result.mean_jct_s or 0.0, result.figures()
        theirs = f"{PUBLISHED_S[policy]:,.1f}" if policy in PUBLISHED_S else ""
        cells = (f"{means[policy]:,.1f}", theirs, f"{told['jct_s']['p99']:,.0f}", f"{told['makespan_s']:,.0f}")
        rows.append((f"`{policy}`", *cells))
        lines[{"sia:p=-0.5,begin_gpus=1": "paper's knobs"}.get(policy, policy)] = shares_done(result.jct_s)
    lower = Yardstick.within(0.01, good="lower")
    figures = [
        Figure("saturn 1: mean JCT", PUBLISHED_S["sia"], means["sia"], lower, "s", headline=True),
        Figure("Gavel's largest sum over it", GAVEL_S / PUBLISHED_S["sia"], GAVEL_S / means["sia"], _higher(), "×", 2),
    ]
    if not setting.quick:
        over = PUBLISHED_S["pollux"] / PUBLISHED_S["sia"], means["pollux"] / means["sia"]
        figures += [
            Figure("saturn 1, the paper's knobs: mean JCT", 2091.0, means["sia:p=-0.5,begin_gpus=1"], _slack(), "s"),
            Figure("saturn 1, Pollux: mean JCT", PUBLISHED_S["pollux"], means["pollux"], _slack(), "s"),
            Figure("saturn 1, Pollux over Sia: mean JCT", *over, _higher(), "×", 2, headline=True),
        ]
    columns = ("policy", "mean JCT, s", "published simulator", "p99, s", "makespan, s")
    pictures = {"cdf": completion_chart("saturn 1, 64 GPUs of three types", lines, SHOWN_S)}
    return Findings(tuple(figures), {"saturn": ResultTable(columns, tuple(rows))}, pictures)


def _slack() -> Yardstick:
    return Yardstick.within(SLACK, good="lower")


def _higher() -> Yardstick:
    return Yardstick.within(SLACK, good="higher")


def generated(_: Setting) -> Findings:
    """Jobs of a generator on two GPU types, under native rules."""
    workload, means, rows = pollux_like(40, seed=5, span_h=3.0), {}, []
    for policy in ("sia", "pollux", "tiresias"):
        result = simulate(workload, cluster="t4:4x4,v100:2x8", policy=policy)
        means[policy], told = result.mean_jct_s or 0.0, result.figures()
        rows.append((f"`{policy}`", f"{means[policy]:,.1f}", f"{told['makespan_s']:,.0f}"))
    figures = [
        Figure(f"generated jobs: less than {other}", 0.0, 100 * (1 - means["sia"] / means[other]), rule, "%")
        for other, rule in ((other, Yardstick.at_least()) for other in ("pollux", "tiresias"))
    ]
    return Findings(tuple(figures), {"generated": ResultTable(("policy", "mean JCT, s", "makespan, s"), tuple(rows))})


_SOURCE = f"{PAPER}; measured with the published simulator"
CASES = (
    Case(
        "sia-saturn",
        SYSTEM,
        "saturn 1 on its mixed cluster",
        _SOURCE,
        PAGE,
        saturn,
        25.0,
        9.0,
        (SATURN, POLLUX_PROFILES),
    ),
    Case("sia-generated", SYSTEM, "generated jobs on two GPU types", f"after {PAPER}", PAGE, generated, 3.0, 3.0),
)
