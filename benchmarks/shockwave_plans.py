"""What a plan of Shockwave costs, and how good it is.

    python benchmarks/shockwave_plans.py [--trace T --profile P] [--seeds 10] [--milp 120] [--json FILE]

`T` and `P` are the 120-job trace and the throughputs of Shockwave's artifact (NSDI'23). Without them everything runs on
generated traces (and, without a profile, on built-in speeds). The first table has single plans by size: CPU time and
gap, against a mixed-integer program. The second has all plans of the 120-job run and of generated ones. The comparisons
of policies are `fairway reproduce shockwave`.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import fairway
from fairway import Workload
from fairway.core.decision import Decision
from fairway.core.snapshot import Snapshot
from fairway.models.profile import Profile, load_profile
from fairway.policies.shockwave import Shockwave
from fairway.reproduce.systems.shockwave.comparison import generated_trace, measured
from fairway.solvers.window import Planned, Preference, Window, plan_window
from fairway.traces import read_trace

PLAN_SIZES = {30: 8, 120: 32, 450: 128, 900: 256}
"""GPUs by jobs, for single plans."""
_PLANNED_AT_ROUND = 3

Row = dict[str, Any]


class World(NamedTuple):
    """Where runs happen: the profile, the published trace if it is there, how many seeds, and who shows progress."""

    profile: Profile
    trace: Workload | None
    seeds: int
    milp_s: float
    progress: Progress

    def generated(self, seed: int, jobs: int = 120, interarrival_s: float = 40.0) -> Workload:
        """A trace like the published one."""
        return generated_trace(self.profile, seed, jobs, interarrival_s)

    def main(self) -> Workload:
        """The published trace, or one like it."""
        return self.trace or self.generated(0)

    def track(self, several: Sequence[Any], what: str) -> Iterator[Any]:
        """Go through something, and show how far we are."""
        yield from self.progress.track(several, description=what)


class Idle:
    """An observer that counts rounds, and those in which GPUs idled beside a job that would have fitted."""

    def __init__(self) -> None:
        self.rounds = self.idle_rounds = 0

    def after_events(self, state: Any, events: Any) -> None:
        """Nothing is noted here."""

    def after_round(self, snapshot: Snapshot, decision: Decision, actions: Any) -> None:
        """Hold the waiting gangs against the free GPUs."""
        waiting = snapshot.gpus[decision.gpus == 0]
        free = int(snapshot.capacity.sum() - decision.gpus.sum())
        self.rounds += 1
        self.idle_rounds += bool(len(waiting) and waiting.min() <= free)


class _EnoughSeenError(Exception):
    """Ends a run whose first rounds are all that is wanted."""


@contextmanager
def windows_noted(into: list[tuple[Window, Planned]]) -> Iterator[None]:
    """While this lasts, every window that the policy plans is noted with its plan."""

    def noted(window: Window, preference: Preference | None = None) -> Planned:
        planned = plan_window(window, preference)
        into.append((window, planned))
        return planned

    with patch("fairway.policies.shockwave.plan_window", noted):
        yield


class _Once:
    """An observer that lets the policy plan once more after some rounds, with the clock running, and ends the run."""

    def __init__(self) -> None:
        self.cpu_s = math.nan
        self.windows: list[tuple[Window, Planned]] = []

    def after_events(self, state: Any, events: Any) -> None:
        """Nothing is noted here."""

    def after_round(self, snapshot: Snapshot, decision: Decision, actions: Any) -> None:
        """Three plans of one snapshot; the quickest counts, because others use the machine too."""
        if snapshot.round < _PLANNED_AT_ROUND:
            return
        policy, taken_s = Shockwave(replan_rounds=1), []
        for _ in range(3):
            before_s = time.process_time()
            policy.decide(snapshot)
            taken_s.append(time.process_time() - before_s)
        self.cpu_s = min(taken_s)
        with windows_noted(self.windows):
            policy.decide(snapshot)
        raise _EnoughSeenError


def plans(world: World) -> Row:
    """What one plan costs and how good it is; and all plans of the main run."""
    rows = []
    for jobs, gpus in world.track(list(PLAN_SIZES.items()), "plans"):
        once = _Once()
        workload = world.generated(1, jobs, 0.0)
        cluster = f"v100:{gpus}x1"
        policy = Shockwave(replan_rounds=1)
        with suppress(_EnoughSeenError):
            fairway.simulate(
                workload, cluster=cluster, policy=policy, profile=world.profile, rules="shockwave", observer=once
            )
        window, planned = once.windows[0]
        rows.append(
            {"jobs": jobs, "gpus": gpus, "plan_cpu_s": once.cpu_s} | held_against(window, planned, world.milp_s)
        )
    several = {"the 120 jobs": world.main()} | {
        f"seed {seed}": world.generated(seed) for seed in range(1, world.seeds + 1)
    }
    runs = [watched(world, name, workload) for name, workload in world.track(list(several.items()), "plans of runs")]
    return {"one plan of 20 rounds": rows, "all plans of runs with 120 jobs on 32 GPUs": runs}


def watched(world: World, name: str, workload: Workload) -> Row:
    """The plans of one run; those that may be worse than a thousandth are held against a mixed-integer solver."""
    watch, noted = Idle(), list[tuple[Window, Planned]]()
    with windows_noted(noted):
        measured(workload, world.profile, "shockwave", observer=watch)
    gaps = np.array([planned.gap for _, planned in noted])
    true = [held_against(window, planned, world.milp_s / 4)["gap"] for window, planned in noted if planned.gap > 1e-3]
    return {
        "run": name,
        "plans": len(gaps),
        "median_gap": float(np.median(gaps)),
        "p95_gap": float(np.percentile(gaps, 95)),
        "worst_gap": float(gaps.max()),
        "above_1_per_cent": int((gaps > 0.01).sum()),
        "worst_true_gap": max(true, default=float(gaps.max())),
        "truly_above_1_per_cent": sum(gap > 0.01 for gap in true),
        "rounds": watch.rounds,
        "idle_beside_waiting": watch.idle_rounds,
    }


def held_against(window: Window, planned: Planned, limit_s: float) -> Row:
    """The plan beside that of a mixed-integer solver, both measured against the lower of the two bounds."""
    before_s = time.process_time()
    plan_window(window)
    solver_s = time.process_time() - before_s
    before_s = time.process_time()
    milp_objective, milp_bound = solved_as_milp(window, limit_s)
    milp_s = time.process_time() - before_s
    bound = min(planned.bound, milp_bound)
    gain = bound - planned.idle
    return {
        "solver_cpu_s": solver_s,
        "own_gap": planned.gap,
        "gap": (bound - planned.objective) / gain,
        "objective": planned.objective,
        "bound": planned.bound,
        "milp_cpu_s": milp_s,
        "milp_gap": (bound - milp_objective) / gain,
        "milp_objective": milp_objective,
        "milp_bound": milp_bound,
    }


def solved_as_milp(window: Window, limit_s: float) -> tuple[float, float]:
    """The window as a mixed-integer program, with a yes or no for every job and round: its best plan, and its bound.

    Values are concave and what is left is convex in the number of rounds, so straight lines describe both exactly.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_matrix

    jobs, rounds = len(window.gangs), window.rounds
    takes, count, value = 0, jobs * rounds, jobs * (rounds + 1)
    latest = jobs * (rounds + 2)
    entries: list[tuple[int, int, float]] = []
    low, high = list[float](), list[float]()

    def demand(parts: Iterable[tuple[int, float]], least: float, most: float) -> None:
        entries.extend((len(low), column, factor) for column, factor in parts)
        low.append(least)
        high.append(most)

    for at in range(rounds):
        demand(((takes + i * rounds + at, float(window.gangs[i])) for i in range(jobs)), -np.inf, window.capacity)
    for i in range(jobs):
        demand([*((takes + i * rounds + at, 1.0) for at in range(rounds)), (count + i, -1.0)], 0.0, 0.0)
        for slope, start in _lines(window.values[i]):
            demand([(value + i, 1.0), (count + i, -slope)], -np.inf, start)
        for slope, start in _lines(window.left[i]):
            demand([(latest, 1.0), (count + i, -slope)], start, np.inf)
    rows, columns, factors = zip(*entries, strict=True)
    cost = np.zeros(latest + 1)
    cost[value:latest], cost[latest] = -1.0, window.latest_price
    least, most = np.zeros(latest + 1), np.ones(latest + 1)
    least[value:latest], most[count:] = -np.inf, np.inf
    solved = milp(
        cost,
        constraints=LinearConstraint(csr_matrix((factors, (rows, columns)), shape=(len(low), latest + 1)), low, high),
        bounds=Bounds(least, most),
        integrality=np.concatenate([np.ones(count), np.zeros(latest + 1 - count)]),
        options={"time_limit": limit_s, "mip_rel_gap": 1e-6},
    )
    bound = -solved.mip_dual_bound if solved.mip_dual_bound is not None else np.inf
    if solved.x is None:
        return -np.inf, bound
    return window.objective(np.rint(solved.x[count:value]).astype(np.int64)), bound


def _lines(table: Any) -> list[tuple[float, float]]:
    """The straight lines of a table by number of rounds, as slope and value at 0."""
    slopes = np.diff(table)
    return sorted({(float(slope), float(table[at] - slope * at)) for at, slope in enumerate(slopes)})


GAPS = ("own_gap", "gap", "milp_gap", "median_gap", "p95_gap", "worst_gap", "worst_true_gap")


def show(console: Console, title: str, rows: Sequence[Row]) -> None:
    """A table."""
    table = Table(title=title, title_justify="left")
    for name in rows[0]:
        table.add_column(name, justify="left" if name == "run" else "right", overflow="fold")
    for row in rows:
        forms = (
            "{:.3%}" if name in GAPS else "{:.4f}" if isinstance(value, float) else "{}" for name, value in row.items()
        )
        table.add_row(*(form.format(value) for form, value in zip(forms, row.values(), strict=True)))
    console.print(table)


def main(argv: Sequence[str]) -> int:
    """Measure both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace")
    parser.add_argument("--profile")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--milp", type=float, default=120.0, help="seconds that the mixed-integer solver may take")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args(argv)
    with Progress(console=Console(stderr=True)) as progress:
        trace = read_trace(args.trace) if args.trace else None
        found = plans(World(load_profile(args.profile), trace, args.seeds, args.milp, progress))
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))
    for title, rows in found.items():
        show(Console(width=230), title, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
