"""Which jobs that ask for shares of a GPU sit on one, or will: the jobs of one GPU are a bundle."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from fairway.core.sharing import WHOLE
from fairway.core.snapshot import Snapshot

MOST_ON_ONE_GPU = 48
"""How many jobs may share a GPU: as many as an MPS server has clients on every GPU that has MPS."""
Homes = Mapping[int, tuple[int, ...]]
"""The GPUs that hold the state of jobs, by job number."""


@dataclass
class Bundle:
    """Jobs on one GPU, or jobs that wait for one together, with their shares in thousandths.

    The policy is asked about the `head`. The others are guests of the `host`: the job that holds the GPU, or the head
    if that is no job of the bundle. `kinds` are the GPU types on which all can run, `room` is what is left of the GPU.
    """

    head: int
    host: int
    kinds: frozenset[int]
    room: int = WHOLE
    rows: list[int] = field(default_factory=list)
    shares: list[int] = field(default_factory=list)

    @property
    def asked(self) -> int:
        """What the jobs ask for together."""
        return sum(self.shares)


class _Rooms:
    """Bundles that take more jobs, by the room that they have."""

    def __init__(self) -> None:
        self._sorted: list[tuple[int, int]] = []
        self._by_head: dict[int, Bundle] = {}

    def add(self, bundle: Bundle) -> None:
        if bundle.room:
            insort(self._sorted, (bundle.room, bundle.head))
            self._by_head[bundle.head] = bundle

    def best(self, need: int, among: Collection[int] | None = None) -> tuple[int, int] | None:
        """The bundle with the least room that has enough, as (room, head). `among`: only bundles with these heads."""
        for found in self._sorted[bisect_left(self._sorted, (need, -1)) :] if self._sorted else ():
            if among is None or found[1] in among:
                return found
        return None

    def take(self, found: tuple[int, int]) -> Bundle:
        """Take out what `best` found."""
        del self._sorted[bisect_left(self._sorted, found)]
        return self._by_head.pop(found[1])


class Seating:
    """Finds the bundles of a snapshot. `asked` has the share of each row; no job joins others on `blocked` GPUs."""

    def __init__(
        self, snapshot: Snapshot, asked: Sequence[int], homes: Homes, blocked: Collection[int], *, by_user: bool
    ) -> None:
        self._snapshot = snapshot
        self._asked = asked
        self._homes = homes
        self._blocked = frozenset(blocked)
        self._jobs: list[int] = snapshot.jobs.tolist()
        self._priority: list[int] = snapshot.priority.tolist()
        self._queue: list[int] = snapshot.queue.tolist()
        self._user: list[int] = snapshot.user.tolist() if by_user else [0] * len(asked)
        self._memory = [gpu.memory_bytes for gpu in snapshot.cluster.types]
        self._facts, self._held_gpus = snapshot.frame.facts, snapshot.frame.held_gpus
        self._rooms: dict[Hashable, _Rooms] = {}
        self._on: dict[tuple[int, ...], set[int]] = {}

    def bundles(self, rows: Sequence[int]) -> list[Bundle]:
        """The bundles of these rows. Jobs that run stay where they are; the others are seated in order."""
        held = self._snapshot.held.tolist()
        made = self._running([row for row in rows if held[row]])
        for bundle in made:
            (kind,) = bundle.kinds
            if bundle.room:
                self._on.setdefault(self._held_gpus[self._jobs[bundle.head]], set()).add(bundle.head)
                self._of((self._class(bundle.head), kind)).add(bundle)
        usable = (self._snapshot.speeds > 0).T.tolist()
        for row in rows:
            if not held[row]:
                kinds = frozenset(kind for kind, can in enumerate(usable[row]) if can)
                if not self._joins(row, kinds):
                    made.append(self._alone(row, kinds))
        return made

    def _running(self, rows: Sequence[int]) -> list[Bundle]:
        """The bundles on GPUs. Those beside a job that asks for whole GPUs take no more jobs."""
        snapshot, row_of = self._snapshot, {self._jobs[row]: row for row in rows}
        host, kind = snapshot.host.tolist(), snapshot.gpu_type.tolist()
        crowded = {job for row, job in enumerate(host) if job >= 0 and self._asked[row] == WHOLE}
        by_place: dict[Hashable, Bundle] = {}
        for row in sorted(rows, key=lambda row: (-self._priority[row], row)):
            root, gpus = host[row] if host[row] >= 0 else self._jobs[row], self._held_gpus[self._jobs[row]]
            bundle = by_place.get((root, gpus))
            if bundle is None:
                full = root not in row_of or root in crowded or not self._blocked.isdisjoint(gpus)
                room = 0 if full else WHOLE
                bundle = Bundle(row, row_of.get(root, row), frozenset((kind[row],)), room)
                by_place[root, gpus] = bundle
            self._seat(bundle, row)
        return list(by_place.values())

    def _alone(self, row: int, kinds: frozenset[int]) -> Bundle:
        """A bundle of one job that waits."""
        bundle = Bundle(row, row, kinds)
        self._seat(bundle, row)
        self._of(self._waiting(row, kinds)).add(bundle)
        return bundle

    def _joins(self, row: int, kinds: frozenset[int]) -> bool:
        """Seat a job on a GPU where others run, or with others that wait. False if there is no room."""
        need, home = self._need(row), self._homes.get(self._jobs[row])
        there = None if home is None else self._on.get(home, ())
        running = [self._of((self._class(row), kind)) for kind in sorted(kinds)]
        fits = [(best, at) for at, rooms in enumerate(running) if (best := rooms.best(need, there)) is not None]
        if fits:
            best, at = min(fits)
            rooms = running[at]
        else:
            rooms = self._of(self._waiting(row, kinds))
            found = rooms.best(need)
            if found is None:
                return False
            best = found
        bundle = rooms.take(best)
        self._seat(bundle, row)
        rooms.add(bundle)
        return True

    def _seat(self, bundle: Bundle, row: int) -> None:
        bundle.rows.append(row)
        bundle.shares.append(self._asked[row])
        bundle.room = max(bundle.room - self._need(row), 0) if len(bundle.rows) < MOST_ON_ONE_GPU else 0

    def _need(self, row: int) -> int:
        """What a job takes of a GPU, in thousandths: its share, or its memory if that is more."""
        facts = self._facts.get(self._jobs[row])
        if facts is None or not facts.memory_bytes:
            return self._asked[row]
        speeds = self._snapshot.speeds[:, row].tolist()
        sizes = [size for size, speed in zip(self._memory, speeds, strict=True) if speed > 0 and size > 0]
        return max([self._asked[row], *(-(-facts.memory_bytes * WHOLE // size) for size in sizes)])

    def _of(self, key: Hashable) -> _Rooms:
        return self._rooms.setdefault(key, _Rooms())

    def _class(self, row: int) -> Hashable:
        """Only jobs of one class sit together."""
        return self._priority[row], self._queue[row], self._user[row]

    def _waiting(self, row: int, kinds: frozenset[int]) -> Hashable:
        """Only jobs that can run in the same places wait together."""
        return self._class(row), kinds, self._homes.get(self._jobs[row])
