"""Themis: what an auction costs, and how good its choice by prices is.

    python benchmarks/themis.py [--seeds 3] [--parts auction,gap] [--json]

auction: CPU seconds of one auction with all Nash products (with everybody, and without each bidder) when 500 apps want
GPUs, by cluster and fairness. gap: where several GPU types make the auction choose by prices, how far its sum of
log-values and the parts that winners keep are from exact ones.
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
from rich.table import Table

from fairway import JobSpec
from fairway.policies import make_policy
from fairway.policies.themis.auction import kept_parts
from fairway.policies.themis.bids import market_of, tender_of
from fairway.policies.themis.nash import Bid, gains_of, nash_product
from fairway.policies.themis.rho import apps_of, relative_speeds
from fairway.testing import snapshot_of

CLUSTERS = ("v100:32x8", "v100:16x8,p100:8x8,k80:8x8")
FAIRNESS = (0.0, 0.5, 0.8, 0.95)


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
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--parts", default="auction,gap")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    report: dict[str, list[dict[str, Any]]] = {}
    if "auction" in args.parts:
        report["One auction, 500 apps"] = auction()
    if "gap" in args.parts:
        report["Choice by prices against the optimum"] = gap(args.seeds)
    if args.json:
        print(json.dumps(report))
        return 0
    for title, rows in report.items():
        show(title, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
