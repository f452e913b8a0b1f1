"""Themis: its auctions by hand, the auction by prices against the optimum, and finish-time fairness at two loads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fairway.core.job import JobSpec, Workload
from fairway.policies.themis.auction import offered_to, partial_allocation
from fairway.policies.themis.nash import Bid
from fairway.report.line_chart import Axis, line_chart
from fairway.reproduce.case import Case, Figure, Findings, ResultTable, Setting, Yardstick
from fairway.simulator.run import simulate
from fairway.traces import read_cluster

SYSTEM, PAGE, PAPER = "Themis", "themis.md", "Mahajan et al., NSDI'20"
ONE_TYPE, THREE_TYPES = "v100:8x8", "v100:4x8,p100:4x8,k80:4x8"
FAIRNESS = (0.0, 0.5, 0.8, 0.95)
OTHERS = ("las", "tiresias", "finish_time_fairness")
VARIANTS = ("themis:lease_s=300", "themis:payment=time", "themis:leases=own")
POLICIES = (*OTHERS, *(f"themis:fairness={fairness:g}" for fairness in FAIRNESS), *VARIANTS)
CHOSEN = "themis:fairness=0.8"
PAPERS = ("las", "tiresias")
"""Those of its kind that the paper compares with: least attained service, with and without queues."""
JOBS, USERS, SEEDS = 250, 12, 3


class _Fared(NamedTuple):
    """Means over the seeds."""

    worst_rho: float
    p99_rho: float
    unfair: float
    jct_s: float
    preemptions: float
    restarts: float
    gpu_h: float


def example(_: Setting) -> Findings:
    """Two auctions of linear bidders, and who is asked."""

    def linear(most: int, worth: float) -> Bid:
        return Bid([(count,) for count in range(most + 1)], [worth * count for count in range(most + 1)])

    equal, figures = Yardstick.equal, []
    first = partial_allocation([linear(4, 0.5), linear(2, 0.5)], [4])
    second = partial_allocation([linear(8, 0.25), linear(8, 0.25)], [8])
    for what, outcome, parts, kept in (("4 GPUs", first, (1.0, 0.5), (2, 1)), ("8 GPUs", second, (0.5, 0.5), (2, 2))):
        for bidder, part, gpus, at in zip("AB", parts, kept, (0, 1), strict=True):
            figures.append(Figure(f"{what}: part that {bidder} keeps", part, float(outcome.kept[at]), equal(6)))
            figures.append(Figure(f"{what}: GPUs of {bidder}", gpus, outcome.columns[at], equal(0), decimals=0))
    rho = np.array([3.0, 1.8, 1.2, 1.1, 0.9])
    for fairness, wanted in ((0.8, 1), (0.5, 3), (0.0, 5)):
        asked = len(offered_to(rho, fairness))
        figures.append(Figure(f"apps that are asked with f = {fairness:g}", wanted, asked, equal(0), decimals=0))
    return Findings(tuple(figures))


def shared_jobs(jobs: int, seed: int, load: float, cluster: str) -> Workload:
    """Gangs of users of unequal activity, as much as so many times what the cluster can do."""
    random = np.random.default_rng([seed, 31])
    machines = read_cluster(cluster)
    fastest = machines.types[0].speed
    counts = zip(machines.gpus_by_type.tolist(), machines.types, strict=True)
    gpus = sum(count * gpu.speed / fastest for count, gpu in counts)
    lasts_s = np.exp(random.uniform(np.log(1200.0), np.log(36000.0), jobs)).round(3)
    gangs = random.choice([1, 2, 4, 8], jobs, p=[0.5, 0.2, 0.2, 0.1])
    activity = 1.0 / np.arange(1, USERS + 1)
    owners = random.choice(USERS, jobs, p=activity / activity.sum())
    gap_s = float((lasts_s * gangs).mean()) / (load * gpus)
    at_s = np.cumsum(random.exponential(gap_s, jobs)).round(3)
    specs = [
        JobSpec(f"job-{i}", float(at_s[i]), int(gangs[i]), duration_s=float(lasts_s[i]), user=f"user-{owners[i]}")
        for i in range(jobs)
    ]
    return Workload.of(specs, source=f"shared, load {load:g}, seed {seed}")


def _fared(policy: str, cluster: str, load: float, seeds: int) -> _Fared:
    seen = []
    for seed in range(seeds):
        result = simulate(shared_jobs(JOBS, seed, load, cluster), cluster=cluster, policy=policy, seed=seed)
        figures = result.figures()
        rho = figures["ftf"]["isolated"]
        held_gpu_h = float(result.ledger.held_gpu_s.sum()) / 3600
        counts = (figures["preemptions"], figures["restarts"])
        seen.append((rho["worst"], rho["p99"], rho["unfair_fraction"], figures["jct_s"]["mean"], *counts, held_gpu_h))
    return _Fared(*np.mean(seen, axis=0).tolist())


def _table(found: dict[str, _Fared]) -> ResultTable:
    rows = tuple(
        (
            f"`{policy}`",
            f"{seen.worst_rho:.2f}",
            f"{seen.p99_rho:.2f}",
            f"{100 * seen.unfair:.0f} %",
            f"{seen.jct_s:,.0f}",
            f"{seen.preemptions:,.0f}",
            f"{seen.restarts:,.0f}",
            f"{seen.gpu_h:,.0f}",
        )
        for policy, seen in found.items()
    )
    heads = ("policy", "worst ρ", "p99 ρ", "unfair", "mean JCT, s", "preemptions", "restarts", "GPU-h held")
    return ResultTable(heads, rows)


def _compared(setting: Setting, cluster: str, policies: Sequence[str], whys: tuple[str, str]) -> Findings:
    """Two loads; quick: one load, one seed, two others."""
    loads, seeds = ((1.2,), 1) if setting.quick else ((0.8, 1.2), SEEDS)
    chosen = (*PAPERS, CHOSEN) if setting.quick else policies
    found = {load: {policy: _fared(policy, cluster, load, seeds) for policy in chosen} for load in loads}
    near, ours, figures = Yardstick.within(0.05, good="higher"), found[1.2][CHOSEN], []
    for policy in PAPERS:
        ratio = found[1.2][policy].worst_rho / ours.worst_rho
        what = f"load 1.2, worst ρ of `{policy}` ÷ `themis`"
        figures.append(Figure(what, 2.25, ratio, near, "×", 2, whys[0], headline=cluster == THREE_TYPES))
    for policy in PAPERS:
        more = 100 * (found[1.2][policy].gpu_h / ours.gpu_h - 1)
        what = f"load 1.2, more GPU time under `{policy}` than under `themis`"
        figures.append(Figure(what, (5.0, 250.0), more, Yardstick.within(0.0), "%", why=whys[1]))
    lines = {}
    if not setting.quick:
        for load, runs in found.items():
            lines[f"load {load:g}"] = [
                (fairness, runs[f"themis:fairness={fairness:g}"].worst_rho) for fairness in FAIRNESS
            ]
    pictures = (
        {"fairness": line_chart("Worst ρ by the fairness knob f", lines, Axis("f"), Axis("worst ρ"))} if lines else {}
    )
    return Findings(
        tuple(figures), {f"load_{load:g}".replace(".", "_"): _table(runs) for load, runs in found.items()}, pictures
    )


def one_type(setting: Setting) -> Findings:
    """64 V100s."""
    fair = "all GPUs are alike here, so that knowing which type suits a job gains nothing"
    return _compared(
        setting, ONE_TYPE, POLICIES, (fair, "where all GPUs are alike, a job takes the same GPU time anyhow")
    )


def three_types(setting: Setting) -> Findings:
    """96 GPUs of three types."""
    return _compared(setting, THREE_TYPES, POLICIES, ("", ""))


SOURCE = f"{PAPER}, abstract: more than 2.25 times fairer, 5 to 250 % more efficient; generated jobs"
CASES = (
    Case("themis-example", SYSTEM, "auctions by hand", f"{PAPER}, derived", PAGE, example, 0.1, 0.1),
    Case("themis-one-type", SYSTEM, "fairness on one GPU type", SOURCE, PAGE, one_type, 13.0, None),
    Case("themis-three-types", SYSTEM, "fairness on three GPU types", SOURCE, PAGE, three_types, 45.0, 1.0),
)
