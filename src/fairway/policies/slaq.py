"""SLAQ (Zhang et al., SoCC'17): GPUs go where they lower losses most, not to all jobs alike.

Early epochs of training bring most of the improvement, late ones almost none. SLAQ watches the loss of every job, fits
a curve to its recent past, and predicts by how much each further GPU would lower it during the next interval. Losses of
different jobs are made comparable: each is divided by the largest change that its job has shown. Then GPUs are handed
out one by one, each to the job that gains most from it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from fairway.core import portable
from fairway.core.arrays import Bools, Floats, Ints
from fairway.core.decision import Decision, Reason
from fairway.core.snapshot import Snapshot
from fairway.models.loss_fit import COLUMNS, FLAT, LEAST_POINTS, fall, fit_losses
from fairway.policies.registry import register

Gain = Callable[[int, int], float]
"""The predicted normalised reduction of a row's loss on a number of GPUs; more is better."""
STRIDES = (2, 4, 8, 16)
"""How many GPUs beyond its present number a row may ask for at a time, besides a single one."""
_MOMENT_S = 1e-6


@register
@dataclass(frozen=True)
class Slaq:
    """The next GPU goes where the loss is predicted to fall most, relative to what it has; elastic jobs keep a floor.

    Knows: training losses reported so far, speeds, gang sizes. Preempts and resizes.

    GPUs are divided again every `interval_s`. The last `history` losses of a job count, each with `decay` to the power
    of its age. With `floor` every elastic job gets its minimum first, in the order of submission.
    """

    interval_s: float = 60.0
    history: int = 10
    decay: float = 0.95
    floor: bool = True

    name: ClassVar[str] = "slaq"
    knows: ClassVar[frozenset[str]] = frozenset({"loss"})
    heeds: ClassVar[frozenset[str]] = frozenset({"range"})
    round_s: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.interval_s) and self.interval_s >= 1):
            raise ValueError(f"interval_s must be at least 1, not {self.interval_s:g}")
        if not LEAST_POINTS <= self.history <= 100:
            raise ValueError(f"history must be from {LEAST_POINTS} to 100 points, not {self.history}")
        if not 0 < self.decay <= 1:
            raise ValueError(f"decay must be in (0, 1], not {self.decay:g}")

    def decide(self, snapshot: Snapshot) -> Decision:
        now_s, next_s = snapshot.now_s, float(snapshot.memory.get("next_s", -math.inf))
        due = now_s >= next_s - _MOMENT_S
        if due:
            next_s = now_s + self.interval_s
        past = _observed(snapshot, self.history, due, self.decay)
        fixed = snapshot.running.copy()
        if due:
            fixed[:] = False
            fixed[snapshot.protected_rows] = True
        gpus, kinds = divided(snapshot, fixed, _gains(snapshot, past, self.interval_s), self.floor)
        may_change = not gpus.all() or bool((snapshot.gpus_min < snapshot.gpus_max).any())
        return Decision(
            gpus,
            np.multiply(gpus == 0, int(Reason.OUTRANKED), dtype=np.int8),
            gpu_types=kinds if len(snapshot.capacity) > 1 else None,
            wake_s=next_s if may_change else math.inf,
            memory={"next_s": next_s, **past._asdict()},
        )


class Past(NamedTuple):
    """What is remembered about each active job, one row each: its last losses (the latest in the last column), the
    largest and the smallest loss ever, and the curve fitted to them."""

    jobs: Ints
    epochs: Floats
    losses: Floats
    counts: Ints
    high: Floats
    low: Floats
    fits: Floats


def _recalled(snapshot: Snapshot, width: int) -> Past:
    """The past of the active jobs; empty for jobs that have just come."""
    rows, known = len(snapshot), snapshot.memory
    if not len(known.get("jobs", ())) or np.shape(known["epochs"])[1] != width:
        known = {}
    return Past(
        snapshot.jobs.copy(),
        snapshot.recall("epochs", np.zeros((rows, width)), known),
        snapshot.recall("losses", np.zeros((rows, width)), known),
        snapshot.recall("counts", 0, known),
        snapshot.recall("high", 0.0, known),
        snapshot.recall("low", 0.0, known),
        snapshot.recall("fits", np.zeros((rows, COLUMNS)), known),
    )


def _observed(snapshot: Snapshot, width: int, due: bool, decay: float) -> Past:
    """The past with the losses of now: of new jobs, and at the end of an interval of all jobs that made progress.

    Only curves of jobs with a new point are fitted again.
    """
    past = _recalled(snapshot, width)
    if not (due or len(np.setdiff1d(past.jobs, snapshot.memory["jobs"], assume_unique=True))):
        return past
    epochs, losses = snapshot.losses()
    told = np.isfinite(losses)
    latest = past.epochs[:, -1]
    thrown_back = told & (past.counts > 0) & (epochs < latest * (1 - 1e-9))
    if thrown_back.any():
        past.counts[thrown_back] = 0
        past.fits[thrown_back] = 0.0
    fresh = told & ((past.counts == 0) | (due & (epochs > latest)))
    rows = fresh.nonzero()[0]
    if len(rows):
        for column, now in ((past.epochs, epochs), (past.losses, losses)):
            column[rows, :-1] = column[rows, 1:]
            column[rows, -1] = now[rows]
        first, now = past.counts[rows] == 0, losses[rows]
        past.high[rows] = np.where(first, now, np.maximum(past.high[rows], now))
        past.low[rows] = np.where(first, now, np.minimum(past.low[rows], now))
        past.counts[rows] = np.minimum(past.counts[rows] + 1, width)
        past.fits[rows] = fit_losses(past.epochs[rows], past.losses[rows], past.counts[rows], decay)
    return past


def _gains(snapshot: Snapshot, past: Past, interval_s: float) -> Gain:
    """The predicted fall of each row's loss during the next interval, divided by the largest change that it has shown.

    Speed is assumed to be proportional to GPUs, as observed where the job runs. A job that would be started again or
    resized loses the time of its restart. If too little is known about a job, its loss is assumed to fall as
    1 / (1 + k), with k in intervals of one GPU: fast at first.
    """
    held, launches = snapshot.held.tolist(), snapshot.launches.tolist()
    restart_s: list[float] = snapshot.restart_s.tolist()
    fits: list[list[float]] = past.fits.tolist()
    epoch: list[float] = past.epochs[:, -1].tolist()
    served: list[float] = (snapshot.attained_gpu_s / interval_s).tolist()
    speed = np.where(
        snapshot.rate > 0, snapshot.rate / np.maximum(snapshot.held, 1), snapshot.best_speed / snapshot.gpus
    )
    done = snapshot.progress
    pace: list[float] = (speed * np.divide(past.epochs[:, -1], done, out=np.zeros(len(done)), where=done > 0)).tolist()
    shown: list[float] = (past.high - past.low).tolist()
    guessed: list[bool] = (past.counts < LEAST_POINTS).tolist()

    def gain(row: int, gpus: int) -> float:
        pays = launches[row] > 0 and gpus != held[row]
        run_s = interval_s - restart_s[row] if pays else interval_s
        if run_s <= 0:
            return 0.0
        if guessed[row]:
            share = gpus * run_s / interval_s
            return share / ((1.0 + served[row]) * (1.0 + served[row] + share))
        if fits[row][0] == FLAT:
            return 0.0
        return fall(fits[row], epoch[row], pace[row] * gpus * run_s) / shown[row]

    return gain


@dataclass
class Pool:
    """GPUs being handed out: what each row has so far and of which type, and what is left of each type.

    `held` is what a row holds at present: if it keeps exactly that, it needs no restart.
    """

    free: list[int]
    gpus: list[int]
    least: list[int]
    most: list[int]
    held: list[int]
    kinds: list[int]
    choices: Callable[[int], list[int]] = lambda row: [0]

    def room(self, row: int) -> int:
        """How many more GPUs a row could have."""
        kinds = [self.kinds[row]] if self.gpus[row] else self.choices(row)
        return max(self.free[kind] for kind in kinds)

    def take(self, row: int, gpus: int) -> bool:
        """Give a row that many GPUs of one type, if there are enough: the type that it has, or its first choice."""
        more = gpus - self.gpus[row]
        kinds = [self.kinds[row]] if self.gpus[row] else self.choices(row)
        kind = next((kind for kind in kinds if self.free[kind] >= more), -1)
        if kind < 0:
            return False
        self.free[kind] -= more
        self.gpus[row], self.kinds[row] = gpus, kind
        return True


def hand_out(pool: Pool, rows: list[int], gain: Gain) -> None:
    """Hand out GPUs step by step, the largest gain per GPU first (ties: the earlier row).

    The first step of a row is its minimum, taken even if nothing is gained; further steps are single GPUs. A row that
    leaves its present number of GPUs needs a restart. So that number is a step of its own, and so are larger strides
    from it, which can make up for the restart.
    """
    heap: list[tuple[float, int, int]] = []
    worth = {row: gain(row, pool.gpus[row]) if pool.gpus[row] else 0.0 for row in rows}

    def offer(row: int) -> None:
        """Put the best next step of a row into the queue, if there is room for one."""
        has, held, least = pool.gpus[row], pool.held[row], pool.least[row]
        most = min(pool.most[row], has + pool.room(row))
        steps = [has + 1 if has else least, held] if held > max(has, least) else [has + 1 if has else least]
        if has and has == held:
            steps += [has + stride for stride in STRIDES]
        offers = [((gain(row, step) - worth[row]) / (step - has), step) for step in steps if step <= most]
        if offers:
            best, step = max((portable.rounded(more), step) for more, step in offers)
            if best > 0 or not has:
                heapq.heappush(heap, (-best, row, step))

    for row in rows:
        offer(row)
    while heap and any(pool.free):
        _, row, step = heapq.heappop(heap)
        if pool.take(row, step):
            worth[row] = gain(row, step)
        offer(row)


def _pool(snapshot: Snapshot, fixed: Bools) -> Pool:
    """All GPUs that are up, except those of the fixed rows."""
    free = snapshot.capacity.copy()
    rows = fixed.nonzero()[0]
    np.subtract.at(free, snapshot.gpu_type[rows], snapshot.held[rows])
    held, kinds, speeds = snapshot.held.tolist(), snapshot.gpu_type.tolist(), snapshot.speeds

    def choices(row: int) -> list[int]:
        """The types that a row can use: its present one, then the fastest first."""
        own = speeds[:, row]
        first = kinds[row] if held[row] else -1
        return sorted((own > 0).nonzero()[0].tolist(), key=lambda kind: (kind != first, -own[kind]))

    gpus = np.where(fixed, snapshot.held, 0).tolist()
    least, most = snapshot.gpus_min.tolist(), snapshot.gpus_max.tolist()
    pool = Pool(free.tolist(), gpus, least, most, held, list(kinds))
    if len(free) > 1:
        pool.choices = choices
    return pool


def divided(snapshot: Snapshot, fixed: Bools, gain: Gain, floor: bool) -> tuple[Ints, Ints]:
    """GPUs and GPU type of each row: fixed rows as they are, the floor of the elastic ones, and the rest by gain."""
    pool = _pool(snapshot, fixed)
    if any(pool.free):
        if floor:
            elastic = (snapshot.gpus_min < snapshot.gpus_max) & ~fixed
            for row in elastic.nonzero()[0].tolist():
                if not (pool.take(row, pool.least[row]) or any(pool.free)):
                    break
        hand_out(pool, (~fixed).nonzero()[0].tolist(), gain)
    return np.array(pool.gpus, dtype=np.int64), np.array(pool.kinds, dtype=np.int64)
