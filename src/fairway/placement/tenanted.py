"""The tenant layer: any policy, inside virtual clusters (HiveD, Zhao et al., OSDI'20).

Each tenant's jobs are scheduled by an inner policy that sees only the tenant's virtual cluster. A virtual cell that is
in use is bound to a real one by buddy allocation, and released when it falls idle. Opportunistic jobs are scheduled
last, on what is idle, and give way at once. The inner policy is asked about a tenant at exactly those instants at which
it would be asked on a private cluster, so the tenant gets the schedule that it would have there. Only if hardware has
failed and cells are short is a tenant asked more often: when cells come or go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairway.core.arrays import Ints
from fairway.core.decision import Decision
from fairway.core.occupancy import Occupancy
from fairway.core.plan import Placer
from fairway.core.policy import Layer
from fairway.core.snapshot import Snapshot
from fairway.core.texts import Texts
from fairway.placement.at_home import AtHome, Homeward
from fairway.placement.cells import Cells
from fairway.placement.guaranteed import Guaranteed
from fairway.placement.opportunistic import Opportunistic
from fairway.placement.squatters import Squatters
from fairway.placement.tenants import OPPORTUNISTIC, Tenants
from fairway.placement.virtual import Held

_CELLS = "cells of tenants"
"""Where memory says which cells its bindings are about."""


@dataclass(frozen=True)
class Tenanted(Layer):
    """A policy inside each tenant's virtual cluster, and last for opportunistic jobs.

    It knows what the inner policy knows. `in_rounds`: decisions are taken at fixed intervals, so every tenant is asked
    each time. `slack_s`: how much too early a wake-up may come, because instants are rounded to a grid. `pinned` gives
    the GPUs that hold the state of jobs, by job number; such a job runs nowhere else.
    """

    tenants: Tenants
    placer: Placer
    in_rounds: bool = False
    slack_s: float = 2e-9
    pinned: Callable[[], Held] = dict

    def decide(self, snapshot: Snapshot) -> Decision:
        """Tenants first, each by itself; then bind their cells; then the opportunistic jobs."""
        if snapshot.memory and not is_layered(snapshot.memory):
            snapshot = snapshot.part(memory={})  # the policy's own, from before there were tenants
        pinned = self.pinned()
        owner = self.tenants.owners(snapshot)
        tenants = self._tenants(snapshot, owner, pinned)
        cells = self._cells(snapshot, tenants)
        self._adopt(tenants, cells, owner)
        rows = (owner == OPPORTUNISTIC).nonzero()[0]
        squatters = Squatters(snapshot, self.tenants.layout)
        self._ask(tenants, cells, squatters, rows)
        rest = Opportunistic(snapshot, rows)
        if len(rows):
            placer = AtHome(self.placer, lambda job: pinned.get(job, ()), dict) if pinned else self.placer
            blocked = dict.fromkeys(snapshot.withheld_gpus, "it is blocked")
            rest.ask(Homeward(self.inner, pinned, blocked), placer, self._occupied(snapshot, tenants))
        parts: list[Guaranteed | Opportunistic] = [*tenants, rest]
        whole = Decision.composed([(part.rows, part.decided()) for part in parts], len(snapshot))
        memory = {
            _CELLS: self.tenants.text,
            "tenants": {tenant.virtual.name: tenant.remembered() for tenant in tenants},
            "free": cells.plain(),
            "opportunistic": rest.remembered(),
        }
        return whole._replace(memory=memory, texts=_texts(parts, owner, whole.gpus))

    def _tenants(self, snapshot: Snapshot, owner: Ints, pinned: Held) -> list[Guaranteed]:
        """The tenants with their rows. Where the cells were others, only what the inner policy remembers counts."""
        known: Mapping[str, Any] = snapshot.memory.get("tenants", {})
        same = snapshot.memory.get(_CELLS) == self.tenants.text
        tenants = []
        for number, virtual in enumerate(self.tenants.parts):
            memory = known.get(virtual.name, {})
            memory = memory if same else {key: memory[key] for key in ("memory", "round") if key in memory}
            rows = (owner == number).nonzero()[0]
            tenants.append(Guaranteed(snapshot, virtual, self.tenants.layout, rows, memory, pinned))
        return tenants

    def _adopt(self, tenants: Sequence[Guaranteed], cells: Cells, owner: Ints) -> None:
        """Have each tenant bind cells around its jobs that run outside of its cells, because they started before it had
        these. A job for which that cannot be done is opportunistic until it is stopped; `owner` is corrected.
        """
        for tenant in tenants:
            strays = tenant.adopt(cells)
            if strays.any():
                owner[tenant.rows[strays]] = OPPORTUNISTIC
                tenant.rows = tenant.rows[~strays]

    def _cells(self, snapshot: Snapshot, tenants: Sequence[Guaranteed]) -> Cells:
        """The free cells as the last decision left them."""
        unused = [counts.copy() for counts in self.tenants.reserved]
        for tenant in tenants:
            for cell in map(tenant.virtual.cells.__getitem__, tenant.bound):
                unused[cell.chain][cell.level] -= 1
        same = snapshot.memory.get(_CELLS) == self.tenants.text
        return Cells(self.tenants.layout, snapshot.memory.get("free") if same else None, unused)

    def _ask(self, tenants: Sequence[Guaranteed], cells: Cells, squatters: Squatters, rows: Ints) -> None:
        """Ask the inner policy about the tenants to which, or to whose hardware, something has happened, and bind the
        cells that come into use. `rows` are the opportunistic jobs, which may be in the way.

        Where cells have sound and bad GPUs, it matters to a tenant which ones are left: then one is asked after the
        other, those first that had to wait.
        """
        asked = [tenant for tenant in tenants if self.in_rounds or not tenant.unchanged(self.slack_s)]
        for tenant in asked:
            tenant.let_go(cells)
        if squatters.partly_bad:
            squatters.settle(rows)
            for tenant in sorted(asked, key=lambda one: not one.short):
                tenant.ask(self.inner, self.placer, cells, squatters)
                self._bind([tenant], cells, squatters)
        else:
            for tenant in asked:
                tenant.ask(self.inner, self.placer, cells, squatters)
        late = [tenant for tenant in tenants if tenant not in asked and tenant.notices(cells, squatters)]
        for tenant in late:
            tenant.let_go(cells)
            tenant.ask(self.inner, self.placer, cells, squatters)
        if squatters.partly_bad:
            self._bind(late, cells, squatters)
        elif any(tenant.placed for tenant in (*asked, *late)):
            squatters.settle(rows)
            self._bind([*asked, *late], cells, squatters)

    def _bind(self, asked: Sequence[Guaranteed], cells: Cells, squatters: Squatters) -> None:
        """Bind real cells to the virtual ones that come into use: the largest first, and first for tenants that had to
        wait.
        """
        wanted = [(tenant, cell) for tenant in asked for cell in tenant.missing()]
        wanted.sort(key=lambda want: (-want[0].virtual.cells[want[1]].gpus, not want[0].short))
        for tenant, cell in wanted:
            tenant.bind(cell, cells, squatters)
        for tenant in asked:
            # A tenant that gave up before may have held what this one lacks; otherwise both would wait for each other.
            for cell in tenant.missing():
                tenant.bind(cell, cells, squatters)
            tenant.give_up(cells, squatters)

    def _occupied(self, snapshot: Snapshot, tenants: Sequence[Guaranteed]) -> Occupancy:
        """The real cluster with only the tenants' jobs on it."""
        occupancy, down, node_of_gpu = self.tenants.empty.copy(), snapshot.down_nodes, snapshot.cluster.node_of_gpu
        for node in sorted(down):
            occupancy.lose(node)
        bad = [gpu for gpu in snapshot.withheld_gpus if node_of_gpu[gpu] not in down]
        # In one go and in order, so that each node is touched once.
        occupancy.take(tuple(sorted([*bad, *(gpu for tenant in tenants for gpu in tenant.taken())])))
        return occupancy


def kept_bindings(memory: Mapping[str, Any]) -> dict[str, Any]:
    """What the layer has to remember if the inner policy changes: the bindings. Nothing if there was no layer."""
    if _CELLS not in memory:
        return {}
    tenants = {
        name: {"bound": known.get("bound", {}), "away": [*known.get("jobs", ()), *known.get("away", ())]}
        for name, known in memory["tenants"].items()
    }
    return {_CELLS: memory[_CELLS], "free": memory["free"], "tenants": tenants}


def is_layered(memory: Mapping[str, Any]) -> bool:
    """Whether memory is that of the layer, and not of a policy alone."""
    return _CELLS in memory


def _texts(parts: Sequence[Guaranteed | Opportunistic], owner: Ints, gpus: Ints) -> Texts:
    """Why each row waits."""
    told = [(part.label, part.rows, part.reasons()) for part in parts]

    def say(row: int) -> str:
        label, rows, reason = told[owner[row]]  # the opportunistic jobs, of owner -1, are the last part
        return f"{label}: {reason(int(np.searchsorted(rows, row)))}"

    return Texts((gpus == 0).nonzero()[0], say)
