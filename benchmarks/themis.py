"""Themis: what an auction costs, how good its choice by prices is, and what the fairness knob does on a shared cluster.

    python benchmarks/themis.py [--jobs 250] [--seeds 3] [--parts auction,gap,loads] [--json]

auction: CPU seconds of one auction with all Nash products (with everybody, and without each bidder) when 500 apps want
GPUs, by cluster and fairness. gap: where several GPU types make the auction choose by prices, how far its sum of
log-values and the parts that winners keep are from exact ones. loads: users of unequal activity submit gangs of 1 to 8
GPUs that last 20 minutes to 10 hours alone, at 0.8 and 1.2 times what the GPUs can do, on one GPU type and on three;
rho is the `isolated` one of the metrics, restarts included. Figures are means over the seeds.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import fairway
from fairway import JobSpec, Workload
from fairway.policies import make_policy, policies
from fairway.policies.themis.auction import kept_parts
from fairway.policies.themis.bids import market_of, tender_of
from fairway.policies.themis.nash import Bid, gains_of, nash_product
from fairway.policies.themis.rho import apps_of, relative_speeds
from fairway.testing import snapshot_of
from fairway.traces import read_cluster

CLUSTERS = ("v100:32x8", "v100:16x8,p100:8x8,k80:8x8")
LOADED = ("v100:8x8", "v100:4x8,p100:4x8,k80:4x8")
LOADS = (0.8, 1.2)
FAIRNESS = (0.0, 0.5, 0.8, 0.95)
OTHERS = ("las", "tiresias", "finish_time_fairness")
VARIANTS = ("themis:lease_s=300", "themis:payment=time", "themis:leases=own", "themis:app=user")


def shared(jobs: int, seed: int, load: float, cluster: str, users: int = 12) -> Workload:
    """Gangs of users of unequal activity, as much as so many times what the cluster can do."""
    random = np.random.default_rng([seed, 31])
    machines = read_cluster(cluster)
    fastest = machines.types[0].speed
    gpus = sum(
        count * gpu.speed / fastest for count, gpu in zip(machines.gpus_by_type.tolist(), machines.types, strict=True)
    )
    lasts_s = np.exp(random.uniform(np.log(1200.0), np.log(36000.0), jobs)).round(3)
    gangs = random.choice([1, 2, 4, 8], jobs, p=[0.5, 0.2, 0.2, 0.1])
    activity = 1.0 / np.arange(1, users + 1)
    owners = random.choice(users, jobs, p=activity / activity.sum())
    gap_s = float((lasts_s * gangs).mean()) / (load * gpus)
    at_s = np.cumsum(random.exponential(gap_s, jobs)).round(3)
    specs = [
        JobSpec(f"job-{i}", float(at_s[i]), int(gangs[i]), duration_s=float(lasts_s[i]), user=f"user-{owners[i]}")
        for i in range(jobs)
    ]
    return Workload.of(specs, source=f"shared, load {load:g}, seed {seed}")


def crowd(apps: int, cluster: str, seed: int = 0, elastic: float = 0.25) -> Any:
    """A snapshot in which so many apps want GPUs and none has any."""
    random = np.random.default_rng([seed, 32])
    jobs = []
    for i in range(apps):
        gang = int(random.choice([1, 1, 2, 4, 8]))
        low, most = (1, 2 * gang) if random.random() < elastic else (gang, gang)
        at_s, lasts_s = float(random.integers(0, 7200)), float(random.integers(1200, 90_000))
        jobs.append(JobSpec(f"job-{i}", at_s, gang, low, most, duration_s=lasts_s))
    return snapshot_of(jobs, cluster, now_s=7200.0)


def auction(repeats: int = 5) -> list[dict[str, Any]]:
    """What one decision with an auction costs."""
    rows = []
    for cluster in CLUSTERS:
        snapshot = crowd(500, cluster)
        for fairness in FAIRNESS:
            policy = make_policy(f"themis:fairness={fairness}")
            taken_s = []
            for _ in range(repeats):
                before = time.process_time()
                policy.decide(snapshot)
                taken_s.append(time.process_time() - before)
            rows.append({"cluster": cluster, "fairness": fairness, "cpu_s": float(np.median(taken_s))})
    return rows


def exact_gain(bids: Sequence[Bid], capacity: Sequence[int]) -> float:
    """The best sum of gains, by an integer programme over the columns."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    owner = np.repeat(np.arange(len(bids)), [len(bid.values) for bid in bids])
    gains = np.concatenate(gains_of(bids))
    one = (owner[None, :] == np.arange(len(bids))[:, None]).astype(float)
    used = np.array([row for bid in bids for row in bid.gpus], dtype=float).T
    rules = [LinearConstraint(one, 1.0, 1.0), LinearConstraint(used, -np.inf, np.array(capacity, dtype=float))]
    found = milp(
        -gains, constraints=rules, integrality=np.ones(len(gains)), bounds=Bounds(0, 1), options={"mip_rel_gap": 1e-6}
    )
    return float(-found.fun)


def gap(seeds: int) -> list[dict[str, Any]]:
    """The choice by prices on three types against exact ones, for bidders who want more than there is."""
    rows = []
    for seed in range(seeds):
        snapshot = crowd(60, "v100:4x8,p100:2x8,k80:2x8", seed)
        capacity = tuple(snapshot.capacity.tolist())
        relative = relative_speeds(snapshot)
        apps, _ = apps_of(snapshot, "job", relative)
        market = market_of(snapshot, apps, relative, np.ones(len(snapshot), dtype=np.bool_), 1200.0, 0.1)
        bids = [tender_of(market, app, capacity).bid for app in range(len(snapshot))]
        gains = gains_of(bids)
        choice = nash_product(bids, capacity, grid=1)
        reached = sum(gain[column] for gain, column in zip(gains, choice.columns, strict=True))
        best = exact_gain(bids, capacity)
        exact = nash_product(bids, capacity, grid=10**9)
        wins = [at for at, column in enumerate(choice.columns) if column and exact.columns[at]]
        apart = np.abs(kept_parts(choice.others_gain)[wins] - kept_parts(exact.others_gain)[wins])
        exact_reached = sum(gain[column] for gain, column in zip(gains, exact.columns, strict=True))
        assert abs(exact_reached - best) < 1e-4 * best, "the dynamic programme and the integer programme disagree"
        rows.append({"seed": seed, "gap": 1 - reached / best, "parts_apart": float(apart.mean())})
    return rows


def measured(policy: str, cluster: str, load: float, jobs: int, seeds: int) -> dict[str, Any]:
    """Fairness, completion times and preemptions under one policy."""
    seen: list[list[float]] = []
    for seed in range(seeds):
        result = fairway.simulate(shared(jobs, seed, load, cluster), cluster=cluster, policy=policy, seed=seed)
        figures = result.figures()
        rho = figures["ftf"]["isolated"]
        seen.append(
            [
                *(rho["worst"], rho["p99"], rho["mean"], rho["unfair_fraction"], figures["jct_s"]["mean"]),
                *(figures["preemptions"], figures["restarts"], 1e3 * figures["decide_cpu_s"] / figures["rounds"]),
            ]
        )
    names = ("worst_rho", "p99_rho", "mean_rho", "unfair", "jct_s", "preemptions", "restarts", "ms_per_decision")
    means = np.mean(seen, axis=0).tolist()
    return {"cluster": cluster, "load": load, "policy": policy, **dict(zip(names, means, strict=True))}


def loads(jobs: int, seeds: int) -> list[dict[str, Any]]:
    """Themis by fairness, its variants, and the others."""
    themis = [f"themis:fairness={fairness:g}" for fairness in FAIRNESS]
    names = [*(name for name in OTHERS if name in policies()), *themis, *VARIANTS]
    cases = [(policy, cluster, load) for cluster in LOADED for load in LOADS for policy in names]
    return [measured(*case, jobs, seeds) for case in track(cases, "runs", console=Console(stderr=True))]


def show(title: str, rows: Sequence[dict[str, Any]]) -> None:
    """A table of records."""
    table = Table(title=title)
    for name in rows[0]:
        table.add_column(name, justify="left" if isinstance(rows[0][name], str) else "right", no_wrap=True)
    for row in rows:
        cells = (
            value if isinstance(value, str) else f"{value:,.3f}" if abs(value) < 100 else f"{value:,.0f}"
            for value in row.values()
        )
        table.add_row(*cells)
    Console(width=180).print(table)


def main(argv: Sequence[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=250)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--parts", default="auction,gap,loads")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    report: dict[str, list[dict[str, Any]]] = {}
    if "auction" in args.parts:
        report["One auction, 500 apps"] = auction()
    if "gap" in args.parts:
        report["Choice by prices against the optimum"] = gap(args.seeds)
    if "loads" in args.parts:
        report[f"{args.jobs} jobs, {args.seeds} seeds"] = loads(args.jobs, args.seeds)
    if args.json:
        print(json.dumps(report))
        return 0
    for title, rows in report.items():
        show(title, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
