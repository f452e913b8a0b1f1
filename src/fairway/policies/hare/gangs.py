"""Hare's order for jobs that run as whole gangs: where tasks cannot be scheduled one by one, as with real jobs.

Jobs get their GPUs by the GPU time that is left over weight, or by least attained service. Each takes the GPU type on
which it ends first, counting the jobs before it. A job that would have to wait for that type lets others have it
meanwhile.
"""

from __future__ import annotations

import numpy as np

from fairway.core.arrays import Floats, Ints
from fairway.core.decision import Decision, Reason
from fairway.core.snapshot import Snapshot
from fairway.policies.hare import outline as tasks
from fairway.policies.hare.attained import by_service


def as_gangs(snapshot: Snapshot, *, clairvoyant: bool, group_s: float) -> Decision:
    """Grants of whole gangs, warm: a job that gives up its GPUs for a while stays in their memory.

    The order is looked at again after `group_s`.
    """
    rows = tasks.usable(snapshot).nonzero()[0]
    floor = _Floor(snapshot, snapshot.oracle.left_s if clairvoyant else np.full(len(snapshot), group_s))
    for row in snapshot.protected_rows.tolist():
        floor.keep(row)
    order = _order(snapshot, rows) if clairvoyant else by_service(snapshot, rows)
    later = [row for row in order.tolist() if not floor.gpus[row] and not floor.start_or_reserve(row)]
    for row in later:
        floor.fill(row)
    reasons = np.where(floor.gpus > 0, int(Reason.RUNS), int(Reason.NOT_ITS_TURN)).astype(np.int8)
    reasons[(floor.gpus == 0) & ~tasks.usable(snapshot)] = int(Reason.TYPE_FULL)
    decision = Decision(floor.gpus, reasons, gpu_types=floor.kinds, warm=True)
    return decision.waking(snapshot.now_s + group_s) if (floor.gpus == 0).any() else decision


def _order(snapshot: Snapshot, rows: Ints) -> Ints:
    """The rows by priority, then by the GPU time that is left over weight, which is the order of the relaxed program
    where many jobs wait."""
    left = snapshot.oracle.left_s[rows] * snapshot.gpus[rows] / snapshot.weight[rows]
    return rows[np.lexsort((rows, np.rint(left * 1000.0), -snapshot.priority[rows]))]


class _Floor:
    """When the GPUs of each type are free, and what jobs get."""

    def __init__(self, snapshot: Snapshot, left_s: Floats) -> None:
        self._snapshot = snapshot
        self.gpus: Ints = np.zeros(len(snapshot), dtype=np.int64)
        self.kinds: Ints = np.full(len(snapshot), -1, dtype=np.int64)
        self._free_s = [np.zeros(count) for count in snapshot.capacity.tolist()]
        self._times_s: Floats = tasks.per_speed(left_s * snapshot.best_speed, snapshot.speeds.T).T
        self._unused = snapshot.capacity.copy()

    def keep(self, row: int) -> None:
        """A protected job keeps what it has."""
        self._grant(row, int(self._snapshot.gpu_type[row]), int(self._snapshot.held[row]))

    def start_or_reserve(self, row: int) -> bool:
        """Give a job the type on which it ends first. False if it has to wait there for jobs before it."""
        gang, ends = int(self._snapshot.gpus[row]), []
        for kind, free_s in enumerate(self._free_s):
            if len(free_s) >= gang and np.isfinite(self._times_s[kind, row]):
                stays = self._snapshot.held[row] == gang and self._snapshot.gpu_type[row] == kind
                cost_s = 0.0 if stays or not self._snapshot.launches[row] else float(self._snapshot.restart_s[row])
                ends.append((float(np.rint(free_s[gang - 1] + cost_s + self._times_s[kind, row])), not stays, kind))
        if not ends:
            return False
        _, _, kind = min(ends)
        free_s = self._free_s[kind]
        start_s = float(free_s[gang - 1])
        free_s[:gang] = start_s + self._times_s[kind, row]
        free_s.sort()
        if start_s > 0 or self._unused[kind] < gang:
            return False
        self._grant(row, kind, gang)
        return True

    def fill(self, row: int) -> None:
        """Let a job that waits run on GPUs that nobody else uses now, on the fastest type."""
        gang, times_s = int(self._snapshot.gpus[row]), self._times_s[:, row]
        fits = (self._unused >= gang) & np.isfinite(times_s)
        if fits.any():
            self._grant(row, int(np.where(fits, times_s, np.inf).argmin()), gang)

    def _grant(self, row: int, kind: int, gang: int) -> None:
        self.gpus[row], self.kinds[row] = gang, kind
        self._unused[kind] -= gang
