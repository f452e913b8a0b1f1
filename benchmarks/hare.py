"""Hare measured: the figures of its poster on generated jobs, costs of switching, and what grouping of rounds changes.

    python benchmarks/hare.py [PART...] [--seeds 3] [--workers 2] [--quick] [--json FILE] [--pictures docs/pictures]

The jobs are those of `hare_workload.py`: models of the built-in profile, gangs of 1 to 8, 1 to 30 minutes on V100,
weights 1 to 5; seeds 1, 2, … . The cluster has V100, T4, M60 and K80 in equal parts, on nodes of two GPUs of which
neighbours have different types: a policy that takes GPUs by number must not get the fastest first by luck. Everybody
switches as Hare does (`--switching resident`), and gangs pay nothing for nodes that are far apart. The parts:

toy         the worked example: three panels and their totals
gpus        200 jobs on 40 to 200 GPUs, all there at the start (the poster's Fig. 9)
jobs        100 to 300 jobs on 160 GPUs, all there at the start (Fig. 10)
stream      100 jobs that come one after the other, on 40 GPUs
cdf         completion times of the 200 jobs on 160 GPUs (Fig. 8)
order       the same on 80 GPUs with nodes in other orders, which only `sched_homo` notices
switching   short jobs at costs of a switch from 0 to 10 s, with rounds of 1 to 600 s
grouping    small jobs from every round by itself to one round a job
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path

import numpy as np
from hare_toy import draw_toy, toy_figures
from hare_workload import MINUTES, TYPES, Case, Row, measured
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from fairway.report.line_chart import Axis, line_chart

POLICIES = {
    "hare": "Hare",
    "hare:assign=earliest_available": "as published",
    "sched_homo": "Sched_Homo",
    "allox:alpha=1": "AlloX",
    "srtf": "SRTF",
    "gavel_fifo": "Gavel FIFO",
    "hare:clairvoyant=no": "unknown",
}
UNKNOWING = "hare:clairvoyant=no"
"""Plans after every round, so it takes longer than the others. The sweeps leave it out."""
BOUND = "lower bound"
GPUS = (40, 80, 120, 160, 200)
JOBS = (100, 150, 200, 250, 300)
WITHIN_S = 1500.0
COSTS = ("0", "5ms", "1s", "5s", "10s")
SHORT = (10.0 / 60.0, 3.0)
GRAINED = {
    "hare:group_s=1": "Hare, 1 s",
    "hare:group_s=60": "Hare, 60 s",
    "hare:assign=earliest_available,group_s=1": "paper, 1 s",
    "hare:assign=earliest_available,group_s=60": "paper, 60 s",
    "hare:clairvoyant=no,group_s=1": "unknown, 1 s",
    "hare:clairvoyant=no,group_s=10": "unknown, 10 s",
    "sched_homo:types=aware": "gangs, aware",
    "srtf": "SRTF",
}
"""What the picture of switching shows. The table has more lengths of rounds."""
LENGTHS_S = (1, 10, 60, 600)
TINY = (0.2 / 60.0, 2.0 / 60.0)
GROUPED_S = (0.001, 0.05, 0.1, 0.2, 0.5, 10.0)


class World:
    """Runs cases, each once, and shows how far it is."""

    def __init__(self, seeds: int, pool: Executor, progress: Progress, *, quick: bool) -> None:
        self.seeds = range(1, seeds + 1)
        self.quick = quick
        self._pool, self._progress = pool, progress
        self._known: dict[Case, Row] = {}
        self.cpu_s = 0.0

    def rows(self, cases: Iterable[Case], what: str) -> list[Row]:
        """The figures of cases, in their order."""
        wanted = list(cases)
        new = [case for case in dict.fromkeys(wanted) if case not in self._known]
        if new:
            found = self._progress.track(self._pool.map(measured, new), total=len(new), description=what)
            for case, row in zip(new, found, strict=True):
                self._known[case] = row
                self.cpu_s += row["cpu_s"]
        return [self._known[case] for case in wanted]

    def of(self, values: Sequence[int]) -> Sequence[int]:
        """All values, or the first two if there is little time."""
        return values[:2] if self.quick else values


def means(rows: Sequence[Row], names: Iterable[str] = ("weighted_s", "cpu_s", "switches")) -> Row:
    """The means over seeds."""
    return {name: float(np.mean([row[name] for row in rows])) for name in names}


def compared(world: World, cases: Sequence[Case], what: str, policies: Sequence[str]) -> list[Row]:
    """Every policy over all seeds, and what Hare saves; `cases` differ by their seed only."""
    rows = world.rows([case._replace(policy=policy) for policy in policies for case in cases], what)
    by_policy = {policy: rows[at * len(cases) : (at + 1) * len(cases)] for at, policy in enumerate(policies)}
    own = by_policy["hare"]
    found = []
    for policy, several in by_policy.items():
        saved = [1 - mine["weighted_s"] / row["weighted_s"] for mine, row in zip(own, several, strict=True)]
        most = [1 - mine["least_s"] / row["weighted_s"] for mine, row in zip(own, several, strict=True)]
        jct_s = np.concatenate([row["jct_s"] for row in several])
        found.append(
            {
                "policy": policy,
                **means(several),
                "of_bound": float(
                    np.mean([row["weighted_s"] / m["least_s"] for row, m in zip(several, own, strict=True)])
                ),
                "saved": float(np.mean(saved)),
                "saved_least": min(saved),
                "saved_most": max(saved),
                "possible": float(np.mean(most)),
                "within_25_min": float((jct_s <= WITHIN_S).mean()),
                **{f"p{p}_s": float(np.percentile(jct_s, p)) for p in (25, 50, 75, 95)},
            }
        )
    least_s = float(np.mean([row["least_s"] for row in own]))
    return [*found, {"policy": BOUND, "weighted_s": least_s, "of_bound": 1.0}]


def sweep(world: World, points: Mapping[int, Case], about: str) -> dict[str, list[Row]]:
    """A comparison at each point."""
    found, policies = {}, [policy for policy in POLICIES if policy != UNKNOWING]
    for point, case in points.items():
        cases = [case._replace(seed=seed) for seed in world.seeds]
        found[about.format(point)] = compared(world, cases, about.format(point), policies)
    return found


def gpus(world: World) -> dict[str, list[Row]]:
    """Fig. 9."""
    return sweep(world, {at: Case("", 200, at, 0) for at in world.of(GPUS)}, "200 jobs at the start, {} GPUs")


def jobs(world: World) -> dict[str, list[Row]]:
    """Fig. 10."""
    return sweep(world, {at: Case("", at, 160, 0) for at in world.of(JOBS)}, "{} jobs at the start, 160 GPUs")


def stream(world: World) -> dict[str, list[Row]]:
    """Jobs that come over time."""
    jobs, about = (40 if world.quick else 100), "a stream of {} jobs on 40 GPUs"
    cases = [Case("", jobs, 40, seed, stream=True) for seed in world.seeds]
    return {about.format(jobs): compared(world, cases, about.format(jobs), list(POLICIES))}


def cdf(world: World) -> dict[str, list[Row]]:
    """Fig. 8: the rows are those of `gpus`."""
    at = 80 if world.quick else 160
    rows = compared(world, [Case("", 200, at, seed) for seed in world.seeds], "completion times", list(POLICIES))
    names = ("policy", "weighted_s", "of_bound", "within_25_min", "p25_s", "p50_s", "p75_s", "p95_s")
    return {f"completion times, 200 jobs at the start, {at} GPUs": [{n: row[n] for n in names} for row in rows[:-1]]}


def order(world: World) -> dict[str, list[Row]]:
    """What the order of nodes changes for a policy that takes GPUs by number."""
    found = []
    orders = {"alternating": (TYPES, True), "slowest first": (TYPES[::-1], False), "fastest first": (TYPES, False)}
    for name, (types, patterned) in orders.items():
        for policy in ("hare", "sched_homo"):
            cases = [Case(policy, 200, 80, seed, order=types, patterned=patterned) for seed in world.seeds]
            found.append({"policy": policy, "nodes": name, **means(world.rows(cases, f"nodes {name}"))})
    return {"200 jobs at the start, 80 GPUs, by the order of nodes": found}


def switching(world: World) -> dict[str, list[Row]]:
    """What each way to schedule loses by costs of switches."""
    kinds = ("hare:group_s={}", "hare:assign=earliest_available,group_s={}", "hare:clairvoyant=no,group_s={}")
    policies = [kind.format(each) for kind in kinds for each in (LENGTHS_S[::2] if world.quick else LENGTHS_S)]
    costs = ("0", "5s") if world.quick else (*COSTS, "restart")
    every = [*policies, "sched_homo:types=aware", "srtf"]

    def cases(policy: str, cost: str) -> list[Case]:
        return [Case(policy, 40, 32, seed, switching=cost, minutes=SHORT) for seed in world.seeds]

    world.rows((case for policy in every for cost in costs for case in cases(policy, cost)), "switching")
    found: list[Row] = []
    for policy in every:
        by_cost = {cost: means(world.rows(cases(policy, cost), "")) for cost in costs}
        row = {cost: several["weighted_s"] for cost, several in by_cost.items()}
        found.append({"policy": policy, **row, "switches": by_cost["0"]["switches"]})
    return {"mean weighted JCT by cost of a switch, 40 short jobs on 32 GPUs": found}


def grouping(world: World) -> dict[str, list[Row]]:
    """From every round of a job by itself to one round a job."""
    found = []
    for each_s in GROUPED_S:
        row: Row = {"group_s": each_s}
        for assign in ("earliest_finish", "earliest_available"):
            policy = f"hare:assign={assign},group_s={each_s:g}"
            about = {"switching": "0", "minutes": TINY, "rounds_s": each_s}
            cases = [Case(policy, 16, 8, seed, **about) for seed in range(1, 2 if world.quick else 4)]
            several = means(world.rows(cases, policy), ("weighted_s", "least_s"))
            row[assign], row["bound"] = several["weighted_s"], several["least_s"]
        found.append(row)
    for name in ("earliest_finish", "earliest_available", "bound"):
        for row in found:
            row[f"{name}_more"] = row[name] / found[0][name] - 1
    return {"16 jobs of 0.2 to 2 s on 8 GPUs, by length of a group of rounds": found}


def toy(_: World) -> dict[str, list[Row]]:
    """The worked example."""
    return {"the toy": toy_figures()}


PARTS: dict[str, Callable[[World], dict[str, list[Row]]]] = {
    "toy": toy,
    "gpus": gpus,
    "jobs": jobs,
    "stream": stream,
    "cdf": cdf,
    "order": order,
    "switching": switching,
    "grouping": grouping,
}


def pictures(world: World, parts: Sequence[str], found: Mapping[str, list[Row]], folder: Path) -> None:
    """Draw what was measured."""
    weighted = Axis("mean weighted completion time, minutes", "", 1 / 60)
    if "toy" in parts:
        (folder / "hare_toy.svg").write_text(draw_toy())
    for part, about, name in (
        ("gpus", "200 jobs at the start, {} GPUs", "GPUs"),
        ("jobs", "{} jobs at the start, 160 GPUs", "jobs"),
    ):
        if part in parts:
            points = world.of({"gpus": GPUS, "jobs": JOBS}[part])
            lines: dict[str, list[tuple[float, float]]] = {}
            for point in points:
                for row in found[about.format(point)]:
                    label = POLICIES.get(row["policy"], BOUND)
                    lines.setdefault(label, []).append((float(point), row["weighted_s"]))
            title = about.format(f"{points[0]} to {points[-1]}")
            (folder / f"hare_{part}.svg").write_text(line_chart(title, lines, Axis(name), weighted))
    if "cdf" in parts:
        (folder / "hare_cdf.svg").write_text(_cdf_chart(world))
    if "switching" in parts:
        (table,) = (rows for title, rows in found.items() if "cost of a switch" in title)
        points_of = {row["policy"]: [(_seconds(c), row[c]) for c in COSTS if c in row] for row in table}
        lines = {label: points_of[policy] for policy, label in GRAINED.items() if policy in points_of}
        title, axes = "40 short jobs on 32 GPUs", (Axis("cost of a switch, seconds"), Axis("mean weighted JCT, s"))
        (folder / "hare_switching.svg").write_text(line_chart(title, lines, *axes))


def _cdf_chart(world: World) -> str:
    at = 80 if world.quick else 160
    lines = {}
    for policy, label in POLICIES.items():
        rows = world.rows([Case(policy, 200, at, seed) for seed in world.seeds], "completion times")
        jct_s = np.concatenate([row["jct_s"] for row in rows])
        lines[label] = [(float(s), float((jct_s <= s).mean())) for s in range(0, 46 * 60, 60)]
    title = f"200 jobs at the start on {at} GPUs: jobs that are complete"
    return line_chart(title, lines, Axis("minutes", "", 1 / 60), Axis("part of all jobs", " %", 100.0, 100.0))


def _seconds(cost: str) -> float:
    return float(cost[:-2]) / 1e3 if cost.endswith("ms") else float(cost.rstrip("s"))


def show(console: Console, title: str, rows: Sequence[Row]) -> None:
    """A table."""
    table = Table(title=title, title_justify="left")
    for name in rows[0]:
        table.add_column(name, justify="left" if isinstance(rows[0][name], str) else "right")
    for row in rows:
        table.add_row(*(_cell(name, row.get(name)) for name in rows[0]))
    console.print(table)


def _cell(name: str, value: object) -> str:
    if not isinstance(value, float):
        return "" if value is None else str(value)
    if name.startswith(("saved", "possible", "within")) or name.endswith("_more"):
        return f"{value:.1%}"
    if name in ("of_bound", "group_s", "cpu_s"):
        return f"{value:.3g}"
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def main(argv: Sequence[str]) -> int:
    """Measure the parts that are asked for, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS) + "; else all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2, help="processes that run at the same time")
    parser.add_argument("--quick", action="store_true", help="one seed, few sizes")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--pictures", type=Path, help="also draw pictures into this folder")
    args = parser.parse_args(argv)
    unknown = set(args.parts) - set(PARTS)
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    parts, found = args.parts or list(PARTS), dict[str, list[Row]]()
    with Progress(console=Console(stderr=True)) as progress, ProcessPoolExecutor(args.workers) as pool:
        world = World(1 if args.quick else args.seeds, pool, progress, quick=args.quick)
        for part in parts:
            found |= PARTS[part](world)
        if args.json:
            args.json.write_text(json.dumps(found, indent=1))
        if args.pictures:
            args.pictures.mkdir(parents=True, exist_ok=True)
            pictures(world, parts, found, args.pictures)
    console = Console(width=200)
    for title, rows in found.items():
        show(console, title, rows)
    least, most = MINUTES
    console.print(f"jobs of {least:g} to {most:g} minutes, seeds {list(world.seeds)}, {world.cpu_s:.0f} CPU s in all")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
