"""Which GPUs jobs get: guaranteed jobs whole GPUs in their order, opportunistic ones what is idle.

GPUs are counted by type, and placement chooses them. But where guaranteed jobs start among opportunistic ones, they
name the GPUs that they need, so that the right jobs leave.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from fairway.core.arrays import Bools
from fairway.core.snapshot import Snapshot
from fairway.policies.antman.floor import SpareGpus

CAREFUL_STARTS = 32
"""For up to this many gangs that start at once, the eviction that costs least is worked out."""


@dataclass
class Seats:
    """A decision in the making. `gpus` and `kinds` are what each row shall hold; `host` maps guests to hosts.

    A row that stays keeps as many GPUs as it holds (`held`). One that starts or moves gets what it asks for (`wanted`).
    `free` counts the GPUs of each type that no guaranteed job needs and no opportunistic one has for itself. Jobs that
    may not be stopped are guaranteed while they run. Guests that are guaranteed are neither in `guaranteed` nor in
    `opportunistic`: they stay where they are. `placements` are the GPUs of gangs that cannot be placed just anywhere.
    """

    snapshot: Snapshot
    free: list[int]
    gpus: list[int]
    kinds: list[int]
    wanted: list[int]
    held: list[int]
    guaranteed: list[int]
    opportunistic: list[int]
    host: dict[int, int] = field(default_factory=dict)
    placements: dict[int, tuple[int, ...]] = field(default_factory=dict)
    _floor: SpareGpus | None = None

    @staticmethod
    def of(snapshot: Snapshot) -> Seats:
        """Running guaranteed jobs keep what they hold; all other jobs have nothing yet."""
        held, kinds, first_class = snapshot.held, snapshot.gpu_type, snapshot.priority >= 0
        bound: dict[int, int] = {}
        if snapshot.guarded or (snapshot.host >= 0).any():
            first_class, bound = _cannot_leave(snapshot, first_class)
        alone = first_class & (snapshot.host < 0)
        stay = (alone & snapshot.running).nonzero()[0]
        free = snapshot.capacity.copy()
        np.subtract.at(free, kinds[stay], held[stay])
        gpus = np.where(first_class, held, 0)
        return Seats(
            snapshot,
            free.tolist(),
            gpus.tolist(),
            kinds.tolist(),
            snapshot.gpus.tolist(),
            held.tolist(),
            alone.nonzero()[0].tolist(),
            (~first_class).nonzero()[0].tolist(),
            bound,
        )

    def sit_alone(self, row: int, need: int, kinds: list[int]) -> bool:
        """Give a row the GPUs that it needs, of the first of these types with room for it."""
        kind = next((kind for kind in kinds if self.free[kind] >= need), -1)
        if kind < 0:
            return False
        self.free[kind] -= need
        self.gpus[row], self.kinds[row] = need, kind
        self.host.pop(row, None)
        return True

    def sit_with(self, guest: int, need: int, host: int) -> None:
        """Make a row a guest on as many of its host's GPUs as it needs."""
        self.gpus[guest] = need
        self.kinds[guest], self.host[guest] = self.kinds[host], host

    def choices(self, row: int) -> list[int]:
        """The GPU types that a row can use, the fastest first."""
        if len(self.free) == 1:
            return [0]
        speeds = self.snapshot.speeds[:, row]
        return sorted((speeds > 0).nonzero()[0].tolist(), key=lambda kind: -speeds[kind])

    def seat_guaranteed(self, strict: bool) -> int:
        """Start guaranteed jobs in the order of submission, on idle GPUs and on those of opportunistic jobs alike.

        Returns the row that blocks a strict queue, or -1.
        """
        for row in self.guaranteed:
            if not self.gpus[row] and not self.sit_alone(row, self.wanted[row], self.choices(row)) and strict:
                return row
        return -1

    def keep_alone(self) -> None:
        """Opportunistic jobs with GPUs of their own stay if no guaranteed job needs these."""
        host = self.snapshot.host.tolist()
        tenants = [row for row in self.opportunistic if self.held[row] and host[row] < 0]
        evicted = self._make_room(tenants) if tenants else ()
        for row in tenants:
            if row not in evicted:
                self.sit_alone(row, self.held[row], [self.kinds[row]])

    def _make_room(self, tenants: list[int]) -> set[int]:
        """Name the GPUs of guaranteed gangs that start, the largest first. Returns the tenants that have to leave."""
        starts = [row for row in self.guaranteed if self.gpus[row] and not self.held[row]]
        if not starts:
            return set()
        self._floor = SpareGpus(self.snapshot, (row for row in self.guaranteed if self.held[row]), tenants)
        for turn, row in enumerate(sorted(starts, key=lambda row: -self.gpus[row])):
            self._name(self._floor.seat if turn < CAREFUL_STARTS else self._floor.seat_quickly, row)
        # A job that shares GPUs with a tenant cannot stay without it.
        host, jobs = self.snapshot.host, self.snapshot.jobs
        shared = {int(jobs[row]) for row in tenants}
        self._floor.evicted += [row for row in self.opportunistic if self.held[row] and int(host[row]) in shared]
        return set(self._floor.evicted)

    def use_idle(self) -> None:
        """Give idle GPUs to opportunistic jobs that wait, then to guests, which run at full speed there."""
        for guests in (False, True):
            for row in self.opportunistic:
                if not any(self.free):
                    return
                if (row in self.host) == guests and (guests or not self.gpus[row]):
                    self.sit_alone(row, self.wanted[row], self.choices(row))

    def place_evicted(self) -> None:
        """Name other GPUs for evicted jobs that may have their own elsewhere; otherwise they would seem to stay."""
        floor = self._floor
        if floor is None:
            return
        floor.close()
        for row in sorted(floor.evicted):
            if self.gpus[row] and row not in self.host:
                self._name(floor.seat_quickly, row)

    def _name(self, seat: Callable[[int, int], tuple[int, ...]], row: int) -> None:
        gpus = seat(self.gpus[row], self.kinds[row])
        if gpus:
            self.placements[row] = gpus


def _cannot_leave(snapshot: Snapshot, first_class: Bools) -> tuple[Bools, dict[int, int]]:
    """Which jobs are guaranteed, including jobs that may not be stopped and their hosts; the guests among them."""
    first_class = first_class.copy()
    first_class[snapshot.protected_rows] = True
    guests = (first_class & (snapshot.host >= 0)).nonzero()[0]
    hosts = np.searchsorted(snapshot.jobs, snapshot.host[guests])
    first_class[hosts] = True
    return first_class, dict(zip(guests.tolist(), hosts.tolist(), strict=True))
