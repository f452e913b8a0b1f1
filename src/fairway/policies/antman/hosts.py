"""Where a guest does the least harm: the guaranteed jobs that may have guests, as columns."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fairway.core import portable
from fairway.core.arrays import Bools, Floats, Ints
from fairway.core.snapshot import Snapshot
from fairway.policies.antman.control import AntManNotes

_PLENTY_BYTES = 1 << 62


@dataclass
class Hosts:
    """Jobs that may have guests, by row. `room` counts the GPUs on which each has none yet.

    `bearable` is the interference beyond which a host suffers too much even from a guest that may hardly compute.
    """

    snapshot: Snapshot
    notes: AntManNotes
    rows: Ints
    room: Ints
    kinds: Ints
    spare_bytes: Ints
    bearable: float
    fresh_s: float
    _ranked: dict[int, tuple[Ints, Bools]] = field(default_factory=dict)

    @staticmethod
    def of(snapshot: Snapshot, notes: AntManNotes, room: dict[int, int], bearable: float, fresh_s: float) -> Hosts:
        """The hosts with this much room each. What was learned about pairs counts if it is newer than `fresh_s`."""
        rows = np.array(list(room), dtype=np.int64)
        kinds = snapshot.gpu_type[rows]
        memory = [kind.memory_bytes or _PLENTY_BYTES for kind in snapshot.cluster.types]
        taken = [snapshot.facts(row).memory_bytes for row in room]
        spare = np.array(memory, dtype=np.int64)[kinds] - np.array(taken, dtype=np.int64)
        return Hosts(
            snapshot, notes, rows, np.array(list(room.values()), dtype=np.int64), kinds, spare, bearable, fresh_s
        )

    def seat(self, guests: list[int]) -> dict[int, int]:
        """Hosts for as many of these guests as possible, in their order."""
        snapshot, found = self.snapshot, dict[int, int]()
        gpus, models, left = snapshot.gpus.tolist(), snapshot.model.tolist(), int(self.room.sum())
        one_type = len(snapshot.capacity) == 1
        hopeless: dict[tuple[int, int], int] = {}
        for guest in guests:
            about, memory = (models[guest], gpus[guest]), snapshot.facts(guest).memory_bytes
            if one_type and memory >= hopeless.get(about, _PLENTY_BYTES):
                continue
            host = self._take(guest, gpus[guest], memory)
            if host < 0:
                hopeless[about] = memory
                continue
            found[guest] = host
            left -= gpus[guest]
            if not left:
                break
        return found

    def _take(self, guest: int, need: int, memory: int) -> int:
        """The row of the host for a guest, which takes up its room; -1 if there is none."""
        snapshot = self.snapshot
        order, spared = self._ranks(guest, int(snapshot.model[guest]))
        fits = (self.room >= need) & (self.spare_bytes >= memory) & ~spared
        if len(snapshot.capacity) > 1:
            fits &= snapshot.speeds[self.kinds, guest] > 0
        for at in order[fits[order]].tolist():
            if f"{snapshot.jobs[guest]}/{snapshot.jobs[self.rows[at]]}" not in self.notes.refused:
                self.room[at] -= need
                return int(self.rows[at])
        return -1

    def _ranks(self, guest: int, model: int) -> tuple[Ints, Bools]:
        """For guests of a model: the hosts in the order of preference, and which of them shall get no guest.

        The work that a guest costs its host counts first, as far as it is known, then small gangs.
        """
        if model not in self._ranked:
            harm, spared = self._interference(guest)
            gangs = self.snapshot.held[self.rows]
            self._ranked[model] = np.lexsort((self.rows, gangs, portable.rounded(harm * gangs))), spared
        return self._ranked[model]

    def _interference(self, guest: int) -> tuple[Floats, Bools]:
        """The known interference of guests like this one at each host, and where it is too much."""
        models = self.snapshot.model[self.rows]
        harm, spared = np.zeros(len(models)), np.zeros(len(models), dtype=np.bool_)
        for host in np.unique(models, return_index=True)[1].tolist():
            known = self.notes.pairs.get(pair_of(self.snapshot, int(self.rows[host]), guest))
            same = models == models[host]
            if known is not None:
                harm[same] = known[0]
                spared[same] = known[0] > self.bearable and known[1] > self.fresh_s
            elif (measured := self._measured(host, guest)) is not None:
                harm[same], spared[same] = measured, measured > self.bearable
        return harm, spared

    def _measured(self, host: int, guest: int) -> float | None:
        """The interference of a guest that is not throttled, as live jobs like these two were measured before."""
        jobs = self.snapshot.jobs
        factors = self.snapshot.measured.factors(int(jobs[self.rows[host]]), int(jobs[guest]))
        kept = factors[self.kinds[host]][0] if factors else 0.0
        return 1.0 / kept - 1.0 if kept > 0 else None


def pair_of(snapshot: Snapshot, host: int, guest: int) -> str:
    """The models of a host and a guest; empty if one has no name."""
    models = (int(snapshot.model[host]), int(snapshot.model[guest]))
    return f"{models[0]}/{models[1]}" if all(snapshot.names.models[model] for model in models) else ""
