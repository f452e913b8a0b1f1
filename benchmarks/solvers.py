"""What one plan costs: the programs of the Gavel family, matching and auctions, in CPU seconds.

    python benchmarks/solvers.py [--profile FILE] [--repeat N] [--only TEXT] [--json FILE] [--against SRC]

A plan is made by the policy itself from a snapshot, building of matrices included. N single-GPU jobs share N/4 GPUs of
each of three types (as in the scaling study of Gavel's artifact). The jobs are drawn from the job types of a profile
(`types`), and again with speeds that are all different (`different`), which takes away what jobs of equal speeds save.
Beside the largest programs stands HiGHS on the same one, built and solved from scratch. The last columns are the
largest breach of a limit and the largest duality gap of all the programs of a plan, as their proofs say.

`--against SRC` takes turns with the code of another checkout (its folder `src`) and prints both sides: each case runs
in processes of its own, three times on each side, and the least of the medians counts.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import fairway
from fairway import JobSpec
from fairway.core.pairing import PairTable
from fairway.core.snapshot import Snapshot
from fairway.models.names import ProfileKey
from fairway.models.profile import load_profile
from fairway.policies import make_policy
from fairway.policies.gavel.fair import per_fair_share
from fairway.policies.gavel.situation import Situation
from fairway.policies.gavel.throughputs import Throughputs
from fairway.solvers import interior, vertex
from fairway.testing import snapshot_of

GPU_TYPES = ("v100", "p100", "k80")
MODELS = {
    "ResNet-18": (16, 32, 64, 128, 256),
    "ResNet-50": (16, 32, 64),
    "Transformer": (16, 32, 64, 128),
    "LM": (5, 10, 20, 40, 80),
    "Recommendation": (512, 1024, 2048, 4096, 8192),
}


WORSTS = ("breach", "gap")


class Case(NamedTuple):
    """A row of the table: what is planned, for how many jobs, the limit in CPU seconds."""

    name: str
    policy: str
    jobs: int
    gpus_each: int
    limit_s: float
    changed: bool = False


CASES = (
    Case("max-min, cold", "max_min_fairness", 1024, 256, 0.030),
    Case("max-min, one job has come", "max_min_fairness", 1024, 256, 0.010, changed=True),
    Case("max-min", "max_min_fairness", 10_000, 2500, 1.0),
    Case("finish-time fairness", "finish_time_fairness", 512, 128, 0.25),
    Case("makespan", "min_makespan", 1024, 256, 0.05),
    Case("max-min in pairs", "max_min_fairness:packing=on", 256, 64, 0.7),
    Case("max-min in pairs", "max_min_fairness:packing=on", 1000, 250, 10.0),
    Case("hierarchical, 5 entities", "hierarchical", 256, 64, 0.1),
    Case("AlloX", "allox", 128, 32, 0.08),
    Case("AlloX, 100 GPUs", "allox", 1000, 33, 1.0),
    Case("Themis", "themis", 500, 32, 1.0),
)


def specs_of(jobs: int, random: np.random.Generator) -> list[JobSpec]:
    """Jobs of models and batch sizes as in Gavel's table, of five users, lengths of a few minutes to days."""
    kinds = [(model, batch) for model, sizes in MODELS.items() for batch in sizes]
    chosen = random.integers(len(kinds), size=jobs)
    steps = 10 ** random.uniform(3.5, 6.0, jobs)
    return [
        JobSpec(
            f"job-{number}",
            float(number) / 100,
            model=kinds[kind][0],
            batch_size=kinds[kind][1],
            steps=float(steps[number]),
            user=f"user-{number % 5}",
        )
        for number, kind in enumerate(chosen)
    ]


def pairs_of(specs: list[JobSpec], profile: Any) -> PairTable:
    """What the profile says of pairs of these jobs."""
    keys = sorted({(spec.model, spec.batch_size) for spec in specs})
    code = {key: number for number, key in enumerate(keys)}
    factors = {}
    for b, (model_b, batch_b) in enumerate(keys):
        for a, (model_a, batch_a) in enumerate(keys[: b + 1]):
            by_type = []
            for gpu in GPU_TYPES:
                pair = profile.pair_rates(ProfileKey(model_a, batch_a, 1), ProfileKey(model_b, batch_b, 1), gpu)
                alone = profile.rate(model_a, batch_a, gpu, 1), profile.rate(model_b, batch_b, gpu, 1)
                fits = pair is not None and min(alone) > 0
                by_type.append((pair[0] / alone[0], pair[1] / alone[1]) if fits else (0.0, 0.0))
            factors[(a, b)] = tuple(by_type)
    return PairTable({number: code[(s.model, s.batch_size)] for number, s in enumerate(specs)}, factors)


def snapshot_for(case: Case, profile: Any, different: bool, seed: int, jobs: int) -> Snapshot:
    """A snapshot in which the jobs of a case wait."""
    random = np.random.default_rng(seed)
    specs = specs_of(case.jobs + 1, random)[:jobs]
    noise = random.uniform(0.7, 1.4, (case.jobs + 1, len(GPU_TYPES))) if different else None
    speeds = {}
    for number, spec in enumerate(specs):
        rates = np.array([profile.rate(spec.model, spec.batch_size, gpu, 1) for gpu in GPU_TYPES])
        speeds[spec.id] = tuple((rates if noise is None else rates * noise[number]).tolist())
    machines = ",".join(f"{gpu}:{case.gpus_each}x1" for gpu in GPU_TYPES)
    knows = make_policy(case.policy).knows
    pairing = pairs_of(specs, profile) if "pairs" in knows else PairTable({}, {})
    now_s = float(case.jobs + 1) / 100
    return snapshot_of(specs, machines, knows=knows, speeds=speeds, now_s=now_s, pairing=pairing)


def timed_s(work: Callable[[], Any], repeat: int) -> float:
    """The median of the CPU seconds that something takes, after once for nothing."""
    work()
    taken = []
    for _ in range(repeat):
        before = time.process_time()
        work()
        taken.append(time.process_time() - before)
    return statistics.median(taken)


def plan_s(case: Case, profile: Any, different: bool, repeat: int) -> float:
    """CPU seconds of one plan; of one whole decision for policies that do not plan shares."""
    policy: Any = make_policy(case.policy)
    snapshot = snapshot_for(case, profile, different, 0, case.jobs)
    if not hasattr(policy, "plan"):
        return timed_s(lambda: policy.decide(snapshot), repeat)
    none = np.zeros((case.jobs, len(GPU_TYPES)))
    if not case.changed:
        return timed_s(lambda: policy.plan(Situation(snapshot, none)), repeat)
    before = policy.plan(Situation(snapshot, none))
    after = snapshot_for(case, profile, different, 0, case.jobs + 1)
    previous = np.vstack([before.x, np.zeros(len(GPU_TYPES))])
    return timed_s(lambda: policy.plan(Situation(after, previous, before.notes)), repeat)


class Proofs:
    """The proofs of all programs that are solved while it listens; code without proofs gives none."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        solve = Throughputs._solve

        def listening(throughputs: Throughputs, *given: Any, **named: Any) -> Any:
            outcome = solve(throughputs, *given, **named)
            self.seen.append(getattr(outcome, "proof", None))
            return outcome

        Throughputs._solve = listening  # type: ignore[method-assign]
        for module in (interior, vertex):
            if hasattr(module, "proof_of"):
                module.proof_of = self._recording(module.proof_of)

    def _recording(self, prove: Callable[..., Any]) -> Callable[..., Any]:
        def proven(*given: Any) -> Any:
            self.seen.append(prove(*given))
            return self.seen[-1]

        return proven

    def worst(self) -> dict[str, float]:
        """The largest breach and gap since the last time."""
        seen, self.seen = [proof for proof in self.seen if proof is not None], []
        return {name: max(getattr(proof, name) for proof in seen) for name in WORSTS} if seen else {}


def both_sides(case: Case, kind: str, arguments: argparse.Namespace) -> tuple[float, float]:
    """CPU seconds of one plan by this code and by the other, in turns."""
    least = [math.inf, math.inf]
    command = [sys.executable, __file__, "--repeat", str(arguments.repeat), "--case", case.name, str(case.jobs), kind]
    command += ["--profile", arguments.profile] if arguments.profile else []
    for _ in range(3):
        for side, source in enumerate((Path(fairway.__file__).parents[1], Path(arguments.against).resolve())):
            environment = {**os.environ, "PYTHONPATH": str(source)}
            answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            least[side] = min(least[side], float(answer.stdout))
    return least[0], least[1]


def compare(cases: list[Case], arguments: argparse.Namespace) -> int:
    """Print both sides and their ratio."""
    table = Table("plan", "jobs", "speeds", "here", "there", "ratio", title="CPU milliseconds of one plan")
    ratios = []
    for case in track(cases, "plans", console=Console(stderr=True), disable=not sys.stderr.isatty()):
        for kind in ("types", "different"):
            here_s, there_s = both_sides(case, kind, arguments)
            ratios.append(here_s / there_s)
            figures = (f"{1e3 * here_s:.1f}", f"{1e3 * there_s:.1f}", f"{ratios[-1]:.2f}")
            table.add_row(case.name, str(case.jobs), kind, *figures)
    Console().print(table)
    print(f"geometric mean of the ratios {statistics.geometric_mean(ratios):.3f}")
    return 0


def highs_s(case: Case, profile: Any, different: bool) -> float | None:
    """CPU seconds of HiGHS for the same level, on the program written out."""
    if case.policy not in ("max_min_fairness", "min_makespan") or case.changed or case.jobs > 2000:
        return None
    snapshot = snapshot_for(case, profile, different, 0, case.jobs)
    situation = Situation(snapshot, np.zeros((case.jobs, len(GPU_TYPES))))
    throughputs = Throughputs.alone(situation.rates, situation.gangs, situation.capacity)
    per_unit = per_fair_share(throughputs, situation.weights)
    weights = np.ones(case.jobs)
    if case.policy == "min_makespan":
        per_unit, weights = np.ones(case.jobs), np.asarray(snapshot.oracle.work_left)
    return timed_s(lambda: _highs_level(situation.rates * per_unit[:, None], weights, situation.capacity), 1)


def _highs_level(rows: Any, weights: Any, capacity: Any) -> float:
    from scipy import sparse
    from scipy.optimize import linprog

    jobs, types = rows.shape
    at, kind = np.repeat(np.arange(jobs), types), np.tile(np.arange(types), jobs)
    column = np.arange(jobs * types)
    ones = np.ones(jobs * types)
    level = sparse.csr_matrix(weights[:, None])
    blocks = [
        [sparse.csr_matrix((ones, (at, column))), None],
        [sparse.csr_matrix((ones, (kind, column))), None],
        [sparse.csr_matrix((-rows.ravel(), (at, column))), level],
    ]
    bounds = np.concatenate([np.ones(jobs), capacity, np.zeros(jobs)])
    cost = np.zeros(jobs * types + 1)
    cost[-1] = -1.0
    return float(-linprog(cost, sparse.block_array(blocks, format="csr"), bounds, method="highs").fun)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", help="a throughput file in Gavel's format; else the built-in estimates")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--only", default="", help="cases whose name or policy contains this")
    parser.add_argument("--json", help="write the figures to this file")
    parser.add_argument("--against", help="the folder src of another checkout, to take turns with")
    parser.add_argument("--case", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    profile = load_profile(arguments.profile)
    cases = [case for case in CASES if arguments.only.lower() in f"{case.name} {case.policy}".lower()]
    if arguments.case:
        name, jobs, kind = arguments.case
        case = next(case for case in CASES if (case.name, str(case.jobs)) == (name, jobs))
        print(plan_s(case, profile, kind == "different", arguments.repeat))
        return 0
    if arguments.against:
        return compare(cases, arguments)
    rows, proofs = [], Proofs()
    for case in track(cases, "plans", console=Console(stderr=True), disable=not sys.stderr.isatty()):
        row: dict[str, Any] = {"case": case.name, "jobs": case.jobs, "limit_s": case.limit_s}
        for name, different in (("types", False), ("different", True)):
            row[f"{name}_s"] = plan_s(case, profile, different, arguments.repeat)
            row.update({f"{name}_{what}": value for what, value in proofs.worst().items()})
            row[f"highs_{name}_s"] = highs_s(case, profile, different)
            proofs.worst()
        rows.append(row)
    table = Table(title="CPU milliseconds of one plan")
    for heading in ("plan", "jobs", "types", "different", "limit", "HiGHS, types", "HiGHS, different", "breach", "gap"):
        table.add_column(heading, justify="left" if heading == "plan" else "right")
    for row in rows:
        keys = ("types_s", "different_s", "limit_s", "highs_types_s", "highs_different_s")
        figures = ["" if row[k] is None else f"{1e3 * row[k]:.1f}" for k in keys]
        proven = [
            [row[f"{kind}_{what}"] for kind in ("types", "different") if f"{kind}_{what}" in row] for what in WORSTS
        ]
        table.add_row(row["case"], str(row["jobs"]), *figures, *(f"{max(each):.0e}" if each else "" for each in proven))
    Console().print(table)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
