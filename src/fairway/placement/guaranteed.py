"""One tenant during one decision: ask the inner policy about its virtual cluster, then bind its cells to real ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fairway.core import columns as c
from fairway.core.arrays import Bools, Ints
from fairway.core.check import check
from fairway.core.decision import Decision, Reason, nothing_granted, reason_text
from fairway.core.occupancy import Occupancy
from fairway.core.plan import Placer, plan
from fairway.core.policy import Policy
from fairway.core.snapshot import Snapshot
from fairway.placement.cells import BLOCKED, UNUSABLE, Cells
from fairway.placement.tenants import Tenants, VirtualCluster
from fairway.placement.virtual import tenant_view

_UNBOUND = "no sound hardware is free for its cell now, or a job that was started a moment ago holds it"


class Guaranteed:
    """The rows of one tenant. `bound` maps its virtual nodes (cells) that are in use to the starts of real cells.

    `memory` is what the layer remembers of the tenant: the inner policy's memory, the bindings, where each cell was
    last (`homes`), which cells keep jobs that were suspended warm (`asleep`), which had no hardware (`lost`), whether
    jobs could not start because a cell could not be bound (`unbound`), and the last decision, which stands until
    something happens to the tenant.
    """

    def __init__(self, snapshot: Snapshot, virtual: VirtualCluster, rows: Ints, memory: Mapping[str, Any]) -> None:
        self.snapshot = snapshot
        self.virtual = virtual
        self.rows = rows
        self.memory = memory
        self.bound = {int(node): int(start) for node, start in memory.get("bound", {}).items()}
        self.homes: dict[str, int] = dict(memory.get("homes", {}))
        self.placed: dict[int, tuple[int, ...]] = {}
        self._held: dict[int, tuple[int, ...]] = {}
        self._asleep: dict[str, list[int]] = {}
        self._view: Snapshot | None = None
        self._unbound = False
        self.decision = Decision(
            np.asarray(memory.get("granted", ()), dtype=np.int64),
            np.asarray(memory.get("reasons", ()), dtype=np.int8),
            ahead=memory.get("ahead", -1),
            wake_s=memory.get("wake_s", math.inf),
            texts={int(row): text for row, text in memory.get("texts", {}).items()},
        )
        self.as_left = self._left_as_it_was()

    @property
    def label(self) -> str:
        """The owner of these rows, for explanations."""
        return f"tenant {self.virtual.name}"

    @property
    def short(self) -> bool:
        """Whether hardware was missing for some of its cells at the last decision."""
        return bool(self.memory.get("lost") or self.memory.get("unbound"))

    def _left_as_it_was(self) -> bool:
        """Whether the same jobs are there, and hold what the last decision gave them."""
        rows, ints = self.rows, self.snapshot.ints
        return (
            len(rows) == len(self.decision.gpus)
            and bool((ints[c.HELD, rows] == self.decision.gpus).all())
            and bool((ints[c.JOB, rows] == self.memory.get("jobs", ())).all())
        )

    def unchanged(self, slack_s: float) -> bool:
        """Whether on a private cluster nothing would have happened since the last decision.

        A tenant whose job waits for a cell to be bound is asked each time: nothing else would report a free cell to it.
        """
        memory, snapshot, rows = self.memory, self.snapshot, self.rows
        if not self.as_left or memory.get("unbound") or self._sleeper_lost():
            return False
        if not len(rows):
            return not self.bound
        regimes = snapshot.floats[c.REGIME_END, rows] == memory["regime_end"]
        return snapshot.now_s < self.decision.wake_s - slack_s and bool(regimes.all())

    def _sleeper_lost(self) -> bool:
        """Whether a job was suspended warm on a node that is down now."""
        down, node_of_gpu = self.snapshot.down_nodes, self.snapshot.cluster.node_of_gpu
        asleep: Mapping[str, list[int]] = self.memory.get("asleep", {}) if down else {}
        return any(node_of_gpu[self.bound[node]] in down for nodes in asleep.values() for node in nodes)

    def notices(self, cells: Cells) -> bool:
        """Whether sound hardware for its idle cells has come or gone since the last decision.

        Call this after the tenants with news have let go.
        """
        known = self.memory.get("lost", ())
        if not len(self.rows) or not (known or self.snapshot.down_nodes):
            return False
        return self._lost(cells) != list(known)

    def strays(self) -> Bools:
        """The rows that run, but not in the tenant's cells: the layer has not placed them."""
        if self.as_left:
            return np.zeros(len(self.rows), dtype=np.bool_)
        granted = np.asarray(self.memory.get("jobs", ()), dtype=np.int64)[self.decision.gpus > 0]
        jobs = self.snapshot.jobs[self.rows]
        strays: Bools = (self.snapshot.held[self.rows] > 0) & ~np.isin(jobs, granted)
        return strays

    def let_go(self, cells: Cells) -> None:
        """Release the cells that have fallen idle."""
        real = {
            start + k: self.virtual.cluster.first_gpu[node] + k
            for node, start in self.bound.items()
            for k in range(self.virtual.cells[node].gpus)
        }
        snapshot, held_gpus = self.snapshot, self.snapshot.frame.held_gpus
        for job in snapshot.jobs[self.rows[snapshot.held[self.rows] > 0]].tolist():
            self._held[job] = tuple([real[gpu] for gpu in held_gpus[job]])
        self._recall_sleepers()
        self._keep_only(self._nodes(self._held.values()), cells)

    def _recall_sleepers(self) -> None:
        """The jobs that still wait where they were suspended warm; what was on a node that is down is lost."""
        asleep: Mapping[str, list[int]] = self.memory.get("asleep", {})
        if not asleep:
            return
        snapshot = self.snapshot
        waiting = set(snapshot.jobs[self.rows[snapshot.held[self.rows] == 0]].tolist())
        sound = {n for n, at in self.bound.items() if snapshot.cluster.node_of_gpu[at] not in snapshot.down_nodes}
        self._asleep = {job: nodes for job, nodes in asleep.items() if int(job) in waiting and sound.issuperset(nodes)}

    def _note_sleepers(self) -> None:
        """Note which jobs are suspended warm now, and where."""
        jobs = self.snapshot.jobs[self.rows]
        for row, grant in enumerate(self.decision.gpus.tolist()):
            gpus = self._held.get(int(jobs[row])) if self._held else None
            if gpus and not grant and self.decision.warm:
                self._asleep[str(jobs[row])] = sorted(self._nodes([gpus]))
            elif grant:
                self._asleep.pop(str(jobs[row]), None)

    def _nodes(self, gangs: Iterable[tuple[int, ...]]) -> set[int]:
        """The virtual nodes on which gangs sit."""
        node_of_gpu = self.virtual.cluster.node_of_gpu
        return {node_of_gpu[gpu] for gpus in gangs for gpu in gpus}

    def _keep_only(self, used: set[int], cells: Cells) -> None:
        """Release the other cells, except those in which a suspended job sleeps."""
        used = used.union(*self._asleep.values())
        for node in [node for node in self.bound if node not in used]:
            cell = self.virtual.cells[node]
            cells.give(cell.chain, cell.level, self.bound.pop(node))

    def ask(self, inner: Policy, placer: Placer, cells: Cells) -> None:
        """Have the inner policy decide, and place the result on the virtual cluster."""
        lost = self._lost(cells) if self.snapshot.down_nodes or self.short else ()
        self._view = view = self._seen(lost)
        past: Mapping[str, Any] = view.memory
        if not len(self.rows) or not view.capacity.any():
            self.decision = nothing_granted(len(self.rows), Reason.NO_FREE_GPUS).remembering(past)
        else:
            decision = inner.decide(view)
            check(view, decision)
            planned = plan(view, decision, self._occupied(lost), placer)
            self.decision = planned.kept(decision)
            self.placed = {target.row: target.gpus for target in planned.targets if target.gpus}
            if self.decision.warm or self._asleep:
                self._note_sleepers()
        self._keep_only(self._used(), cells)

    def _occupied(self, lost: Sequence[int]) -> Occupancy:
        """The virtual cluster as it is before the decision."""
        occupancy = self.virtual.empty.copy()
        for node in lost:
            occupancy.lose(node)
        if (self.snapshot.host[self.rows] >= 0).any():
            for gpus in self._held.values():
                occupancy.take(gpus)
        elif self._held:
            occupancy.take(tuple(sorted(gpu for gpus in self._held.values() for gpu in gpus)))
        return occupancy

    def _seen(self, lost: Sequence[int]) -> Snapshot:
        about = {"memory": self.memory.get("memory", {}), "round_number": self.memory.get("round", 0)}
        return tenant_view(self.snapshot, self.virtual, self.rows, held=self._held, lost=lost, **about)

    def _lost(self, cells: Cells) -> list[int]:
        """The idle cells for which there is no sound hardware at the moment."""
        scratch, down, lost = cells.copy(), self.snapshot.down_nodes, []
        node_of_gpu = self.snapshot.cluster.node_of_gpu
        for node, cell in enumerate(self.virtual.cells):
            if node not in self.bound:
                start = scratch.take(cell.chain, cell.level, lambda at, _: UNUSABLE * (node_of_gpu[at] in down))
                if start is None:
                    lost.append(node)
        return lost

    def _used(self) -> set[int]:
        """The virtual nodes that some job will be on."""
        rows = self.decision.gpus.nonzero()[0]
        jobs = self.snapshot.jobs[self.rows[rows]].tolist()
        pairs = zip(rows.tolist(), jobs, strict=True)
        return self._nodes([self.placed.get(row) or self._held[job] for row, job in pairs])

    def missing(self) -> list[int]:
        """The virtual nodes in use that are not bound yet."""
        return sorted(self._used() - self.bound.keys()) if self.placed else []

    def bind(self, node: int, cells: Cells, squatters: Squatters) -> bool:
        """Bind a cell, where it costs opportunistic jobs least; False if that cannot be done now."""
        cell, home = self.virtual.cells[node], self.homes.get(str(node), -1)
        start = cells.take(cell.chain, cell.level, squatters.cost, home)
        if start is None:
            return False
        self.bound[node] = self.homes[str(node)] = start
        return True

    def give_up(self, cells: Cells, squatters: Squatters) -> None:
        """Let jobs wait that could only start in an unbound cell, or on GPUs whose jobs may not be evicted yet."""
        node_of_gpu = self.virtual.cluster.node_of_gpu
        blocked = {
            row
            for row, gpus in self.placed.items()
            if any(node_of_gpu[gpu] not in self.bound for gpu in gpus) or squatters.fixed_on(self._real(gpus))
        }
        blocked |= {guest for guest, host in self.decision.partners.items() if host in blocked}
        if not blocked:
            return
        self._unbound = True
        texts = dict.fromkeys(blocked, _UNBOUND)
        self.decision = self.decision.without(blocked, Reason.NO_PLACEMENT, texts).waking(squatters.until_s)
        self.placed = {row: gpus for row, gpus in self.placed.items() if row not in blocked}
        self._keep_only(self._used(), cells)

    def _real(self, gpus: tuple[int, ...]) -> tuple[int, ...]:
        """Real GPUs for virtual ones: GPU k of a virtual cell is GPU k of the real cell that it is bound to."""
        cluster, bound = self.virtual.cluster, self.bound
        nodes = [cluster.node_of_gpu[gpu] for gpu in gpus]
        return tuple(bound[node] + gpu - cluster.first_gpu[node] for node, gpu in zip(nodes, gpus, strict=True))

    def decided(self) -> Decision:
        """What becomes of the rows, with the real GPUs of those that get other ones."""
        guests, decision = self._partners(), self.decision
        return Decision(
            decision.gpus,
            decision.reasons,
            wake_s=decision.wake_s,
            partners=guests,
            placements={row: self._real(gpus) for row, gpus in self.placed.items() if row not in guests},
            throttles=self._throttles(guests),
            batches=decision.batches if self._view is not None else {},
            warm=decision.warm,
        )

    def taken(self) -> list[int]:
        """The real GPUs that are taken from now on, once each."""
        guests, placed, held_gpus = self._partners(), self.placed, self.snapshot.frame.held_gpus
        rows = self.decision.gpus.nonzero()[0]
        taken: list[int] = []
        for row, job in zip(rows.tolist(), self.snapshot.jobs[self.rows[rows]].tolist(), strict=True):
            if row not in guests:
                taken += self._real(placed[row]) if row in placed else held_gpus[job]
        return taken

    def _partners(self) -> Mapping[int, int]:
        """Guests and hosts; if the last decision stands, the present ones."""
        if self._view is not None:
            return self.decision.partners
        snapshot, rows = self.snapshot, self.rows
        guests = (snapshot.host[rows] >= 0).nonzero()[0]
        hosts = np.searchsorted(snapshot.jobs[rows], snapshot.host[rows[guests]])
        return dict(zip(guests.tolist(), hosts.tolist(), strict=True))

    def _throttles(self, guests: Mapping[int, int]) -> Mapping[int, float]:
        """What part of the time guests may compute."""
        if self._view is not None:
            return self.decision.throttles
        return {guest: float(self.snapshot.throttle[self.rows[guest]]) for guest in guests}

    def reasons(self) -> Callable[[int], str]:
        """Why rows of the tenant wait. The answer may be asked for later, so it keeps the gangs of now."""
        decision, view = self.decision, self._view
        if view is not None:
            return lambda row: decision.reason(view, row)
        snapshot, gangs = self.snapshot, self.snapshot.gpus[self.rows]
        lost = sum(self.virtual.cells[node].gpus for node in self.memory.get("lost", ()))
        free = int(self.virtual.cluster.gpu_count - lost - decision.gpus.sum())

        def say(row: int) -> str:
            ahead = snapshot.job_id(decision.ahead)
            return decision.texts.get(row) or reason_text(
                Reason(int(decision.reasons[row])), int(gangs[row]), free, ahead
            )

        return say

    def remembered(self) -> Mapping[str, Any]:
        """The memory for the next decision."""
        if self._view is None:
            return self.memory
        decision, view = self.decision, self._view
        return {
            "memory": decision.memory,
            "round": view.round + (len(self.rows) > 0),
            "bound": {str(node): start for node, start in self.bound.items()},
            "homes": self.homes,
            "asleep": self._asleep,
            "lost": sorted(view.down_nodes),
            "unbound": self._unbound,
            "jobs": view.jobs.copy(),
            "granted": decision.gpus,
            "regime_end": view.floats[c.REGIME_END].copy(),
            "reasons": decision.reasons,
            "ahead": decision.ahead,
            "wake_s": decision.wake_s,
            "texts": {str(row): text for row, text in decision.texts.items()},
        }


class Squatters:
    """Where opportunistic jobs sit, as a cost of cells: the GPUs that they would lose."""

    def __init__(self, snapshot: Snapshot, tenants: Tenants, rows: Ints) -> None:
        self.down = snapshot.down_nodes
        self.layout = tenants.layout
        self.until_s = math.inf
        self._on: dict[int, int] = {}
        self._fixed: dict[int, int] = {}
        until_s = snapshot.floats[c.PROTECTED_UNTIL_S]
        for row in rows[snapshot.held[rows] > 0].tolist():
            fixed = until_s[row] > snapshot.now_s
            self.until_s = min(self.until_s, float(until_s[row])) if fixed else self.until_s
            for gpu in snapshot.gpus_held(row):
                node, bit = self._bit(gpu)
                self._on[node] = self._on.get(node, 0) | bit
                if fixed:
                    self._fixed[node] = self._fixed.get(node, 0) | bit

    def _bit(self, gpu: int) -> tuple[int, int]:
        node = self.layout.node_of_gpu[gpu]
        return node, 1 << (gpu - self.layout.first_gpu[node])

    def cost(self, start: int, size: int) -> int:
        """How many GPUs of the cell opportunistic jobs hold."""
        node = self.layout.node_of_gpu[start]
        if node in self.down:
            return UNUSABLE
        if node not in self._on:
            return 0
        cell = ((1 << size) - 1) << (start - self.layout.first_gpu[node])
        return (self._on[node] & cell).bit_count() + BLOCKED * bool(self._fixed.get(node, 0) & cell)

    def fixed_on(self, gpus: tuple[int, ...]) -> bool:
        """Whether any of these GPUs is held by an opportunistic job that may not be stopped yet."""
        if not self._fixed:
            return False
        return any(self._fixed.get(node, 0) & bit for node, bit in map(self._bit, gpus))
