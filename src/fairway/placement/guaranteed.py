"""One tenant during one decision: ask the inner policy about its virtual cluster, then bind its cells to real ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fairway.core import columns as c
from fairway.core.arrays import Bools, Ints
from fairway.core.check import check
from fairway.core.decision import Decision, Reason, nothing_granted, reason_text
from fairway.core.occupancy import Occupancy
from fairway.core.plan import Placer, plan
from fairway.core.policy import Policy
from fairway.core.snapshot import Snapshot
from fairway.placement.at_home import AtHome, Homeward
from fairway.placement.cells import Cells
from fairway.placement.hierarchy import Layout
from fairway.placement.squatters import Squatters
from fairway.placement.tenants import VirtualCluster
from fairway.placement.virtual import Held, tenant_view

_UNBOUND = "no sound hardware is free for its cell now, or a job that was started a moment ago holds it"
_AGAIN_S = 1.0
"""When to look again after a cell was bound to GPUs of which others are bad than was expected."""


class Lacking(NamedTuple):
    """What hardware does not give a tenant now: whole cells (`lost`), and single GPUs of others (`bad`).

    `expected` has the starts of cells with bad GPUs, which idle cells will be bound to.
    """

    lost: tuple[int, ...] = ()
    bad: tuple[int, ...] = ()
    expected: Mapping[int, int] = {}


class Guaranteed:
    """The rows of one tenant. `bound` maps its cells that are in use to the starts of real cells.

    `memory` is what the layer remembers of the tenant: the inner policy's memory, the bindings, where each cell was
    last (`homes`), which cells keep jobs that were suspended warm (`asleep`), which jobs are kept from running while
    their state is on GPUs (`away`), what had no hardware (`lost`, `bad`),
    whether jobs could not start because a cell could not be bound (`unbound`), and the last decision, which stands
    until something happens to the tenant. `pinned` are the real GPUs that hold the state of jobs, by job number: such
    a job runs nowhere else, so its cell stays bound.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        virtual: VirtualCluster,
        layout: Layout,
        rows: Ints,
        memory: Mapping[str, Any],
        pinned: Held,
    ) -> None:
        self.snapshot = snapshot
        self.virtual = virtual
        self.rows = rows
        self.memory = memory
        self._layout = layout
        self._pinned = self._own(pinned) if pinned else {}
        self._lacking = Lacking()
        self.bound = {int(node): int(start) for node, start in memory.get("bound", {}).items()}
        self.homes: dict[str, int] = dict(memory.get("homes", {}))
        self.placed: dict[int, tuple[int, ...]] = {}
        self._held: dict[int, tuple[int, ...]] = {}
        self._asleep: dict[str, list[int]] = {}
        self._at_home: dict[int, tuple[int, ...]] = {}
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
        """The owner of these rows and its quota, for explanations."""
        guests, gpus = self._partners(), self.decision.gpus
        used = int(gpus.sum()) - sum(int(gpus[guest]) for guest in guests)
        lacking = sum(self.virtual.cells[cell].gpus for cell in self._known_lost) + len(self._known_bad)
        short = f", {lacking} out of order" if lacking else ""
        return f"tenant {self.virtual.name} has {used} of its {self.virtual.cluster.gpu_count} GPUs in use{short}"

    @property
    def _known_lost(self) -> Sequence[int]:
        return self.memory.get("lost", ()) if self._view is None else self._lacking.lost

    @property
    def _known_bad(self) -> Sequence[int]:
        return self.memory.get("bad", ()) if self._view is None else self._lacking.bad

    @property
    def short(self) -> bool:
        """Whether hardware was missing for some of its cells at the last decision."""
        return any(self.memory.get(what) for what in ("lost", "bad", "unbound"))

    def _own(self, pinned: Held) -> Held:
        """The GPUs that hold the state of jobs of this tenant; also of those that are kept from running for a while."""
        known = {*self.snapshot.jobs[self.rows].tolist(), *self.memory.get("jobs", ()), *self.memory.get("away", ())}
        return {job: pinned[job] for job in sorted(known) if job in pinned}

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
        asleep: Mapping[str, list[int]] = self.memory.get("asleep", {}) if self.snapshot.down_nodes else {}
        return any(not self._is_up(cell) for cells in asleep.values() for cell in cells)

    def _is_up(self, cell: int) -> bool:
        """Whether all nodes of the real cell are up that a cell is bound to."""
        down, node_of_gpu = self.snapshot.down_nodes, self.snapshot.cluster.node_of_gpu
        places = range(self.bound[cell], self.bound[cell] + self.virtual.cells[cell].gpus)
        return not down or not any(node_of_gpu[self._layout.gpu_at[place]] in down for place in places)

    def notices(self, cells: Cells, squatters: Squatters) -> bool:
        """Whether sound hardware for its idle cells has come or gone since the last decision.

        Call this after the tenants with news have let go.
        """
        if not len(self.rows) or not (self.short or squatters.some_bad):
            return False
        lacking = self._what_lacks(cells, squatters)
        known = self.memory.get("lost", ()), self.memory.get("bad", ())
        return (list(lacking.lost), list(lacking.bad)) != tuple(map(list, known))

    def adopt(self, cells: Cells) -> Bools:
        """Bind cells around jobs that have GPUs outside of the tenant's cells: they started before it had these cells.

        Returns the rows for which that cannot be done.
        """
        left = np.zeros(len(self.rows), dtype=np.bool_)
        if self.as_left and not self._pinned:
            return left
        inside = self._inside()
        held_gpus, jobs = self.snapshot.frame.held_gpus, self.snapshot.jobs[self.rows].tolist()
        places = {at: held_gpus.get(job) or self._pinned.get(job, ()) for at, job in enumerate(jobs)}
        for at in sorted(places, key=lambda at: -len(places[at])):
            outside = [gpu for gpu in places[at] if gpu not in inside]
            if outside:
                found = self._claimed({self._layout.place_of[gpu] for gpu in outside}, cells)
                left[at] = not found
                inside = self._inside() if found else inside
        return left

    def _claimed(self, places: set[int], cells: Cells) -> bool:
        """Bind idle cells around some places; all of them, or nothing is changed."""
        before, left = set(self.bound), set(places)
        while left:
            cell = self._claim_one(min(left), left, cells)
            if cell is None:
                for other in set(self.bound) - before:
                    self._release(other, cells)
                return False
            left.difference_update(range(self.bound[cell], self.bound[cell] + self.virtual.cells[cell].gpus))
        return True

    def _claim_one(self, place: int, wanted: set[int], cells: Cells) -> int | None:
        """Bind the idle cell that covers a place and most of the wanted ones; of several the smallest."""
        chain, options = self._layout.chain_of[self._layout.top_of[place]], list[tuple[int, int, int, int]]()
        largest = self._layout.top_gpus[self._layout.top_of[place]]
        for number, cell in enumerate(self.virtual.cells):
            if number not in self.bound and cell.chain == chain and cell.gpus <= largest:
                start = self._layout.around(place, cell.gpus)
                options.append((-len(wanted.intersection(range(start, start + cell.gpus))), cell.gpus, number, start))
        for _, _, number, start in sorted(options):
            if cells.claim(chain, self.virtual.cells[number].level, start):
                self.bound[number] = start
                return number
        return None

    def _inside(self) -> dict[int, int]:
        """The virtual GPU for each real one in the tenant's cells."""
        gpu_at, virtual = self._layout.gpu_at, self.virtual
        return {
            gpu_at[start + k]: virtual.first[cell] + k
            for cell, start in self.bound.items()
            for k in range(virtual.cells[cell].gpus)
        }

    def let_go(self, cells: Cells) -> None:
        """Release the cells that have fallen idle."""
        real = self._inside()
        snapshot, held_gpus = self.snapshot, self.snapshot.frame.held_gpus
        for job in snapshot.jobs[self.rows[snapshot.held[self.rows] > 0]].tolist():
            self._held[job] = tuple([real[gpu] for gpu in held_gpus[job]])
        pinned = self._pinned.items()
        self._at_home = {job: tuple([real[gpu] for gpu in gpus]) for job, gpus in pinned if real.keys() >= set(gpus)}
        self._recall_sleepers()
        self._keep_only(self._cells(self._held.values()), cells)

    def _recall_sleepers(self) -> None:
        """The jobs that still wait where they were suspended warm; what was on a node that is down is lost."""
        asleep: Mapping[str, list[int]] = self.memory.get("asleep", {})
        if not asleep:
            return
        snapshot = self.snapshot
        waiting = set(snapshot.jobs[self.rows[snapshot.held[self.rows] == 0]].tolist())
        sound = {cell for cell in self.bound if self._is_up(cell)}
        self._asleep = {job: its for job, its in asleep.items() if int(job) in waiting and sound.issuperset(its)}

    def _note_sleepers(self) -> None:
        """Note which jobs are suspended warm now, and where."""
        jobs = self.snapshot.jobs[self.rows]
        for row, grant in enumerate(self.decision.gpus.tolist()):
            gpus = self._held.get(int(jobs[row])) if self._held else None
            if gpus and not grant and self.decision.warm:
                self._asleep[str(jobs[row])] = sorted(self._cells([gpus]))
            elif grant:
                self._asleep.pop(str(jobs[row]), None)

    def _cells(self, gangs: Iterable[tuple[int, ...]]) -> set[int]:
        """The cells in which gangs sit."""
        cell_of_gpu = self.virtual.cell_of_gpu
        return {cell_of_gpu[gpu] for gpus in gangs for gpu in gpus}

    def _keep_only(self, used: set[int], cells: Cells) -> None:
        """Release the other cells, except those in which the state of a suspended job is."""
        used = used.union(*self._asleep.values(), self._cells(self._at_home.values()))
        for cell in [cell for cell in self.bound if cell not in used]:
            self._release(cell, cells)

    def _release(self, cell: int, cells: Cells) -> None:
        about = self.virtual.cells[cell]
        cells.give(about.chain, about.level, self.bound.pop(cell))

    def ask(self, inner: Policy, placer: Placer, cells: Cells, squatters: Squatters) -> None:
        """Have the inner policy decide, and place the result on the virtual cluster."""
        self._lacking = self._what_lacks(cells, squatters) if squatters.some_bad or self.short else Lacking()
        self._view = view = self._seen()
        past: Mapping[str, Any] = view.memory
        if not len(self.rows) or not view.capacity.any():
            self.decision = nothing_granted(len(self.rows), Reason.NO_FREE_GPUS).remembering(past)
        else:
            blocked = dict.fromkeys(self._lacking.bad, "it is blocked")
            decision = Homeward(inner, self._at_home, blocked, self._real).decide(view)
            check(view, decision)
            planned = plan(view, decision, self._occupied(), self._homely(placer))
            self.decision = planned.kept(decision)
            self.placed = {target.row: target.gpus for target in planned.targets if target.gpus}
            if self.decision.warm or self._asleep:
                self._note_sleepers()
        self._keep_only(self._used(), cells)

    def _homely(self, placer: Placer) -> Placer:
        """The placement on the virtual cluster, where jobs whose state is on GPUs go nowhere else."""
        return AtHome(placer, lambda job: self._at_home.get(job, ()), dict) if self._at_home else placer

    def _occupied(self) -> Occupancy:
        """The virtual cluster as it is before the decision."""
        occupancy = self.virtual.empty.copy()
        for node in self.virtual.nodes_of(self._lacking.lost):
            occupancy.lose(node)
        if self._lacking.bad:
            occupancy.take(self._lacking.bad)
        if (self.snapshot.host[self.rows] >= 0).any():
            for gpus in self._held.values():
                occupancy.take(gpus)
        elif self._held:
            occupancy.take(tuple(sorted(gpu for gpus in self._held.values() for gpu in gpus)))
        return occupancy

    def _seen(self) -> Snapshot:
        about = {"memory": self.memory.get("memory", {}), "round_number": self.memory.get("round", 0)}
        lost, bad = self._lacking.lost, self._lacking.bad
        return tenant_view(self.snapshot, self.virtual, self.rows, held=self._held, lost=lost, bad=bad, **about)

    def _what_lacks(self, cells: Cells, squatters: Squatters) -> Lacking:
        """The idle cells for which there is no sound hardware at the moment, and the bad GPUs of the others."""
        scratch, lost, bad, expected = cells.copy(), list[int](), list[int](), dict[int, int]()
        taken = {gpu for gpus in self._held.values() for gpu in gpus}
        for number, cell in enumerate(self.virtual.cells):
            start = self.bound.get(number)
            if start is None:
                start = scratch.take(cell.chain, cell.level, squatters.harm)
                if start is None:
                    lost.append(number)
                    continue
                expected[number] = start
            first = self.virtual.first[number]
            bad += [first + k for k in squatters.bad_in(start, cell.gpus) if first + k not in taken]
        short = {self.virtual.cell_of_gpu[gpu] for gpu in bad}
        return Lacking(tuple(lost), tuple(bad), {cell: expected[cell] for cell in expected if cell in short})

    def _used(self) -> set[int]:
        """The cells that some job will be in."""
        rows = self.decision.gpus.nonzero()[0]
        jobs = self.snapshot.jobs[self.rows[rows]].tolist()
        pairs = zip(rows.tolist(), jobs, strict=True)
        return self._cells([self.placed.get(row) or self._held[job] for row, job in pairs])

    def missing(self) -> list[int]:
        """The cells in use that are not bound yet."""
        return sorted(self._used() - self.bound.keys()) if self.placed else []

    def bind(self, cell: int, cells: Cells, squatters: Squatters) -> bool:
        """Bind a cell, where it costs opportunistic jobs least; False if that cannot be done now."""
        about, home = self.virtual.cells[cell], self.homes.get(str(cell), -1)
        start: int | None = self._lacking.expected.get(cell)
        if start is None or not cells.claim(about.chain, about.level, start):
            start = cells.take(about.chain, about.level, squatters.cost, home)
        if start is None:
            return False
        self.bound[cell] = self.homes[str(cell)] = start
        return True

    def give_up(self, cells: Cells, squatters: Squatters) -> None:
        """Let jobs wait that could only start in an unbound cell, or on GPUs whose jobs may not be evicted yet."""
        blocked, wake_s = set[int](), squatters.until_s
        for row, gpus in self.placed.items():
            if any(cell not in self.bound for cell in self._cells([gpus])) or squatters.fixed_on(self._real(gpus)):
                blocked.add(row)
            elif squatters.some_bad and any(map(squatters.is_bad, self._real(gpus))):
                blocked.add(row)
                wake_s = min(wake_s, self.snapshot.now_s + _AGAIN_S)
        blocked |= {guest for guest, host in self.decision.partners.items() if host in blocked}
        if not blocked:
            return
        self._unbound = True
        texts = dict.fromkeys(blocked, _UNBOUND)
        self.decision = self.decision.without(blocked, Reason.NO_PLACEMENT, texts).waking(wake_s)
        self.placed = {row: gpus for row, gpus in self.placed.items() if row not in blocked}
        self._keep_only(self._used(), cells)

    def _real(self, gpus: tuple[int, ...]) -> tuple[int, ...]:
        """Real GPUs for virtual ones: place k of a virtual cell is place k of the real cell that it is bound to."""
        virtual, gpu_at = self.virtual, self._layout.gpu_at
        cells = [virtual.cell_of_gpu[gpu] for gpu in gpus]
        return tuple(
            gpu_at[self.bound[cell] + gpu - virtual.first[cell]] for cell, gpu in zip(cells, gpus, strict=True)
        )

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
        free = int(self.virtual.counted(self._known_lost, self._known_bad).sum() - decision.gpus.sum())

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
            "bound": {str(cell): start for cell, start in self.bound.items()},
            "homes": self.homes,
            "asleep": self._asleep,
            "lost": list(self._lacking.lost),
            "bad": list(self._lacking.bad),
            "unbound": self._unbound,
            "away": sorted(self._at_home.keys() - set(view.jobs.tolist())),
            "jobs": view.jobs.copy(),
            "granted": decision.gpus,
            "regime_end": view.floats[c.REGIME_END].copy(),
            "reasons": decision.reasons,
            "ahead": decision.ahead,
            "wake_s": decision.wake_s,
            "texts": {str(row): text for row, text in decision.texts.items()},
        }
