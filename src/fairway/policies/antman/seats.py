"""Who sits where: guaranteed jobs on whole GPUs in their order, opportunistic ones on what is idle.

Everything here counts GPUs by type; which ones they are is the placement's business.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fairway.core.snapshot import Snapshot


@dataclass
class Seats:
    """A decision in the making. `gpus` and `kinds` are what each row is to hold; `host` maps guests to hosts.

    `free` counts the GPUs of each type that no guaranteed job needs and no opportunistic one sits on alone.
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

    @staticmethod
    def of(snapshot: Snapshot) -> Seats:
        """Running guaranteed jobs keep what they hold; nobody else has anything yet."""
        held, kinds, first_class = snapshot.held, snapshot.gpu_type, snapshot.priority >= 0
        stay = (first_class & snapshot.running).nonzero()[0]
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
            first_class.nonzero()[0].tolist(),
            (~first_class).nonzero()[0].tolist(),
        )

    def sit_alone(self, row: int, kinds: list[int]) -> bool:
        """Give a row its gang on the first of these types with room for it."""
        need = self.held[row] or self.wanted[row]
        kind = next((kind for kind in kinds if self.free[kind] >= need), -1)
        if kind < 0:
            return False
        self.free[kind] -= need
        self.gpus[row], self.kinds[row] = need, kind
        self.host.pop(row, None)
        return True

    def sit_with(self, guest: int, host: int) -> None:
        """Make a row a guest."""
        self.gpus[guest] = self.held[guest] or self.wanted[guest]
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
            if not self.gpus[row] and not self.sit_alone(row, self.choices(row)) and strict:
                return row
        return -1

    def keep_alone(self) -> None:
        """Opportunistic jobs with GPUs of their own stay, the oldest first, as long as no guaranteed job needs them."""
        host = self.snapshot.host.tolist()
        for row in self.opportunistic:
            if self.held[row] and host[row] < 0:
                self.sit_alone(row, [self.kinds[row]])

    def use_idle(self) -> None:
        """Idle GPUs go to opportunistic jobs that wait, then to guests, who run at full speed there."""
        for guests in (False, True):
            for row in self.opportunistic:
                if not any(self.free):
                    return
                if (row in self.host) == guests and (guests or not self.gpus[row]):
                    self.sit_alone(row, self.choices(row))
