"""The comparison of Shockwave's artifact, the same on other traces, and under other rules of forecast."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fairway.core.arrays import Floats
from fairway.core.job import Workload
from fairway.models.profile import Profile, load_profile
from fairway.reproduce.case import Figure, Findings, ResultTable, Setting, Yardstick
from fairway.reproduce.data import TACC_JOBS, TACC_THROUGHPUTS, TACC_TRACE
from fairway.reproduce.systems.shockwave.story import draw_comparison
from fairway.simulator.run import simulate
from fairway.traces import read_trace
from fairway.traces.generate import shockwave_like

AGNOSTIC = "heterogeneity=agnostic"
GAVEL, OSSP = f"max_min_fairness:{AGNOSTIC}", f"min_makespan:{AGNOSTIC}"
FAIR = (GAVEL, "finish_time_fairness", "themis", "allox")
"""Gavel, Themis as a program and by auctions, and AlloX."""
POLICIES = {
    "shockwave": "Shockwave",
    GAVEL: "Gavel",
    "finish_time_fairness": "Themis as a program",
    "themis": "Themis by auctions",
    "allox": "AlloX",
    OSSP: "OSSP",
    "max_throughput": "MST",
    "gandiva_fair": "Gandiva-Fair",
    "srtf": "oracle: shortest first",
}
"""The policies of the published comparison under the names that it gives them, and two more."""
ALSO = ("isolated", f"gavel_fifo:{AGNOSTIC}", "water_filling")
"""More of Gavel's family, in the table of runs only."""


class PublishedRun(NamedTuple):
    """What a result file says: makespan, mean JCT, worst rho, part of the jobs with rho above 1.05."""

    makespan_s: float
    mean_jct_s: float
    worst_rho: float
    unfair: float


PUBLISHED = {
    "shockwave": PublishedRun(24197.4, 9958.5, 1.7838, 0.0500),
    GAVEL: PublishedRun(33207.7, 11274.1, 2.9470, 0.2500),
    "finish_time_fairness": PublishedRun(31928.7, 11302.0, 3.4376, 0.2250),
    "allox": PublishedRun(32488.6, 9926.3, 4.9635, 0.2750),
    OSSP: PublishedRun(24204.8, 19806.7, 7.7415, 0.7417),
    "max_throughput": PublishedRun(31909.0, 9654.7, 4.9758, 0.2500),
    "gandiva_fair": PublishedRun(32367.4, 12574.3, 1.8536, 0.5167),
    # The authors published no result of these; their simulator printed it.
    "isolated": PublishedRun(33207.7, 11267.9, 2.9470, 0.2500),
    f"gavel_fifo:{AGNOSTIC}": PublishedRun(33308.4, 10816.3, 5.7686, 0.3417),
}
AT_ONCE = {
    GAVEL: PublishedRun(31888.2, 9245.9, 3.2573, 0.1667),
    OSSP: PublishedRun(23441.8, 19325.7, 7.4599, 0.7417),
    "max_throughput": PublishedRun(31428.8, 8893.4, 4.7187, 0.2250),
    "gandiva_fair": PublishedRun(31648.1, 12112.2, 2.1900, 0.3833),
    "allox": PublishedRun(31288.7, 9020.2, 4.4466, 0.2667),
}
"""What the same simulator prints without its limit of 1,000 s between two plans."""
FILES = {
    GAVEL: "max_min_fairness",
    OSSP: "min_total_duration",
    "gandiva_fair": "gandiva_fair",
    "max_throughput": "max_sum_throughput_perf",
    "allox": "allox",
}
"""Result files by job, for policies without another solver or chance in them."""
WHY_SAME = {
    "max_throughput": "the largest sum has many optima, and the last digits of the solver decide between them",
    "allox": "32 equal GPUs make many equal matchings; the published run broke these ties in another way",
}
LEAST_RATIO = 1.3
"""Shockwave's headline: everything is done so many times as soon as under fair policies."""
WHY_TRACE = "the published trace is a lucky one"
WHY_SIZE = "the cluster is less full: a long job that came late sets the end"
SEEDS = (1, 2, 3)
FORECAST_SEEDS = range(1, 9)
SIZES = {64: (220, 25.0), 256: (900, 5.0)}
"""Jobs and mean inter-arrival seconds by GPUs, for the larger generated workloads."""
KNOBS = (
    "shockwave",
    "shockwave:program=published,makespan_weight=1e-3,ftf_power=12,forecast=bayes",
    *(f"shockwave:makespan_weight={each}" for each in ("0", "0.1", "10")),
    *(f"shockwave:ftf_power={each}" for each in ("0", "2", "8")),
    *(f"shockwave:window_rounds={each}" for each in ("10", "40")),
    "shockwave:share=gpus",
)
FORECASTS = ("shockwave", *(f"shockwave:forecast={rule}" for rule in ("bayes", "reactive", "agnostic")))
FORMS = {
    "makespan_s": "{:,.0f}",
    "mean_jct_s": "{:,.0f}",
    "worst_rho": "{:.2f}",
    "unfair": "{:.1%}",
    "preemptions": "{:,.0f}",
}


class MarketRun(NamedTuple):
    """The figures of a run here."""

    makespan_s: float
    mean_jct_s: float
    worst_rho: float
    unfair: float
    worst_concurrent: float
    unfair_concurrent: float
    utilisation: float
    preemptions: int
    jct_s: Floats


@cache
def _profile(path: Path | None) -> Profile:
    return load_profile(str(path) if path is not None else None)


def measured(workload: Workload, profile: Profile, policy: str, *, gpus: int = 32, **options: Any) -> MarketRun:
    """One run, under the rules of the artifact's simulator unless others are given."""
    about = {"rules": "shockwave"} | options
    result = simulate(workload, cluster=f"v100:{gpus}x1", policy=policy, profile=profile, **about)
    told = result.figures()
    static, concurrent = told["ftf"]["static"], told["ftf"]["concurrent"]
    return MarketRun(
        told["makespan_s"],
        told["jct_s"]["mean"],
        static["worst"],
        static["unfair_fraction"],
        concurrent["worst"],
        concurrent["unfair_fraction"],
        told["utilisation"],
        told["preemptions"],
        result.jct_s,
    )


def generated_trace(profile: Profile, seed: int, jobs: int = 120, interarrival_s: float = 40.0) -> Workload:
    """A trace like the published one."""
    return shockwave_like(
        jobs=jobs,
        seed=seed,
        mean_interarrival_s=interarrival_s,
        rate=lambda model, batch, gpus: profile.rate(model, batch, "v100", gpus),
    )


def _speeds(setting: Setting) -> Profile:
    """Those of the artifact; built-in estimates without them."""
    return _profile(setting.file(TACC_THROUGHPUTS) if setting.has(TACC_THROUGHPUTS) else None)


def comparison(setting: Setting) -> Findings:
    """The 120 jobs on 32 GPUs: as published, and with plans whenever jobs come or go."""
    workload, profile = read_trace(str(setting.file(TACC_TRACE))), _profile(setting.file(TACC_THROUGHPUTS))
    asked = (*POLICIES, *ALSO)
    runs = {policy: measured(workload, profile, policy) for policy in asked}
    at_once = {} if setting.quick else {p: measured(workload, profile, p, replan_interval_s=0.0) for p in POLICIES}
    own, wanted = runs["shockwave"], PUBLISHED["shockwave"]
    better = Yardstick.within(0.01, good="lower")
    figures = [
        Figure("Shockwave: makespan", wanted.makespan_s, own.makespan_s, better, "s", 0, headline=True),
        Figure("Shockwave: mean JCT", wanted.mean_jct_s, own.mean_jct_s, better, "s", 0, headline=True),
        Figure("Shockwave: worst ρ", wanted.worst_rho, own.worst_rho, better, decimals=2, headline=True),
        Figure("Shockwave: jobs with ρ > 1.05", 100 * wanted.unfair, 100 * own.unfair, better, "%", headline=True),
    ]
    for policy in FAIR:
        what, ratio = f"makespan of {POLICIES[policy]} over Shockwave's", runs[policy].makespan_s / own.makespan_s
        figures.append(Figure(what, LEAST_RATIO, ratio, Yardstick.at_least(), "×", 2, headline=True))
    figures += _as_published(runs, PUBLISHED, "")
    figures += _as_published(at_once, AT_ONCE, "plans at once, ")
    figures += _same_jobs(setting, runs)
    tables = {"runs": _table(runs, PUBLISHED)}
    if not setting.quick:
        native = {policy: measured(workload, profile, policy, rules="native") for policy in asked}
        tables |= {"at_once": _table(at_once, AT_ONCE), "native": _table(native, {})}
    title = "The 120 jobs of Shockwave's artifact on 32 GPUs"
    shown = [(POLICIES[policy], runs[policy], PUBLISHED.get(policy)) for policy in POLICIES]
    return Findings(tuple(figures), tables, {"comparison": draw_comparison(title, shown)})


def _as_published(runs: dict[str, MarketRun], published: dict[str, PublishedRun], when: str) -> list[Figure]:
    """Makespans and means of the others within 2 %, as one figure."""
    asked = [policy for policy in runs if policy in published and policy != "shockwave"]
    rule = Yardstick.within(0.02)
    near = sum(
        str(rule.judge(getattr(runs[policy], name), getattr(published[policy], name))) == "met"
        for policy in asked
        for name in ("makespan_s", "mean_jct_s")
    )
    what = f"{when}other policies: makespans and mean JCTs within 2 % of the published simulator"
    return [Figure(what, 2 * len(asked), near, Yardstick.equal(0), decimals=0)] if asked else []


def _same_jobs(setting: Setting, runs: dict[str, MarketRun]) -> list[Figure]:
    """How many completion times are those of the result files, to the millisecond."""
    known: dict[str, Any] = json.loads(setting.file(TACC_JOBS).read_text(encoding="utf-8"))
    figures = []
    for policy, name in FILES.items():
        theirs = np.array(known[f"tacc_32gpus/{name}_simulation"]["jct"])
        same = int((np.abs(runs[policy].jct_s - theirs) < 1e-3).sum())
        what = f"{POLICIES[policy]}: completion times equal to the millisecond"
        why = WHY_SAME.get(policy, "")
        figures.append(Figure(what, len(theirs), same, Yardstick.equal(0), decimals=0, why=why))
    return figures


def _written(name: str, value: float) -> str:
    return FORMS[name].format(value).replace("%", " %")


def _table(runs: dict[str, MarketRun], published: dict[str, PublishedRun]) -> ResultTable:
    """A row for each run; published figures are in brackets."""
    rows, first = [], runs["shockwave"]
    for policy, run in runs.items():
        known = published.get(policy)
        cells = {name: _written(name, getattr(run, name)) for name in PublishedRun._fields}
        if known:
            cells |= {name: f"{text} [{_written(name, getattr(known, name))}]" for name, text in cells.items()}
        name = f"`{policy.replace(AGNOSTIC, '…agnostic')}`"
        label = f"{POLICIES[policy]}: {name}" if policy in POLICIES else name
        ratio = f"{run.makespan_s / first.makespan_s:.2f}"
        more = (f"{run.worst_concurrent:.2f} / {100 * run.unfair_concurrent:.0f} %", f"{run.utilisation:.3f}")
        makespan, *others = cells.values()
        rows.append((label, makespan, ratio, *others, *more, f"{run.preemptions:,}"))
    columns = ("policy", "makespan, s", "× Shockwave", "mean JCT, s", "worst ρ", "ρ > 1.05")
    return ResultTable((*columns, "concurrent: worst / ρ > 1.05", "utilisation", "preemptions"), tuple(rows))


def generated(setting: Setting) -> Findings:
    """Traces of the artifact's generator with other seeds, the others planning whenever jobs come or go."""
    profile = _speeds(setting)
    seeds, policies = (SEEDS[:1], ("shockwave", *FAIR)) if setting.quick else (SEEDS, tuple(POLICIES))
    runs = _over(profile, seeds, policies, replan_interval_s=0.0)
    first, figures, rows = runs["shockwave"], [], []
    for policy, several in runs.items():
        ratios = [a.makespan_s / b.makespan_s for a, b in zip(several, first, strict=True)]
        mean = sum(ratios) / len(ratios)
        if policy in FAIR:
            what = f"{len(seeds)} generated traces: makespan of {POLICIES[policy]} over Shockwave's"
            figures.append(Figure(what, LEAST_RATIO, mean, Yardstick.at_least(), "×", 2, why=WHY_TRACE))
        row = _means(several, first)
        ratio = f"{mean:.2f}, {min(ratios):.2f}"
        label = f"{POLICIES[policy]}: `{policy.replace(AGNOSTIC, '…agnostic')}`"
        rows.append((label, row["makespan_s"], ratio, row["mean_jct_s"], row["worst_rho"], row["unfair"]))
    unfair = [100 * sum(run.unfair for run in runs[policy]) / len(seeds) for policy in ("shockwave", *FAIR)]
    rule, what = Yardstick.at_most(), "generated traces: jobs with ρ > 1.05, at most half of the fairest other's"
    figures.append(Figure(what, 0.5 * min(unfair[1:]), unfair[0], rule, "%"))
    columns = ("policy", "makespan, s", "× Shockwave: mean, least", "mean JCT, s", "worst ρ", "ρ > 1.05")
    return Findings(tuple(figures), {"traces": ResultTable(columns, tuple(rows))})


def _over(
    profile: Profile, seeds: Sequence[int], policies: Sequence[str], **options: Any
) -> dict[str, list[MarketRun]]:
    runs: dict[str, list[MarketRun]] = {policy: [] for policy in policies}
    for seed in seeds:
        workload = generated_trace(profile, seed)
        for policy in policies:
            runs[policy].append(measured(workload, profile, policy, **options))
    return runs


def _means(several: Sequence[MarketRun], first: Sequence[MarketRun]) -> dict[str, str]:
    """Means over traces, and how far they are from the first policy, trace by trace, with the standard error."""
    cells = {}
    for name in FORMS:
        values = np.array([float(getattr(run, name)) for run in several])
        more = values - np.array([float(getattr(run, name)) for run in first])
        cells[name] = _written(name, float(values.mean()))
        if several is not first and len(values) > 1:
            error = float(more.std(ddof=1)) / float(np.sqrt(len(values)))
            by, sign = _written(name, abs(float(more.mean()))), "+" if more.mean() >= 0 else "−"
            cells[name] += f" ({sign}{by} ± {_written(name, error)})"
    return cells


def forecasts(setting: Setting) -> Findings:
    """The same policy with other rules of forecast, over generated traces."""
    profile = _speeds(setting)
    runs = _over(profile, FORECAST_SEEDS, FORECASTS)
    first, rows, worst = runs["shockwave"], [], {}
    for policy, several in runs.items():
        worst[policy] = sum(run.worst_rho for run in several) / len(several)
        rows.append((f"`{policy.removeprefix('shockwave:')}`", *_means(several, first).values()))
    rule = Yardstick.at_most()
    figures = tuple(
        Figure(
            f"worst ρ with the forecast over that of `{name}`",
            1.0,
            first_rho / worst[f"shockwave:{name}"],
            rule,
            "×",
            2,
        )
        for first_rho in (worst["shockwave"],)
        for name in ("forecast=reactive", "forecast=agnostic")
    )
    columns = ("policy", "makespan, s", "mean JCT, s", "worst ρ", "ρ > 1.05", "preemptions")
    return Findings(figures, {"forecasts": ResultTable(columns, tuple(rows))})


def knobs(setting: Setting) -> Findings:
    """What each parameter does, over generated traces; and the published program with its own parameters."""
    runs = _over(_speeds(setting), SEEDS, KNOBS)
    first, own = runs["shockwave"], runs[KNOBS[1]]
    rows = [
        (f"`{policy.removeprefix('shockwave:')}`", *_means(several, first).values()) for policy, several in runs.items()
    ]
    rows[0] = ("defaults", *rows[0][1:])
    theirs, ours = (100 * sum(run.unfair for run in several) / len(several) for several in (own, first))
    what = "generated traces: jobs with ρ > 1.05, under the published program and by default"
    figure = Figure(what, theirs, ours, Yardstick.within(0.01, good="lower"), "%")
    columns = ("knobs", "makespan, s", "mean JCT, s", "worst ρ", "ρ > 1.05", "preemptions")
    return Findings((figure,), {"knobs": ResultTable(columns, tuple(rows))})


def sizes(setting: Setting) -> Findings:
    """Larger clusters with the same parameters, one generated workload each."""
    profile, figures, tables = _speeds(setting), [], {}
    for gpus, (jobs, interarrival_s) in SIZES.items():
        workload = generated_trace(profile, 1, jobs, interarrival_s)
        runs = {policy: measured(workload, profile, policy, gpus=gpus) for policy in POLICIES}
        tables[f"gpus_{gpus}"] = _table(runs, {})
        own = runs["shockwave"]
        for policy in FAIR:
            what, ratio = (
                f"{gpus} GPUs: makespan of {POLICIES[policy]} over Shockwave's",
                runs[policy].makespan_s / own.makespan_s,
            )
            figures.append(Figure(what, LEAST_RATIO, ratio, Yardstick.at_least(), "×", 2, why=WHY_SIZE))
    return Findings(tuple(figures), tables)
