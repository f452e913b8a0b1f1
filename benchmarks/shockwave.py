"""Shockwave measured: the published comparison, other traces and sizes, forecasts, knobs, and what a plan costs.

    python benchmarks/shockwave.py [PART...] [--trace T --profile P] [--seeds 10] [--quick] [--json FILE]
    python benchmarks/shockwave.py picture [--pictures docs/pictures]

`T` and `P` are the 120-job trace and the throughputs of Shockwave's artifact (NSDI'23). Without them everything runs on
generated traces (and, without a profile, on built-in speeds), and the published figures are left out. The parts:

published   every policy on the trace: as published, and planning whenever it may
seeds       the same on generated 120-job traces, with what each policy differs from `shockwave` trace by trace
forecasts   `shockwave` under each rule of forecast, and planning in every round
sizes       64, 128 and 256 GPUs, with the same parameters
plans       one plan: CPU time and gap by size, against a mixed-integer program; all plans of the 120-job run
knobs       what each parameter does, and the published program
picture     a small workload under three forecasts, drawn (see shockwave_story.py), and the main comparison
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from shockwave_story import draw_comparison, draw_story, story_figures

import fairway
from fairway import Workload
from fairway.core.decision import Decision
from fairway.core.snapshot import Snapshot
from fairway.models.profile import Profile, load_profile
from fairway.policies.shockwave import Shockwave
from fairway.simulator.result import Result
from fairway.solvers.window import Planned, Preference, Window, plan_window
from fairway.traces import read_trace
from fairway.traces.generate import shockwave_like

AGNOSTIC = "heterogeneity=agnostic"
POLICIES = {
    "shockwave": "Shockwave",
    f"max_min_fairness:{AGNOSTIC}": "Gavel",
    "finish_time_fairness": "Themis as a program",
    "themis": "Themis by auctions",
    "allox": "AlloX",
    f"min_makespan:{AGNOSTIC}": "OSSP",
    "max_throughput": "MST",
    "gandiva_fair": "Gandiva-Fair",
    "srtf": "oracle: shortest first",
}
"""The policies of the published comparison under the names that it gives them, and two more."""

PUBLISHED = {
    "shockwave": (24197.4, 9958.5, 1.7838, 0.0500),
    f"max_min_fairness:{AGNOSTIC}": (33207.7, 11274.1, 2.9470, 0.2500),
    "finish_time_fairness": (31928.7, 11302.0, 3.4376, 0.2250),
    "allox": (32488.6, 9926.3, 4.9635, 0.2750),
    f"min_makespan:{AGNOSTIC}": (24204.8, 19806.7, 7.7415, 0.7417),
    "max_throughput": (31909.0, 9654.7, 4.9758, 0.2500),
    "gandiva_fair": (32367.4, 12574.3, 1.8536, 0.5167),
}
"""Makespan, mean JCT, worst rho and unfair fraction in the result files of the artifact (simulation, 32 GPUs)."""

SIZES = {64: (220, 25.0), 128: (460, 10.0), 256: (900, 5.0)}
"""Jobs and mean inter-arrival seconds by GPUs, for the larger generated workloads."""

KNOBS = (
    "shockwave",
    "shockwave:program=published,makespan_weight=1e-3,ftf_power=12,forecast=bayes",
    "shockwave:program=published,makespan_weight=1e-3,ftf_power=12",
    *(f"shockwave:makespan_weight={each}" for each in ("0", "0.1", "10")),
    *(f"shockwave:ftf_power={each}" for each in ("0", "1", "2", "8")),
    *(f"shockwave:window_rounds={each}" for each in ("10", "40")),
    "shockwave:share=gpus",
)
FORECASTS = (
    "shockwave",
    *(f"shockwave:forecast={rule}" for rule in ("bayes", "reactive", "agnostic")),
    "shockwave:replan_rounds=1",
)
MEASURED = ("makespan_s", "mean_jct_s", "worst_rho", "unfair", "worst_concurrent", "unfair_concurrent", "preemptions")
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
        rate = self.profile.rate
        return shockwave_like(
            jobs=jobs,
            seed=seed,
            mean_interarrival_s=interarrival_s,
            rate=lambda model, batch, gpus: rate(model, batch, "v100", gpus),
        )

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


def measure(world: World, workload: Workload, gpus: int, policy: str, **options: Any) -> Row:
    """One run."""
    before_s = time.process_time()
    result = fairway.simulate(
        workload, cluster=f"v100:{gpus}x1", policy=policy, profile=world.profile, rules="shockwave", **options
    )
    figures = result.figures()
    static, concurrent = figures["ftf"]["static"], figures["ftf"]["concurrent"]
    return {
        "policy": policy,
        "makespan_s": figures["makespan_s"],
        "mean_jct_s": figures["jct_s"]["mean"],
        "worst_rho": static["worst"],
        "unfair": static["unfair_fraction"],
        "worst_concurrent": concurrent["worst"],
        "unfair_concurrent": concurrent["unfair_fraction"],
        "floor_s": least_makespan_s(result, gpus),
        "utilisation": figures["utilisation"],
        "preemptions": figures["preemptions"],
        "cpu_s": time.process_time() - before_s,
    }


def least_makespan_s(result: Result, gpus: int) -> float:
    """No schedule ends sooner: all work on all GPUs, or the job that would end last if all ran alone."""
    alone_s, gangs = result.ledger.exclusive_s, np.array([spec.gpus for spec in result.specs])
    first_s = float(result.submitted_s.min())
    return max(float((alone_s * gangs).sum()) / gpus, float((result.submitted_s + alone_s).max()) - first_s)


def compared(rows: list[Row]) -> list[Row]:
    """Each row with its makespan in those of the first one."""
    for row in rows:
        row["ratio"] = row["makespan_s"] / rows[0]["makespan_s"]
    return rows


def published(world: World) -> Row:
    """The main comparison, as published and with plans whenever jobs come or go."""
    workload = world.main()
    found: Row = {}
    for title, options in (("at intervals of 1,000 s", {}), ("whenever jobs come or go", {"replan_interval_s": 0.0})):
        rows = compared(
            [measure(world, workload, 32, policy, **options) for policy in world.track(list(POLICIES), "published")]
        )
        if world.trace is not None and not options:
            for row in rows:
                if row["policy"] in PUBLISHED:
                    row["published"] = PUBLISHED[row["policy"]]
        found[f"120 jobs on 32 GPUs; Gavel's family plans {title}"] = rows
    return found


def over_seeds(world: World, policies: Sequence[str], what: str, **options: Any) -> list[Row]:
    """Means over generated traces, and how far each policy is from the first one, trace by trace."""
    runs: dict[str, list[Row]] = {policy: [] for policy in policies}
    for seed in world.track(range(1, world.seeds + 1), what):
        workload = world.generated(seed)
        for policy in policies:
            runs[policy].append(measure(world, workload, 32, policy, **options))
    first = runs[policies[0]]
    rows = []
    for policy, several in runs.items():
        row: Row = {"policy": policy}
        for name in MEASURED:
            values = np.array([each[name] for each in several])
            differences = values - np.array([each[name] for each in first])
            row[name] = float(values.mean())
            row[f"{name}_more"] = float(differences.mean())
            row[f"{name}_error"] = float(differences.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0
        row["ratio"] = float(np.mean([a["makespan_s"] / b["makespan_s"] for a, b in zip(several, first, strict=True)]))
        row["least_ratio"] = min(a["makespan_s"] / b["makespan_s"] for a, b in zip(several, first, strict=True))
        row["cpu_s"] = float(np.mean([each["cpu_s"] for each in several]))
        rows.append(row)
    return rows


def seeds(world: World) -> Row:
    """The comparison on generated traces."""
    title = f"{world.seeds} generated traces of 120 jobs on 32 GPUs"
    at_once = over_seeds(world, list(POLICIES), "seeds, at once", replan_interval_s=0.0)
    return {
        f"{title}; Gavel's family plans at intervals of 1,000 s": over_seeds(world, list(POLICIES), "seeds"),
        f"{title}; whenever jobs come or go": at_once,
    }


def forecasts(world: World) -> Row:
    """What the forecast brings, with everything else the same."""
    workload = world.main()
    rows = [measure(world, workload, 32, policy) for policy in world.track(FORECASTS, "forecasts")]
    over = over_seeds(world, FORECASTS, "forecasts by seed")
    return {"forecasts, 120 jobs on 32 GPUs": compared(rows), f"forecasts, {world.seeds} generated traces": over}


def sizes(world: World, at: Iterable[int] = tuple(SIZES)) -> Row:
    """Larger clusters with the same parameters."""
    found: Row = {}
    for gpus in at:
        jobs, interarrival_s = SIZES[gpus]
        workload = world.generated(1, jobs, interarrival_s)
        rows = [measure(world, workload, gpus, name) for name in world.track(list(POLICIES), f"{gpus} GPUs")]
        found[f"{jobs} generated jobs on {gpus} GPUs"] = compared(rows)
    return found


def knobs(world: World) -> Row:
    """The parameters one by one."""
    return {f"knobs, {world.seeds} generated traces of 120 jobs on 32 GPUs": over_seeds(world, KNOBS, "knobs")}


def pictures(world: World, folder: Path) -> Row:
    """Draw the story and the main comparison."""
    rows = [measure(world, world.main(), 32, policy) for policy in world.track(list(POLICIES), "picture")]
    drawn = [row | {"label": POLICIES[row["policy"]], "published": PUBLISHED.get(row["policy"])} for row in rows]
    about = "The 120 jobs of Shockwave's artifact on 32 GPUs" if world.trace else "120 generated jobs on 32 GPUs"
    (folder / "shockwave_comparison.svg").write_text(draw_comparison(about, drawn, published=world.trace is not None))
    (folder / "shockwave_story.svg").write_text(draw_story())
    return {"the story: three forecasts": story_figures()}


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
        measure(world, workload, 32, "shockwave", observer=watch)
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


FORMS = {
    "makespan_s": "{:,.0f}",
    "floor_s": "{:,.0f}",
    "mean_jct_s": "{:,.0f}",
    "worst_rho": "{:.2f}",
    "unfair": "{:.1%}",
    "worst_concurrent": "{:.2f}",
    "unfair_concurrent": "{:.0%}",
    "utilisation": "{:.3f}",
    "preemptions": "{:,.0f}",
    "ratio": "{:.3f}",
    "least_ratio": "{:.3f}",
    "cpu_s": "{:.1f}",
}
GAPS = ("own_gap", "gap", "milp_gap", "median_gap", "p95_gap", "worst_gap", "worst_true_gap")


def cells_of(row: Row) -> dict[str, str]:
    """What is printed of a row: differences stand beside their means."""
    cells: dict[str, str] = {}
    for name, value in row.items():
        if name.endswith(("_more", "_error")) or name == "published":
            continue
        form = FORMS.get(name) or ("{:.3%}" if name in GAPS else "{:.4f}" if isinstance(value, float) else "{}")
        cells[name] = form.format(value).replace(AGNOSTIC, "…agnostic")
        if row.get(f"{name}_error") and "concurrent" not in name:
            more, error = form.format(row[f"{name}_more"]), form.format(row[f"{name}_error"])
            cells[name] += f" ({more} ± {error})"
    for name, value in zip(("makespan_s", "mean_jct_s", "worst_rho", "unfair"), row.get("published", ()), strict=False):
        cells[name] += f" [{FORMS[name].format(value)}]"
    return cells


def show(console: Console, title: str, rows: Sequence[Row]) -> None:
    """A table; published figures are in brackets."""
    table = Table(title=title, title_justify="left")
    shown = [cells_of(row) for row in rows]
    for name in shown[0]:
        words = name in ("policy", "run", "workload")
        table.add_column(name, justify="left" if words else "right", no_wrap=name == "policy", overflow="fold")
    for cells in shown:
        table.add_row(*cells.values())
    console.print(table)


PARTS: dict[str, Callable[[World], Row]] = {
    "published": published,
    "seeds": seeds,
    "forecasts": forecasts,
    "sizes": sizes,
    "plans": plans,
    "knobs": knobs,
}


def main(argv: Sequence[str]) -> int:
    """Measure the parts that are asked for, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join([*PARTS, "picture"]) + "; else all tables")
    parser.add_argument("--trace")
    parser.add_argument("--profile")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--milp", type=float, default=120.0, help="seconds that the mixed-integer solver may take")
    parser.add_argument("--quick", action="store_true", help="two seeds, 64 GPUs, ten seconds for the solver")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--pictures", type=Path, default=Path("docs/pictures"), help="where pictures go")
    args = parser.parse_args(argv)
    unknown = set(args.parts) - {*PARTS, "picture"}
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    if not args.trace:
        print("the published trace is not given: generated traces only", file=sys.stderr)
    found: Row = {}
    with Progress(console=Console(stderr=True)) as progress:
        trace = read_trace(args.trace) if args.trace else None
        most = (2, 10.0) if args.quick else (args.seeds, args.milp)
        world = World(load_profile(args.profile), trace, *most, progress)
        for part in args.parts or PARTS:
            if part == "picture":
                found |= pictures(world, args.pictures)
            elif part == "sizes" and args.quick:
                found |= sizes(world, (64,))
            else:
                found |= PARTS[part](world)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))
    for title, rows in found.items():
        show(Console(width=230), title, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
