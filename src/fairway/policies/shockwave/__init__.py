"""Shockwave (Zheng et al., NSDI 2023): a market over future rounds, with forecasts of how jobs will adapt.

Time is cut into rounds. Every plan covers a window of rounds. Each job gets a number of rounds such that the product of
the jobs' utilities is largest (`program`), the rounds are laid out in the window (`solvers.window`), and they are
carried out one after the other (`calendar`). The remaining run time of a job is forecast from its announced batch sizes
and from the changes seen so far (`outlook`). See docs/policies/shockwave.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from fairway.core.arrays import Bools, Floats, Ints
from fairway.core.decision import Decision, Reason, nothing_granted
from fairway.core.snapshot import Snapshot
from fairway.models.forecast import Method
from fairway.policies.registry import check_native, register
from fairway.policies.shockwave.calendar import Calendar
from fairway.policies.shockwave.fairness import FairTimes, ShareRule, share_of
from fairway.policies.shockwave.outlook import JobOutlook, look
from fairway.policies.shockwave.program import WindowMarket, own_program
from fairway.solvers.window import Preference, Window, plan_window

ROUND_S = 120.0
"""The default length of a round."""
_MOMENT_S = 1e-3


@register
@dataclass(frozen=True)
class Shockwave:
    """Plans a window of rounds as a market: efficient and fair over time, by a forecast of batch sizes to come.

    Knows: the epochs and batch sizes that a job's owner announces with their speeds, and the changes seen so far; not
    when a batch size will change. Preempts at the ends of rounds. `window_rounds` is the length of a plan,
    `replan_rounds` how long it may be followed. `makespan_weight` prices the longest run time that is left,
    `ftf_power` is how much more a job may buy that is behind its fair finish time.
    """

    window_rounds: int = 20
    makespan_weight: float = 1.0
    ftf_power: float = 4.0
    forecast: Method = "restatement"
    replan_rounds: int = 8
    share: ShareRule = "jobs"
    program: Literal["own", "published"] = "own"

    name: ClassVar[str] = "shockwave"
    knows: ClassVar[frozenset[str]] = frozenset({"regimes"})
    heeds: ClassVar[frozenset[str]] = frozenset({"weight"})
    round_s: ClassVar[float] = 0.0
    published_if: ClassVar[Mapping[str, tuple[Any, ...]]] = {"program": ("published",)}

    def __post_init__(self) -> None:
        check_native(self)
        if not 1 <= self.window_rounds <= 500:
            raise ValueError("window_rounds must be from 1 to 500")
        if not self.replan_rounds >= 1:
            raise ValueError("replan_rounds must be at least 1")
        if not 0 <= self.makespan_weight <= 1e9:
            raise ValueError("makespan_weight must be from 0 to 1e9")
        if not 0 <= self.ftf_power <= 100:
            raise ValueError("ftf_power must be from 0 to 100")

    def decide(self, snapshot: Snapshot) -> Decision:
        """Begin the next round of the plan if the present one is over; otherwise only fill idle GPUs."""
        if not len(snapshot):
            return nothing_granted(0)
        calendar = Calendar.recall(snapshot.memory)
        length_s = snapshot.round_s or ROUND_S
        between = snapshot.round_s == 0 and snapshot.now_s < calendar.began_s + length_s - _MOMENT_S
        if between:
            return _decided(snapshot, calendar, snapshot.running_rows.tolist(), [], length_s)
        if calendar.is_stale(snapshot, self.replan_rounds):
            self._plan(snapshot, calendar, length_s)
        calendar.began_s = snapshot.now_s
        planned = calendar.rounds[calendar.at]
        calendar.at += 1
        kept = snapshot.protected_rows.tolist() if snapshot.guarded else []
        return _decided(snapshot, calendar, kept, planned, length_s)

    def _plan(self, snapshot: Snapshot, calendar: Calendar, length_s: float) -> None:
        """Look ahead, and lay out the rounds of a new window: for each GPU type those of the jobs that belong to it."""
        outlook = look(snapshot, self.forecast, calendar.paces)
        fair = FairTimes.recall(snapshot, calendar.fair)
        fair.advance(snapshot.now_s)
        share = share_of(snapshot, self.share)
        fair.estimate(outlook.total_s, share, renew=not calendar.same_jobs(snapshot))
        plan = np.zeros((self.window_rounds, len(snapshot)), dtype=bool)
        urgency, gap = np.zeros(len(snapshot)), 0.0
        for kind, capacity in enumerate(snapshot.capacity.tolist()):
            rows = (outlook.kinds == kind).nonzero()[0]
            rows = rows[snapshot.gpus[rows] <= capacity]
            if not len(rows):
                continue
            market = _market(snapshot, outlook, rows, share, fair.target_s, (capacity, length_s, self.window_rounds))
            window, preference = self.window(market)
            planned = plan_window(window, preference)
            plan[:, rows], urgency[rows] = planned.rounds, preference.urgency
            gap = max(gap, planned.gap)
        calendar.write(snapshot, plan, urgency, outlook.kinds, gap)
        calendar.fair, calendar.paces = fair.memory(snapshot), outlook.paces

    def window(self, market: WindowMarket) -> tuple[Window, Preference]:
        """The program of a market, and the jobs that it prefers."""
        return own_program(market, self.makespan_weight, self.ftf_power)


def _market(
    snapshot: Snapshot, outlook: JobOutlook, rows: Ints, share: Floats, fair_s: Floats, supply: tuple[int, float, int]
) -> WindowMarket:
    """The market of one GPU type and its buyers."""
    capacity, round_s, rounds = supply
    return WindowMarket(
        gangs=snapshot.gpus[rows],
        capacity=capacity,
        running=snapshot.running[rows],
        weights=snapshot.weight[rows],
        age_s=snapshot.now_s - snapshot.submitted_s[rows],
        restart_s=np.minimum(snapshot.restart_s[rows], round_s),
        share=share[rows],
        fair_s=fair_s[rows],
        outlook=outlook.of(rows),
        round_s=round_s,
        rounds=rounds,
        now_s=snapshot.now_s,
    )


def _decided(snapshot: Snapshot, calendar: Calendar, kept: list[int], planned: list[int], length_s: float) -> Decision:
    """Grants: jobs that keep their GPUs, jobs that have this round, and others where GPUs would idle."""
    rows = len(snapshot)
    gpus, kinds = np.zeros(rows, dtype=np.int64), np.full(rows, -1, dtype=np.int64)
    free = snapshot.capacity.copy()
    for row in kept:
        gpus[row], kinds[row] = snapshot.held[row], snapshot.gpu_type[row]
        free[kinds[row]] -= gpus[row]
    row_of = dict(zip(snapshot.jobs.tolist(), range(rows), strict=True))
    homes = calendar.kind_of(snapshot)
    served = [row_of[job] for job in planned if job in row_of]
    running = snapshot.running
    for row in sorted(served, key=lambda row: not running[row]):
        _give(snapshot, row, homes, gpus, kinds, free)
    if free.any():
        known = [row_of[job] for job in calendar.order if job in row_of]
        late = np.setdiff1d(np.arange(rows), known).tolist()
        gangs, room = snapshot.gpus.tolist(), int(free.max())
        for row in (*known, *late):
            if gangs[row] <= room:
                _give(snapshot, row, homes, gpus, kinds, free, anywhere=True)
                room = int(free.max())
    waiting: Bools = gpus == 0
    waits = np.where(snapshot.launches > 0, int(Reason.NOT_ITS_TURN), int(Reason.OUTRANKED))
    reasons = np.where(waiting, waits, int(Reason.RUNS)).astype(np.int8)
    wake_s = calendar.began_s + length_s if waiting.any() and gpus.any() else np.inf
    texts = calendar.texts(snapshot, waiting.nonzero()[0], length_s)
    return Decision(gpus, reasons, kinds, wake_s=wake_s, memory=calendar.memory(), texts=texts)


def _give(
    snapshot: Snapshot, row: int, homes: Ints, gpus: Ints, kinds: Ints, free: Ints, *, anywhere: bool = False
) -> None:
    """Give a row its gang: on the type that it is planned for, or, if GPUs idle, on the fastest type with room."""
    if gpus[row]:
        return
    gang = int(snapshot.gpus[row])
    usable = (snapshot.speeds[:, row] > 0) & (free >= gang)
    kind = int(homes[row])
    if kind < 0 or not usable[kind]:
        if not anywhere or not usable.any():
            return
        kind = int(np.argmax(np.where(usable, snapshot.speeds[:, row], -1.0)))
    gpus[row], kinds[row] = gang, kind
    free[kind] -= gang
