"""Gavel by hand: plans of three jobs on two and three GPU types, pairs, entities, and shares as rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fairway.core.action import Action
from fairway.core.arrays import Floats
from fairway.core.cluster import Cluster, GpuType, Node
from fairway.core.decision import Decision
from fairway.core.event import Event
from fairway.core.job import JobSpec, Workload
from fairway.core.pairing import PairTable
from fairway.core.snapshot import Snapshot
from fairway.core.state import State
from fairway.policies import make_policy
from fairway.policies.gavel.base import SharePolicy
from fairway.policies.gavel.shares import ROUND_S
from fairway.policies.gavel.situation import Shares, Situation
from fairway.reproduce.case import Figure, Findings, ResultTable, Setting, Yardstick
from fairway.simulator.run import simulate
from fairway.testing import job, snapshot_of

TWO_TYPES = ((40.0, 10.0), (12.0, 4.0), (100.0, 50.0))
THREE_TYPES = ((40.0, 20.0, 10.0), (12.0, 8.0, 4.0), (100.0, 75.0, 50.0))
STEPS = (4000.0, 1200.0, 10000.0)
ENTITIES = "hierarchical:levels=user,weights=e:1/f:2,fifo=f"
FILLED = {
    1: (1 / 6, 1 / 6, 2 / 3, 0.0),
    2: (1 / 3, 1 / 3, 1.0, 1 / 3),
    3: (0.5, 0.5, 1.0, 1.0),
    4: (1.0, 1.0, 1.0, 1.0),
}
"""Fractions of time of four jobs by GPUs: two of an entity of weight 1, two in order of one of weight 2."""
FRACTIONS = ((0.6, 0.4, 0.0), (0.2, 0.6, 0.2), (0.2, 0.0, 0.8))
ROUNDS = 15


def plan_of(
    policy: str,
    rates: Sequence[Sequence[float]],
    gpus: Sequence[int] | None = None,
    *,
    steps: Sequence[float] | None = None,
    together: Sequence[float] | None = None,
    users: str = "",
) -> Shares:
    """A policy's plan for single-GPU jobs, on one GPU of each type; `together` is what two jobs keep of their speed."""
    counts, work, owners = gpus or [1] * len(rates[0]), steps or [1000.0] * len(rates), users or "u" * len(rates)
    chosen = make_policy(policy)
    assert isinstance(chosen, SharePolicy)
    snapshot = snapshot_of(
        [job(f"j{row}", steps=work[row], model="any", user=owners[row]) for row in range(len(rates))],
        _cluster(counts),
        knows=chosen.knows,
        speeds={f"j{row}": tuple(speeds) for row, speeds in enumerate(rates)},
        pairing=PairTable({0: 0, 1: 1}, {(0, 1): ((together[0], together[1]),)} if together else {}),
    )
    return chosen.plan(Situation(snapshot, np.zeros((len(rates), len(counts)))))


def _cluster(counts: Sequence[int]) -> Cluster:
    """Types that differ in nothing but their names."""
    kinds = [GpuType(f"type-{kind}", 16 << 30, 1.0, 1.0) for kind in range(len(counts))]
    return Cluster.of([Node(f"node-{kind}", f"type-{kind}", count) for kind, count in enumerate(counts)], kinds)


def _steps_per_s(rates: Sequence[Sequence[float]], shares: Shares) -> Floats:
    return np.asarray((np.array(rates) * shares.x).sum(axis=1))


def _over_equal_split(rates: Sequence[Sequence[float]]) -> float:
    got = _steps_per_s(rates, plan_of("max_min_fairness", rates))
    return float((got / (np.array(rates).sum(axis=1) / 3)).min())


def _level(together: tuple[float, float]) -> float:
    """The lower level of two jobs of one step a second that share a GPU."""
    shares = plan_of("max_min_fairness:packing=on", ((1.0,), (1.0,)), together=together)
    return float((shares.x[:, 0] + shares.pair_x.sum() * np.array(together)).min())


def examples(_: Setting) -> Findings:
    """What can be solved on paper."""
    exact, makespan = Yardstick.equal(4), _steps_per_s(TWO_TYPES, plan_of("min_makespan", TWO_TYPES, steps=STEPS))
    plan = plan_of("max_min_fairness", TWO_TYPES)
    got = _steps_per_s(TWO_TYPES, plan)
    made = {
        "max-min of three jobs on two types, over an equal split": (12 / 11, _over_equal_split(TWO_TYPES)),
        "the same on three types": (60 / 59, _over_equal_split(THREE_TYPES)),
        "all can end after, s": (200.0, float((np.array(STEPS) / makespan).max())),
        "largest sum of steps a second": (
            110.0,
            float(_steps_per_s(TWO_TYPES, plan_of("max_throughput", TWO_TYPES)).sum()),
        ),
        "level of a pair that makes 0.6 each": (0.6, _level((0.6, 0.6))),
        "level of a pair that makes 0.9 and 0.2": (9 / 17, _level((0.9, 0.2))),
    }
    figures = [
        Figure(what, wanted, here, exact, decimals=4, headline=at < 4)
        for at, (what, (wanted, here)) in enumerate(made.items())
    ]
    figures += [_filled(), _rounds()]
    rows = [
        (f"job {row + 1}", *(f"{part:.4f}" for part in plan.x[row]), f"{got[row]:.2f}") for row in range(len(TWO_TYPES))
    ]
    return Findings(tuple(figures), {"plan": ResultTable(("", "V100", "K80", "steps/s"), tuple(rows))})


def _filled() -> Figure:
    """Fractions of time in two entities, on 1 to 4 GPUs."""
    right = 0
    for gpus, wanted in FILLED.items():
        shares = plan_of(ENTITIES, ((1.0,),) * 4, [gpus], users="eeff")
        right += int((np.abs(shares.x[:, 0] - np.array(wanted)) < 1e-4).sum())
    what = "fractions of time of two entities, one in order, on 1 to 4 GPUs"
    return Figure(what, 4 * len(FILLED), right, Yardstick.equal(0), decimals=0)


@dataclass(frozen=True)
class FixedShares(SharePolicy):
    """The same shares whoever asks, by job number."""

    x: tuple[tuple[float, ...], ...] = ()

    def plan(self, situation: Situation) -> Shares:
        """One row for each job."""
        return Shares(np.array([self.x[int(number)] for number in situation.snapshot.jobs]))


class _TypesSeen:
    """Notes on which type each job runs, round by round."""

    def __init__(self) -> None:
        self.rounds: list[list[int]] = []

    def after_events(self, state: State, events: Sequence[Event]) -> None:
        """Nothing is noted."""

    def after_round(self, snapshot: Snapshot, decision: Decision, actions: Sequence[Action]) -> None:
        """Note the types of the three jobs."""
        if decision.gpu_types is not None and len(snapshot) == len(FRACTIONS):
            self.rounds.append(decision.gpu_types.tolist())


def _rounds() -> Figure:
    """Three jobs on one GPU of each of three types: after every five rounds the times are the fractions."""
    seen, policy = _TypesSeen(), FixedShares(x=FRACTIONS)
    jobs = Workload.of([JobSpec(f"j{row}", 0.0, 1, duration_s=2 * ROUNDS * ROUND_S) for row in range(3)])
    machines = _cluster([1, 1, 1])
    simulate(jobs, cluster=machines, policy=policy, observer=seen, round_s=ROUND_S, restart_cost_s=0.0, min_run_s=0.0)
    right = 0
    for at in range(0, ROUNDS, 5):
        times = np.array(
            [[[where[row] == kind for kind in range(3)] for row in range(3)] for where in seen.rounds[at : at + 5]]
        )
        right += bool(np.allclose(times.mean(axis=0), FRACTIONS, atol=1e-12))
    what = "shares (.6, .4, 0), (.2, .6, .2), (.2, 0, .8): groups of five rounds that have them exactly"
    return Figure(what, ROUNDS // 5, right, Yardstick.equal(0), decimals=0)
