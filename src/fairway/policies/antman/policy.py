"""The policy: guaranteed jobs first, opportunistic ones on idle GPUs, the rest of them as throttled guests."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fairway.core.decision import Decision, Reason
from fairway.core.snapshot import Snapshot
from fairway.policies.antman.control import MARGIN, MOMENT_S, REFUSED, AntManNotes, ControlKnobs, HostWatch
from fairway.policies.antman.hosts import Hosts, pair_of
from fairway.policies.antman.seats import Seats
from fairway.policies.registry import register

_NO_SEAT = "opportunistic: no GPUs are idle, and no guaranteed job can take it as a guest for now"


@register
@dataclass(frozen=True)
class AntMan:
    """Opportunistic jobs (priority below 0) fill idle GPUs, and the gaps of other jobs as throttled guests.

    Knows: priorities, measured speeds, memory needs, models, gang sizes. Stops opportunistic jobs only.

    A host may be slowed by `eps`. Its guests start at the throttle `start`, which is multiplied by `decrease` or raised
    by `increase` every `interval_s`, by the median of the last `window` measurements, and rests for `hold_s` once
    settled. If less than `least` would be left for a guest, it leaves, and the host gets no guests for `cooldown_s`.
    With `strict` no guaranteed job overtakes one that came before it; without `share` no job is a guest.
    """

    eps: float = 0.05
    start: float = 0.2
    increase: float = 0.1
    decrease: float = 0.5
    least: float = 0.1
    window: int = 10
    interval_s: float = 60.0
    hold_s: float = 1800.0
    cooldown_s: float = 3600.0
    strict: bool = False
    share: bool = True

    name: ClassVar[str] = "antman"
    knows: ClassVar[frozenset[str]] = frozenset()
    heeds: ClassVar[frozenset[str]] = frozenset()
    round_s: ClassVar[float] = 0.0
    ranks_priorities: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 < self.eps <= 1:
            raise ValueError(f"eps must be in (0, 1], not {self.eps:g}")
        if not 0 < self.least <= self.start <= 1:
            raise ValueError(
                f"least ({self.least:g}) must be positive and at most start ({self.start:g}), that at most 1"
            )
        if not (0 < self.decrease < 1 and 0 < self.increase <= 1):
            raise ValueError("decrease must be in (0, 1) and increase in (0, 1]")
        if not 1 <= self.window <= 1000:
            raise ValueError(f"window must be from 1 to 1000 measurements, not {self.window}")
        times = (self.interval_s, self.hold_s, self.cooldown_s)
        if not (min(times) >= 1 and all(map(math.isfinite, times))):
            raise ValueError("interval_s, hold_s and cooldown_s must be at least 1")

    def decide(self, snapshot: Snapshot) -> Decision:
        seats = Seats.of(snapshot)
        head = seats.seat_guaranteed(self.strict)
        notes = AntManNotes.recalled(snapshot.memory, snapshot.jobs.tolist(), snapshot.now_s)
        if seats.opportunistic:
            seats.keep_alone()
            self._control(seats, notes)
            seats.use_idle()
            waiting = [row for row in seats.opportunistic if not seats.gpus[row]]
            wake_s = self._invite(seats, notes, waiting) if waiting and self.share else math.inf
            seats.place_evicted()
        else:
            notes, wake_s = AntManNotes(pairs=notes.pairs), math.inf
        return self._decision(seats, notes, head, wake_s)

    def _control(self, seats: Seats, notes: AntManNotes) -> None:
        """Check every host with guests: the guests stay at the throttle of its controller, or must leave."""
        snapshot = seats.snapshot
        jobs, host = snapshot.jobs.tolist(), snapshot.host.tolist()
        row_of = {jobs[row]: row for row in seats.guaranteed if seats.held[row]}
        _note_refusals(seats, notes, jobs, row_of)
        guests_of: dict[int, list[int]] = {}
        for row in seats.opportunistic:
            if seats.held[row] and host[row] in row_of:
                guests_of.setdefault(host[row], []).append(row)
        watches, notes.watches = notes.watches, {}
        limits = ControlKnobs(
            self.eps, self.decrease, self.increase, self.least, self.window, self.interval_s, self.hold_s
        )
        for job, guests in guests_of.items():
            at, watch = row_of[job], watches.get(str(job))
            if watch is None:
                continue
            slowdown = watch.alone / max(_speed(snapshot, at), 1e-12)
            if len(guests) == 1:
                notes.learn(pair_of(snapshot, at, guests[0]), (slowdown - 1) / watch.share, snapshot.now_s)
            if watch.step(snapshot.now_s, slowdown, limits):
                notes.watches[str(job)] = watch
                for guest in guests:
                    seats.sit_with(guest, seats.held[guest], at)
            else:
                notes.closed[str(job)] = snapshot.now_s + self.cooldown_s
                notes.paused |= {str(jobs[guest]): [job, slowdown] for guest in guests}

    def _invite(self, seats: Seats, notes: AntManNotes, waiting: list[int]) -> float:
        """Find hosts for opportunistic jobs that wait. Returns when it is worth trying again."""
        snapshot, now_s = seats.snapshot, seats.snapshot.now_s
        room, wake_s = self._room(seats, notes)
        bearable = MARGIN * self.eps / self.least
        if room:
            hosts = Hosts.of(snapshot, notes, room, bearable, now_s - self.cooldown_s + MOMENT_S)
            for guest, at in hosts.seat(waiting).items():
                self._seat_guest(seats, notes, guest, at)
        for interference, seen_s in notes.pairs.values():
            if interference > bearable and seen_s + self.cooldown_s > now_s + MOMENT_S:
                wake_s = min(wake_s, seen_s + self.cooldown_s)
        return wake_s

    def _room(self, seats: Seats, notes: AntManNotes) -> tuple[dict[int, int], float]:
        """Guaranteed jobs that may have guests, with the GPUs on which they have none yet, and when there will be more.

        A host must have run alone for an interval; otherwise its speed alone is not known.
        """
        snapshot, now_s = seats.snapshot, seats.snapshot.now_s
        taken: dict[int, int] = {}
        for guest, at in seats.host.items():
            taken[at] = taken.get(at, 0) + seats.gpus[guest]
        crowded = {int(job) for job in snapshot.host[snapshot.running_rows]}
        jobs, since_s = snapshot.jobs.tolist(), snapshot.since_s.tolist()
        hosts: dict[int, int] = {}
        wake_s = min(notes.closed.values(), default=math.inf)
        for row in seats.guaranteed:
            job = jobs[row]
            if not seats.held[row] or str(job) in notes.closed:
                continue
            if str(job) not in notes.watches and job not in crowded:
                known_s = since_s[row] + self.interval_s
                if known_s > now_s + MOMENT_S:
                    wake_s = min(wake_s, known_s)
                    continue
            elif str(job) not in notes.watches:
                wake_s = min(wake_s, now_s + self.interval_s)
                continue
            if seats.held[row] > taken.get(row, 0):
                hosts[row] = seats.held[row] - taken.get(row, 0)
        return hosts, wake_s

    def _seat_guest(self, seats: Seats, notes: AntManNotes, guest: int, at: int) -> None:
        snapshot = seats.snapshot
        now_s, host = snapshot.now_s, str(snapshot.jobs[at])
        if host in notes.watches:
            notes.watches[host].reopen(now_s, self.start, self.interval_s)
        else:
            notes.watches[host] = HostWatch(_speed(snapshot, at), self.start, now_s + self.interval_s)
        seats.sit_with(guest, seats.wanted[guest], at)
        notes.joined[str(snapshot.jobs[guest])] = int(snapshot.jobs[at])

    def _decision(self, seats: Seats, notes: AntManNotes, head: int, wake_s: float) -> Decision:
        snapshot, jobs = seats.snapshot, seats.snapshot.jobs
        gpus = np.array(seats.gpus, dtype=np.int64)
        mixed = len(seats.free) > 1
        reasons = np.multiply(gpus == 0, int(Reason.TYPE_FULL if mixed else Reason.NO_FREE_GPUS), dtype=np.int8)
        partners = dict(sorted(seats.host.items()))
        if head >= 0:
            behind = (gpus == 0) & (snapshot.priority >= 0)
            behind[: head + 1] = False
            reasons[behind] = int(Reason.BEHIND)
        texts, shares = dict[int, str](), dict[int, float]()
        for row in seats.opportunistic:
            if not seats.gpus[row]:
                reasons[row] = int(Reason.OTHER)
                texts[row] = self._why(snapshot, notes, str(jobs[row]))
            else:
                notes.paused.pop(str(jobs[row]), None)
        watched = {str(jobs[at]): at for at in seats.host.values()}
        notes.watches = {host: watch for host, watch in notes.watches.items() if host in watched}
        for guest, at in partners.items():
            watch = notes.watches.get(str(jobs[at]))
            shares[guest] = watch.share if watch is not None else float(snapshot.throttle[guest])
        return Decision(
            gpus,
            reasons,
            gpu_types=np.array(seats.kinds, dtype=np.int64) if mixed else None,
            ahead=int(jobs[head]) if head >= 0 else -1,
            wake_s=min([wake_s, *(watch.due_s for watch in notes.watches.values())]),
            memory=notes.plain(),
            partners=partners,
            placements=seats.placements,
            throttles=shares,
            warm=True,
            texts=texts,
        )

    def _why(self, snapshot: Snapshot, notes: AntManNotes, job: str) -> str:
        """Why an opportunistic job waits."""
        if job not in notes.paused:
            return _NO_SEAT
        host, slowdown = notes.paused[job]
        name = snapshot.job_id(int(host))
        return f"paused: it slowed job {name} by {slowdown - 1:.0%}; {self.eps:.0%} are allowed, and no GPUs are idle"


def _speed(snapshot: Snapshot, row: int) -> float:
    """A job's rate over its best speed. Unlike its rate it does not change with its batch size."""
    return float(snapshot.rate[row] / snapshot.best_speed[row])


def _note_refusals(seats: Seats, notes: AntManNotes, jobs: list[int], row_of: dict[int, int]) -> None:
    """A guest that does not run although its host still does was refused: they do not fit together."""
    row_of_guest = {str(jobs[row]): row for row in seats.opportunistic}
    for guest, host in notes.joined.items():
        row = row_of_guest.get(guest, -1)
        if row >= 0 and not seats.held[row] and host in row_of:
            notes.refused.append(f"{guest}/{host}")
            notes.learn(pair_of(seats.snapshot, row_of[host], row), REFUSED, seats.snapshot.now_s)
    notes.joined = {}
