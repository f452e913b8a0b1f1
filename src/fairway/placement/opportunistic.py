"""The jobs outside all virtual clusters, during one decision: they use what the tenants leave idle, and go first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fairway.core.arrays import Ints
from fairway.core.check import check
from fairway.core.decision import Decision, Reason, nothing_granted
from fairway.core.occupancy import Occupancy
from fairway.core.plan import Placer, plan
from fairway.core.policy import Policy
from fairway.core.snapshot import Snapshot
from fairway.placement.virtual import leftover_view

_EVICTED = "its GPUs are claimed by the tenant that has reserved them; "


class Opportunistic:
    """The rows of all opportunistic jobs."""

    label = "opportunistic"

    def __init__(self, snapshot: Snapshot, rows: Ints) -> None:
        self.snapshot = snapshot
        self.rows = rows
        self.decision: Decision = nothing_granted(len(rows), Reason.NO_FREE_GPUS)
        self.decision.memory = snapshot.memory.get("opportunistic", {})
        self.whole_nodes: bool = snapshot.memory.get("whole_nodes", False)
        self._placed: dict[int, tuple[int, ...]] = {}
        self._view: Snapshot | None = None
        self._evicted: set[int] = set()

    def ask(self, inner: Policy, placer: Placer, occupancy: Occupancy) -> None:
        """Have the inner policy decide about idle GPUs; `occupancy` is taken by the tenants' jobs alone.

        A policy that names GPUs itself must know which are idle. Only whole nodes can be marked so for it.
        """
        left = _whole_nodes(occupancy) if self.whole_nodes else occupancy
        view = self._see(left)
        if not view.capacity.any():
            return
        decision = inner.decide(view)
        if decision.placements and not self.whole_nodes:
            self.whole_nodes = True
            self.ask(inner, placer, occupancy)
            return
        self.decision = decision
        for row in view.running_rows.tolist():
            left.take(view.gpus_held(row))
        check(view, decision)
        planned = plan(view, decision, left, placer)
        self._placed = {target.row: target.gpus for target in planned.targets if target.gpus}

    def _see(self, left: Occupancy) -> Snapshot:
        evicted = self._displaced(left)
        self._evicted = set(evicted)
        memory = self.snapshot.memory.get("opportunistic", {})
        self._view = leftover_view(self.snapshot, self.rows, np.array(evicted, dtype=np.int64), left, memory)
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

    def placements(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Rows that get other GPUs, with these GPUs."""
        return iter(self._placed.items())

    def partners(self) -> Mapping[int, int]:
        """Guests and hosts."""
        granted = self.decision.gpus
        return {guest: host for guest, host in self.decision.partners.items() if granted[guest]}

    def throttles(self) -> Mapping[int, float]:
        """What part of the time guests may compute."""
        return self.decision.throttles

    def reason(self, row: int) -> str:
        """Why a row waits."""
        if self._view is None:
            return ""
        return (_EVICTED if row in self._evicted else "") + self.decision.reason(self._view, row)

    def remembered(self) -> Mapping[str, Any]:
        """The inner policy's memory for the next decision."""
        return self.decision.memory


def _whole_nodes(occupancy: Occupancy) -> Occupancy:
    """The same occupancy with every partly taken node out of reach."""
    left = occupancy.copy()
    for node, mask in enumerate(occupancy.free_mask):
        if mask.bit_count() < occupancy.cluster.nodes[node].gpus and node not in occupancy.down:
            left.lose(node)
    return left


def _all_free(occupancy: Occupancy, gpus: tuple[int, ...]) -> bool:
    node_of_gpu, down = occupancy.node_of_gpu, occupancy.down
    return all(occupancy.tenants(gpu) == 0 and node_of_gpu[gpu] not in down for gpu in gpus)
