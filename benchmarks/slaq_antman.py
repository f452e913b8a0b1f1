"""What SLAQ and AntMan bring: losses over time against equal shares, and the work of guests against the cost to hosts.

    python benchmarks/slaq_antman.py [--seed 0] [--jobs 100] [--profile GAVEL_JSON] [--json]

SLAQ: elastic jobs whose loss curves are drawn from the seed, under `slaq`, under equal shares of GPUs that are divided
anew as often, and under `proportional` (whole gangs by rotation). `loss_s` is a job's normalised loss (1 at submission,
0 at the end) added up over time, `reached_90_s` how long after its submission it has seen nine tenths of its reduction.

AntMan: guaranteed and opportunistic jobs under `antman`, under `antman:share=off` (idle GPUs only), and under
`backfill`, which knows no classes. `slowdown` is how much longer guaranteed jobs hold GPUs than they would alone,
`spare_gpu_h` what opportunistic jobs have done when the last guaranteed job is submitted, `useful` the work of all jobs
by then, as a share of what the GPUs could have done. Work is counted in GPU-hours alone; gangs over several nodes are
not slower here, so that only sharing slows jobs down.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from rich.console import Console
from rich.table import Table

import fairway
from fairway import JobSpec, Workload
from fairway.core.action import Action
from fairway.core.decision import Decision, Reason
from fairway.core.event import Event
from fairway.core.policy import Policy
from fairway.core.snapshot import Snapshot
from fairway.core.state import State
from fairway.models.convergence import drawn_curve
from fairway.models.profile import Profile, load_profile
from fairway.policies import make_policy
from fairway.policies.slaq import divided
from fairway.simulator.rules import NATIVE

SLAQ_CLUSTER = "v100:32x4"
ANTMAN_CLUSTER = "v100:8x4"
REACHED = 0.9
MODELS = {"ResNet-18": 64, "ResNet-50": 32, "LM": 20, "Transformer": 64, "Recommendation": 2048}


@dataclass(frozen=True)
class EvenShares:
    """As many GPUs for everybody, re-divided as often as SLAQ does it: fair sharing of elastic jobs."""

    interval_s: float = 60.0

    name: ClassVar[str] = "even shares"
    knows: ClassVar[frozenset[str]] = frozenset()
    round_s: ClassVar[float] = 0.0

    def decide(self, snapshot: Snapshot) -> Decision:
        next_s = snapshot.memory.get("next_s", -np.inf)
        due = snapshot.now_s >= next_s - 1e-6
        next_s = snapshot.now_s + self.interval_s if due else next_s
        fixed = np.zeros(len(snapshot), dtype=np.bool_) if due else snapshot.running.copy()
        fixed[snapshot.protected_rows] = True
        gpus, _ = divided(snapshot, fixed, lambda row, count: 1.0 - 1.0 / (1.0 + count), floor=True)
        reasons = np.multiply(gpus == 0, int(Reason.NOT_ITS_TURN), dtype=np.int8)
        return Decision(gpus, reasons, wake_s=next_s, memory={"next_s": next_s})


class Course:
    """An observer that keeps each job's progress as straight pieces (time, progress, rate)."""

    def __init__(self, jobs: int) -> None:
        self.pieces: list[list[tuple[float, float, float]]] = [[] for _ in range(jobs)]

    def after_events(self, state: State, events: Sequence[Event]) -> None:
        self.note(state.snapshot())

    def after_round(self, snapshot: Snapshot, decision: Decision, actions: Sequence[Action]) -> None:
        pass

    def note(self, snapshot: Snapshot) -> None:
        ready_s = np.maximum(snapshot.now_s, np.where(snapshot.running, snapshot.idle_since_s, snapshot.now_s))
        columns = (snapshot.jobs, ready_s, snapshot.progress, snapshot.rate)
        for job, *piece in zip(*(column.tolist() for column in columns), strict=True):
            self.pieces[job].append((piece[0], piece[1], piece[2]))

    def at(self, job: int, times_s: np.ndarray) -> np.ndarray:
        """Progress at some times, not beyond the end of the piece that each falls into."""
        time_s, progress, rate = (np.array(column) for column in zip(*self.pieces[job], strict=True))
        index = np.maximum(np.searchsorted(time_s, times_s, side="right") - 1, 0)
        return progress[index] + rate[index] * np.maximum(times_s - time_s[index], 0.0)


def learners(jobs: int, seed: int) -> Workload:
    """Elastic jobs with loss curves."""
    random = np.random.default_rng([seed, 11])
    at_s = np.round(np.cumsum(random.exponential(60.0, jobs)), 3)
    lasts_s = np.round(random.uniform(1800.0, 10800.0, jobs), 3)
    specs = [
        JobSpec(f"job-{i}", at_s[i], 2, 1, 16, duration_s=lasts_s[i], loss=drawn_curve(seed, i)) for i in range(jobs)
    ]
    return Workload.of(specs, source=f"learners, seed {seed}")


def measure_losses(workload: Workload, policy: str | Policy, seed: int) -> dict[str, float]:
    course = Course(len(workload))
    result = fairway.simulate(workload, cluster=SLAQ_CLUSTER, policy=policy, seed=seed, observer=course)
    end_s = np.array(result.ledger.finished_s)
    areas_s: list[float] = []
    delays_s: list[float] = []
    for number, spec in enumerate(workload.jobs):
        curve, work = spec.loss, spec.duration_s
        assert curve is not None
        assert work is not None
        first, last = curve.at(0.0), curve.at(1.0)
        times_s = np.arange(spec.submitted_s, end_s[number] + 10.0, 10.0)
        done = np.minimum(course.at(number, times_s) / work, 1.0)
        loss = (1.0 / (curve.b0 * curve.epochs * done + curve.b1) + curve.b2 - last) / (first - last)
        areas_s.append(float(loss.sum() * 10.0))
        target = (1.0 / (first - REACHED * (first - last) - curve.b2) - curve.b1) / (curve.b0 * curve.epochs)
        delays_s.append(10.0 * float((done >= target).argmax()))
    figures = result.figures()
    return {
        "loss_s": float(np.mean(areas_s)),
        "reached_90_s": float(np.mean(delays_s)),
        "jct_s": figures["jct_s"]["mean"],
        "resizes_and_restarts": int(result.ledger.starts.sum() - len(workload)),
        "ms_per_decision": 1e3 * figures["decide_cpu_s"] / figures["rounds"],
    }


def classes(jobs: int, seed: int, profile: Profile) -> Workload:
    """Guaranteed gangs of one to four GPUs that keep the cluster fairly full, and small opportunistic jobs."""
    random = np.random.default_rng([seed, 12])
    at_s = np.round(np.cumsum(random.exponential(240.0, jobs)), 3)
    specs = []
    for i in range(jobs):
        guest = i % 3 == 2
        gpus = 1 if guest else int(random.choice([1, 1, 2, 4]))
        model = str(random.choice(sorted(MODELS)))
        if model == "Recommendation":
            gpus = 1
        lasts_s = float(random.uniform(3600.0, 5 * 3600.0))
        steps = round(lasts_s * profile.rate(model, MODELS[model], "v100", gpus))
        specs.append(
            JobSpec(
                f"{'spare' if guest else 'first'}-{i}",
                at_s[i],
                gpus,
                steps=steps,
                model=model,
                batch_size=MODELS[model],
                priority=-1 if guest else 0,
            )
        )
    return Workload.of(specs, source=f"classes, seed {seed}")


def measure_classes(workload: Workload, policy: str, profile: Profile, seed: int) -> dict[str, float]:
    course = Course(len(workload))
    rules = replace(NATIVE, spread_matters=False)
    result = fairway.simulate(
        workload, cluster=ANTMAN_CLUSTER, policy=policy, profile=profile, rules=rules, seed=seed, observer=course
    )
    ledger, specs = result.ledger, workload.jobs
    first = np.array([spec.priority >= 0 for spec in specs])
    end_s, held_s, alone_s = ledger.finished_s, ledger.held_s, ledger.exclusive_s
    last_s = max(spec.submitted_s for spec in specs if spec.priority >= 0)
    total = np.array([spec.steps or 0.0 for spec in specs])
    done = np.array([min(float(course.at(i, np.array([last_s]))[0]), total[i]) for i in range(len(specs))])
    done[end_s <= last_s] = total[end_s <= last_s]
    gpu_h = done / total * alone_s * np.array([spec.gpus for spec in specs]) / 3600.0
    jct_s = end_s - np.array([spec.submitted_s for spec in specs])
    capacity_gpu_h = result.cluster.gpu_count * last_s / 3600.0
    return {
        "slowdown": float((held_s[first].sum() / alone_s[first].sum()) - 1.0),
        "worst_slowdown": float((held_s[first] / alone_s[first]).max() - 1.0),
        "first_jct_s": float(jct_s[first].mean()),
        "spare_jct_s": float(jct_s[~first].mean()),
        "spare_gpu_h": float(gpu_h[~first].sum()),
        "useful": float(gpu_h.sum() / capacity_gpu_h),
        "ms_per_decision": 1e3 * result.figures()["decide_cpu_s"] / result.figures()["rounds"],
    }


def show(title: str, rows: dict[str, dict[str, float]]) -> None:
    table = Table(title=title)
    table.add_column("policy")
    for name in next(iter(rows.values())):
        table.add_column(name, justify="right")
    for policy, figures in rows.items():
        table.add_row(policy, *(f"{value:,.3f}" if abs(value) < 100 else f"{value:,.0f}" for value in figures.values()))
    Console(width=120).print(table)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--profile", default=None, help="throughputs in Gavel's format; built-in estimates without")
    parser.add_argument("--slaq", default="slaq", help="SLAQ with other knobs")
    parser.add_argument("--antman", default="antman", help="AntMan with other knobs")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    profile = load_profile(args.profile)
    taught, classed = learners(args.jobs, args.seed), classes(args.jobs, args.seed, profile)
    interval_s = getattr(make_policy(args.slaq), "interval_s", 60.0)
    losses = {
        args.slaq: measure_losses(taught, args.slaq, args.seed),
        EvenShares.name: measure_losses(taught, EvenShares(interval_s), args.seed),
        "proportional": measure_losses(taught, "proportional", args.seed),
    }
    shared = {
        policy: measure_classes(classed, policy, profile, args.seed)
        for policy in (args.antman, "antman:share=off", "backfill")
    }
    report: dict[str, Any] = {"seed": args.seed, "jobs": args.jobs, "profile": profile.name}
    report |= {"slaq": losses, "antman": shared}
    if args.json:
        print(json.dumps(report))
    else:
        show(f"SLAQ: {args.jobs} elastic jobs on {SLAQ_CLUSTER}", losses)
        show(f"AntMan: {args.jobs} jobs, a third opportunistic, on {ANTMAN_CLUSTER} ({profile.name})", shared)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
