"""The tenant layer: any policy, inside virtual clusters (HiveD, Zhao et al., OSDI'20).

Each tenant's jobs are scheduled by an inner policy that sees only the tenant's virtual cluster. A virtual cell that is
in use is bound to a real one by buddy allocation, and released when it falls idle. Opportunistic jobs are scheduled
last, on what is idle, and give way at once. The inner policy is asked about a tenant at exactly those instants at which
it would be asked on a private cluster, so the tenant gets the schedule that it would have there. Only if hardware has
failed and cells are short is a tenant asked more often: when cells come or go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fairway.core.arrays import Ints
from fairway.core.decision import Decision
from fairway.core.occupancy import Occupancy
from fairway.core.plan import Placer
from fairway.core.policy import Layer
from fairway.core.snapshot import Snapshot
from fairway.core.texts import Texts
from fairway.placement.cells import Cells
from fairway.placement.guaranteed import Guaranteed, Squatters
from fairway.placement.opportunistic import Opportunistic
from fairway.placement.tenants import OPPORTUNISTIC, Tenants


@dataclass(frozen=True)
class Tenanted(Layer):
    """A policy inside each tenant's virtual cluster, and last for opportunistic jobs.

    It knows what the inner policy knows. `in_rounds`: decisions are taken at fixed intervals, so every tenant is asked
    each time. `slack_s`: how much too early a wake-up may come, because instants are rounded to a grid.
    """

    tenants: Tenants
    placer: Placer
    in_rounds: bool = False
    slack_s: float = 2e-9

    def decide(self, snapshot: Snapshot) -> Decision:
        """Tenants first, each by itself; then bind their cells; then the opportunistic jobs."""
        owner = self.tenants.owners(snapshot)
        tenants = self._tenants(snapshot, owner)
        cells = self._cells(snapshot, tenants)
        asked = self._asked(tenants, cells)
        rows = (owner == OPPORTUNISTIC).nonzero()[0]
        if any(tenant.placed for tenant in asked):
            self._bind(asked, cells, Squatters(snapshot, self.tenants, rows))
        rest = Opportunistic(snapshot, rows)
        if len(rows):
            rest.ask(self.inner, self.placer, self._occupied(snapshot, tenants))
        parts: list[Guaranteed | Opportunistic] = [*tenants, rest]
        whole = Decision.composed([(part.rows, part.decided()) for part in parts], len(snapshot))
        memory = {
            "tenants": {tenant.virtual.name: tenant.remembered() for tenant in tenants},
            "free": cells.plain(),
            "opportunistic": rest.remembered(),
            "whole_nodes": rest.whole_nodes,
        }
        return whole._replace(memory=memory, texts=_texts(parts, owner, whole.gpus))

    def _tenants(self, snapshot: Snapshot, owner: Ints) -> list[Guaranteed]:
        """The tenants with their rows. A job that runs outside of its tenant's cells, because it started before there
        were tenants, is opportunistic until it is stopped; `owner` is corrected.
        """
        known, tenants = snapshot.memory.get("tenants", {}), []
        for number, virtual in enumerate(self.tenants.parts):
            tenant = Guaranteed(snapshot, virtual, (owner == number).nonzero()[0], known.get(virtual.name, {}))
            strays = tenant.strays()
            if strays.any():
                owner[tenant.rows[strays]] = OPPORTUNISTIC
                tenant.rows = tenant.rows[~strays]
            tenants.append(tenant)
        return tenants

    def _cells(self, snapshot: Snapshot, tenants: Sequence[Guaranteed]) -> Cells:
        """The free cells as the last decision left them."""
        unused = [counts.copy() for counts in self.tenants.reserved]
        for tenant in tenants:
            for node in tenant.bound:
                cell = tenant.virtual.cells[node]
                unused[cell.chain][cell.level] -= 1
        return Cells(self.tenants.layout, snapshot.memory.get("free"), unused)

    def _asked(self, tenants: Sequence[Guaranteed], cells: Cells) -> list[Guaranteed]:
        """The tenants about which the inner policy was asked: something has happened to them, or to the hardware."""
        asked = [tenant for tenant in tenants if self.in_rounds or not tenant.unchanged(self.slack_s)]
        for tenant in asked:
            tenant.let_go(cells)
        for tenant in asked:
            tenant.ask(self.inner, self.placer, cells)
        for tenant in tenants:
            if tenant not in asked and tenant.notices(cells):
                tenant.let_go(cells)
                tenant.ask(self.inner, self.placer, cells)
                asked.append(tenant)
        return asked

    def _bind(self, asked: Sequence[Guaranteed], cells: Cells, squatters: Squatters) -> None:
        """Bind real cells to the virtual ones that come into use: the largest first, and first for tenants that had to
        wait.
        """
        wanted = [(tenant, node) for tenant in asked for node in tenant.missing()]
        wanted.sort(key=lambda want: (-want[0].virtual.cells[want[1]].gpus, not want[0].short))
        for tenant, node in wanted:
            tenant.bind(node, cells, squatters)
        for tenant in asked:
            # A tenant that gave up before may have held what this one lacks; otherwise both would wait for each other.
            for node in tenant.missing():
                tenant.bind(node, cells, squatters)
            tenant.give_up(cells, squatters)

    def _occupied(self, snapshot: Snapshot, tenants: Sequence[Guaranteed]) -> Occupancy:
        """The real cluster with only the tenants' jobs on it."""
        occupancy = self.tenants.empty.copy()
        for node in sorted(snapshot.down_nodes):
            occupancy.lose(node)
        # In one go and in order, so that each node is touched once.
        occupancy.take(tuple(sorted(gpu for tenant in tenants for gpu in tenant.taken())))
        return occupancy


def _texts(parts: Sequence[Guaranteed | Opportunistic], owner: Ints, gpus: Ints) -> Texts:
    """Why each row waits."""
    told = [(part.label, part.rows, part.reasons()) for part in parts]

    def say(row: int) -> str:
        label, rows, reason = told[owner[row]]  # the opportunistic jobs, of owner -1, are the last part
        return f"{label}: {reason(int(np.searchsorted(rows, row)))}"

    return Texts((gpus == 0).nonzero()[0], say)
