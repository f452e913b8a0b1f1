"""What planning with shared GPUs costs: CPU seconds of a plan, and what a start from the last one saves.

    python benchmarks/packing.py [--profile FILE] [--jobs N …] [--json]

Jobs are drawn as in Gavel's workloads, on a cluster with a quarter as many GPUs of each of three types. In the rows
`alike` jobs of one model and batch size are equal; in `different` every job has speeds of its own (up to 20 % apart)
and a weight of its own (10 %), so no two can be planned together. `all pairs` writes every pair down, for comparison. A
plan is max-min fairness, matrix building included; an arrival and a departure change one job. The decisions are whole
ones, on the snapshot of a cluster that all jobs have just reached.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from fairway import simulate
from fairway.core.action import Action
from fairway.core.arrays import Ints
from fairway.core.decision import Decision
from fairway.core.event import Event
from fairway.core.snapshot import Snapshot
from fairway.core.state import State
from fairway.models.profile import load_profile
from fairway.policies import make_policy
from fairway.policies.gavel.pairs import paired
from fairway.policies.gavel.situation import Situation
from fairway.solvers.allocation import Allocation
from fairway.solvers.classes import ClassPairs, classes_of
from fairway.solvers.paired import USUAL, Paired, Search, Start, _scaled, _useful, solve_paired
from fairway.traces import gavel_like

TYPES = ("v100", "p100", "k80")
POLICIES = ("max_min_fairness", "max_throughput", "min_makespan", "finish_time_fairness")
ALL_PAIRS_UP_TO = 256


class ReachedError(Exception):
    """The first round has been reached."""


class FirstRound:
    """Keeps the snapshot of the first round and ends the run."""

    snapshot: Snapshot

    def after_events(self, state: State, events: Sequence[Event]) -> None:
        """Nothing to do."""

    def after_round(self, snapshot: Snapshot, decision: Decision, actions: Sequence[Action]) -> None:
        """Keep a copy that knows everything."""
        self.snapshot = snapshot.copy()
        raise ReachedError


def snapshot_of_all(jobs: int, profile: str | None) -> Snapshot:
    """All jobs at once on an empty cluster, as a policy that may know all sees them."""
    table = load_profile(profile)

    def rate(model: str, batch_size: int, gpus: int) -> float:
        return table.rate(model, batch_size, "v100", gpus)

    workload = gavel_like(jobs=jobs, seed=1, mean_interarrival_s=0.0, rate=rate)
    cluster = ",".join(f"{name}:{max(jobs // 4, 1)}x1" for name in TYPES)
    seen = FirstRound()
    with suppress(ReachedError):
        simulate(workload, cluster=cluster, policy="min_makespan:packing=on", profile=profile, observer=seen)
    return seen.snapshot


def problem_of(snapshot: Snapshot, *, different: bool) -> Paired:
    """Max-min fairness over the jobs of a snapshot."""
    situation = Situation(snapshot, np.zeros((len(snapshot), len(TYPES))))
    throughputs = paired(situation, situation.rates)
    random = np.random.default_rng(2)
    jobs, capacity = len(snapshot), throughputs.capacity
    rates, weights = throughputs.rates, np.ones(jobs)
    if different:
        rates = rates * random.uniform(0.8, 1.2, rates.shape)
        weights = random.uniform(0.9, 1.1, jobs)
    normal = rates @ (capacity / capacity.sum())
    base = Allocation.over(throughputs.gangs, capacity, rates > 0)
    alone = replace(
        base,
        rows=rates * (throughputs.gangs / normal)[:, None],
        weights=weights,
        held=np.ones(jobs, dtype=np.bool_),
        level_gain=1.0,
    )
    return Paired(alone, throughputs.kinds, throughputs.factors)


def without(problem: Paired, gone: int) -> Paired:
    """The problem without one job."""
    a, stay = problem.alone, np.delete(np.arange(len(problem.kinds)), gone)
    parts = ("gangs", "usable", "gain", "rows", "weights", "floors", "held")
    alone = replace(a, **{part: getattr(a, part)[stay] for part in parts})
    return replace(problem, alone=alone, kinds=problem.kinds[stay])


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """What a piece of work gives, and the least CPU seconds of three."""
    took = []
    for _ in range(3):
        before = time.process_time()
        found = work()
        took.append(time.process_time() - before)
    return found, min(took)


def all_pairs(problem: Paired) -> tuple[float, float]:
    """The level with every pair written down, and its CPU seconds."""

    def work() -> float:
        scaled, unit = _scaled(problem.alone)
        jobs, types = scaled.usable.shape
        one = classes_of(replace(scaled, weights=scaled.weights), np.arange(jobs))
        first, second = np.triu_indices(jobs, 1)
        columns = ClassPairs(np.repeat(first, types), np.repeat(second, types), np.tile(np.arange(types), len(first)))
        search = Search(one._replace(kinds=problem.kinds), _useful(problem.factors), columns)
        search.run(USUAL)
        return search.level * unit

    return timed(work)


def plans(problem: Paired, *, compare: bool) -> dict[str, float]:
    """Levels and CPU seconds: cold, warm after an arrival, warm after a departure, all pairs."""
    jobs = len(problem.kinds)
    names: Ints = np.arange(jobs)
    before, after = without(problem, jobs - 1), without(problem, jobs // 3)
    cold, cold_s = timed(lambda: solve_paired(problem))
    noted_before = solve_paired(before).start.plain(names[:-1])  # type: ignore[union-attr]
    noted = cold.start.plain(names)
    came, arrival_s = timed(lambda: solve_paired(problem, Start.from_plain(noted_before, names, 3)))
    left = np.delete(names, jobs // 3)
    _, departure_s = timed(lambda: solve_paired(after, Start.from_plain(noted, left, 3)))
    row = {"jobs": jobs, "level": cold.level, "missing": max(cold.proof.gap, came.proof.gap), "pairs": len(cold.pairs)}
    row |= {"cold_s": cold_s, "arrival_s": arrival_s, "departure_s": departure_s}
    if compare:
        level, all_s = all_pairs(problem)
        row |= {"all_pairs_s": all_s, "lost": 1 - cold.level / level}
    return row


def decisions(snapshot: Snapshot) -> dict[str, float]:
    """CPU seconds of a whole decision, by policy."""
    row: dict[str, float] = {"jobs": len(snapshot)}
    for name in POLICIES:
        policy = make_policy(f"{name}:packing=on")
        before = time.process_time()
        policy.decide(snapshot)
        row[name] = time.process_time() - before
    return row


def show(console: Console, title: str, rows: list[dict[str, Any]]) -> None:
    """A table with the columns of its longest row."""
    table = Table(title=title)
    headings = max((list(row) for row in rows), key=len)
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rows:
        cells = (row.get(heading, "") for heading in headings)
        table.add_row(*(f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in cells))
    console.print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", help="a table of speeds in Gavel's format; built-in estimates without it")
    parser.add_argument("--jobs", type=int, nargs="+", default=[48, 64, 256, 1024])
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    solve_paired(problem_of(snapshot_of_all(8, given.profile), different=True))
    rows, whole = [], []
    for jobs in given.jobs:
        snapshot = snapshot_of_all(jobs, given.profile)
        for different in (False, True):
            row: dict[str, Any] = {"jobs are": "different" if different else "alike"}
            compare = jobs <= ALL_PAIRS_UP_TO
            rows.append(row | plans(problem_of(snapshot, different=different), compare=compare))
        whole.append(decisions(snapshot))
    if given.json:
        print(json.dumps({"plans": rows, "decisions": whole}, indent=2))
        return
    console = Console(width=140)
    show(console, "Max-min fairness with pairs: CPU seconds of a plan", rows)
    show(console, "CPU seconds of a decision with packing=on", whole)


if __name__ == "__main__":
    main()
