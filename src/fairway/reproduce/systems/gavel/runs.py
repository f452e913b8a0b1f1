"""Whole runs of Gavel's simulator, with traces of its generator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from fairway.core.cluster import Cluster
from fairway.models.profile import load_profile
from fairway.reproduce.case import DataFile, Figure, Findings, ResultTable, Setting, Verdicts, Yardstick
from fairway.reproduce.curves import completion_chart, shares_done
from fairway.reproduce.data import GAVEL_GANGS, GAVEL_SINGLE, GAVEL_SMALL, GAVEL_THROUGHPUTS
from fairway.simulator.result import Result
from fairway.simulator.run import simulate
from fairway.traces import read_cluster, read_trace

AWARE, AGNOSTIC = "max_min_fairness", "heterogeneity=agnostic"
BLIND = f"{AWARE}:{AGNOSTIC}"
LARGE, SMALL = "v100:36,p100:36,k80:36", "v100:12,p100:12,k80:12"
SLACK = 0.03


class PrintedRun(NamedTuple):
    """What Gavel's simulator prints of a run with ECOS: makespan, mean JCT, utilisation."""

    makespan_s: float
    mean_jct_s: float
    utilisation: float | None = None


SINGLE = {
    AWARE: PrintedRun(80026.4, 25576.3, 0.554),
    BLIND: PrintedRun(100845.8, 34395.0, 0.569),
    "min_makespan": PrintedRun(76368.6, 31854.2, 0.669),
    f"min_makespan:{AGNOSTIC}": PrintedRun(99933.5, 34924.4, 0.573),
    "finish_time_fairness": PrintedRun(80339.9, 27236.4, 0.576),
    f"finish_time_fairness:{AGNOSTIC}": PrintedRun(98936.1, 34440.1, 0.578),
    "max_throughput": PrintedRun(93153.6, 25549.2, 0.481),
    "gavel_fifo": PrintedRun(87309.0, 25971.1, 0.515),
    "allox": PrintedRun(86340.3, 25212.8, 0.505),
    "isolated": PrintedRun(101002.6, 34392.8, 0.569),
}
GANGS = {
    AWARE: PrintedRun(120552.8, 26950.0, 0.668),
    BLIND: PrintedRun(144428.5, 36086.0, 0.639),
    "min_makespan": PrintedRun(101880.0, 47233.8, 0.840),
    f"min_makespan:{AGNOSTIC}": PrintedRun(131921.5, 42362.7, 0.698),
    "finish_time_fairness": PrintedRun(119491.6, 29187.6, 0.683),
    "max_throughput": PrintedRun(123281.5, 29184.2, 0.625),
    "gavel_fifo": PrintedRun(127658.2, 29970.3, 0.609),
    "isolated": PrintedRun(143558.3, 35658.5, 0.643),
}
PACKED = {AWARE: PrintedRun(118904.4, 31013.2), f"{AWARE}:packing=on": PrintedRun(115049.0, 27205.8)}
FILLED = {
    "water_filling": PrintedRun(119391.1, 30954.9),
    f"water_filling:{AGNOSTIC}": PrintedRun(154702.6, 44637.8),
}
QUICK = (AWARE, BLIND, "isolated")


def _runs(setting: Setting, trace: DataFile, where: str, policies: tuple[str, ...], rules: str) -> dict[str, Result]:
    workload = read_trace(str(setting.file(trace)))
    profile = load_profile(str(setting.file(GAVEL_THROUGHPUTS)))
    machines = _without_prices(read_cluster(where))
    return {
        policy: simulate(workload, cluster=machines, policy=policy, profile=profile, rules=rules) for policy in policies
    }


def _without_prices(cluster: Cluster) -> Cluster:
    """The published runs over a trace knew no prices, so that every type cost the same."""
    return replace(cluster, types=tuple(replace(kind, price_per_h=0.0) for kind in cluster.types))


def _near(runs: Mapping[str, Result], printed: Mapping[str, PrintedRun], where: str) -> Figure:
    """How many makespans and means are within 3 %."""
    rule, near = Yardstick.within(SLACK), 0
    for policy, result in runs.items():
        ours = PrintedRun(result.makespan_s or 0.0, result.mean_jct_s or 0.0)
        near += rule.judge(ours.makespan_s, printed[policy].makespan_s) is Verdicts.MET
        near += rule.judge(ours.mean_jct_s, printed[policy].mean_jct_s) is Verdicts.MET
    what = f"{where}: makespans and mean JCTs of all policies within {100 * SLACK:g} %"
    return Figure(what, 2 * len(runs), near, Yardstick.equal(0), decimals=0)


def _worth(runs: Mapping[str, Result], printed: Mapping[str, PrintedRun], where: str) -> Figure:
    """What knowing GPU types is worth."""
    theirs = printed[BLIND].mean_jct_s / printed[AWARE].mean_jct_s
    ours = (runs[BLIND].mean_jct_s or 0.0) / (runs[AWARE].mean_jct_s or 1.0)
    what = f"{where}: mean JCT of agnostic over aware max-min fairness"
    return Figure(what, theirs, ours, Yardstick.within(SLACK), "×", 3, headline=True)


def _table(runs: Mapping[str, Result], printed: Mapping[str, PrintedRun]) -> ResultTable:
    """A row for each run; what the public simulator prints is in brackets."""
    rows = []
    for policy, result in runs.items():
        told, theirs = result.figures(), printed.get(policy)
        rho = told["ftf"]["static"]
        makespan, mean, used = (
            f"{told['makespan_s']:,.1f}",
            f"{told['jct_s']['mean']:,.1f}",
            f"{told['utilisation']:.3f}",
        )
        if theirs is not None:
            makespan, mean = f"{makespan} [{theirs.makespan_s:,.1f}]", f"{mean} [{theirs.mean_jct_s:,.1f}]"
        if theirs is not None and theirs.utilisation is not None:
            used = f"{used} [{theirs.utilisation:.3f}]"
        name = f"`{policy.replace(AGNOSTIC, '…agnostic')}`"
        rows.append(
            (
                name,
                makespan,
                mean,
                f"{rho['worst']:.3f}",
                f"{100 * rho['unfair_fraction']:.1f} %",
                used,
                f"{told['rounds']}",
            )
        )
    columns = ("policy", "makespan, s", "mean JCT, s", "worst ρ", "ρ > 1.05", "utilisation", "rounds")
    return ResultTable(columns, tuple(rows))


def _compared(setting: Setting, trace: DataFile, printed: Mapping[str, PrintedRun], where: str) -> Findings:
    asked = QUICK if setting.quick else tuple(printed)
    runs = _runs(setting, trace, LARGE, asked, "gavel")
    figures = (_worth(runs, printed, where), _near(runs, printed, where))
    tables: dict[str, Any] = {"runs": _table(runs, printed)}
    if trace is GAVEL_SINGLE and not setting.quick:
        tables["native"] = _table(_runs(setting, trace, LARGE, asked, "native"), {})
    lines = {label: shares_done(runs[policy].jct_s) for label, policy in (("aware", AWARE), ("agnostic", BLIND))}
    return Findings(figures, tables, {"cdf": completion_chart(where, lines)})


def single(setting: Setting) -> Findings:
    """One job in 180 s, on 36 V100, 36 P100 and 36 K80."""
    return _compared(setting, GAVEL_SINGLE, SINGLE, "200 jobs of one GPU")


def gangs(setting: Setting) -> Findings:
    """One job in 300 s of 1, 2 or 4 GPUs, on the same cluster."""
    return _compared(setting, GAVEL_GANGS, GANGS, "200 jobs of 1 to 4 GPUs")


def packing(setting: Setting) -> Findings:
    """Space sharing: 120 jobs on 12 GPUs of each type."""
    runs = _runs(setting, GAVEL_SMALL, SMALL, tuple(PACKED), "gavel")
    alone, packed = ((runs[policy].mean_jct_s or 0.0) for policy in PACKED)
    theirs = PACKED[AWARE].mean_jct_s / PACKED[f"{AWARE}:packing=on"].mean_jct_s
    rule, what = Yardstick.within(SLACK), "120 jobs: mean JCT without pairs over that with pairs"
    figures = (
        Figure("120 jobs, pairs: mean JCT", PACKED[f"{AWARE}:packing=on"].mean_jct_s, packed, rule, "s"),
        Figure(what, theirs, alone / packed, rule, "×", 3, headline=True),
        _near(runs, PACKED, "120 jobs, with and without pairs"),
    )
    tables = {"runs": _table(runs, PACKED)}
    if not setting.quick:
        asked = tuple(
            f"{name}{more}" for name in (AWARE, "finish_time_fairness", "min_makespan") for more in ("", ":packing=on")
        )
        tables["native"] = _table(
            _runs(setting, GAVEL_SMALL, SMALL, (*asked, f"{AWARE}:packing=on,pairs=learned"), "native"), {}
        )
    return Findings(figures, tables)


def filling(setting: Setting) -> Findings:
    """Water filling, aware and agnostic, on the same cluster."""
    runs = _runs(setting, GAVEL_SMALL, SMALL, tuple(FILLED), "gavel")
    rule = Yardstick.within(SLACK)
    figures = [
        Figure(f"120 jobs, `{policy}`: mean JCT", FILLED[policy].mean_jct_s, result.mean_jct_s or 0.0, rule, "s")
        for policy, result in runs.items()
    ]
    figures.append(_near(runs, FILLED, "120 jobs, water filling"))
    return Findings(tuple(figures), {"runs": _table(runs, FILLED)})
