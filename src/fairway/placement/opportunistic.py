"""The jobs outside all virtual clusters, during one decision: they use what the tenants leave idle, and go first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fairway.core.arrays import Ints
from fairway.core.check import check
from fairway.core.decision import Decision, Reason, nothing_granted
from fairway.core.occupancy import Occupancy
from fairway.core.plan import Placer, plan
from fairway.core.policy import Policy
from fairway.core.snapshot import Snapshot

_EVICTED = "; its GPUs are claimed by the tenant that has reserved them"


class Opportunistic:
    """The rows of all opportunistic jobs."""

    label = "opportunistic"

    def __init__(self, snapshot: Snapshot, rows: Ints) -> None:
        self.snapshot = snapshot
        self.rows = rows
        past: Mapping[str, Any] = snapshot.memory.get("opportunistic", {})
        self.decision: Decision = nothing_granted(len(rows), Reason.NO_FREE_GPUS).remembering(past)
        self._placed: dict[int, tuple[int, ...]] = {}
        self._view: Snapshot | None = None
        self._evicted: set[int] = set()

    def ask(self, inner: Policy, placer: Placer, occupancy: Occupancy) -> None:
        """Have the inner policy decide about idle GPUs; `occupancy` is what the tenants' jobs take, and bad GPUs."""
        view = self._see(occupancy)
        if not view.capacity.any():
            return
        decision = inner.decide(view)
        for row in view.running_rows.tolist():
            occupancy.take(view.gpus_held(row))
        check(view, decision)
        planned = plan(view, decision, occupancy, placer)
        self.decision = planned.kept(decision)
        self._placed = {target.row: target.gpus for target in planned.targets if target.gpus}

    def _see(self, left: Occupancy) -> Snapshot:
        """What the tenants leave: those whose GPUs they take look as if they had been stopped now."""
        evicted = self._displaced(left)
        self._evicted = set(evicted)
        self._view = self.snapshot.part(
            self.rows,
            capacity=np.array(left.free_by_type, dtype=np.int64),
            withheld=_taken(left),
            memory=self.snapshot.memory.get("opportunistic", {}),
            stopped=self.rows[evicted].tolist(),
        )
        return self._view

    def _displaced(self, occupancy: Occupancy) -> list[int]:
        """Jobs that hold GPUs which a tenant's job gets now, with all that share GPUs with them."""
        snapshot, gone = self.snapshot, set[int]()
        running = (snapshot.held[self.rows] > 0).nonzero()[0].tolist()
        group = {}
        for at in running:
            row = int(self.rows[at])
            host = int(snapshot.host[row])
            group[at] = host if host >= 0 else int(snapshot.jobs[row])
            if not _all_free(occupancy, snapshot.gpus_held(row)):
                gone.add(group[at])
        return [at for at in running if group[at] in gone]

    def decided(self) -> Decision:
        """What becomes of the rows, with the GPUs of those that get other ones."""
        guests = self.decision.partners
        placements = {row: gpus for row, gpus in self._placed.items() if row not in guests}
        return self.decision._replace(gpu_types=None, ahead=-1, placements=placements, order=(), texts={})

    def reasons(self) -> Callable[[int], str]:
        """Why rows wait."""
        decision, view, evicted = self.decision, self._view, self._evicted
        if view is None:
            return lambda row: ""
        return lambda row: decision.reason(view, row) + (_EVICTED if row in evicted else "")

    def remembered(self) -> Mapping[str, Any]:
        """The inner policy's memory for the next decision."""
        return self.decision.memory


def _taken(occupancy: Occupancy) -> frozenset[int]:
    """The GPUs of nodes that are up that no opportunistic job can have, for policies that name GPUs themselves."""
    cluster, taken = occupancy.cluster, list[int]()
    for node, mask in enumerate(occupancy.free_mask):
        gpus, first = cluster.nodes[node].gpus, cluster.first_gpu[node]
        if node not in occupancy.down and mask.bit_count() < gpus:
            taken += [first + k for k in range(gpus) if not mask >> k & 1]
    return frozenset(taken)


def _all_free(occupancy: Occupancy, gpus: tuple[int, ...]) -> bool:
    node_of_gpu, down = occupancy.node_of_gpu, occupancy.down
    return all(occupancy.tenants(gpu) == 0 and node_of_gpu[gpu] not in down for gpu in gpus)
