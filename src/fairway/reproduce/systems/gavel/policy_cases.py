"""Cases of Gavel's public policies: inputs and expected answers of one allocation each, as a JSON file.

Each case becomes a snapshot, and the policy itself is asked for its plan. The plan is judged by the case's own numbers:
what it may use, what each job gets, and the value of the policy's objective.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from fairway.core.action import Action
from fairway.core.cluster import Cluster, GpuType, Node
from fairway.core.decision import Decision
from fairway.core.errors import FairwayError
from fairway.core.event import Event
from fairway.core.job import JobSpec, Workload
from fairway.core.pairing import PairTable
from fairway.core.policy import Policy
from fairway.core.snapshot import Snapshot
from fairway.core.state import State
from fairway.policies import make_policy, policies
from fairway.policies.allox.policy import AlloX
from fairway.policies.gavel.base import SharePolicy
from fairway.policies.gavel.fair import equal_split_throughput
from fairway.policies.gavel.situation import Situation
from fairway.published.allox import published_plan
from fairway.reproduce.case import Figure, Findings, ResultTable, Setting, Yardstick
from fairway.reproduce.data import GAVEL_CASES
from fairway.simulator.run import simulate
from fairway.testing import job, snapshot_of

PREVIOUS = ("previous_allocation", "previous")
ISOLATED_SO_FAR = ("cumulative_isolated_times", "cumulative_isolated_time")
KNOWN_INPUTS = {
    *("throughputs", "pair_throughputs", "scale_factors", "cluster_spec", "priority_weights", "num_steps_remaining"),
    *("times_since_start", "SLOs_seconds_from_now", "instance_costs", "entities", *PREVIOUS, *ISOLATED_SO_FAR),
}
FAMILIES = {
    "max_min_fairness_water_filling": "water_filling",
    "max_min_fairness": "max_min_fairness",
    "finish_time_fairness": "finish_time_fairness",
    "min_total_duration": "min_makespan",
    "max_sum_throughput_normalized_by_cost": "min_cost",
    "max_sum_throughput": "max_throughput",
    "fifo": "gavel_fifo",
    "isolated": "isolated",
    "allox": "allox",
    "proportional": "proportional",
    "gandiva": "gandiva",
}
"""Gavel's names without their suffixes, the longest first, and Fairway's."""
LINEAR = {"max_min_fairness", "water_filling", "finish_time_fairness", "min_makespan", "max_throughput", "min_cost"}


class WrongAnswerError(FairwayError):
    """A plan is not what a case says."""


def _require(holds: bool | np.bool_, problem: str) -> None:
    if not holds:
        raise WrongAnswerError(problem)


def _require_near(got: float, wanted: float, rel: float, least: float = 0.0, what: str = "objective") -> None:
    if not abs(got - wanted) <= max(rel * abs(wanted), least):
        raise WrongAnswerError(f"{what}: {got}, not {wanted}")


@dataclass(frozen=True)
class PolicyCase:
    """One case, with jobs and GPU types in the order in which Fairway sees them."""

    id: str
    policy: str
    inputs: dict[str, Any]
    expected: dict[str, Any]

    @cached_property
    def family(self) -> str:
        """Fairway's name for the policy, without its knobs."""
        for theirs, ours in FAMILIES.items():
            if re.fullmatch(f"{theirs}(_perf|_packed)?(_SLOs)?", self.policy):
                return ours
        return ""

    @cached_property
    def suffixes(self) -> set[str]:
        """`perf` (aware of GPU types), `packed` (pairs), `SLOs` (deadlines)."""
        theirs = next((name for name, ours in FAMILIES.items() if ours == self.family), self.policy)
        return set(filter(None, self.policy.removeprefix(theirs).split("_")))

    @cached_property
    def aware(self) -> bool:
        return bool(self.suffixes & {"perf", "packed"}) or self.family in ("allox", "gandiva", "isolated")

    @cached_property
    def packed(self) -> bool:
        return "packed" in self.suffixes

    @cached_property
    def ids(self) -> list[str]:
        """The jobs in the order of their ids: numbers by value, other names as the file has them."""
        names = list(self.inputs.get("throughputs") or self.inputs["scale_factors"])
        return sorted(names, key=int) if all(name.isdigit() for name in names) else names

    @cached_property
    def types(self) -> list[str]:
        """The types with GPUs; V100 first, whose speeds some agnostic policies take for all."""
        has = [name for name, count in self.inputs["cluster_spec"].items() if count > 0]
        return sorted(has, key=lambda name: name != "v100")

    def by_job(self, key: str, default: float) -> np.ndarray:
        given = self.inputs.get(key) or {}
        return np.array([float(given.get(name, default)) for name in self.ids])

    @cached_property
    def capacity(self) -> np.ndarray:
        return np.array([float(self.inputs["cluster_spec"][kind]) for kind in self.types])

    @cached_property
    def gangs(self) -> np.ndarray:
        return self.by_job("scale_factors", 1.0)

    @cached_property
    def weights(self) -> np.ndarray:
        return self.by_job("priority_weights", 1.0)

    @cached_property
    def steps(self) -> np.ndarray:
        return self.by_job("num_steps_remaining", 1.0)

    @cached_property
    def waited_s(self) -> np.ndarray:
        return self.by_job("times_since_start", 0.0)

    @cached_property
    def rates(self) -> np.ndarray:
        """Steps per second alone, by job and type; 1 where the file tells no speeds at all."""
        given = self.inputs.get("throughputs") or {}
        return np.array([[float(given[m].get(j, 0.0)) if m in given else 1.0 for j in self.types] for m in self.ids])

    @cached_property
    def seen_rates(self) -> np.ndarray:
        """The speeds that the policy reckons with."""
        if self.aware or self.family == "max_throughput":
            return self.rates
        usable = self.rates > 0
        if self.family in ("min_makespan", "finish_time_fairness"):
            return np.where(usable, self.rates[:, :1], 0.0)
        return usable.astype(float)

    @cached_property
    def costs(self) -> np.ndarray:
        given = self.inputs.get("instance_costs") or {}
        return np.array([float(given.get(kind, 1.0)) for kind in self.types])

    @cached_property
    def pairs(self) -> dict[tuple[int, int], np.ndarray]:
        """Steps per second of the two jobs of a pair, by type."""
        row = {name: at for at, name in enumerate(self.ids)}
        found = {}
        for key, by_type in (self.inputs.get("pair_throughputs") or {}).items():
            a, b = (row[name.strip()] for name in str(key).strip("()").split(","))
            both = np.array([by_type.get(kind, (0.0, 0.0)) for kind in self.types], dtype=float)
            found[min(a, b), max(a, b)] = both if a < b else both[:, ::-1]
        return found

    @property
    def wanted(self) -> float | None:
        """The value of the objective."""
        best = self.expected.get("independent_objective")
        return self.expected.get("objective") if best is None else best

    @property
    def entities(self) -> dict[str, Any]:
        return self.inputs.get("entities") or {}


@dataclass(frozen=True)
class CasePlan:
    """A plan in the case's order: time alone by job and type, time of pairs by type."""

    x: np.ndarray
    pairs: dict[tuple[int, int], np.ndarray]

    def time(self) -> np.ndarray:
        """Time by job and type, alone or not."""
        total = self.x.copy()
        for (a, b), share in self.pairs.items():
            total[a] += share
            total[b] += share
        return total

    def throughput(self, case: PolicyCase, rates: np.ndarray) -> np.ndarray:
        """Steps per second of each job, with these speeds alone."""
        total = (rates * self.x).sum(axis=1)
        for (a, b), share in self.pairs.items():
            total[[a, b]] += share @ case.pairs[a, b]
        return np.asarray(total)


def policy_case(data: dict[str, Any]) -> PolicyCase:
    """A case of the file."""
    unknown = set(data["inputs"]) - KNOWN_INPUTS
    if unknown:
        raise WrongAnswerError(f"case {data['id']} has inputs that nothing is known of: {sorted(unknown)}")
    return PolicyCase(data["id"], data["policy"], data["inputs"], data["expected"])


def _spec(case: PolicyCase, row: int, now_s: float) -> JobSpec:
    name, slo = case.ids[row], (case.inputs.get("SLOs_seconds_from_now") or {}).get(case.ids[row])
    owner = next((f"e{n}" for n, about in enumerate(case.entities.values()) if name in about["jobs"]), "")
    # First come, first served goes by the order of the ids, whatever the clock says.
    waited_s = 0.0 if case.family == "gavel_fifo" else float(case.waited_s[row])
    return job(
        name,
        gpus=int(case.gangs[row]),
        steps=float(case.steps[row]),
        model="case",
        submitted_s=now_s - waited_s,
        weight=float(case.weights[row]),
        deadline_s=None if slo is None or math.isinf(slo) else now_s + float(slo),
        user=owner,
    )


def _cluster(case: PolicyCase) -> Cluster:
    counts = zip(case.types, case.capacity.tolist(), strict=True)
    nodes = [Node(f"n-{kind}", kind, int(count)) for kind, count in counts]
    prices = zip(case.types, case.costs.tolist(), strict=True)
    return Cluster.of(nodes, [GpuType(kind, 16 << 30, price, 1.0) for kind, price in prices])


def _snapshot(case: PolicyCase, policy: Policy) -> Snapshot:
    machines = _cluster(case)
    now_s = float(case.waited_s.max(initial=0.0))
    specs = [_spec(case, row, now_s) for row in range(len(case.ids))]
    order = sorted(range(len(specs)), key=lambda row: specs[row].submitted_s)
    number = {row: at for at, row in enumerate(order)}
    return snapshot_of(
        specs,
        machines,
        now_s=now_s,
        knows=policy.knows,
        speeds={spec.id: tuple(case.rates[row]) for row, spec in enumerate(specs)},
        pairing=_pairing(case, number),
    )


def _pairing(case: PolicyCase, number: dict[int, int]) -> PairTable:
    """Every job is of a kind of its own; what two of them keep is their speed together over that alone."""
    table = {}
    alone = np.where(case.rates > 0, case.rates, np.inf)
    for (a, b), both in case.pairs.items():
        keeps = [(float(x), float(y)) for x, y in zip(both[:, 0] / alone[a], both[:, 1] / alone[b], strict=True)]
        first, second = number[a], number[b]
        table[min(first, second), max(first, second)] = tuple(keep if first < second else keep[::-1] for keep in keeps)
    return PairTable({at: at for at in number.values()}, table)


def _policy(case: PolicyCase, published: bool) -> Policy:
    """Fairway's counterpart of the case's policy."""
    knobs = [] if case.aware or case.family in ("isolated", "max_throughput") else ["heterogeneity=agnostic"]
    knobs += ["packing=on"] if case.packed else []
    knobs += ["published=on"] if published else []
    name = case.family
    if name == "allox":
        knobs = ["published=on", f"alpha={case.expected.get('alpha', 1.0)}"]
    elif name in ("min_cost", "max_throughput") and "SLOs" in case.suffixes:
        name = "min_cost_slo"
    elif name == "water_filling" and case.entities:
        name = "hierarchical"
        inside = list(enumerate(case.entities.values()))
        knobs.append("levels=user")
        knobs.append("weights=" + "/".join(f"e{n}:{about['weight']}" for n, about in inside))
        queues = [f"e{n}" for n, about in inside if str(about.get("policy", "")).lower() == "fifo"]
        knobs += ["fifo=" + "/".join(queues)] if queues else []
    if name not in policies():
        raise WrongAnswerError(f"there is no policy {name!r}, which stands for {case.policy!r}")
    return make_policy(f"{name}:{','.join(knobs)}" if knobs else name)


def _previous(case: PolicyCase, snapshot: Snapshot) -> np.ndarray:
    """What an earlier call gave to each row; 0 where nothing is known of one."""
    given: dict[str, Any] = next((case.inputs[key] for key in PREVIOUS if key in case.inputs), {})
    ids = [snapshot.job(row).id for row in range(len(snapshot))]
    return np.array([[float(given.get(name, {}).get(kind, 0.0)) for kind in case.types] for name in ids])


def _notes(case: PolicyCase, snapshot: Snapshot) -> dict[str, Any]:
    """Isolated times of earlier calls, as finish-time fairness notes them."""
    given: dict[str, Any] = next((case.inputs[key] for key in ISOLATED_SO_FAR if key in case.inputs), {})
    number = {snapshot.job(row).id: int(snapshot.jobs[row]) for row in range(len(snapshot))}
    steps = dict(zip(case.ids, case.steps.tolist(), strict=True))
    return {"isolated": {str(number[name]): [float(given[name]), steps[name], 1.0] for name in given}}


def _plan(case: PolicyCase, policy: Policy) -> CasePlan:
    """The policy's plan for a case, in the case's order of jobs."""
    snapshot = _snapshot(case, policy)
    types = len(case.types)
    situation = Situation(snapshot, _previous(case, snapshot), _notes(case, snapshot))
    if isinstance(policy, AlloX):
        shares = published_plan(situation, policy.alpha)
    else:
        assert isinstance(policy, SharePolicy)
        shares = policy.plan(situation)
    row = {name: at for at, name in enumerate(case.ids)}
    at = [row[snapshot.job(here).id] for here in range(len(snapshot))]
    ours = np.zeros((len(row), types))
    ours[at] = shares.x
    together: dict[tuple[int, int], np.ndarray] = {}
    for (a, b), share in zip(shares.pairs.tolist(), shares.pair_x, strict=True):
        key = (min(at[a], at[b]), max(at[a], at[b]))
        together[key] = together.get(key, 0.0) + share
    return CasePlan(ours, together)


def _check_feasible(case: PolicyCase, plan: CasePlan) -> None:
    used = case.gangs @ plan.x
    for (a, b), share in plan.pairs.items():
        _require(case.gangs[a] == case.gangs[b], "two gangs of unequal size share GPUs")
        _require((share >= -1e-9).all(), "a pair has less than no time")
        used = used + case.gangs[a] * share
    _require((plan.x >= -1e-9).all(), "a job has less than no time")
    _require((used <= case.capacity * (1 + 1e-6)).all(), f"GPUs in use {used} of {case.capacity}")
    _require((plan.time().sum(axis=1) <= 1 + 1e-6).all(), "a job runs for more than all of the time")


def _value(case: PolicyCase, plan: CasePlan) -> float:
    """The policy's objective at a plan, by the definitions of the case file."""
    rates = case.seen_rates
    got = plan.throughput(case, rates)
    mean = rates @ (case.capacity / case.capacity.sum())
    if case.family == "max_min_fairness":
        normal = mean if case.aware else np.ones(len(mean))
        return float((case.gangs * got / (case.weights * normal)).min())
    if case.family == "min_makespan":
        return float((case.steps / got).max())
    if case.family == "finish_time_fairness":
        split = case.capacity / (len(case.ids) * case.gangs[:, None])
        split /= np.maximum(split.sum(axis=1, keepdims=True), 1.0)
        given: dict[str, Any] = next((case.inputs[key] for key in ISOLATED_SO_FAR if key in case.inputs), {})
        so_far_s = np.array([float(given.get(name, 0.0)) for name in case.ids])
        isolated_s = so_far_s + case.steps / (rates * split).sum(axis=1)
        return float(((case.waited_s + case.steps / got) / isolated_s).max())
    costs = case.costs if case.family == "min_cost" else np.ones(len(case.types))
    total = float((rates * plan.x / costs).sum())
    return total + sum(float((share / costs) @ case.pairs[pair].sum(axis=1)) for pair, share in plan.pairs.items())


def _best_sum(case: PolicyCase, floors: np.ndarray) -> float:
    """The largest sum above some throughputs, by scipy; negative infinity where they cannot all be had."""
    from scipy.optimize import linprog

    jobs, types = case.rates.shape
    columns: list[tuple[tuple[int, ...], np.ndarray]] = [((row,), case.rates[row][:, None]) for row in range(jobs)]
    columns += [((a, b), both) for (a, b), both in case.pairs.items() if case.packed and case.gangs[a] == case.gangs[b]]
    costs = case.costs if case.family == "min_cost" else np.ones(types)
    gain = np.concatenate([both.sum(axis=1) / costs for _, both in columns])
    rows = np.zeros((jobs + types + jobs, len(gain)))
    for at, (members, both) in enumerate(columns):
        here = slice(at * types, (at + 1) * types)
        rows[jobs : jobs + types, here] = np.eye(types) * case.gangs[members[0]]
        for side, row in enumerate(members):
            rows[row, here] = 1.0
            rows[jobs + types + row, here] = -both[:, side]
    limits = np.concatenate([np.ones(jobs), case.capacity, -floors])
    found = linprog(-gain, A_ub=rows, b_ub=limits)
    return -float(found.fun) if found.success else -math.inf


def _check_sum(case: PolicyCase, plan: CasePlan, wanted: float) -> None:
    """The best value, with all deadlines where they can all be kept.

    Gavel gives up all of them where they cannot; Fairway as few as it can, so its plan must be the best one among those
    that keep the deadlines which it keeps.
    """
    slos = case.inputs.get("SLOs_seconds_from_now") or {}
    needs = np.array([steps / slos.get(name, math.inf) for name, steps in zip(case.ids, case.steps, strict=True)])
    floors = needs if "SLOs" in case.suffixes else np.zeros(len(needs))
    if math.isfinite(_best_sum(case, floors)):
        _require((plan.throughput(case, case.rates) >= floors * (1 - 1e-4)).all(), "a deadline is given up")
        _require_near(_value(case, plan), wanted, 1e-3)
        return
    kept = np.where(plan.throughput(case, case.rates) >= floors * (1 - 1e-4), floors, 0.0)
    _require_near(_value(case, plan), _best_sum(case, kept), 1e-3)
    _require(_value(case, plan) <= wanted * (1 + 1e-3), f"the sum is above the best one, {wanted}")


def _check_value(case: PolicyCase, plan: CasePlan, published: bool) -> None:
    expected, wanted = case.expected, case.wanted
    if wanted is None:
        return
    if case.family in ("max_throughput", "min_cost"):
        _check_sum(case, plan, float(wanted))
        return
    exact = case.family != "min_makespan"
    rel = 1e-3 if exact else expected.get("tolerance_rel", 0.06) if published else 0.015
    _require_near(_value(case, plan), float(wanted), rel)


def _check_answers(case: PolicyCase, plan: CasePlan) -> None:
    """Allocations where there is only one, throughputs where they are given and there is only one set of them."""
    expected = case.expected
    unique = expected.get("allocation_is_unique")
    filled = case.family == "water_filling"
    if unique or (unique is None and case.family == "allox"):
        wanted = expected.get("allocation") or {}
        for row, name in enumerate(case.ids):
            if name in wanted:
                share = [float(wanted[name].get(kind, 0.0)) for kind in case.types]
                _require(np.allclose(plan.x[row], share, rtol=1e-7, atol=1e-3), f"job {name}: {plan.x[row]} of {share}")
    if unique or filled:
        got = dict(zip(case.ids, plan.throughput(case, case.rates).tolist(), strict=True))
        for name, wanted in (expected.get("effective_throughputs") or {}).items():
            _require_near(got[name], wanted, 2e-3, 2e-3, f"steps per second of job {name}")
    if filled:
        mean = case.seen_rates @ (case.capacity / case.capacity.sum())
        level = plan.throughput(case, case.seen_rates) / mean
        for key, scale in (
            ("normalized_effective_throughputs", np.ones(len(level))),
            ("independent_weighted_levels", case.gangs / case.weights),
        ):
            for name, wanted in (expected.get(key) or {}).items():
                row = case.ids.index(name)
                _require_near(float(level[row] * scale[row]), wanted, 2e-3, 2e-3, f"{key} of job {name}")


def _check_first_come(case: PolicyCase, plan: CasePlan) -> None:
    """The agnostic form may choose other types; who runs is the same."""
    wanted = case.expected.get("allocation") or {}
    if wanted and not case.packed:
        runs = {name for name, row in zip(case.ids, plan.time().sum(axis=1), strict=True) if row > 0.5}
        _require(runs == {name for name in case.ids if sum(wanted.get(name, {}).values()) > 0.5}, f"{runs} run")


def _check_proportional(case: PolicyCase) -> None:
    """Not a plan but what max-min fairness measures throughputs against: a job's time, spread as the GPUs are."""
    spread = equal_split_throughput(np.eye(len(case.types)), case.capacity)
    for name in case.ids:
        wanted = [case.expected["allocation"][name][kind] for kind in case.types]
        _require(np.allclose(spread, wanted, rtol=1e-7, atol=1e-3), f"job {name}: {spread} of {wanted}")


class _Sharing:
    """For how long each two jobs shared GPUs in a run: an observer of rounds."""

    def __init__(self) -> None:
        self.seconds: dict[tuple[int, int], float] = {}
        self.now: list[tuple[int, int]] = []
        self.since_s = 0.0

    def after_events(self, state: State, events: Sequence[Event]) -> None:
        """Nothing: whoever shares is known from decisions."""

    def after_round(self, snapshot: Snapshot, decision: Decision, actions: Sequence[Action]) -> None:
        for pair in self.now:
            self.seconds[pair] = self.seconds.get(pair, 0.0) + snapshot.now_s - self.since_s
        rows = {row: int(snapshot.job(row).id) for row in range(len(snapshot))}
        ids = [sorted((rows[guest], rows[host])) for guest, host in (decision.partners or {}).items()]
        self.now, self.since_s = [(a, b) for a, b in ids], snapshot.now_s


def _profile_of(case: PolicyCase, path: Path) -> str:
    """The case's speeds as a file of throughputs, where each job has a model of its own."""

    def name(row: int) -> str:
        return f"('J{row} (batch size 1)', {int(case.gangs[row])})"

    table: dict[str, Any] = {}
    for at, kind in enumerate(case.types):
        table[kind] = {name(row): {"null": case.rates[row, at]} for row in range(len(case.ids))}
        for (a, b), both in case.pairs.items():
            table[kind][name(a)][name(b)] = both[at].tolist()
            table[kind][name(b)][name(a)] = both[at, ::-1].tolist()
    path.write_text(json.dumps(table))
    return str(path)


def _check_gandiva(case: PolicyCase) -> None:
    """Gavel's stand-in for Gandiva draws random pairs; Fairway's tries them out, so it is asked by a simulation.

    Nobody shares while there are GPUs for all. Where there are not, pairs are tried, those that make fewer steps than
    turns are taken apart, and a lone pair that makes more stays together.
    """
    machines, watch = _cluster(case), _Sharing()
    most_s = 20_000.0
    specs = [
        JobSpec(str(row), 0.0, int(case.gangs[row]), steps=most_s * speeds.max(), model=f"J{row}", batch_size=1)
        for row, speeds in enumerate(case.rates)
    ]
    with TemporaryDirectory() as folder:
        profile = _profile_of(case, Path(folder) / "throughputs.json")
        result = simulate(Workload.of(specs), cluster=machines, policy="gandiva", profile=profile, observer=watch)
    if case.gangs.sum() <= case.capacity.sum():
        _require(not watch.seconds, "jobs share though there are GPUs for all")
        return
    _require(bool(watch.seconds), "no pair was tried")
    alone = np.where(case.rates > 0, case.rates, np.inf)
    worth = {
        (a, b): float((both / np.column_stack([alone[a], alone[b]])).sum(axis=1).max())
        for (a, b), both in case.pairs.items()
    }
    lasted_s = result.makespan_s or 0.0
    for pair, seconds in watch.seconds.items():
        if worth.get(pair, 0.0) < 1.0:
            _require(seconds < 0.2 * lasted_s, f"the bad pair {pair} stays together")
        elif len(case.ids) == 2:
            _require(seconds > 0.9 * lasted_s, f"the good pair {pair} is taken apart")


def read_cases(path: Path) -> list[dict[str, Any]]:
    """The cases of a file."""
    data = json.loads(path.read_text(encoding="utf-8"))
    cases: list[dict[str, Any]] = data["cases"] if isinstance(data, dict) else data
    return cases


def has_published_form(case: PolicyCase) -> bool:
    """Whether the published form of the policy solves the same program in another way."""
    return case.family in LINEAR


def check_answer(case: PolicyCase, *, published: bool) -> float | None:
    """Ask the policy, in its published form or not: the value of its objective, if the case has one.

    Raises `WrongAnswerError` if the answer is not what the case says.
    """
    if not case.family:
        raise WrongAnswerError(f"nothing stands for {case.policy!r}")
    if case.family == "proportional":
        _check_proportional(case)
        return None
    if case.family == "gandiva":
        _check_gandiva(case)
        return None
    plan = _plan(case, _policy(case, published))
    _check_feasible(case, plan)
    _check_value(case, plan, published)
    _check_answers(case, plan)
    if case.family == "gavel_fifo":
        _check_first_come(case, plan)
    return _value(case, plan) if case.wanted is not None else None


def policy_cases(setting: Setting) -> Findings:
    """All cases; those with a program also in their published form."""
    rows, right, asked = [], 0, 0
    for data in read_cases(setting.file(GAVEL_CASES)):
        case = policy_case(data)
        for published in (False, True) if has_published_form(case) else (False,):
            asked += 1
            try:
                value, verdict = check_answer(case, published=published), "yes"
                right += 1
            except WrongAnswerError as problem:
                value, verdict = None, str(problem)
            name = f"{case.id}, published form" if published else case.id
            theirs, ours = (f"{number:,.4f}" if number is not None else "" for number in (case.wanted, value))
            rows.append((name, f"`{case.policy}`", theirs, ours, verdict))
    what = "answers of public policies: limits, objective, allocation where there is only one"
    figure = Figure(what, asked, right, Yardstick.equal(0), decimals=0, headline=True)
    columns = ("case", "policy there", "objective there", "here", "as the case says")
    return Findings((figure,), {"cases": ResultTable(columns, tuple(rows), 2)})
